"""fuse: fuse a loop nest into one loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit, wrap_loops
from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import require_chain, require_plain_loop
from blockwright.schedule.legality.guards import evaluated_early, require_lasting
from blockwright.schedule.rewrite.loops import factors, loop_names, simplified_bindings


class Fuse(Primitive, frozen=True, eq=False):
    """Fuse perfectly nested loops into one loop.

    Args:
        loops: the loops, outermost first.
        preserve_unit_iters: include loops of extent 1 in the name and the index expressions of the
            fused loop.
        name: name of the fused loop; default: the names of the loops, joined.

    Requires:
    - each loop is the only statement of the one before it;
    - all are serial and have no annotations;
    - no bound depends on an outer loop of the nest, or is loaded from memory that the loops write;
      bounds of inner loops are safe to evaluate even if an outer loop has no iterations (BW350).

    Before::

        @T.prim_func
        def main(A: T.Buffer((16, 8), "float32"), B: T.Buffer((16, 8), "float32")):
            for i, j in T.grid(16, 8):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] + 1.0

    Steps::

        i, j = sch.get_loops(sch.get_block("B"))
        sch.fuse(i, j)

    After::

        @T.prim_func
        def main(A: T.Buffer((16, 8), "float32"), B: T.Buffer((16, 8), "float32")):
            for i_j_fused in range(128):
                with T.block("B"):
                    vi = T.axis.spatial(16, i_j_fused // 8)
                    vj = T.axis.spatial(8, i_j_fused % 8)
                    B[vi, vj] = A[vi, vj] + 1.0
    """

    method: ClassVar[str] = "fuse"
    returns: ClassVar[Returns] = "loop"
    variadic: ClassVar[str] = "loops"

    loops: tuple[LoopRV, ...]
    preserve_unit_iters: bool = True
    name: str | None = None

    def apply(self, state: StepState) -> StepResult:
        if not self.loops:
            state.fail(
                "no loops are given",
                code="BW304",
                help="pass the loops from outer to inner, in the order of get_loops",
            )
        loops = [state.loop(handle) for handle in self.loops]
        for loop in loops:
            require_plain_loop(state, loop)
        path = require_chain(state, loops)
        if path != loops:
            state.fail(
                "the loops are not given outermost first, without gaps",
                code="BW310",
                guilty=loops,
                help=f"the nest is {', '.join(f.loop_var.name for f in path)}: pass all of "
                "them in this order, or reorder the loops in between first",
            )
        analyzer = state.loop_facts(loops[0])
        self._independent(state, loops)
        again = loops[1:] if ir.is_const_int(loops[0].min) else loops
        require_lasting(state, again, [loops[0]])
        inner = [evaluated_early(state, f, loops[: k + 1]) for k, f in enumerate(loops[1:])]
        extents = factors([loops[0], *inner], analyzer)
        dtype = _type_of_all(loops, extents)
        sizes = [ir.cast_to(e, dtype) for e in extents]
        parts = list(range(len(loops)))
        if not self.preserve_unit_iters:
            one = ir.const(1, dtype)
            parts = [k for k in parts if not analyzer.prove_equal(sizes[k], one)] or [0]
        name = "_".join(loops[k].loop_var.name for k in parts) + "_fused"
        if len(parts) == 1:
            name = loops[parts[0]].loop_var.name
        if self.name is not None:
            (name,) = loop_names(state, loops[0], (self.name,), 1)
        fused = ir.Var(name, dtype)
        total: ir.Expr = ir.const(1, dtype)
        mapping: dict[ir.Var, ir.Expr] = {f.loop_var: f.min for f in loops}
        for k in reversed(parts):
            value = ir.floordiv(fused, total)
            if k != parts[0]:
                value = ir.floormod(value, sizes[k])
            value = ir.cast_to(value, loops[k].loop_var.type)
            mapping[loops[k].loop_var] = ir.add(loops[k].min, value)
            total = sizes[k] * total
        total = analyzer.simplify(total)
        edit = Edit(state)
        body = edit.substitute(loops[-1].body, mapping)
        analyzer.bind(fused, ir.Range(ir.const(0, dtype), total))
        body = simplified_bindings(body, {fused}, analyzer)
        edit.replace(loops[0], wrap_loops(body, [(fused, total)]))
        return edit.finish(fused)

    @staticmethod
    def _independent(state: StepState, loops: list[ir.For]) -> None:
        seen: set[ir.Var] = set()
        for loop in loops:
            if seen and (ir.uses_var(loop.extent, seen) or ir.uses_var(loop.min, seen)):
                state.fail(
                    f"a bound of loop {loop.loop_var.name} depends on an outer one",
                    code="BW350",
                    guilty=[loop],
                    help="only loops with independent ranges can be fused: fuse the loops "
                    "outside this one, or those inside it",
                )
            seen.add(loop.loop_var)


def _type_of_all(loops: list[ir.For], extents: Sequence[ir.Expr]) -> ir.DType:
    """Return the type of the fused loop variable: the widest of the loops, or int64 if the product
    of the constant extents does not fit it."""
    dtype = max((f.loop_var.type for f in loops), key=lambda t: t.bits)
    known = [ir.const_int(e) or 1 for e in extents]
    return dtype if math.prod(known) <= dtype.max_value else ir.dtype_of("int64")

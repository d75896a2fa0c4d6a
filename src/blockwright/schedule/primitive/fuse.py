"""fuse: a nest of loops becomes one loop."""

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
    """Fuse loops nested directly in one another into one loop.

    Args:
        loops: the loops, outermost first.
        preserve_unit_iters: let loops that run once take part in the new loop's name and value.
        name: of the new loop; the default joins the names of the loops.

    Requires:
    - each loop is the only statement of the one before it;
    - all are serial and carry no annotation;
    - no bound depends on an outer one of the loops, or is loaded from what the loops write; bounds
      of inner loops can be evaluated where an outer one does not run (BW350).

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
                help="give the loops from outer to inner, as get_loops lists them",
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
                help=f"the nest is {', '.join(f.loop_var.name for f in path)}: name all of "
                "them in this order, or reorder those between away first",
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
                    help="only loops of independent ranges fuse: fuse those "
                    "outside or inside of this one",
                )
            seen.add(loop.loop_var)


def _type_of_all(loops: list[ir.For], extents: Sequence[ir.Expr]) -> ir.DType:
    """The type of the fused loop: that of the loops, or 64 bits where one of them has these or the
    product of constant extents needs them."""
    dtype = max((f.loop_var.type for f in loops), key=lambda t: t.bits)
    known = [ir.const_int(e) or 1 for e in extents]
    return dtype if math.prod(known) <= dtype.max_value else ir.dtype_of("int64")

"""loop_partition: partition the range of a loop into several consecutive loops."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.fresh_copy import copied
from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Factor, Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import require_plain_loop, with_own_buffers
from blockwright.schedule.legality.guards import require_lasting
from blockwright.schedule.rewrite.loops import moved, simplified_bindings


class LoopPartition(Primitive, frozen=True, eq=False):
    """Partition the range of a loop into several loops that run one after the other.

    The execution order does not change, so dependences are not checked. Predicates that always
    hold in a piece are dropped there, which is the purpose of peeling a border. Pieces that do not
    run the first step of a reduction drop its initial value.

    Args:
        loop: the loop.
        factors: the number of iterations of each piece, in order. One may be None: it gets the
            remaining iterations. Without None, an extra last piece runs the remaining iterations,
            unless there are provably none.
        preserve_unit_iters: keep loops of extent 1.

    Requires:
    - the loop is serial and not annotated, and does not write the memory its bounds are loaded
      from (BW350);
    - the sum of the factors provably does not exceed the extent (BW318);
    - a buffer private to each iteration of an inner parallel loop stays private (BW317).

    Before::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
            for i in range(128):
                with T.block("B"):
                    vi = T.axis.spatial(128, i)
                    B[vi] = A[vi] + 1.0

    Steps::

        (i,) = sch.get_loops(sch.get_block("B"))
        sch.loop_partition(i, factors=[1, None, 1], preserve_unit_iters=False)

    After::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
            with T.block("B_i0"):
                vi = T.axis.spatial(128, 0)
                B[vi] = A[vi] + 1.0
            for i1 in range(1, 127):
                with T.block("B_i1"):
                    vi = T.axis.spatial(128, i1)
                    B[vi] = A[vi] + 1.0
            with T.block("B_i2"):
                vi = T.axis.spatial(128, 127)
                B[vi] = A[vi] + 1.0
    """

    method: ClassVar[str] = "loop_partition"
    siblings: ClassVar[bool] = True
    returns: ClassVar[Returns] = "loops"

    loop: LoopRV
    factors: tuple[Factor, ...]
    preserve_unit_iters: bool = True

    def apply(self, state: StepState) -> StepResult:
        loop = state.loop(self.loop)
        require_plain_loop(state, loop)
        require_lasting(state, [loop], [loop])
        analyzer = state.loop_facts(loop)
        pieces = self._pieces(state, loop, analyzer)
        result: list[ir.Stmt] = []
        fresh: list[ir.Var] = []
        late = False
        for k, piece in enumerate(pieces):
            single = analyzer.prove_equal(piece.extent, ir.const(1, piece.extent.dtype))
            var = ir.Var(f"{loop.loop_var.name}{k}", loop.loop_var.type)
            known = analyzer.copy()
            value: ir.Expr = piece.min
            if self.preserve_unit_iters or not single:
                known.bind(var, piece)
                fresh.append(var)
                value = var
            body = _named(copied(loop.body), f"_{loop.loop_var.name}{k}")
            body = moved(body, loop.loop_var, value, known)
            shortened = _without_late_start(body, known)
            late, body = late or shortened is not body, shortened
            used = {var} if value is var else set(ir.free_vars(value))
            body = simplified_bindings(body, used, known)
            result.append(
                loop.replace(loop_var=var, min=piece.min, extent=piece.extent, body=body)
                if value is var
                else body
            )
        edit = Edit(state)
        edit.replace(loop, ir.seq(result))
        if late:  # an update reads the buffer that a reduction only writes
            edit.refresh_signatures()
        step = edit.finish(*fresh)
        return with_own_buffers(state, loop, step)

    def _pieces(self, state: StepState, loop: ir.For, analyzer: Analyzer) -> list[ir.Range]:
        dtype = loop.loop_var.type
        taken: ir.Expr = ir.const(0, dtype)
        if sum(f is None for f in self.factors) > 1:
            state.fail(
                "more than one factor is None",
                code="BW304",
                guilty=[loop],
                help="pass numbers for all pieces but one, for example [1, None, 1]",
            )
        if not self.factors:
            state.fail(
                "no factors are given",
                code="BW304",
                guilty=[loop],
                help="pass the number of iterations of each piece, for example [1, None, 1]",
            )
        sizes = [
            None if f is None else ir.cast_to(ir.as_expr(f, None), dtype) for f in self.factors
        ]
        for size in sizes:
            taken = taken if size is None else taken + size
            if size is not None and not analyzer.prove(ir.GE(size, ir.const(1, dtype))):
                state.fail(
                    "a symbolic factor is not provably positive",
                    code="BW318",
                    guilty=[loop],
                    help='declare its lower bound in "tir_var_lower_bound"',
                )
        left = analyzer.simplify(ir.cast_to(loop.extent, dtype) - taken)
        inferred = any(size is None for size in sizes)
        smallest = ir.const(1 if inferred else 0, dtype)
        if not analyzer.prove(ir.GE(left, smallest)):
            state.fail(
                f"the factors may take more iterations than loop {loop.loop_var.name} has",
                code="BW318",
                guilty=[loop],
                help="use smaller factors, or declare a lower bound of the extent",
            )
        if not inferred and not analyzer.prove_equal(left, ir.const(0, dtype)):
            sizes.append(None)
        pieces: list[ir.Range] = []
        start: ir.Expr = ir.cast_to(loop.min, dtype)
        for size in sizes:
            extent = left if size is None else size
            pieces.append(ir.Range(analyzer.simplify(start), extent))
            start = start + extent
        return pieces


def _named(stmt: ir.Stmt, suffix: str) -> ir.Stmt:
    """Append a suffix to the names of all blocks in a statement."""

    def change(node: ir.Node) -> ir.Node | None:
        return node.replace(name=node.name + suffix) if isinstance(node, ir.Block) else None

    return ir.rewrite_bottom_up(stmt, change)


def _without_late_start(stmt: ir.Stmt, analyzer: Analyzer) -> ir.Stmt:
    """Turn reductions that never run their first step into updates, without an init."""
    if isinstance(stmt, ir.For):
        inner = analyzer.copy()
        inner.bind(stmt.loop_var, stmt.dom)
        return stmt.replace(body=_without_late_start(stmt.body, inner))
    if isinstance(stmt, ir.Block):
        return stmt
    if not isinstance(stmt, ir.BlockRealize) or stmt.block.init is None:
        return stmt.map_children(
            lambda c: _without_late_start(c, analyzer) if isinstance(c, ir.Stmt) else c
        )
    block = stmt.block
    for it, value in zip(block.iter_vars, stmt.iter_values, strict=True):
        reduces = it.iter_type is ir.IterType.REDUCE
        if reduces and analyzer.prove(ir.GT(*ir.match_types(value, it.dom.min))):
            known = analyzer.copy()
            return stmt.replace(block=with_signature(block.replace(init=None), known))
    return stmt

"""vectorize: map the iterations of a loop to vector lanes."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.analysis import NoReduction, find_update
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import require_concurrent, require_unbound


class Vectorize(Primitive, frozen=True, eq=False):
    """Vectorize a loop: its iterations become the lanes of vector operations.

    Args:
        loop: the loop.

    Requires:
    - the loop is not bound to a thread axis (BW312);
    - the extent is a constant;
    - all statements below the loop are in blocks that are complete, reductions or updates;
    - the loop drives no reduction iterator, and iterations write different elements; or it is the
      innermost loop of a reduction with a builtin or declared reducer whose initial value is
      decomposed (`decompose_reduction`). Then the lanes are combined by a horizontal reduction,
      which accumulates floating-point sums in another order;
    - no iteration reads what another iteration writes.

    Before::

        @T.prim_func
        def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
            for i in range(8):
                with T.block("B"):
                    vi = T.axis.spatial(8, i)
                    B[vi] = A[vi] + 1.0

    Steps::

        (i,) = sch.get_loops(sch.get_block("B"))
        sch.vectorize(i)

    After::

        @T.prim_func
        def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
            for i in T.vectorized(8):
                with T.block("B"):
                    vi = T.axis.spatial(8, i)
                    B[vi] = A[vi] + 1.0
    """

    method: ClassVar[str] = "vectorize"

    loop: LoopRV

    def apply(self, state: StepState) -> StepResult:
        loop = state.loop(self.loop)
        require_unbound(state, loop)
        if not ir.is_const_int(loop.extent):
            state.fail(
                f"loop {loop.loop_var.name} has no constant extent",
                code="BW354",
                guilty=[loop],
                help="split the loop by a constant factor and vectorize the inner loop",
            )
        if not combines_lanes(state, loop):
            require_concurrent(state, loop, "vectorized")
        edit = Edit(state)
        edit.replace(loop, loop.replace(kind=ir.ForKind.VECTORIZED))
        return edit.finish()


def combines_lanes(state: StepState, loop: ir.For) -> bool:
    """Whether all iterations of an innermost loop reduce into one element or one tuple."""
    realize = loop.body
    if not isinstance(realize, ir.BlockRealize) or realize.block.init is not None:
        return False
    block = realize.block
    for it, value in zip(block.iter_vars, realize.iter_values, strict=True):
        if ir.uses_var(value, loop.loop_var) and it.iter_type is not ir.IterType.REDUCE:
            return False
    result = find_update(block)
    if isinstance(result, NoReduction) or state.flow_at(loop).decides_itself(block):
        return False
    reduced = {it.var for it in block.iter_vars if it.iter_type is ir.IterType.REDUCE}
    return not any(
        ir.uses_var(index, reduced) for element in result.elements for index in element.indices
    )

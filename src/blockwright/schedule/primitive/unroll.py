"""unroll: mark a loop for full unrolling."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import require_unbound


class Unroll(Primitive, frozen=True, eq=False):
    """Unroll a loop fully.

    Args:
        loop: the loop.

    Requires:
    - the loop is not bound to a thread axis (BW312);
    - the extent is a constant.

    Before::

        @T.prim_func
        def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
            for i in range(8):
                with T.block("B"):
                    vi = T.axis.spatial(8, i)
                    B[vi] = A[vi] + 1.0

    Steps::

        (i,) = sch.get_loops(sch.get_block("B"))
        sch.unroll(i)

    After::

        @T.prim_func
        def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
            for i in T.unroll(8):
                with T.block("B"):
                    vi = T.axis.spatial(8, i)
                    B[vi] = A[vi] + 1.0
    """

    method: ClassVar[str] = "unroll"

    loop: LoopRV

    def apply(self, state: StepState) -> StepResult:
        loop = state.loop(self.loop)
        require_unbound(state, loop)
        if not ir.is_const_int(loop.extent):
            state.fail(
                f"loop {loop.loop_var.name} has no constant extent",
                code="BW354",
                guilty=[loop],
                help="split the loop by a constant factor and unroll the inner loop",
            )
        edit = Edit(state)
        edit.replace(loop, loop.replace(kind=ir.ForKind.UNROLLED))
        return edit.finish()

"""get_loops: return handles for the loops around a block."""

from __future__ import annotations

from typing import ClassVar

from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState


class GetLoops(Primitive, frozen=True, eq=False):
    """Return the loops around a block within its scope, outermost first.

    Args:
        block: the block.
    """

    method: ClassVar[str] = "get_loops"
    pure: ClassVar[bool] = True
    returns: ClassVar[Returns] = "loops"

    block: BlockRV

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        if block is state.func.root:
            return StepResult(state.func)
        return StepResult(
            state.func, results=tuple(f.loop_var for f in state.tree.loops_above(block))
        )

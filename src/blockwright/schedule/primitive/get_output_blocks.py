"""get_output_blocks: return handles for the blocks that write the outputs of a scope."""

from __future__ import annotations

from typing import ClassVar

from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState


class GetOutputBlocks(Primitive, frozen=True, eq=False):
    """Return the blocks directly inside a scope that write a buffer the scope does not allocate.

    Args:
        scope_block: the block whose children are searched.
    """

    method: ClassVar[str] = "get_output_blocks"
    pure: ClassVar[bool] = True
    returns: ClassVar[Returns] = "blocks"

    scope_block: BlockRV

    def apply(self, state: StepState) -> StepResult:
        flow = state.data_flow(state.block(self.scope_block))
        return StepResult(state.func, results=tuple(b for b in flow.blocks if flow.is_output(b)))

"""get_child_blocks: return handles for the blocks directly below a block or loop."""

from __future__ import annotations

from typing import ClassVar

from blockwright.schedule.engine.handle import BlockRV, LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState


class GetChildBlocks(Primitive, frozen=True, eq=False):
    """Return the blocks directly below a block or loop, in program order.

    Blocks nested in another of these blocks are not included.

    Args:
        block_or_loop: the block or loop to search.
    """

    method: ClassVar[str] = "get_child_blocks"
    pure: ClassVar[bool] = True
    returns: ClassVar[Returns] = "blocks"

    block_or_loop: BlockRV | LoopRV

    def apply(self, state: StepState) -> StepResult:
        result = state.tree.child_blocks(state.stmt(self.block_or_loop))
        return StepResult(state.func, results=tuple(result))

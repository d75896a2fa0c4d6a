"""get_producers: return handles for the producers of a block in the same scope."""

from __future__ import annotations

from typing import ClassVar

from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState


class GetProducers(Primitive, frozen=True, eq=False):
    """Return the blocks of the same scope that write what a block reads, in program order.

    Args:
        block: the consumer.
    """

    method: ClassVar[str] = "get_producers"
    pure: ClassVar[bool] = True
    returns: ClassVar[Returns] = "blocks"

    block: BlockRV

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        flow = state.flow_at(block)
        return StepResult(state.func, results=tuple(flow.producers(block)))

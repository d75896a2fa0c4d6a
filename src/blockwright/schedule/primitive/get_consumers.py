"""get_consumers: return handles for the consumers of a block in the same scope."""

from __future__ import annotations

from typing import ClassVar

from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState


class GetConsumers(Primitive, frozen=True, eq=False):
    """Return the blocks of the same scope that read what a block writes, in program order.

    Args:
        block: the producer.
    """

    method: ClassVar[str] = "get_consumers"
    pure: ClassVar[bool] = True
    returns: ClassVar[Returns] = "blocks"

    block: BlockRV

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        flow = state.flow_at(block)
        return StepResult(state.func, results=tuple(flow.consumers(block)))

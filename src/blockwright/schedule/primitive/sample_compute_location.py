"""sample_compute_location: sample a legal compute location for a producer."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.handle import BlockRV, Handle, LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import SampledLocation, StepResult, StepState, Target
from blockwright.schedule.primitive.compute_at import ComputeAt
from blockwright.schedule.primitive.compute_inline import ComputeInline
from blockwright.support import ScheduleError

_BLOCK, _LOOP = BlockRV(0), LoopRV(1)


class SampleComputeLocation(Primitive, frozen=True, eq=False):
    """Sample a compute location for a block: a loop of its consumer, its current place, or inline.

    The result is passed to `compute_at`, which also accepts the two locations that are not loops.
    Legal locations are sampled uniformly; the current location is always legal.

    Args:
        block: a block whose result is read in its scope.
        decision: the location to use instead of sampling: the position of a loop around the first
            consumer (0 is the outermost), -1 for the current location, -2 to inline the block.

    Requires:
    - a block in the scope reads what the block writes (BW322);
    - a decision is an existing location (BW304); `compute_at` checks that it is legal.

    Before::

        @T.prim_func
        def main(A: T.Buffer((64, 64), "float32"), C: T.Buffer((64, 64), "float32")):
            B = T.alloc_buffer((64, 64), "float32")
            for i, j in T.grid(64, 64):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] * 2.0
            for i, j in T.grid(64, 64):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = B[vi, vj] + 1.0

    Steps::

        b = sch.get_block("B")
        sch.compute_at(b, sch.sample_compute_location(b, decision=-2))

    After::

        @T.prim_func
        def main(A: T.Buffer((64, 64), "float32"), C: T.Buffer((64, 64), "float32")):
            for i, j in T.grid(64, 64):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = A[vi, vj] * 2.0 + 1.0
    """

    method: ClassVar[str] = "sample_compute_location"
    pure: ClassVar[bool] = True
    returns: ClassVar[Returns] = "loop"

    block: BlockRV
    decision: int | None = None

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        realize = state.realize(block)
        consumers = state.flow_at(block).consumers(block)
        if not consumers:
            state.fail(
                f"nothing reads what block {block.name} writes",
                code="BW322",
                guilty=[realize],
                help="choose a block that has consumers",
            )
        loops = state.tree.loops_above(consumers[0])
        chosen = self.decision
        if chosen is None:
            legal = [k for k, loop in enumerate(loops) if _allows(state, block, loop)]
            inline = [-2] if _allows(state, block, None) else []
            chosen = state.random.choice([*inline, -1, *legal])
        if not -2 <= chosen < len(loops):
            state.fail(
                f"decision={chosen} is out of range: {len(loops)} loops are around "
                f"block {consumers[0].name}",
                code="BW304",
                guilty=[realize],
                help="-1 is the current location, -2 inlines the block",
            )
        places: dict[int, Target] = {-1: SampledLocation.ROOT, -2: SampledLocation.INLINE}
        target = places[chosen] if chosen < 0 else loops[chosen].loop_var
        return StepResult(state.func, results=(target,), decision=chosen)


def _allows(state: StepState, block: ir.Block, loop: ir.For | None) -> bool:
    """Whether the block can be computed at a loop, or inlined if `loop` is None."""

    def resolve(handle: Handle) -> Target:
        return block if handle == _BLOCK or loop is None else loop.loop_var

    probe = StepState(state.func, resolve, state.step_name, state.memo)
    try:
        step = ComputeInline(_BLOCK) if loop is None else ComputeAt(_BLOCK, _LOOP)
        step.apply(probe)
    except ScheduleError:
        return False
    return True

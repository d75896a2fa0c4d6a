"""software_pipeline: statements of several iterations of a loop run side by side."""

from __future__ import annotations

from typing import ClassVar

from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.rewrite.pipeline import pipelined
from blockwright.schedule.rewrite.pipeline_stages import plan


class SoftwarePipeline(Primitive, frozen=True, eq=False):
    """Let a loop begin an iteration before the earlier ones have ended.

    The body is cut into its statements. Statement `k` runs in stage `stages[k]`: at one time the
    loop runs the statement for the iteration that was begun `stages[k]` steps ago, in the sequence
    that `orders` gives. A prologue fills the pipeline and an epilogue empties it; in between stands
    the loop, which keeps its variable: the last stage is at iteration `i`, earlier stages ahead.

    A buffer that carries values from one stage to another gets as many versions as iterations use
    it at once, used in turn; each version holds what one iteration needs. Where other loops stand
    around, the pipeline becomes a block that allocates these buffers, so that iterations of the
    outer loops share nothing.

    The program is rewritten here, at the step, and not by a pass that reads annotations: it can be
    printed, interpreted and compared, and what would be illegal is refused where it is asked for.
    The annotations of the classic system, `software_pipeline_stage` and `software_pipeline_order`,
    are checked by the same rules when the second one is set, and again before a build, which takes
    this step for them.

    Steps that need to know what a block does on its whole domain (compute_at, parallel, …) come
    before this one: afterwards a block stands in up to three places.

    Args:
        loop: the loop; serial, without annotations. Its extent may be symbolic, and smaller than
            the number of stages.
        stages: a stage for each statement of the body, the first one being 0.
        orders: the place of each statement among those that run at one time, all different;
            program order when not given.

    Requires:
    - one entry per statement, none negative, no place twice (BW304);
    - all that the loop does happens in blocks (BW313), which do not write what its bounds are
      loaded from (BW350);
    - what a statement needs from another one of the same iteration comes earlier: in an earlier
      stage, or in the same stage and earlier in `orders` (BW370); effects such as printing, and
      assertions, keep their order (BW370);
    - a value that one iteration leaves to a later one is there when that runs; a buffer that would
      be overwritten too early is allocated in the block around the loop, used in the loop only and
      written by every iteration before it is read, so that it can have versions (BW371);
    - where versions get a block of their own, the loops around it that drive a reduction inside
      surely run (BW365).

    Before::

        @T.prim_func
        def main(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16, 64), "float32")):
            B = T.alloc_buffer((16, 64), "float32")
            for i in range(16):
                for j in range(64):
                    with T.block("B"):
                        vi, vj = T.axis.remap("SS", [i, j])
                        B[vi, vj] = A[vi, vj] * 2.0
                for j in range(64):
                    with T.block("C"):
                        vi, vj = T.axis.remap("SS", [i, j])
                        C[vi, vj] = B[vi, vj] + 1.0

    Steps::

        i = sch.get_loops(sch.get_block("B"))[0]
        sch.software_pipeline(i, stages=[0, 1], orders=[0, 1])

    After::

        @T.prim_func
        def main(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16, 64), "float32")):
            B = T.alloc_buffer((2, 1, 64), "float32")
            for j in range(64):
                with T.block("B_prologue"):
                    vi = T.axis.spatial(16, 0)
                    vj = T.axis.spatial(64, j)
                    B[vi % 2, 0, vj] = A[vi, vj] * 2.0
            for i in range(15):
                for j in range(64):
                    with T.block("B"):
                        vi = T.axis.spatial(16, i + 1)
                        vj = T.axis.spatial(64, j)
                        B[vi % 2, 0, vj] = A[vi, vj] * 2.0
                for j in range(64):
                    with T.block("C"):
                        vi = T.axis.spatial(16, i)
                        vj = T.axis.spatial(64, j)
                        C[vi, vj] = B[vi % 2, 0, vj] + 1.0
            for j in range(64):
                with T.block("C_epilogue"):
                    vi = T.axis.spatial(16, 15)
                    vj = T.axis.spatial(64, j)
                    C[vi, vj] = B[vi % 2, 0, vj] + 1.0
    """

    method: ClassVar[str] = "software_pipeline"

    loop: LoopRV
    stages: tuple[int, ...]
    orders: tuple[int, ...] | None = None

    def apply(self, state: StepState) -> StepResult:
        return pipelined(state, plan(state, state.loop(self.loop), self.stages, self.orders))

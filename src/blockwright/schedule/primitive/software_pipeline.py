"""software_pipeline: overlap the statements of several iterations of a loop."""

from __future__ import annotations

from typing import ClassVar

from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.rewrite.pipeline import pipelined
from blockwright.schedule.rewrite.pipeline_stages import plan


class SoftwarePipeline(Primitive, frozen=True, eq=False):
    """Software-pipeline a loop: start an iteration before the previous ones have finished.

    The loop body is divided into its statements. In each step of the pipelined loop, statement `k`
    runs for the iteration that started `stages[k]` steps ago; `orders` gives the order of the
    statements within a step. A prologue fills the pipeline and an epilogue drains it. The loop in
    between keeps its variable `i`: the last stage runs iteration `i`, earlier stages run ahead.

    A buffer that carries values between stages gets as many copies as iterations use it at the same
    time (multi-buffering), used in rotation; each copy holds what one iteration needs. If there are
    outer loops, the pipeline becomes a block that allocates these buffers, so that iterations of
    the outer loops share nothing.

    The step itself rewrites the program, instead of a later pass that reads annotations: the result
    can be printed, interpreted and compared, and an illegal pipeline is rejected at the step.
    TVM's annotations `software_pipeline_stage` and `software_pipeline_order` are checked by the
    same rules when the second one is set, and again before a build, which applies this step for
    them.

    Steps that analyze a block on its whole domain (compute_at, parallel, …) must come before this
    one: afterwards a block occurs in up to three places.

    Args:
        loop: the loop; serial, without annotations. Its extent may be symbolic, and smaller than
            the number of stages.
        stages: the stage of each statement of the body; the first stage is 0.
        orders: the position of each statement within a step, all different; default: program
            order.

    Requires:
    - one entry per statement, none negative, no position twice (BW304);
    - all statements of the loop are in blocks (BW313), which do not write the memory its bounds are
      loaded from (BW350);
    - a statement runs after the statements of the same iteration that it depends on: in a later
      stage, or in the same stage and later in `orders`; effects such as printing, and assertions,
      keep their order (BW370);
    - loop-carried values are written before the later iteration reads them. A buffer that would be
      overwritten too early is allocated in the block around the loop, used in the loop only and
      written by every iteration before it is read, so that it can be multi-buffered (BW371);
    - if the copies need a block of their own, the loops around it that drive a reduction inside
      provably run at least once (BW365).

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

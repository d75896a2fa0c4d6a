"""double_buffer: fill a buffer for the next iteration while the current one is used."""

from __future__ import annotations

from typing import ClassVar

from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffers import accessed_buffer
from blockwright.schedule.rewrite.pipeline import pipelined
from blockwright.schedule.rewrite.pipeline_annotations import prefetch_plan


class DoubleBuffer(Primitive, frozen=True, eq=False):
    """Double-buffer a buffer: fill one copy for the next iteration while the other one is used.

    This is `software_pipeline` with two stages: the statement that fills the buffer, together with
    the statements of the same iteration that it depends on, runs one iteration ahead of the rest.
    The loop is the innermost one around the block in which other statements use the buffer.

    TVM's annotation `double_buffer_scope`, on the block with the position of a write region, has
    the same effect at build time. On a block in a software pipeline it requests at least two
    copies of the buffer.

    Args:
        block: the block that fills the buffer.
        buffer_index: position among the block's write regions, or the buffer's name.

    Requires:
    - the block writes the buffer (BW320), and other statements of a loop around it use the buffer
      (BW322);
    - the pipeline is legal, as in `software_pipeline` (BW312, BW313, BW370, BW371).

    Before::

        @T.prim_func
        def main(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16, 64), "float32")):
            B = T.alloc_buffer((64,), "float32")
            for i in range(16):
                for j in range(64):
                    with T.block("B"):
                        vi, vj = T.axis.remap("SS", [i, j])
                        B[vj] = A[vi, vj] * 2.0
                for j in range(64):
                    with T.block("C"):
                        vi, vj = T.axis.remap("SS", [i, j])
                        C[vi, vj] = B[vj] + 1.0

    Steps::

        sch.double_buffer(sch.get_block("B"), 0)

    After::

        @T.prim_func
        def main(A: T.Buffer((16, 64), "float32"), C: T.Buffer((16, 64), "float32")):
            B = T.alloc_buffer((2, 64), "float32")
            for j in range(64):
                with T.block("B_prologue"):
                    vi = T.axis.spatial(16, 0)
                    vj = T.axis.spatial(64, j)
                    B[vi % 2, vj] = A[vi, vj] * 2.0
            for i in range(15):
                for j in range(64):
                    with T.block("B"):
                        vi = T.axis.spatial(16, i + 1)
                        vj = T.axis.spatial(64, j)
                        B[vi % 2, vj] = A[vi, vj] * 2.0
                for j in range(64):
                    with T.block("C"):
                        vi = T.axis.spatial(16, i)
                        vj = T.axis.spatial(64, j)
                        C[vi, vj] = B[vi % 2, vj] + 1.0
            for j in range(64):
                with T.block("C_epilogue"):
                    vi = T.axis.spatial(16, 15)
                    vj = T.axis.spatial(64, j)
                    C[vi, vj] = B[vi % 2, vj] + 1.0
    """

    method: ClassVar[str] = "double_buffer"
    siblings: ClassVar[bool] = True

    block: BlockRV
    buffer_index: int | str

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        buffer = accessed_buffer(state, block, self.buffer_index, "write")
        return pipelined(state, prefetch_plan(state, block, buffer))

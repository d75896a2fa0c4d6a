"""unsafe.annotate_buffer_access: a block states whatever region it is told."""

from __future__ import annotations

from typing import ClassVar

from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import NewRanges, UnsafePrimitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.primitive import annotate_buffer_access as checked


class AnnotateBufferAccess(UnsafePrimitive, frozen=True, eq=False):
    """State the region of a buffer in a block's signature, without a look at the block's body.

    The caller vouches that the block touches nothing outside the region, and, when it writes, all
    of it. It holds until a later step changes the body of the block. A region that leaves out what
    the body touches fails the "full" check of `Schedule` and of `bw.validate`.

    Args:
        block: the block.
        buffer_index: position of the region, or the buffer's name.
        buf_type: "read" or "write".
        gen_new_ranges: from the block's iterators to one entry per dimension: an index, or a pair
            of start and end. In the flat form of a trace each dimension is `..., start, end`.

    Requires: the function takes each iterator and gives an entry per dimension (BW304).

    Before::

        @T.prim_func
        def main(A: T.Buffer((8,), "float32"), B: T.Buffer((16,), "float32")):
            for i in range(8):
                with T.block("B"):
                    vi = T.axis.spatial(8, i)
                    B[vi * 2] = A[vi]

    Steps::

        sch.unsafe.annotate_buffer_access(
            sch.get_block("B"), 0, "write", lambda i: ((i * 2, i * 2 + 2),)
        )

    After::

        @T.prim_func
        def main(A: T.Buffer((8,), "float32"), B: T.Buffer((16,), "float32")):
            for i in range(8):
                with T.block("B"):
                    vi = T.axis.spatial(8, i)
                    T.reads(A[vi])
                    T.writes(B[vi * 2:vi * 2 + 2])
                    B[vi * 2] = A[vi]
    """

    method: ClassVar[str] = "annotate_buffer_access"

    block: BlockRV
    buffer_index: int | str
    buf_type: str
    gen_new_ranges: NewRanges

    def apply(self, state: StepState) -> StepResult:
        same = checked.AnnotateBufferAccess(
            self.block, self.buffer_index, self.buf_type, self.gen_new_ranges
        )
        block, region = same.new_region(state)
        return checked.with_region(state, block, region, self.buf_type)

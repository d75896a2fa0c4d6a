"""unsafe.annotate_buffer_access: set an access region of a block without checking it."""

from __future__ import annotations

from typing import ClassVar

from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import NewRanges, UnsafePrimitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.primitive import annotate_buffer_access as checked


class AnnotateBufferAccess(UnsafePrimitive, frozen=True, eq=False):
    """Set the region of a buffer in a block's signature without checking it against the body.

    The caller guarantees that the block accesses nothing outside the region and, for a write
    region, that it writes all of it. The region lasts until a later step changes the body of the
    block. A region that does not cover the accesses of the body fails the "full" check of
    `Schedule` and of `bw.validate`.

    Args:
        block: the block.
        buffer_index: position of the region, or the buffer's name.
        buf_type: "read" or "write".
        gen_new_ranges: function from the block's iterators to one entry per dimension: an index, or
            a pair of start and end. In the flat form of a trace each dimension is
            `..., start, end`.

    Requires: the function has one parameter per iterator and returns one entry per dimension
    (BW304).

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

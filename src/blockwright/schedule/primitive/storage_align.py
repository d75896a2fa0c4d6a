"""storage_align: pad the stride of a buffer dimension to an alignment plus an offset."""

from __future__ import annotations

from typing import ClassVar

from blockwright.analysis import align_rows
from blockwright.ir.annotations import DIM_ALIGN
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import require_layout_free
from blockwright.schedule.legality.buffers import accessed_buffer, require_home
from blockwright.schedule.primitive.annotate import with_annotations


class StorageAlign(Primitive, frozen=True, eq=False):
    """Pad the stride of a dimension so that it equals `offset` modulo `factor`.

    The alignment is recorded in the annotation `buffer_dim_align` of the block. It applies when
    memory is laid out, after the buffer has been shrunk to the part that is used.

    Args:
        block: a block that writes the buffer.
        buffer_index: position among its write regions, or the buffer's name.
        axis: dimension whose stride is aligned; negative counts from the last.
        factor: alignment of the stride minus `offset`, in elements; at least 1.
        offset: elements added to the aligned stride, for example 1 to avoid bank conflicts.

    Requires:
    - the buffer is allocated in the program, not a parameter (BW321), and has no explicit strides
      (BW328);
    - the axis exists, the factor is at least 1 (BW304);
    - the address of the buffer is not passed to calls, and no view of it has fixed strides, because
      these depend on the distance between rows (BW328).

    Before::

        @T.prim_func
        def main(A: T.Buffer((32, 32), "float32"), B: T.Buffer((32, 32), "float32")):
            A_shared = T.alloc_buffer((32, 32), "float32", scope="shared")
            for i, j in T.grid(32, 32):
                with T.block("A_shared"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    A_shared[vi, vj] = A[vi, vj]
            for i, j in T.grid(32, 32):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A_shared[vj, vi]

    Steps::

        sch.storage_align(sch.get_block("A_shared"), 0, axis=0, factor=32, offset=1)

    After::

        @T.prim_func
        def main(A: T.Buffer((32, 32), "float32"), B: T.Buffer((32, 32), "float32")):
            A_shared = T.alloc_buffer((32, 32), "float32", scope="shared")
            for i, j in T.grid(32, 32):
                with T.block("A_shared"):
                    T.block_attr({"buffer_dim_align": [[0, 0, 32, 1]]})
                    vi, vj = T.axis.remap("SS", [i, j])
                    A_shared[vi, vj] = A[vi, vj]
            for i, j in T.grid(32, 32):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A_shared[vj, vi]
    """

    method: ClassVar[str] = "storage_align"

    block: BlockRV
    buffer_index: int | str
    axis: int
    factor: int
    offset: int

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        buffer = accessed_buffer(state, block, self.buffer_index, "write")
        owner = require_home(state, block, buffer)
        if not -buffer.ndim <= self.axis < buffer.ndim:
            state.fail(
                f"axis {self.axis} is out of range: {buffer.name} has {buffer.ndim} dimensions",
                code="BW304",
                guilty=[block],
                help="axes count from 0; negative ones count from the last",
            )
        if self.factor < 1:
            state.fail(
                f"factor must be at least 1, got {self.factor}",
                code="BW304",
                guilty=[block],
                help="pass the number of elements to align the stride to",
            )
        require_layout_free(state, owner, buffer)
        index = next(k for k, r in enumerate(block.writes) if r.buffer is buffer)
        axis = self.axis % buffer.ndim
        kept = [(k, *row) for k, row in align_rows(block) if (k, row[0]) != (index, axis)]
        rows = (*kept, (index, axis, self.factor, self.offset))
        return with_annotations(state, block, {**block.annotations, DIM_ALIGN: rows})

"""unsafe.set_dtype: change the element type of a buffer."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import UnsafePrimitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffers import accessed_buffer
from blockwright.schedule.rewrite.element_type import with_element_type
from blockwright.support import IRError


class SetDtype(UnsafePrimitive, frozen=True, eq=False):
    """Change the element type of a buffer; stores and loads convert.

    Values are rounded to the new type; the caller guarantees that the results are still accurate
    enough.

    Args:
        block: a block that writes the buffer.
        buffer_index: position among the block's write regions, or the buffer's name.
        dtype: the new element type, such as "float16".

    Requires: the buffer is allocated in the program (BW321), and accessed element by element, by no
    atomic update (BW359); the type is scalar (BW304).

    Before::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), C: T.Buffer((128,), "float32")):
            B = T.alloc_buffer((128,), "float32")
            for i in range(128):
                with T.block("B"):
                    vi = T.axis.spatial(128, i)
                    B[vi] = A[vi] * T.float32(2)
            for i in range(128):
                with T.block("C"):
                    vi = T.axis.spatial(128, i)
                    C[vi] = B[vi] + T.float32(1)

    Steps::

        sch.unsafe.set_dtype(sch.get_block("B"), 0, "float16")

    After::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), C: T.Buffer((128,), "float32")):
            B = T.alloc_buffer((128,), "float16")
            for i in range(128):
                with T.block("B"):
                    vi = T.axis.spatial(128, i)
                    B[vi] = T.float16(A[vi] * T.float32(2))
            for i in range(128):
                with T.block("C"):
                    vi = T.axis.spatial(128, i)
                    C[vi] = T.float32(B[vi]) + T.float32(1)
    """

    method: ClassVar[str] = "set_dtype"

    block: BlockRV
    buffer_index: int | str
    dtype: str

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        buffer = accessed_buffer(state, block, self.buffer_index, "write")
        dtype = self._type(state)
        return with_element_type(state, block, buffer, dtype, exact=False)

    def _type(self, state: StepState) -> ir.DType:
        try:
            stored = ir.dtype_of(self.dtype)
        except IRError:
            stored = None
        if stored is None or not stored.is_scalar or stored.kind == "handle":
            state.fail(
                f"dtype={self.dtype!r} is not a scalar element type",
                code="BW304",
                help='use a type such as "float16", "bfloat16" or "int8"',
            )
        return stored

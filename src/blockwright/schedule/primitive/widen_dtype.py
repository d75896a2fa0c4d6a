"""widen_dtype: store a buffer in a wider element type that holds the same values."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffers import accessed_buffer
from blockwright.schedule.rewrite.element_type import with_element_type
from blockwright.support import IRError

_DIGITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
"""Bits of the significand, the implicit one included."""

_WIDER = {
    "bfloat16": ("float32", "float64"),
    "float16": ("float32", "float64"),
    "float32": ("float64",),
}


class WidenDtype(Primitive, frozen=True, eq=False):
    """Store an intermediate buffer in a wider element type that holds all of its values.

    Conversions of loaded values start from the new type: `T.float32(B[i])` of a bfloat16 buffer
    becomes `B[i]` of a float32 buffer, so that the producer converts each element once instead of
    every reader. Use it where an instruction takes wider operands than the program has.

    Args:
        block: a block that writes the buffer.
        buffer_index: position among the block's write regions, or the buffer's name.
        dtype: the new element type, such as "int16" for an int8 or uint8 buffer.

    Requires: every value of the old type is a value of the new type (BW304); the buffer is
    allocated in the program (BW321), and accessed element by element, by no atomic update (BW359).

    Before::

        @T.prim_func
        def main(A: T.Buffer((128,), "bfloat16"), C: T.Buffer((128,), "float32")):
            B = T.alloc_buffer((128,), "bfloat16")
            for i in range(128):
                with T.block("B"):
                    vi = T.axis.spatial(128, i)
                    B[vi] = A[vi]
            for i in range(128):
                with T.block("C"):
                    vi = T.axis.spatial(128, i)
                    C[vi] = T.float32(B[vi]) + T.float32(1)

    Steps::

        sch.widen_dtype(sch.get_block("B"), 0, "float32")

    After::

        @T.prim_func
        def main(A: T.Buffer((128,), "bfloat16"), C: T.Buffer((128,), "float32")):
            B = T.alloc_buffer((128,), "float32")
            for i in range(128):
                with T.block("B"):
                    vi = T.axis.spatial(128, i)
                    B[vi] = T.float32(A[vi])
            for i in range(128):
                with T.block("C"):
                    vi = T.axis.spatial(128, i)
                    C[vi] = B[vi] + T.float32(1)
    """

    method: ClassVar[str] = "widen_dtype"

    block: BlockRV
    buffer_index: int | str
    dtype: str

    def apply(self, state: StepState) -> StepResult:
        block = state.block(self.block)
        buffer = accessed_buffer(state, block, self.buffer_index, "write")
        dtype = self._type(state, buffer.dtype)
        return with_element_type(state, block, buffer, dtype, exact=True)

    def _type(self, state: StepState, old: ir.DType) -> ir.DType:
        try:
            wide = ir.dtype_of(self.dtype)
        except IRError:
            wide = None
        if wide is None or not _holds_all(wide, old):
            state.fail(
                f"dtype={self.dtype!r} does not hold every value of {old.name}",
                code="BW304",
                help='use a wider type, such as "int16" for int8 and uint8 or "float32" for '
                "bfloat16; unsafe.set_dtype rounds values",
            )
        return wide


def _holds_all(wide: ir.DType, old: ir.DType) -> bool:
    """Whether every value of a scalar type is a value of another one."""
    if wide is old:
        return True
    if not (wide.is_scalar and old.is_scalar):
        return False
    if old.is_int:
        low, high = old.min_value, old.max_value
        if wide.is_int:
            return wide.min_value <= low and high <= wide.max_value
        return wide.name in _DIGITS and max(-low, high) <= 1 << _DIGITS[wide.name]
    return wide.name in _WIDER.get(old.name, ())

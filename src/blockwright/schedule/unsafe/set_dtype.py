"""unsafe.set_dtype: change the element type of a buffer."""

from __future__ import annotations

from typing import ClassVar

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import Forwarding
from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import UnsafePrimitive
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffers import accessed_buffer, require_elements, require_home
from blockwright.support import IRError


class SetDtype(UnsafePrimitive, frozen=True, eq=False):
    """Change the element type of a buffer; stores and loads convert.

    Values are rounded to the new type; the caller guarantees that the results are still accurate
    enough.

    Args:
        block: a block that writes the buffer.
        buffer_index: position among the block's write regions, or the buffer's name.
        dtype: the new element type, such as "float16".

    Requires: the buffer is allocated in the program (BW321) and accessed element by element
    (BW359); the type is scalar (BW304).

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
        owner = require_home(state, block, buffer)
        stored = self._type(state)
        if stored is buffer.dtype:
            return StepResult(state.func)
        require_elements(state, owner, buffer)
        edit = Edit(state)
        edit.replace_block(owner, _Convert(buffer, stored, edit.forward)(owner))
        return edit.finish()

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


class _Convert(Forwarding):
    """Replace a buffer by one of another type, convert at accesses, and record changed blocks."""

    def __init__(self, old: ir.Buffer, stored: ir.DType, forward: dict[ir.Block, ir.Block]) -> None:
        super().__init__(forward)
        self._old = old
        self._stored = stored
        self._memo[old] = old.replace(dtype=stored)

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> ir.Expr:
        new = self.descend(node)
        return ir.cast_to(new, self._old.dtype) if node.buffer is self._old else new

    def rewrite_BufferStore(self, node: ir.BufferStore) -> ir.Stmt:
        new = self.descend(node)
        if node.buffer is not self._old:
            return new
        return new.replace(value=ir.cast_to(new.value, self._stored))

"""unsafe.set_dtype: a buffer stores its elements in another type."""

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
    """Store the buffer a block writes in another type; stores and loads convert.

    The caller vouches that the results are still good enough: values are rounded to the new type.

    Args:
        block: a block that writes the buffer.
        buffer_index: position among the block's write regions, or the buffer's name.
        dtype: the new element type, such as "float16".

    Requires: the buffer is allocated in the program (BW321) and used element by element (BW359);
    the type is a scalar one (BW304).

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
                f"{self.dtype!r} is no type that an element can have",
                code="BW304",
                help='such as "float16", "bfloat16", "int8"',
            )
        return stored


class _Convert(Forwarding):
    """Another buffer in place of one, with conversions at its accesses; notes changed blocks."""

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

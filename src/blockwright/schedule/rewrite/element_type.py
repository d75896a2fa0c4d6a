"""Change the element type of an allocated buffer (`widen_dtype`, `unsafe.set_dtype`)."""

from __future__ import annotations

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import Forwarding
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import require_elements
from blockwright.schedule.legality.buffers import require_home


def with_element_type(
    state: StepState, block: ir.Block, buffer: ir.Buffer, dtype: ir.DType, *, exact: bool
) -> StepResult:
    """Store a buffer in another element type; stores and loads convert.

    With `exact`, the type holds every value of the old one, so that conversions of loaded values
    start from it.
    """
    owner = require_home(state, block, buffer)
    if dtype is buffer.dtype:
        return StepResult(state.func)
    _require_no_atomics(state, owner, buffer)
    require_elements(state, owner, buffer)
    edit = Edit(state)
    edit.replace_block(owner, _Convert(buffer, dtype, exact, edit.forward)(owner))
    return edit.finish()


def _require_no_atomics(state: StepState, stmt: ir.Stmt, buffer: ir.Buffer) -> None:
    """Atomic updates compute in the element type of memory, which conversions cannot restore."""
    for node in ir.walk(stmt):
        if not ir.is_atomic(node):
            continue
        place = ir.atomic_place(node)
        if place is not None and place.buffer is buffer:
            state.fail(
                f"{node.op} updates {buffer.name} in its own element type",
                code="BW359",
                guilty=[node],
                help="keep the type of buffers that are updated atomically",
            )


class _Convert(Forwarding):
    """Replace a buffer by one of another type, convert at accesses, and record changed blocks."""

    def __init__(
        self, old: ir.Buffer, stored: ir.DType, exact: bool, forward: dict[ir.Block, ir.Block]
    ) -> None:
        super().__init__(forward)
        self._old, self._stored, self._exact = old, stored, exact
        self._memo[old] = old.replace(dtype=stored)

    def rewrite_Cast(self, node: ir.Cast) -> ir.Expr:
        load = node.value
        if self._exact and isinstance(load, ir.BufferLoad) and load.buffer is self._old:
            return ir.cast_to(self.descend(load), node.dtype)
        return self.descend(node)

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> ir.Expr:
        new = self.descend(node)
        return ir.cast_to(new, self._old.dtype) if node.buffer is self._old else new

    def rewrite_BufferStore(self, node: ir.BufferStore) -> ir.Stmt:
        new = self.descend(node)
        if node.buffer is not self._old:
            return new
        return new.replace(value=ir.cast_to(new.value, self._stored))

"""Change the element type of an allocated buffer (`widen_dtype`, `unsafe.set_dtype`)."""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis import facts_of_initial
from blockwright.arith import Analyzer
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import Forwarding
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import require_elements
from blockwright.schedule.legality.buffers import require_home
from blockwright.schedule.legality.kept_values import Unmarked, as_value


def with_element_type(
    state: StepState, block: ir.Block, buffer: ir.Buffer, dtype: ir.DType, *, exact: bool
) -> StepResult:
    """Store a buffer in another element type; stores and loads convert.

    A store still reduces its value to the old type first: an index that does not fit becomes a
    value modulo 2**n of that type (docs/semantics.md, Integers). With `exact`, the new type holds
    every value of the old one, so that conversions of loaded values start from it.
    """
    owner = require_home(state, block, buffer)
    if dtype is buffer.dtype:
        return StepResult(state.func)
    _require_no_atomics(state, owner, buffer)
    require_elements(state, owner, buffer)
    edit = Edit(state)
    edit.replace_block(owner, _Convert(state, owner, buffer, dtype, exact, edit.forward)(owner))
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
        self,
        state: StepState,
        owner: ir.Block,
        old: ir.Buffer,
        stored: ir.DType,
        exact: bool,
        forward: dict[ir.Block, ir.Block],
    ) -> None:
        super().__init__(forward)
        self._state, self._old, self._new = state, old, old.replace(dtype=stored)
        self._stored = stored
        self._exact = exact
        self._sorts = ir.Sorts(ir.value_variables(state.func))
        self._known: Analyzer = state.analyzer(owner)
        self._forget()

    def _forget(self) -> None:
        """Forget earlier results: they depend on the facts at their place."""
        self._memo = {self._old: self._new}

    def rewrite_Block(self, node: ir.Block) -> ir.Block:
        around, inside = self._known, self._known.copy()
        for it in node.iter_vars:
            inside.bind(it.var, it.dom)

        def part(child: ir.Node) -> ir.Node:
            self._known = inside
            if child is node.init:
                self._known = facts_of_initial(inside, self._state.tree.realize(node))
            self._forget()
            return self(child)

        new = node.map_children(part)
        self._known = around
        self._forget()
        if new is not node:
            self.forward[node] = new
        return new

    def rewrite_For(self, node: ir.For) -> ir.For:
        around, self._known = self._known, self._known.copy()
        self._known.bind(node.loop_var, node.dom)
        self._forget()
        new = self.descend(node)
        self._known = around
        self._forget()
        return new

    def rewrite_Cast(self, node: ir.Cast) -> ir.Expr:
        load = node.value
        if (
            isinstance(load, ir.BufferLoad)
            and load.buffer is self._old
            and self._exact
            and _same_conversion(load.dtype, self._stored, node.dtype)
        ):
            return ir.cast_to(self.descend(load), node.dtype)
        return self.descend(node)

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> ir.Expr:
        new = self.descend(node)
        return ir.cast_to(new, self._old.dtype) if node.buffer is self._old else new

    def rewrite_BufferStore(self, node: ir.BufferStore) -> ir.Stmt:
        new = self.descend(node)
        if node.buffer is not self._old:
            return new
        value = as_value(new.value, self._sorts)
        if value is not new.value:
            value = Unmarked(self._sorts, self._known)(value)
        return new.replace(value=ir.cast_to(value, self._stored))


def _same_conversion(old: ir.DType, new: ir.DType, result: ir.DType) -> bool:
    """Whether a value of `old` and the equal value of `new` convert to the same result.

    Integers wrap to a narrower integer type, and floats saturate.
    """
    if not (old.is_int and new.is_float and result.is_int):
        return True
    return result.min_value <= old.min_value and old.max_value <= result.max_value

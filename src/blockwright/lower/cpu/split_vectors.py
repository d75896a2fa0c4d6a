"""Split vectors longer than a register into register-sized ones.

Before, with 16 lanes to a register::

    C[T.ramp(0, 1, 48)] = C[T.ramp(0, 1, 48)] + T.broadcast(a, 48) * B[T.ramp(0, 1, 48)]

After::

    C[T.ramp(0, 1, 16)] = C[T.ramp(0, 1, 16)] + T.broadcast(a, 16) * B[T.ramp(0, 1, 16)]
    C[T.ramp(16, 1, 16)] = ...
    C[T.ramp(32, 1, 16)] = ...

A remainder is split into powers of two: 24 lanes become 16 and 8. LLVM would otherwise round odd
lengths up to a power of two and go through memory.
Only stores are split, and only when every operation of the value works lane by lane and the value
reads no elements of the stored buffer except the stored ones.
"""

from __future__ import annotations

from typing import Any

from blockwright.analysis.canonical.memory import memory_roots
from blockwright.ir import (
    BinaryOp,
    Broadcast,
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    Cast,
    CompareOp,
    Expr,
    PrimFunc,
    Ramp,
    Select,
    Stmt,
    add,
    mul,
    op_row,
    structural_equal,
    walk,
)
from blockwright.ir import expr as E
from blockwright.lower.context import LowerContext, lowering_pass
from blockwright.lower.rewrite import Statements, sequence


@lowering_pass
def split_vectors(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Split long vector stores to the target's register length."""
    return func.replace(body=_SplitVectors(context, memory_roots(func))(func.body))


class _NotLaneWise(Exception):
    """An operation of the value mixes lanes, or has no form for one lane."""


class _SplitVectors(Statements):
    def __init__(self, context: LowerContext, roots: dict[Buffer, Buffer]) -> None:
        super().__init__()
        self.roots = roots
        self.target = context.target

    def rewrite_BufferStore(self, node: BufferStore) -> Stmt:
        lanes = node.value.dtype.lanes
        length = self.target.lanes(node.buffer.dtype.element)
        if self._moves_fragment(node):
            return node
        if lanes <= length or not _reads_own_elements(node, self.roots):
            return node
        try:
            parts = [_piece(node, start, size) for start, size in _pieces(lanes, length)]
        except _NotLaneWise:
            return node
        return sequence(parts)

    def _moves_fragment(self, node: BufferStore) -> bool:
        """Whether a store fills or reads registers that are accessed as a whole only."""
        loads = (n.buffer for n in walk(node.value) if isinstance(n, BufferLoad))
        scopes = (self.target.memory_scope(b.scope) for b in (node.buffer, *loads))
        return any(scope is not None and scope.fragment for scope in scopes)


def _pieces(lanes: int, length: int) -> list[tuple[int, int]]:
    """Split into whole registers, then descending powers of two: (first lane, lanes)."""
    result: list[tuple[int, int]] = []
    start = 0
    while start < lanes:
        while start + length > lanes:
            length //= 2
        result.append((start, length))
        start += length
    return result


def _reads_own_elements(node: BufferStore, roots: dict[Buffer, Buffer]) -> bool:
    """Whether storing earlier pieces cannot change what later pieces read."""
    written = roots.get(node.buffer, node.buffer)
    for result in walk(node.value):
        if not isinstance(result, BufferLoad):
            continue
        if roots.get(result.buffer, result.buffer) is not written:
            continue
        if result.buffer is not node.buffer or not structural_equal(result.indices, node.indices):
            return False
    return True


def _piece(node: BufferStore, start: int, length: int) -> Stmt:
    def cut(expr: Expr) -> Expr:
        return _slice(expr, start, length)

    if node.predicate is not None and length == 1:
        raise _NotLaneWise  # a masked store of one element is a branch
    predicate = None if node.predicate is None else cut(node.predicate)
    indices = tuple(cut(i) if i.dtype.lanes > 1 else i for i in node.indices)
    return node.replace(value=cut(node.value), indices=indices, predicate=predicate)


def _slice(expr: Expr, start: int, length: int) -> Any:
    """Lanes [start, start + length) of a vector expression."""

    def cut(part: Expr) -> Expr:
        return _slice(part, start, length) if part.dtype.lanes > 1 else part

    if isinstance(expr, Broadcast):
        return Broadcast(expr.value, length) if length > 1 else expr.value
    if isinstance(expr, Ramp):
        base = add(expr.base, mul(expr.stride, start))
        return Ramp(base, expr.stride, length) if length > 1 else base
    if isinstance(expr, BufferLoad):
        if expr.predicate is not None and length == 1:
            raise _NotLaneWise
        predicate = None if expr.predicate is None else cut(expr.predicate)
        return expr.replace(indices=tuple(cut(i) for i in expr.indices), predicate=predicate)
    if isinstance(expr, (BinaryOp, CompareOp, E.And, E.Or, E.Not, Select)):
        return expr.map_children(lambda child: cut(child) if isinstance(child, Expr) else child)
    if isinstance(expr, Cast):
        return Cast(expr.type.with_lanes(length), cut(expr.value))
    if isinstance(expr, Call) and op_row(expr.op).elementwise:
        return Call(expr.op, tuple(cut(a) for a in expr.args), expr.type.with_lanes(length))
    raise _NotLaneWise

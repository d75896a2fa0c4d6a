"""Forward a masked store to the next load of the same elements.

Before, with 3 elements in the tail after the last whole vector of a row::

    B.vstore([T.ramp(b, 1, 4)], value, predicate=T.ramp(0, 1, 4) < 3)
    S[…] = S[…] + T.Select(…, B.vload([T.ramp(b, 1, 16)], predicate=T.ramp(0, 1, 16) < 3), 0.0)

After::

    end = value
    B.vstore([T.ramp(b, 1, 4)], end, predicate=T.ramp(0, 1, 4) < 3)
    S[…] = S[…] + T.Select(…, T.shuffle([end, zeros], [0, 1, 2, 4, 4, …]), 0.0)

A processor forwards a stored vector to a load of exactly the same bytes. Under a mask, and even
more so if the lengths differ, store forwarding fails and the load waits until the store reaches the
cache. Only the statement directly after the store is considered, so no other write intervenes.
"""

from __future__ import annotations

from typing import Any

from blockwright.ir import (
    Broadcast,
    BufferLoad,
    BufferStore,
    Expr,
    LetStmt,
    PrimFunc,
    Ramp,
    SeqStmt,
    Shuffle,
    Stmt,
    Var,
    const,
    const_int,
    is_const_int,
    structural_equal,
)
from blockwright.ir import expr as E
from blockwright.lower.context import LowerContext, lowering_pass
from blockwright.lower.rewrite import Scoped, Statements, sequence


@lowering_pass
def forward_masked_stores(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Forward masked stores to loads in the next statement, through a register."""
    return func.replace(body=_ForwardMaskedStores()(func.body))


class _ForwardMaskedStores(Statements):
    def rewrite_SeqStmt(self, node: SeqStmt) -> Stmt:
        done: list[Stmt] = []
        for stmt in reversed(node.seq):
            stmt = self(stmt)
            passed = _forwarded(stmt, done[0]) if done else None
            done = [stmt, *done] if passed is None else [passed, *done[1:]]
        return sequence(done)


def _forwarded(store: Stmt, reader: Stmt) -> Stmt | None:
    """Both statements with the stored value in a variable; None where forwarding does not apply."""
    if not isinstance(store, BufferStore) or not isinstance(reader, BufferStore):
        return None
    lanes = store.value.dtype.lanes
    count = lanes if store.predicate is None else _first_lanes(store.predicate)
    if count is None or count > lanes or store.buffer.dtype.is_bool:
        return None
    end = Var("end", store.value.dtype)
    swap = _Swap(store, end, count)
    reading = reader.replace(value=swap(reader.value))
    if not swap.found:
        return None
    return LetStmt(end, store.value, sequence([store.replace(value=end), reading]))


class _Swap(Scoped):
    """Replaces loads of the stored elements by lanes of a variable, with zeros in other lanes."""

    def __init__(self, store: BufferStore, end: Var, count: int) -> None:
        super().__init__()
        self.store, self.end, self.count, self.found = store, end, count, False

    def rewrite_BufferLoad(self, node: BufferLoad) -> Any:
        if node.buffer is not self.store.buffer or _first_lanes(node.predicate) != self.count:
            return node
        if not _same_start(node, self.store):
            return node
        self.found = True
        lanes, dtype = self.end.dtype.lanes, self.end.dtype
        zeros = Broadcast(const(0, dtype.element), lanes)
        kept = [k if k < self.count else lanes for k in range(node.dtype.lanes)]
        return Shuffle((self.end, zeros), tuple(kept))


def _first_lanes(mask: Expr | None) -> int | None:
    """The number of leading lanes that a mask selects; None if the mask has another form."""
    if not isinstance(mask, E.LT) or not isinstance(mask.a, Ramp):
        return None
    counts = is_const_int(mask.a.base, 0) and is_const_int(mask.a.stride, 1)
    return const_int(mask.b.value) if counts and isinstance(mask.b, Broadcast) else None


def _same_start(load: BufferLoad, store: BufferStore) -> bool:
    """Whether both accesses are contiguous and start at the same element."""
    (read,), (written,) = load.indices, store.indices
    if not isinstance(read, Ramp) or not isinstance(written, Ramp):
        return False
    together = is_const_int(read.stride, 1) and is_const_int(written.stride, 1)
    return together and structural_equal(read.base, written.base)

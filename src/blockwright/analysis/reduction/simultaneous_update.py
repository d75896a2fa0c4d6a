"""The body of a block read as one simultaneous update of elements.

Lets are expanded into the stores, and a load after a store sees the stored value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from blockwright import ir


class NoMatch(Exception):
    """Why a block is not recognized as a reduction."""


class Update:
    """A body as one simultaneous update of elements.

    Attributes:
        elements: the stored elements, in order.
        old: a variable for the value of each element before the update.
        values: the new value of each element, in terms of `old`.
    """

    def __init__(self, block: ir.Block) -> None:
        self.elements: list[ir.BufferLoad] = []
        self.old: list[ir.Var] = []
        stores = ir.collect(block.body, ir.BufferStore)
        if ir.collect(block.body, ir.BlockRealize):
            raise NoMatch("it contains inner blocks")
        for store in stores:
            if any(store.buffer is e.buffer for e in self.elements):
                raise NoMatch(f"it stores to {store.buffer.name} twice")
            if store.predicate is not None or any(not i.dtype.is_scalar for i in store.indices):
                raise NoMatch("it stores vectors")
            self.elements.append(ir.BufferLoad(store.buffer, store.indices))
            self.old.append(ir.Var(f"old_{store.buffer.name}", store.buffer.dtype))
        if not stores:
            raise NoMatch("it stores nothing")
        self.now: list[ir.Expr] = list(self.old)
        self.lets: dict[ir.Var, ir.Expr] = {}
        self._run(block.body)
        self.values = self.now

    def _run(self, stmt: ir.Stmt) -> None:
        if isinstance(stmt, ir.SeqStmt):
            for part in stmt.seq:
                self._run(part)
        elif isinstance(stmt, ir.LetStmt):
            self.lets[stmt.var] = self._read(stmt.value)
            self._run(stmt.body)
        elif isinstance(stmt, ir.BufferStore):
            place = next(k for k, e in enumerate(self.elements) if e.buffer is stmt.buffer)
            if any(
                isinstance(n, ir.BufferLoad) and n.buffer in self._buffers()
                for index in stmt.indices
                for n in ir.walk(index)
            ):
                raise NoMatch("the index of the element depends on an updated element")
            self.now[place] = self._read(stmt.value)
        else:
            raise NoMatch("its body contains more than lets and stores")

    def parts(self) -> tuple[list[ir.BufferLoad], list[ir.Var], list[ir.Expr]]:
        """The elements, their old values, and their new values."""
        return self.elements, self.old, self.values

    def _buffers(self) -> set[ir.Buffer]:
        return {e.buffer for e in self.elements}

    def _read(self, expr: ir.Expr) -> ir.Expr:
        return _Read(self.elements, self.now, self.lets)(expr)


class _Read(ir.Mutator):
    """Replaces loads of updated elements by their current values, and expands lets."""

    def __init__(
        self,
        elements: Sequence[ir.BufferLoad],
        now: Sequence[ir.Expr],
        lets: dict[ir.Var, ir.Expr],
    ) -> None:
        super().__init__()
        for var, value in lets.items():
            self._memo[var] = value
        self._elements, self._now = elements, now

    def rewrite_Let(self, node: ir.Let) -> ir.Expr:
        self._memo[node.var] = self(node.value)
        return self(node.body)

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> ir.Expr:
        for element, value in zip(self._elements, self._now, strict=True):
            if node.buffer is element.buffer:
                plain = node.predicate is None
                if not plain or not ir.structural_equal(node.indices, element.indices):
                    raise NoMatch(f"it also reads other elements of {node.buffer.name}")
                return value
        return self.descend(node)


def initial_values(init: ir.Stmt, elements: Sequence[ir.BufferLoad]) -> tuple[ir.Expr, ...]:
    """The initial value of each element, from a list of stores."""
    parts = init.seq if isinstance(init, ir.SeqStmt) else (init,)
    updated = {e.buffer for e in elements}
    result: list[ir.Expr] = []
    if len(parts) != len(elements) or not all(isinstance(p, ir.BufferStore) for p in parts):
        raise NoMatch("it does not set one initial value for each element that it updates")
    stores = cast("Sequence[ir.BufferStore]", parts)
    for element in elements:
        store = next((s for s in stores if s.buffer is element.buffer), None)
        if store is None or not ir.structural_equal(store.indices, element.indices):
            raise NoMatch("init stores to an element other than the updated one")
        if any(isinstance(n, ir.BufferLoad) and n.buffer in updated for n in ir.walk(store.value)):
            raise NoMatch("the initial value reads an element that the block updates")
        result.append(store.value)
    return tuple(result)

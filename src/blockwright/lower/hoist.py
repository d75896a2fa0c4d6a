"""Hoist allocations out of loops whose iterations can share the memory.

Before::

    for i in T.parallel(8):
        for k in range(4):
            tmp = T.allocate((16,))
            ...

After::

    for i in T.parallel(8):
        tmp = T.allocate((16,))
        for k in range(4):
            ...
"""

from __future__ import annotations

from blockwright.arith import Analyzer, defined
from blockwright.ir import (
    Allocate,
    For,
    ForKind,
    PrimFunc,
    Stmt,
    Var,
    const,
    free_vars,
    seq,
)
from blockwright.ir import stmt as S
from blockwright.lower.context import LowerContext, function_analyzer, lowering_pass
from blockwright.lower.rewrite import Renamed, Statements


@lowering_pass
def hoist_allocations(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Hoist allocations as far as their sizes permit, at most to the enclosing parallel loop."""
    hoist = _Hoist(function_analyzer(func))
    body = hoist(func.body)
    return func.replace(body=hoist.wrap(body, hoist.pending))


class _Hoist(Statements):
    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__()
        self.analyzer = analyzer
        self.pending: list[Allocate] = []

    def rewrite_Allocate(self, node: Allocate) -> Stmt:
        body = self(node.body)
        if any(other.buffer is node.buffer for other in self.pending):
            return body  # one block realized twice: both lifetimes share the memory
        buffer = node.buffer
        result = [defined(extent, self.analyzer) for extent in buffer.shape]
        shape = tuple(extent for extent in result if extent is not None)
        moves = len(shape) == len(result)
        if moves and any(new is not old for new, old in zip(shape, buffer.shape, strict=True)):
            buffer = buffer.replace(shape=shape)
        if buffer is not node.buffer:
            body = Renamed(node.buffer, buffer)(body)
        if not moves:
            return node.replace(buffer=buffer, body=body)
        self.pending.append(node.replace(buffer=buffer, body=S.Evaluate(const(0, "int32"))))
        return body

    def rewrite_SeqStmt(self, node: S.SeqStmt) -> Stmt:
        parts = [self(stmt) for stmt in node.seq]
        same = all(new is old for new, old in zip(parts, node.seq, strict=True))
        return node if same else seq(parts)  # flatten sequences that stood below an allocation

    def rewrite_For(self, node: For) -> Stmt:
        outer, self.pending = self.pending, []
        body = self(node.body)
        kept = [
            a
            for a in self.pending
            if node.kind is ForKind.PARALLEL or node.loop_var in _size_vars(a)
        ]
        self.pending = outer + [a for a in self.pending if a not in kept]
        return node.replace(body=self.wrap(body, kept))

    def rewrite_LetStmt(self, node: S.LetStmt) -> Stmt:
        outer, self.pending = self.pending, []
        body = self(node.body)
        kept = [a for a in self.pending if node.var in _size_vars(a)]
        self.pending = outer + [a for a in self.pending if a not in kept]
        return node.replace(body=self.wrap(body, kept))

    def wrap(self, body: Stmt, allocations: list[Allocate]) -> Stmt:
        for allocation in reversed(allocations):
            body = allocation.replace(body=body)
        return body


def _size_vars(allocation: Allocate) -> set[Var]:
    return {v for extent in allocation.buffer.shape for v in free_vars(extent)}

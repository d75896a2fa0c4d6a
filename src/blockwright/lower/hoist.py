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
    Buffer,
    For,
    ForKind,
    PrimFunc,
    Stmt,
    Var,
    collect,
    const,
    const_int,
    free_vars,
    seq,
)
from blockwright.ir import stmt as S
from blockwright.lower.context import LowerContext, function_analyzer, lowering_pass
from blockwright.lower.rewrite import Renamed, Statements, mentions


@lowering_pass
def hoist_allocations(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Hoist allocations as far as their sizes permit, at most to the enclosing parallel loop.

    `local` buffers become scratch memory where their size is not constant, where it exceeds the
    target's limit, or where the iterations of a parallel loop share them.
    """
    limit = context.target.memory_scope("local")
    local_bytes = limit.max_bytes if limit is not None else 0
    hoist = _Hoist(context, local_bytes, function_analyzer(func))
    body = hoist(func.body)
    return func.replace(body=hoist.wrap(body, hoist.pending))


class _Hoist(Statements):
    def __init__(self, context: LowerContext, local_bytes: int, analyzer: Analyzer) -> None:
        super().__init__()
        self.context, self.local_bytes, self.analyzer = context, local_bytes, analyzer
        self.pending: list[Allocate] = []

    def rewrite_Allocate(self, node: Allocate) -> Stmt:
        body = self(node.body)
        if any(other.buffer is node.buffer for other in self.pending):
            return body  # one block realized twice: both lifetimes share the memory
        buffer = self._scope(node.buffer, body)
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

    def _scope(self, buffer: Buffer, body: Stmt) -> Buffer:
        if buffer.scope != "local":
            return buffer
        size = const_int(buffer.shape[0])
        why = ""
        if size is None:
            why = "its size is not a constant"
        elif size * buffer.dtype.nbytes > self.local_bytes:
            why = f"it has more than {self.local_bytes} bytes"
        elif any(
            loop.kind is ForKind.PARALLEL and mentions(loop, buffer) for loop in collect(body, For)
        ):
            why = "the iterations of a parallel loop share it"
        if not why:
            return buffer
        self.context.note(f"buffer {buffer.name} is in memory, not local: {why}")
        return buffer.replace(scope="global")

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

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
    Expr,
    For,
    ForKind,
    PrimFunc,
    Stmt,
    Var,
    const,
    const_int,
    free_vars,
    if_then_else,
    logical_not,
    seq,
    uses_var,
)
from blockwright.ir import stmt as S
from blockwright.lower.context import LowerContext, function_analyzer, lowering_pass
from blockwright.lower.rewrite import Renamed, Statements, reads_memory


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
        self.inside: set[Var] = set()  # variables of the enclosing loops and names

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

    def rewrite_IfThenElse(self, node: S.IfThenElse) -> Stmt:
        condition = defined(node.condition, self.analyzer)
        if condition is None or reads_memory(condition) or uses_var(condition, self.inside):
            return self.descend(node)
        then_case = self._under(condition, node.then_case)
        else_case = node.else_case
        if else_case is not None:
            else_case = self._under(logical_not(condition), else_case)
        return node.replace(then_case=then_case, else_case=else_case)

    def _under(self, condition: Expr, stmt: Stmt) -> Stmt:
        """The statement; what is allocated in it has no elements unless the condition holds."""
        outer, self.pending = self.pending, []
        body = self(stmt)
        for allocation in self.pending:
            buffer = allocation.buffer
            if any(const_int(extent) is None for extent in buffer.shape):
                first, *others = buffer.shape
                size = if_then_else(condition, first, const(0, first.dtype))
                new = buffer.replace(shape=(size, *others))
                body = Renamed(buffer, new)(body)
                allocation = allocation.replace(buffer=new)
            if all(other.buffer is not allocation.buffer for other in outer):
                outer.append(allocation)
        self.pending = outer
        return body

    def rewrite_For(self, node: For) -> Stmt:
        outer, self.pending = self.pending, []
        self.inside.add(node.loop_var)
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
        self.inside.add(node.var)
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

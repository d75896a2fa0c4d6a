"""Which memory a statement reads and writes, whatever names it has there."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from blockwright import ir

Root = Callable[[ir.Buffer], ir.Buffer]
"""The buffer that a view outside of a statement shows, or the buffer itself."""


def written(stmts: Iterable[ir.Stmt], root: Root) -> set[ir.Buffer]:
    """The buffers that statements may change: by stores, by atomic updates, by calls that take an
    address, and through views that the statements define."""
    stmts = tuple(stmts)
    shown = {v: s for stmt in stmts for v, s in _views(stmt)}
    found: set[ir.Buffer] = set()
    for node in (node for stmt in stmts for node in ir.walk(stmt)):
        if isinstance(node, ir.BufferStore):
            found.add(node.buffer)
        elif isinstance(node, ir.Call) and (ir.is_atomic(node) or node.op == "address_of"):
            found |= {load.buffer for load in ir.collect(node.args[0], ir.BufferLoad)}
    return {root(_source(buffer, shown)) for buffer in found}


def read(exprs: Iterable[ir.Expr], root: Root) -> set[ir.Buffer]:
    """The buffers that expressions read."""
    return {root(load.buffer) for expr in exprs for load in ir.collect(expr, ir.BufferLoad)}


def may_fail(expr: ir.Expr) -> bool:
    """Whether the evaluation of an expression may have no defined result."""
    return any(isinstance(n, (ir.BufferLoad, ir.Call, ir.BinaryOp)) for n in ir.walk(expr))


def always_uses(stmt: ir.Stmt, var: ir.Var) -> bool:
    """Whether a statement surely computes a value from a variable."""
    match stmt:
        case ir.SeqStmt():
            return any(always_uses(child, var) for child in stmt.seq)
        case ir.LetStmt():
            own = _evaluates(stmt.value, var) and always_uses(stmt.body, stmt.var)
            return own or always_uses(stmt.body, var)
        case ir.BufferStore():
            return stmt.predicate is None and _evaluates(stmt.value, var)
        case ir.Evaluate():
            return _evaluates(stmt.value, var)
        case _:
            return False


def _evaluates(expr: ir.Node, var: ir.Var) -> bool:
    """Whether the evaluation of an expression surely uses a variable."""
    if isinstance(expr, ir.Call) and expr.op == "if_then_else":
        test, yes, no = expr.args
        return _evaluates(test, var) or (_evaluates(yes, var) and _evaluates(no, var))
    if isinstance(expr, ir.BufferLoad) and expr.predicate is not None:
        return False
    return expr is var or any(_evaluates(c, var) for c in expr.children() if isinstance(c, ir.Expr))


def _views(stmt: ir.Stmt) -> list[tuple[ir.Buffer, ir.Buffer]]:
    return [(v.buffer, v.source.buffer) for b in ir.blocks(stmt) for v in b.match_buffers]


def _source(buffer: ir.Buffer, shown: dict[ir.Buffer, ir.Buffer]) -> ir.Buffer:
    while buffer in shown:
        buffer = shown[buffer]
    return buffer

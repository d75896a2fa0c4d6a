"""Alpha-renamed copies of statements: fresh variables, buffers and blocks in each copy."""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.analysis.access.tree import child_stmts


class _FreshDefinitions(ir.Mutator):
    """Copies a statement with fresh loop variables, iterators, lets and allocated buffers."""

    def rewrite_Var(self, node: ir.Var) -> ir.Var:
        return node

    def _fresh(self, var: ir.Var) -> None:
        self._memo[var] = ir.Var(var.name, var.type)

    def rewrite_For(self, node: ir.For) -> Any:
        self._fresh(node.loop_var)
        return self.descend(node)

    def rewrite_LetStmt(self, node: ir.LetStmt) -> Any:
        self._fresh(node.var)
        return self.descend(node)

    def rewrite_Let(self, node: ir.Let) -> Any:
        self._fresh(node.var)
        return self.descend(node)

    def rewrite_Allocate(self, node: ir.Allocate) -> Any:
        self._memo[node.buffer] = node.buffer.map_children(self).replace()
        return self.descend(node)

    def rewrite_DeclBuffer(self, node: ir.DeclBuffer) -> Any:
        self._memo[node.buffer] = node.buffer.map_children(self).replace()
        return self.descend(node)

    def rewrite_Block(self, node: ir.Block) -> Any:
        for it in node.iter_vars:
            self._fresh(it.var)
        for buffer in node.alloc_buffers:
            self._memo[buffer] = buffer.map_children(self).replace()
        for match in node.match_buffers:
            self._memo[match.buffer] = match.buffer.map_children(self).replace()
        block = self.descend(node)
        return node.replace() if block is node else block  # a block that defines nothing


def copied(stmt: ir.Stmt) -> Any:
    """A copy of a statement with fresh definitions; free variables are kept."""
    return _FreshDefinitions()(stmt)


def with_fresh_definitions(func: ir.PrimFunc) -> ir.PrimFunc:
    """The function with unique definitions, even if one statement object occurs twice."""
    seen: set[int] = set()
    stack: list[ir.Stmt] = [func.body]
    shared = False
    while stack:
        node = stack.pop()
        defines = isinstance(node, (ir.For, ir.Block, ir.LetStmt))
        shared = shared or (defines and id(node) in seen)
        seen.add(id(node))
        stack.extend(child_stmts(node))
    if not shared:
        return func
    return func.replace(body=_FreshDefinitionsEach()(func.body))


class _FreshDefinitionsEach(_FreshDefinitions):
    """As `_FreshDefinitions`, with separate definitions for each occurrence of a statement."""

    def __call__(self, node: Any) -> Any:
        result = super().__call__(node)
        if isinstance(node, ir.Stmt):
            self._memo.pop(node, None)
        return result


def copied_expr(expr: ir.Expr) -> ir.Expr:
    """A copy of an expression for a second use: let-bound variables are fresh."""
    return _FreshDefinitions()(expr) if ir.collect(expr, ir.Let) else expr


def with_own_lets(expr: ir.Expr) -> ir.Expr:
    """The expression with a distinct variable for each occurrence of a let.

    Mutators memoize the result of each node and share it, so a let that is used twice would bind
    one variable in two places.
    """
    return _OwnLets()(expr) if ir.collect(expr, ir.Let) else expr


class _OwnLets(ir.Mutator):
    """Rewrites each occurrence separately; expressions without lets stay shared."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: set[ir.Var] = set()
        self._plain: dict[ir.Node, bool] = {}

    def __call__(self, node: Any) -> Any:
        if self._is_plain(node):
            return node
        return self.rewrite_Let(node) if isinstance(node, ir.Let) else self.descend(node)

    def _is_plain(self, node: ir.Node) -> bool:
        result = self._plain.get(node)
        if result is None:
            result = not isinstance(node, ir.Let) and all(map(self._is_plain, node.children()))
            self._plain[node] = result
        return result

    def rewrite_Let(self, node: ir.Let) -> ir.Expr:
        value, var, body = self(node.value), node.var, node.body
        if var in self._taken:
            var = ir.Var(var.name, var.type)
            body = ir.substitute(body, {node.var: var})
        self._taken.add(var)
        return ir.Let(var, value, self(body))

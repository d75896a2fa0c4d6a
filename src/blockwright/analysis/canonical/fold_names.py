"""Inline let-bound index values around blocks into iterator values and loop bounds.

Before::

    for i in range(8):
        x: T.int32 = 7 - i
        with T.block("B"):
            vi = T.axis.spatial(8, x)

After::

    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, 7 - i)

Analyses of which block instances run look at loops; a name would seem to be the same in all
iterations. A let-bound value wraps, an index does not, so a value is inlined only if it is provably
in range of its type. Uses inside a block keep the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockwright import ir
from blockwright.analysis.access.tree import stands_around_a_block
from blockwright.analysis.facts import symbol_facts
from blockwright.arith import Analyzer

_INDEX = (ir.Var, ir.IntImm, ir.Add, ir.Sub, ir.Mul, ir.FloorDiv, ir.FloorMod, ir.Min, ir.Max)


def fold_names(func: ir.PrimFunc) -> ir.PrimFunc:
    """Inline let-bound index values around blocks; see the module docstring."""
    if not stands_around_a_block(func.body, ir.LetStmt):
        return func
    body = _Fold(symbol_facts(func)).stmt(func.body, {})
    return func if body is func.body else func.replace(body=body)


class _Fold:
    def __init__(self, analyzer: Analyzer) -> None:
        self.analyzer = analyzer

    def stmt(self, node: ir.Stmt, values: Mapping[ir.Var, ir.Expr]) -> Any:
        if isinstance(node, ir.LetStmt):
            return self._let(node, values)
        if isinstance(node, ir.BlockRealize):
            return self._realize(node, values)
        outside = self.analyzer
        if isinstance(node, ir.For):
            self.analyzer = outside.copy()
            self.analyzer.bind(node.loop_var, node.dom)

        def changed(child: ir.Node) -> ir.Node:
            if isinstance(child, ir.Stmt):
                return self.stmt(child, values)
            return ir.substitute(child, values) if values else child

        new = node.map_children(changed)
        self.analyzer = outside  # a loop may have no iterations
        return ir.seq(new.seq) if isinstance(new, ir.SeqStmt) and new is not node else new

    def _let(self, node: ir.LetStmt, values: Mapping[ir.Var, ir.Expr]) -> ir.Stmt:
        value = ir.substitute(node.value, values) if values else node.value
        below = ir.blocks(node.body)
        if not below or not self._stays(value):
            body = self.stmt(node.body, values)
            same = body is node.body and value is node.value
            return node if same else node.replace(value=value, body=body)
        body = self.stmt(node.body, {**values, node.var: value})
        if any(ir.uses_var(block, node.var) for block in below):
            return node.replace(value=value, body=body)
        return body

    def _realize(self, node: ir.BlockRealize, values: Mapping[ir.Var, ir.Expr]) -> ir.BlockRealize:
        block = node.block
        outside, self.analyzer = self.analyzer, self.analyzer.copy()
        for it in block.iter_vars:
            self.analyzer.bind(it.var, it.dom)
        body = self.stmt(block.body, {})
        self.analyzer = outside
        new = block if body is block.body else block.replace(body=body)
        if not values:
            return node if new is block else node.replace(block=new)
        bound = tuple(ir.substitute(v, values) for v in node.iter_values)
        predicate = ir.substitute(node.predicate, values)
        return node.replace(iter_values=bound, predicate=predicate, block=new)

    def _stays(self, value: ir.Expr) -> bool:
        """Whether a value is an index expression that is always in range of its type."""
        for part in ir.walk(value):
            if not isinstance(part, _INDEX) or not part.dtype.is_int or part.dtype.lanes > 1:
                return False
            low, high = self.analyzer.const_bounds(part)
            if low is None or high is None:  # a product of sizes may exceed 32 bits
                if isinstance(part, ir.Mul) and part.dtype.bits < 64:
                    return False
            elif low < part.dtype.min_value or high > part.dtype.max_value:
                return False
        return True

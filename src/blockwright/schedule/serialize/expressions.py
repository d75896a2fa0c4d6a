"""Text of the expressions in a trace, from which the same expression can be built again.

Expressions of sums, products, comparisons, `min`, `max` and casts are written as Python operators.
All others, such as a choice or a call, are written with the names of the `T` dialect; operators
that Python does not pass on to its operands (`and`, `not`, `==`) become calls, `T.And(a, b)`.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping

from blockwright import ir
from blockwright.ir.printer import script

_OPERATORS = (
    *(ir.Var, ir.IntImm, ir.Cast),
    *(ir.Add, ir.Sub, ir.Mul, ir.FloorDiv, ir.FloorMod, ir.Min, ir.Max),
    *(ir.LT, ir.LE, ir.GT, ir.GE),
)
_INFIX_CALLS = ("bitwise_xor", "bitwise_and", "bitwise_or")


def is_infix(expr: ir.Expr) -> bool:
    """Whether Python's operators on variables and numbers build the expression."""
    return all(_is_infix(node) for node in ir.walk(expr))


def _is_infix(node: ir.Node) -> bool:
    if isinstance(node, ir.FloatImm):
        return math.isfinite(node.value) and node.type.name == "float32"
    if isinstance(node, ir.Call):
        return node.op in _INFIX_CALLS
    return isinstance(node, _OPERATORS)


def called_text(expr: ir.Expr, symbols: Mapping[str, str]) -> str:
    """The expression as calls of `T`; `symbols` has Python text for some names."""
    tree = ast.parse(script(expr), mode="eval")
    return ast.unparse(_Calls(symbols).visit(tree))


class _Calls(ast.NodeTransformer):
    def __init__(self, symbols: Mapping[str, str]) -> None:
        self.symbols = symbols

    def visit_Name(self, node: ast.Name) -> ast.expr:
        text = self.symbols.get(node.id)
        return node if text is None else ast.parse(text, mode="eval").body

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        name = "And" if isinstance(node.op, ast.And) else "Or"
        first, *rest = [self.visit(value) for value in node.values]
        for value in rest:
            first = _call(name, first, value)
        return first

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return _call("Not", operand)
        return ast.UnaryOp(node.op, operand)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.comparators[0])
        if isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            return _call("EQ" if isinstance(node.ops[0], ast.Eq) else "NE", left, right)
        return ast.Compare(left, node.ops, [right])


def _call(name: str, *operands: ast.expr) -> ast.expr:
    return ast.Call(ast.Attribute(ast.Name("T"), name), list(operands), [])

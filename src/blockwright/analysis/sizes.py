"""Sizes of buffers and loops: clamping at 0, linear forms, and division by zero."""

from __future__ import annotations

from collections.abc import Iterable

from blockwright import ir
from blockwright.arith import Analyzer


def nonnegative(extent: ir.Expr, analyzer: Analyzer) -> ir.Expr:
    """The extent, or `max(extent, 0)` unless it is provably non-negative.

    The clipped extent of a tile, `min(tile, n - i * tile)`, is negative in iterations that start
    beyond `n`. A negative loop extent means no iterations, but a buffer size must be clamped to 0:
    the product of two negative extents is positive, and a negative number of bytes cannot be
    allocated.
    """
    zero = ir.const(0, extent.dtype)
    if (known := ir.const_int(extent)) is not None:
        return extent if known >= 0 else zero
    return extent if analyzer.prove(ir.GE(extent, zero)) else ir.maximum(extent, zero)


def linear_in(expr: ir.Expr, var: ir.Var) -> tuple[int, int] | None:
    """(a, b) such that `expr == a * var + b`; None if `expr` is not linear in `var`."""
    if expr is var:
        return 1, 0
    if isinstance(expr, ir.IntImm):
        return 0, expr.value
    if not isinstance(expr, (ir.Add, ir.Sub, ir.Mul)):
        return None
    left, right = linear_in(expr.a, var), linear_in(expr.b, var)
    if left is None or right is None:
        return None
    if isinstance(expr, ir.Mul):
        if left[0] and right[0]:
            return None
        return left[0] * right[1] + right[0] * left[1], left[1] * right[1]
    sign = 1 if isinstance(expr, ir.Add) else -1
    return left[0] + sign * right[0], left[1] + sign * right[1]


_DIVISIONS = (ir.FloorDiv, ir.FloorMod, ir.Div, ir.Mod)


def divides_by_zero(size: ir.Expr) -> bool:
    """Whether a size contains a division or remainder by an expression that is always 0."""
    return any(isinstance(node, _DIVISIONS) and _is_zero(node.b) for node in ir.walk(size))


def _is_zero(divisor: ir.Expr) -> bool:
    known = ir.const_int(divisor)
    if known is None and divisor.dtype.is_int:
        return Analyzer().prove(ir.compare(ir.EQ, divisor, ir.const(0, divisor.dtype)))
    return known == 0


def nonzero_divisors(sizes: Iterable[ir.Expr], analyzer: Analyzer | None = None) -> list[ir.Expr]:
    """Conditions under which none of the sizes divides by 0, without duplicates.

    Conditions that `analyzer` proves are omitted. A division in one branch of a conditional matters
    only if that branch is taken.
    """
    result: list[ir.Expr] = []

    def visit(node: ir.Node, taken: ir.Expr | None) -> None:
        if isinstance(node, ir.Select):
            choice = node.condition, node.true_value, node.false_value
        elif isinstance(node, ir.Call) and node.op == "if_then_else":
            choice = node.args[0], node.args[1], node.args[2]
        else:
            choice = None
        if choice is not None:
            condition, yes, no = choice
            visit(condition, taken)
            both = condition if taken is None else ir.logical_and(taken, condition)
            visit(yes, both)
            other = ir.logical_not(condition)
            visit(no, other if taken is None else ir.logical_and(taken, other))
            return
        if isinstance(node, _DIVISIONS) and not ir.const_int(node.b):
            holds = ir.compare(ir.NE, node.b, ir.const(0, node.b.dtype))
            if taken is not None:
                holds = ir.logical_or(ir.logical_not(taken), holds)
            known = analyzer is not None and analyzer.prove(holds)
            if not known and not any(ir.structural_equal(holds, other) for other in result):
                result.append(holds)
        for child in node.children():
            visit(child, taken)

    for size in sizes:
        visit(size, None)
    return result

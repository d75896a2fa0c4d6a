"""Sizes of buffers and loops: never negative where derived, solved for where linear."""

from __future__ import annotations

from collections.abc import Iterable

from blockwright import ir
from blockwright.arith import Analyzer


def nonnegative(extent: ir.Expr, analyzer: Analyzer) -> ir.Expr:
    """The extent, or `max(extent, 0)` where it is not proved to be at least 0.

    The range that a tile is clipped to, `min(tile, n - i * tile)`, is negative in iterations that
    begin beyond `n`. As a loop extent that means no iterations; as the size of a buffer it must be
    0, since a product of two negative extents, or a request for a negative number of bytes, is
    something else.
    """
    zero = ir.const(0, extent.dtype)
    if (known := ir.const_int(extent)) is not None:
        return extent if known >= 0 else zero
    return extent if analyzer.prove(ir.GE(extent, zero)) else ir.maximum(extent, zero)


def linear_in(expr: ir.Expr, var: ir.Var) -> tuple[int, int] | None:
    """(a, b) with expr = a * var + b, or None."""
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
    """Whether a size has a division or a remainder by what is 0 for all values of its symbols."""
    return any(isinstance(node, _DIVISIONS) and _is_zero(node.b) for node in ir.walk(size))


def _is_zero(divisor: ir.Expr) -> bool:
    known = ir.const_int(divisor)
    if known is None and divisor.dtype.is_int:
        return Analyzer().prove(ir.compare(ir.EQ, divisor, ir.const(0, divisor.dtype)))
    return known == 0


def nonzero_divisors(sizes: Iterable[ir.Expr], analyzer: Analyzer | None = None) -> list[ir.Expr]:
    """What must hold so that none of the sizes divides by 0; each condition once.

    Left out is what `analyzer` proves. A division in one branch of a choice counts where that
    branch is taken.
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

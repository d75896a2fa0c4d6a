"""Sizes of buffers and loops: never negative where derived, solved for where linear."""

from __future__ import annotations

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

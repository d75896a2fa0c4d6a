"""Sizes of buffers and loops that are derived from regions: never negative."""

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

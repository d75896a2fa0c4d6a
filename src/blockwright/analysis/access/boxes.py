"""Boxes with unknown dimensions, and boxes whose start is a value that may wrap around."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from blockwright import ir
from blockwright.arith import Analyzer, hull, jointly_cover

Box = list["ir.Range | None"]
"""One range per dimension; None for an unknown dimension."""


def value_hull(ranges: Sequence[ir.Range], analyzer: Analyzer) -> ir.Range | None:
    """Hull of ranges whose starts are wrapping values.

    Supported only if the starts differ by indices and the hull is short (see
    `BoxCollector._range_of_moved_value`).
    """
    first = analyzer.lift(ranges[0].min)
    dtype = ranges[0].min.dtype
    parts: list[ir.Range] = []
    for rng in ranges:
        offset = analyzer.space.sub(analyzer.lift(rng.min), first)
        if offset.wraps or analyzer.is_value(rng.extent):
            return None
        parts.append(ir.Range(analyzer.lower(offset, dtype), rng.extent))
    joined = reduce(lambda a, b: hull(a, b, analyzer), parts)
    if not is_short(joined.extent, analyzer):
        return None
    start = analyzer.simplify(ir.add(*ir.match_types(ranges[0].min, joined.min)))
    return ir.Range(start, joined.extent)


def is_short(extent: ir.Expr, analyzer: Analyzer) -> bool:
    """Whether an extent is provably less than 2**31, half of the 32-bit range."""
    largest = analyzer.bounds(analyzer.exact(extent))[1]
    return largest is not None and largest < 1 << 31


def is_within(box: Box, others: Sequence[Sequence[ir.Range]], analyzer: Analyzer) -> bool:
    """Whether all dimensions of a box are known and other boxes cover it."""
    ranges = [rng for rng in box if rng is not None]
    return len(ranges) == len(box) and jointly_cover([tuple(o) for o in others], ranges, analyzer)


def lanes_of(index: ir.Expr) -> ir.Range:
    """An index as a range; a ramp is covered by the range between its ends."""
    if isinstance(index, ir.Ramp):
        reach = index.stride * (index.lanes - 1)
        last = ir.maximum(index.base, index.base + reach)
        first = ir.minimum(index.base, index.base + reach)
        return ir.Range(first, last - first + 1)
    if isinstance(index, ir.Broadcast):
        return lanes_of(index.value)
    return ir.point(index)

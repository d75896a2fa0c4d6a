"""Boxes of elements of which some dimensions are not known, and boxes that start at values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from blockwright import ir
from blockwright.arith import Analyzer, hull, jointly_cover

Box = list["ir.Range | None"]
"""One range per dimension; None is a dimension of which nothing is known."""


def value_hull(ranges: Sequence[ir.Range], analyzer: Analyzer) -> ir.Range | None:
    """The hull of ranges that start at values, which wrap around: of those that differ by indices,
    and by little, as in `Walker._slid`."""
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
    """Whether an extent is at most half of the numbers of 32 bits."""
    largest = analyzer.bounds(analyzer.exact(extent))[1]
    return largest is not None and largest < 1 << 31


def is_within(box: Box, others: Sequence[Sequence[ir.Range]], analyzer: Analyzer) -> bool:
    """Whether other boxes cover one of which each dimension is known."""
    ranges = [rng for rng in box if rng is not None]
    return len(ranges) == len(box) and jointly_cover([tuple(o) for o in others], ranges, analyzer)


def within(outer: ir.Range, rng: ir.Range) -> ir.Range:
    """A range of a view in the coordinates of what it is a view of, in one type of integers."""
    start = outer.min + rng.min
    return ir.Range(start, ir.cast_to(rng.extent, start.dtype))


def lanes_of(index: ir.Expr) -> ir.Range:
    """An index as a range: a ramp covers what lies between its ends."""
    if isinstance(index, ir.Ramp):
        reach = index.stride * (index.lanes - 1)
        last = ir.maximum(index.base, index.base + reach)
        first = ir.minimum(index.base, index.base + reach)
        return ir.Range(first, last - first + 1)
    if isinstance(index, ir.Broadcast):
        return lanes_of(index.value)
    return ir.point(index)

"""Proof that boxes of one buffer have no element in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from blockwright import ir
from blockwright.arith import Analyzer


def apart(a: ir.BufferRegion, b: ir.BufferRegion, analyzer: Analyzer) -> bool:
    """Whether two boxes of a buffer are provably disjoint."""
    if plainly_apart(a, b):
        return True
    for p, q in zip(a.region, b.region, strict=True):
        for x, y in ((p, q), (q, p)):
            if analyzer.prove(ir.LE(*ir.match_types(ir.add(x.min, x.extent), y.min))):
                return True
    return False


def plainly_apart(a: ir.BufferRegion, b: ir.BufferRegion) -> bool:
    """Whether constant bounds of two boxes show that they are disjoint."""
    for p, q in zip(a.region, b.region, strict=True):
        if not (isinstance(p.min, ir.IntImm) and isinstance(q.min, ir.IntImm)):
            continue
        first, second = (p, q) if p.min.value <= q.min.value else (q, p)
        if isinstance(first.extent, ir.IntImm) and isinstance(first.min, ir.IntImm):
            assert isinstance(second.min, ir.IntImm)
            if first.min.value + first.extent.value <= second.min.value:
                return True
    return False


def apart_along_an_axis(boxes: Sequence[ir.BufferRegion]) -> bool:
    """Whether constant bounds along one axis show that the boxes are pairwise disjoint."""
    for ranges in zip(*(box.region for box in boxes), strict=True):
        ends = [_ends(r) for r in ranges]
        known = sorted(end for end in ends if end is not None)
        if len(known) == len(ends) and all(a[1] <= b[0] for a, b in pairwise(known)):
            return True
    return False


def _ends(part: ir.Range) -> tuple[int, int] | None:
    if not (isinstance(part.min, ir.IntImm) and isinstance(part.extent, ir.IntImm)):
        return None
    return part.min.value, part.min.value + max(part.extent.value, 0)


def interleaved(a: ir.BufferRegion, b: ir.BufferRegion, analyzer: Analyzer) -> bool:
    """Whether two single elements provably differ in some dimension by their remainders.

    For example `2 * i` and `2 * j + 1`.
    """
    for p, q in zip(a.region, b.region, strict=True):
        if not (ir.is_const_int(p.extent, 1) and ir.is_const_int(q.extent, 1)):
            continue
        (step, first), (other_step, other_first) = map(analyzer.modular, (p.min, q.min))
        if (common := math.gcd(step, other_step)) and (first - other_first) % common:
            return True
    return False

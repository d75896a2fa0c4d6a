"""Boxes that cover a box, each of them there under conditions; boxes that never meet."""

from __future__ import annotations

import math
from collections.abc import Sequence

from blockwright import ir
from blockwright.arith import Analyzer, jointly_cover

Made = tuple[tuple[ir.Range, ...], list[ir.Expr]]
"""A box that a producer writes, and the conditions under which it runs at all."""


def apart(a: ir.BufferRegion, b: ir.BufferRegion, analyzer: Analyzer) -> bool:
    """Whether two boxes of a buffer surely have no element in common."""
    for p, q in zip(a.region, b.region, strict=True):
        for x, y in ((p, q), (q, p)):
            if analyzer.prove(ir.LE(*ir.match_types(ir.add(x.min, x.extent), y.min))):
                return True
    return False


def interleaved(a: ir.BufferRegion, b: ir.BufferRegion, analyzer: Analyzer) -> bool:
    """Whether two single elements, in terms of any iterators, surely differ in some dimension by
    their remainders: `2 * i` and `2 * j + 1`."""
    for p, q in zip(a.region, b.region, strict=True):
        if not (ir.is_const_int(p.extent, 1) and ir.is_const_int(q.extent, 1)):
            continue
        (step, first), (other_step, other_first) = map(analyzer.modular, (p.min, q.min))
        if (common := math.gcd(step, other_step)) and (first - other_first) % common:
            return True
    return False


def covered_in_cases(
    made: list[Made], need: Sequence[ir.Range], analyzer: Analyzer, known: Analyzer
) -> bool:
    """Whether boxes, each there under conditions, cover one box.

    A condition that is open is looked at both ways: where it fails, its box is missing.
    """
    for _, conditions in made:
        for condition in conditions:
            if known.prove(condition) or known.prove(ir.logical_not(condition)):
                continue
            for case in (condition, ir.logical_not(condition)):
                in_case = [x.copy() for x in (analyzer, known)]
                for x in in_case:
                    x.learn(case)
                if not covered_in_cases(made, need, *in_case):
                    return False
            return True
    boxes = [box for box, conditions in made if all(known.prove(c) for c in conditions)]
    return jointly_cover(boxes, need, analyzer)

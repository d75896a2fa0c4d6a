"""Intervals with symbolic ends, and evaluation of expressions over intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import msgspec

from blockwright.arith.analyzer import Analyzer
from blockwright.arith.extreme import HIGH, LOW, Domain, extreme, maximum, ordered
from blockwright.arith.form import Poly, is_index
from blockwright.arith.render import Unwritable
from blockwright.ir import Expr, Range, Var, add, const_int, sub
from blockwright.ir import maximum as maximum_of
from blockwright.ir import minimum as minimum_of
from blockwright.support import IRError


class IntervalSet(msgspec.Struct, frozen=True, eq=False):
    """All integers from `min` to `max`, inclusive; None means unbounded."""

    min: Expr | None
    max: Expr | None

    @staticmethod
    def point(value: Expr) -> IntervalSet:
        return IntervalSet(value, value)

    @staticmethod
    def everything() -> IntervalSet:
        return IntervalSet(None, None)

    @staticmethod
    def of_range(domain: Range) -> IntervalSet:
        return IntervalSet(domain.min, sub(add(domain.min, domain.extent), 1))

    def range(self, analyzer: Analyzer) -> Range | None:
        """The interval as a half-open range; None if an end is missing."""
        if self.min is None or self.max is None:
            return None
        extent = analyzer.simplify(add(sub(self.max, self.min), 1))
        return Range(analyzer.simplify(self.min), extent)


def domain_of(analyzer: Analyzer, value: IntervalSet | Range) -> Domain:
    """Inclusive ends of a domain as canonical sums."""
    if isinstance(value, Range):
        low, extent = analyzer.exact(value.min), analyzer.exact(value.extent)
        space = analyzer.space
        return Domain(low, space.add(space.add(low, extent), space.const(-1)))
    low_end = None if value.min is None else analyzer.exact(value.min)
    return Domain(low_end, None if value.max is None else analyzer.exact(value.max))


def with_domains(
    analyzer: Analyzer, domains: Mapping[Var, IntervalSet | Range]
) -> tuple[Analyzer, list[tuple[Var, Domain]]]:
    """An analyzer with these domains bound, and the elimination order of their variables."""
    missing = {v: d for v, d in domains.items() if isinstance(d, Range) and not analyzer.knows(v)}
    if missing:
        analyzer = analyzer.copy()
        for var, domain in missing.items():
            analyzer.bind(var, domain)
    ends = {var: domain_of(analyzer, d) for var, d in domains.items()}
    return analyzer, ordered(analyzer, ends)


def eval_set(
    expr: Expr, domains: Mapping[Var, IntervalSet | Range], analyzer: Analyzer
) -> IntervalSet:
    """An interval that contains all values of `expr` for variables in their domains.

    Variables without a domain remain in the ends as symbols.
    """
    if not is_index(expr.dtype):
        raise IRError(
            f"an expression of type {expr.dtype} has no interval",
            help="intervals are over int32 and int64",
        )
    inner, order = with_domains(analyzer, domains)
    p = inner.exact(expr)
    low, high = (extreme(inner, p, order, way) for way in (LOW, HIGH))

    def shown(end: Poly | None) -> Expr | None:
        return None if end is None else analyzer.lower(end, expr.dtype)

    return IntervalSet(shown(low), shown(high))


def union(sets: Sequence[IntervalSet], analyzer: Analyzer) -> IntervalSet:
    """The smallest interval that contains all sets."""
    return IntervalSet(
        _ends([s.min for s in sets], analyzer, LOW, every=True),
        _ends([s.max for s in sets], analyzer, HIGH, every=True),
    )


def hull(a: Range, b: Range, analyzer: Analyzer) -> Range:
    """The smallest range that provably contains both; `a` itself if they are equal."""
    same = a.extent is b.extent or (
        const_int(a.extent) is not None and const_int(a.extent) == const_int(b.extent)
    )
    if same and (a.min is b.min or analyzer.prove_equal(a.min, b.min)):
        return a
    result = union([IntervalSet.of_range(a), IntervalSet.of_range(b)], analyzer).range(analyzer)
    assert result is not None
    return result


def intersect(sets: Sequence[IntervalSet], analyzer: Analyzer) -> IntervalSet:
    """Intersection of the sets; its ends cross if it is empty."""
    return IntervalSet(
        _ends([s.min for s in sets], analyzer, HIGH, every=False),
        _ends([s.max for s in sets], analyzer, LOW, every=False),
    )


def _ends(ends: Sequence[Expr | None], analyzer: Analyzer, way: int, *, every: bool) -> Expr | None:
    """The minimum (LOW) or maximum (HIGH) of the ends.

    A missing end makes the result None if `every`; otherwise it is ignored.
    """
    known = [e for e in ends if e is not None]
    if not known or (every and len(known) < len(ends)):
        return None
    sums = [analyzer.exact(e) for e in known]
    result = analyzer.minimum(sums) if way == LOW else maximum(analyzer, sums)
    try:
        return analyzer.lower(result, known[0].dtype)
    except Unwritable:  # as a sum, an end has a coefficient beyond 64 bits
        return reduce(minimum_of if way == LOW else maximum_of, known)

"""Boxes that cover what a region touches while loops run.

The cover of `[a(i), a(i) + e(i))` runs from the least `a` to the greatest `a + e`. For `a` linear
in the loop variables with coefficients `c` that makes `1 + sum of c * (extent - 1)` elements, exact
for matrix products and windows, with symbolic extents too. A predicate tightens the ends: where
`f(i) >= 0` holds, `a + e` is at most `a + e + k * f` for any `k >= 0`, which is worth taking when a
loop variable cancels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from blockwright.arith.analyzer import Analyzer
from blockwright.arith.condition import conjuncts, reduced, test_of
from blockwright.arith.extreme import HIGH, LOW, Domain, extreme, maximum
from blockwright.arith.form import Poly
from blockwright.arith.interval import with_domains
from blockwright.ir import LT, Expr, Range, Var, const
from blockwright.support import IRError


def bound_region(
    region: Sequence[Range],
    domains: Mapping[Var, Range],
    analyzer: Analyzer,
    predicate: Expr | None = None,
    shape: Sequence[Expr] | None = None,
) -> tuple[Range, ...]:
    """The smallest box known to cover `region` for all values of the variables in `domains`.

    Args:
        region: one range per dimension; may mention the variables and other symbols.
        domains: the variables that run, and over what.
        predicate: only points where it holds count.
        shape: extents to fall back on in dimensions without a known bound (data-dependent
            indices); without it such a dimension is an error.
    """
    inner, order = with_domains(analyzer, domains)
    facts = [] if predicate is None else list(_facts(inner, predicate))
    result: list[Range] = []
    for position, part in enumerate(region):
        start = inner.exact(part.min)
        stop = inner.space.add(start, inner.exact(part.extent))
        low = _bound(inner, start, order, facts, LOW)
        high = _bound(inner, stop, order, facts, HIGH)
        dtype = part.min.dtype
        if low is None or high is None:
            if shape is None:
                raise IRError(f"dimension {position} of the region has no bound", code="BW212",
                              help="pass `shape` to fall back on the whole dimension")  # fmt: skip
            result.append(Range(const(0, dtype), analyzer.simplify(shape[position])))
            continue
        extent = inner.space.sub(high, low)
        result.append(Range(analyzer.lower(low, dtype), analyzer.lower(extent, dtype)))
    return tuple(result)


def _facts(analyzer: Analyzer, predicate: Expr) -> Iterator[Poly]:
    """Sums that are not negative where the predicate holds."""
    for part in conjuncts(predicate):
        test = test_of(analyzer, part)
        if test is None or test.kind == "!=":
            continue
        found = reduced(analyzer, test)
        yield found
        if test.kind == "==":
            yield analyzer.space.scale(found, -1)


def _bound(
    analyzer: Analyzer, p: Poly, order: list[tuple[Var, Domain]], facts: list[Poly], way: int
) -> Poly | None:
    space = analyzer.space
    found = [extreme(analyzer, p, order, way)]
    moving = {var for var, _ in order}
    for fact in facts:
        for factor in sorted(set(_multiples(analyzer, p, fact, moving, way))):
            other = space.add(p, fact, factor * way)
            if len(other.variables(space) & moving) < len(p.variables(space) & moving):
                found.append(extreme(analyzer, other, order, way))
    known = [q for q in found if q is not None]
    if not known:
        return None
    return analyzer.minimum(known) if way == HIGH else maximum(analyzer, known)


def _multiples(
    analyzer: Analyzer, p: Poly, fact: Poly, moving: set[Var], way: int
) -> Iterator[int]:
    """Positive factors with which the fact cancels a term of `p` in a moving variable."""
    for mono, c in fact.terms:
        have = p.coefficient(mono)
        wanted = -have * way
        if have and wanted % c == 0 and wanted // c > 0:
            atoms = (analyzer.space.atoms[a] for a in mono)
            if any(a.variables(analyzer.space) & moving for a in atoms):
                yield wanted // c


def clip_region(
    region: Sequence[Range], shape: Sequence[Expr], analyzer: Analyzer
) -> tuple[Range, ...]:
    """The part of a box inside a buffer of this shape."""
    space = analyzer.space
    result: list[Range] = []
    for part, size in zip(region, shape, strict=True):
        low = analyzer.exact(part.min)
        high = space.add(low, analyzer.exact(part.extent))
        start = maximum(analyzer, [low, space.zero])
        stop = analyzer.minimum([high, analyzer.exact(size)])
        dtype = part.min.dtype
        extent = analyzer.lower(space.sub(stop, start), dtype)
        result.append(Range(analyzer.lower(start, dtype), extent))
    return tuple(result)


def covers(outer: Sequence[Range], inner: Sequence[Range], analyzer: Analyzer) -> bool:
    """Whether every element of `inner` surely lies in `outer`."""
    space = analyzer.space
    for a, b in zip(outer, inner, strict=True):
        a_low, b_low = analyzer.exact(a.min), analyzer.exact(b.min)
        a_high = space.add(a_low, analyzer.exact(a.extent))
        b_high = space.add(b_low, analyzer.exact(b.extent))
        if not analyzer.holds(space.sub(b_low, a_low)):
            return False
        if not analyzer.holds(space.sub(a_high, b_high)):
            return False
    return True


def covers_together(
    boxes: Sequence[Sequence[Range]], inner: Sequence[Range], analyzer: Analyzer
) -> bool:
    """Whether every element of `inner` surely lies in one of the boxes.

    A box that holds `inner` but for the far end of one dimension leaves that end to the others.
    """
    if any(covers(box, inner, analyzer) for box in boxes) or _is_empty(inner, analyzer):
        return True
    if len(boxes) < 2:
        return False
    for position, box in enumerate(boxes):
        others = [*boxes[:position], *boxes[position + 1 :]]
        for dim in range(len(inner)):
            rest = _beyond(box, inner, dim, analyzer)
            if rest is None:
                continue
            known = analyzer.copy()
            end = analyzer.lower(_high(analyzer, rest[dim]), rest[dim].min.dtype)
            known.learn(LT(rest[dim].min, end))  # else nothing is left
            if covers_together(others, rest, known):
                return True
    return False


def _high(analyzer: Analyzer, part: Range) -> Poly:
    return analyzer.space.add(analyzer.exact(part.min), analyzer.exact(part.extent))


def _is_empty(box: Sequence[Range], analyzer: Analyzer) -> bool:
    space = analyzer.space
    return any(analyzer.holds(space.sub(space.zero, analyzer.exact(part.extent))) for part in box)


def _beyond(
    box: Sequence[Range], inner: Sequence[Range], dim: int, analyzer: Analyzer
) -> tuple[Range, ...] | None:
    """What of `inner` lies behind the box in one dimension, if the box holds the rest of it."""
    space = analyzer.space
    low, start = analyzer.exact(inner[dim].min), analyzer.exact(box[dim].min)
    if not analyzer.holds(space.sub(low, start)):
        return None
    other = [k for k in range(len(inner)) if k != dim]
    if not covers([box[k] for k in other], [inner[k] for k in other], analyzer):
        return None
    stop = maximum(analyzer, [low, _high(analyzer, box[dim])])
    left = space.sub(_high(analyzer, inner[dim]), stop)
    dtype = inner[dim].min.dtype
    rest = Range(analyzer.lower(stop, dtype), analyzer.lower(left, dtype))
    return (*inner[:dim], rest, *inner[dim + 1 :])

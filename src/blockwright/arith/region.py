"""Bounding boxes of the regions accessed while loops run.

The bounding range of `[a(i), a(i) + e(i))` is from the minimum of `a` to the maximum of `a + e`. If
`a` is linear in the loop variables with coefficients `c`, it has `1 + sum of c * (extent - 1)`
elements; this is exact for matrix products and sliding windows, also with symbolic extents. A
predicate tightens the ends: where `f(i) >= 0` holds, `a + e` is at most `a + e + k * f` for any
`k >= 0`, which is useful if a loop variable cancels. A quotient is bounded through its numerator, a
minimum or maximum through its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from blockwright.arith.analyzer import Analyzer
from blockwright.arith.condition import conjuncts, reduced, test_of
from blockwright.arith.extreme import HIGH, LOW, Domain, extreme, maximum
from blockwright.arith.form import Poly
from blockwright.arith.interval import IntervalSet, with_domains
from blockwright.ir import LE, Expr, Range, Var, add, const, is_const_int, match_types, minimum
from blockwright.ir import maximum as maximum_of
from blockwright.support import IRError


def bound_region(
    region: Sequence[Range],
    domains: Mapping[Var, Range | IntervalSet],
    analyzer: Analyzer,
    predicate: Expr | None = None,
    shape: Sequence[Expr] | None = None,
) -> tuple[Range, ...]:
    """The smallest box that provably covers `region` for all values of the variables in `domains`.

    Args:
        region: one range per dimension; may use the variables and other symbols.
        domains: the loop variables and their domains.
        predicate: only points where it holds are covered.
        shape: extents used for dimensions without a provable bound (data-dependent indices);
            without it such a dimension is an error.
    """
    inner, order = with_domains(analyzer, domains)
    facts = [] if predicate is None else list(_facts(inner, predicate))
    result: list[Range] = []
    ends: dict[tuple[Poly, int], Poly | None] = {}  # memoized: accesses share many ends
    for position, part in enumerate(region):
        start = inner.exact(part.min)
        stop = inner.space.add(start, inner.exact(part.extent))
        for end, way in ((start, LOW), (stop, HIGH)):
            if (end, way) not in ends:
                ends[end, way] = _bound(inner, end, order, facts, way)
        low, high = ends[start, LOW], ends[stop, HIGH]
        dtype = part.min.dtype
        if low is None or high is None:
            if shape is None:
                raise IRError(
                    f"dimension {position} of the region has no bound",
                    code="BW244",
                    help="pass `shape` to fall back on the whole dimension",
                )
            result.append(Range(const(0, dtype), analyzer.simplify(shape[position])))
            continue
        extent = inner.space.sub(high, low)
        result.append(Range(analyzer.lower(low, dtype), analyzer.lower(extent, dtype)))
    return tuple(result)


def _facts(analyzer: Analyzer, predicate: Expr) -> Iterator[Poly]:
    """Sums that are non-negative where the predicate holds."""
    for part in conjuncts(predicate):
        test = test_of(analyzer, part)
        if test is None or test.kind == "!=":
            continue
        result = reduced(analyzer, test)
        yield result
        if test.kind == "==":
            yield analyzer.space.scale(result, -1)


def _bound(
    analyzer: Analyzer, p: Poly, order: list[tuple[Var, Domain]], facts: list[Poly], way: int
) -> Poly | None:
    space = analyzer.space
    result = [extreme(analyzer, p, order, way)]
    moving = {var for var, _ in order}
    for fact in facts:
        for factor in sorted(set(_multiples(analyzer, p, fact, moving, way))):
            other = space.add(p, fact, factor * way)
            if len(other.variables(space) & moving) < len(p.variables(space) & moving):
                result.append(extreme(analyzer, other, order, way))
    if facts:
        result += [
            extreme(analyzer, q, order, way)
            for inner in (_quotients, _limits)
            for q in inner(analyzer, p, order, facts, way)
        ]
    known = [q for q in result if q is not None]
    if not known:
        return None
    return analyzer.minimum(known) if way == HIGH else maximum(analyzer, known)


def _quotients(
    analyzer: Analyzer, p: Poly, order: list[tuple[Var, Domain]], facts: list[Poly], way: int
) -> Iterator[Poly]:
    """Variants of `p` with a quotient of loop variables replaced through its numerator's bound."""
    space, moving = analyzer.space, {var for var, _ in order}
    for mono, c in p.terms:
        atom = space.atoms[mono[0]]
        if len(mono) > 1 or atom.kind != "div" or not atom.variables(space) & moving:
            continue
        numerator, denominator = atom.operands
        if denominator.terms or denominator.const < 1:
            continue
        end = _bound(analyzer, numerator, order, facts, way if c > 0 else -way)
        if end is not None:
            rest = space.add(p, space.monomial(mono, c), -1)
            yield space.add(rest, analyzer.floordiv(end, denominator), c)


def _limits(
    analyzer: Analyzer, p: Poly, order: list[tuple[Var, Domain]], facts: list[Poly], way: int
) -> Iterator[Poly]:
    """Variants of `p` with a minimum or maximum replaced by that of its operands' bounds."""
    space, moving = analyzer.space, {var for var, _ in order}
    for unit in analyzer.units(p):
        moved = any(q.variables(space) & moving for q in unit.operands)
        if unit.kind not in ("min", "max") or unit.rest or not moved:
            continue
        side = way if unit.coefficient > 0 else -way
        ends = [_bound(analyzer, q, order, facts, side) for q in unit.operands]
        kept = [e for e in ends if e is not None]
        lucky = HIGH if unit.kind == "min" else LOW  # one operand's bound suffices
        if len(kept) == len(ends) or (side == lucky and kept):
            end = analyzer.minimum(kept) if unit.kind == "min" else maximum(analyzer, kept)
            rest = space.add(p, analyzer.unit_value(unit), -unit.coefficient)
            yield space.add(rest, end, unit.coefficient)


def _multiples(
    analyzer: Analyzer, p: Poly, fact: Poly, moving: set[Var], way: int
) -> Iterator[int]:
    """Positive factors for which the fact cancels a term of `p` that uses a loop variable."""
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
    """Intersection of a box with a buffer of this shape."""
    space = analyzer.space
    result: list[Range] = []
    for part, size in zip(region, shape, strict=True):
        low = analyzer.exact(part.min)
        high = space.add(low, analyzer.exact(part.extent))
        start = maximum(analyzer, [low, space.zero])
        stop = analyzer.minimum([high, analyzer.exact(size)])
        dtype = part.min.dtype
        length = space.sub(stop, start)
        if not length.terms and length.const < 0:  # the box lies outside the buffer
            start, length = stop, space.zero
        extent = analyzer.lower(length, dtype)
        result.append(Range(analyzer.lower(start, dtype), extent))
    return tuple(result)


def covers(outer: Sequence[Range], inner: Sequence[Range], analyzer: Analyzer) -> bool:
    """Whether every element of `inner` provably lies in `outer`.

    A box with an empty dimension has no elements, so the comparison of each dimension may assume
    that all dimensions are non-empty.
    """
    if _contains(outer, inner, analyzer):
        return True
    sizes = [part.extent for part in inner if not is_const_int(part.extent)]
    if not sizes:
        return False
    filled = analyzer.copy()
    for size in sizes:
        filled.learn(LE(const(1, size.dtype), size))
    return _contains(outer, inner, filled)


def _contains(outer: Sequence[Range], inner: Sequence[Range], analyzer: Analyzer) -> bool:
    """Whether `inner` provably lies within `outer` along each dimension."""
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


def jointly_cover(
    outers: Sequence[Sequence[Range]], inner: Sequence[Range], analyzer: Analyzer
) -> bool:
    """Whether every element of `inner` provably lies in one of `outers`.

    Subtracts each box from the remainder of `inner`; nothing may be left.
    """
    if any(covers(outer, inner, analyzer) for outer in outers):
        return True
    if any(analyzer.prove(LE(part.extent, const(0, part.extent.dtype))) for part in inner):
        return True
    rest = [[(part.min, add(part.min, part.extent)) for part in inner]]
    for outer in outers if len(outers) > 1 else ():
        hole = [(part.min, add(part.min, part.extent)) for part in outer]
        rest = [piece for box in rest for piece in _without(box, hole, analyzer)]
        if len(rest) > _MOST_PIECES:
            return False
    return len(outers) > 1 and not rest


_MOST_PIECES = 32
_Box = list[tuple[Expr, Expr]]


def _without(box: _Box, hole: _Box, analyzer: Analyzer) -> list[_Box]:
    """Boxes that make up `box` minus `hole`; provably empty ones are omitted."""
    pieces: list[_Box] = []
    left = list(box)
    for dim, ((low, high), (start, stop)) in enumerate(zip(box, hole, strict=True)):
        below, above = (
            (low, _end(minimum, high, start, analyzer)),
            (_end(maximum_of, low, stop, analyzer), high),
        )
        for part in (below, above):
            if not _empty(part, analyzer):
                pieces.append([*left[:dim], part, *left[dim + 1 :]])
        left[dim] = (_end(maximum_of, low, start, analyzer), _end(minimum, high, stop, analyzer))
        if _empty(left[dim], analyzer):
            return [box]  # the boxes are disjoint
    return pieces


def _end(choose: Callable[[Expr, Expr], Expr], a: Expr, b: Expr, analyzer: Analyzer) -> Expr:
    return analyzer.simplify(choose(*match_types(a, b)))


def _empty(part: tuple[Expr, Expr], analyzer: Analyzer) -> bool:
    return analyzer.prove(LE(*match_types(part[1], part[0])))

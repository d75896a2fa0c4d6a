"""Division of iterator maps into an outer and an inner part, as needed by blockize.

With `inner` the loops that move into the new block, each binding becomes
`outer * inner_extent + inner`, where `outer` uses only the other loops. This requires that the
digits of the inner loops are the low digits of the binding.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from blockwright.arith.analyzer import Analyzer
from blockwright.arith.condition import conjuncts
from blockwright.arith.form import Poly
from blockwright.arith.itermap import Level, detect_iter_map
from blockwright.arith.itermark import IterMark, IterSplit, IterSum, split_expr
from blockwright.ir import Expr, Range, Var, all_of, uses_var


class SubspacePair(msgspec.Struct, frozen=True, eq=False):
    """One binding as `outer * inner_extent + inner`.

    Each part ranges over `[start, start + extent)`.
    """

    outer: Expr
    outer_extent: Expr
    inner: Expr
    inner_extent: Expr
    outer_start: Expr
    inner_start: Expr


class SubspaceDivision(msgspec.Struct, frozen=True, eq=False):
    """One pair per binding, and the predicate split into an outer and an inner part.

    `inner_predicate` holds all conditions that use an inner loop, including those that also use
    outer loops.
    """

    pairs: tuple[SubspacePair, ...]
    outer_predicate: Expr
    inner_predicate: Expr


class _Part(msgspec.Struct, frozen=True, eq=False):
    """`outer * inner_extent + inner` with exact extents, as canonical sums."""

    outer: Poly
    outer_extent: Poly
    inner: Poly
    inner_extent: Poly


class _Divider:
    def __init__(self, analyzer: Analyzer, inner: Collection[Var]) -> None:
        self.analyzer = analyzer
        self.space = analyzer.space
        self.inner = frozenset(inner)

    def poly(self, expr: Expr) -> Poly:
        return self.analyzer.exact(expr)

    def whole(self, value: Poly, extent: Poly, *, inner: bool) -> _Part:
        zero, one = self.space.zero, self.space.one
        if inner:
            return _Part(zero, one, value, extent)
        return _Part(value, extent, zero, one)

    def split(self, item: IterSplit) -> _Part | None:
        """The value of the split without its scale."""
        value = self.poly(split_expr(_unscaled(item, self.analyzer)))
        used = self._loops(item.source)
        if not used & self.inner or used <= self.inner:
            return self.whole(value, self.poly(item.extent), inner=bool(used & self.inner))
        assert isinstance(item.source.source, IterSum)
        part = self.sum(item.source.source)
        if part is None:
            return None
        return self._digit(part, item)

    def _loops(self, mark: IterMark) -> frozenset[Var]:
        if isinstance(mark.source, Var):
            return frozenset((mark.source,))
        return frozenset[Var]().union(*(self._loops(a.source) for a in mark.source.args))

    def _digit(self, part: _Part, item: IterSplit) -> _Part | None:
        """`part // lower % extent`, for a mark that has both inner and outer loops."""
        space, analyzer = self.space, self.analyzer
        lower, extent = self.poly(item.lower_factor), self.poly(item.extent)
        if lower is space.one and extent is self.poly(item.source.extent):
            return part  # a bound on the whole mark stays in the predicate
        if space.mul(part.outer_extent, part.inner_extent) is not self.poly(item.source.extent):
            return None
        above = self._ratio(lower, part.inner_extent)
        if above is not None:  # the digit lies in the outer part
            value = self._mod(analyzer.floordiv(part.outer, above), extent)
            return self.whole(value, extent, inner=False)
        end = space.mul(lower, extent)
        if self._ratio(part.inner_extent, end) is not None:
            value = self._mod(analyzer.floordiv(part.inner, lower), extent)
            return self.whole(value, extent, inner=True)
        below, up = self._ratio(part.inner_extent, lower), self._ratio(end, part.inner_extent)
        if below is None or up is None:
            return None
        return _Part(self._mod(part.outer, up), up, analyzer.floordiv(part.inner, lower), below)

    def _mod(self, p: Poly, c: Poly) -> Poly:
        return self.space.sub(p, self.space.mul(c, self.analyzer.floordiv(p, c)))

    def _ratio(self, p: Poly, q: Poly) -> Poly | None:
        result = self.analyzer.floordiv(p, q)
        return result if self.space.mul(result, q) is p else None

    def sum(self, item: IterSum) -> _Part | None:
        """Divide a mixed-radix sum whose digits are ordered from high to low."""
        space = self.space
        outer, inner = space.zero, space.zero
        outer_extent, inner_extent = space.one, space.one
        for digit in reversed(item.args):
            part = self.split(digit)
            below = space.mul(outer_extent, inner_extent)
            if part is None or self.poly(digit.scale) is not below:
                return None  # a bound on the lower digits leaves a gap
            if part.inner_extent is not space.one:
                if outer_extent is not space.one:
                    return None  # an inner digit above an outer one
                inner = space.add(inner, space.mul(part.inner, inner_extent))
                inner_extent = space.mul(inner_extent, part.inner_extent)
            outer = space.add(outer, space.mul(part.outer, outer_extent))
            outer_extent = space.mul(outer_extent, part.outer_extent)
        return _Part(outer, outer_extent, inner, inner_extent)


def _unscaled(item: IterSplit, analyzer: Analyzer) -> IterSplit:
    one = analyzer.lower(analyzer.space.one, item.extent.dtype)
    return IterSplit(item.source, item.lower_factor, item.extent, one)


def subspace_divide(
    bindings: Sequence[Expr],
    iters: Mapping[Var, Range],
    sub_iters: Collection[Var],
    predicate: Expr | None,
    analyzer: Analyzer,
    level: Level = "surjective",
) -> SubspaceDivision | None:
    """Write each binding as `outer * inner_extent + inner`; None if that is impossible.

    Args:
        bindings: block iterator values, an iterator map of `iters` of the given level.
        sub_iters: the inner loops.
    """
    result = detect_iter_map(bindings, iters, predicate, analyzer, level)
    if not result.ok:
        return None
    inner_analyzer = analyzer.without(iters)
    for var, domain in iters.items():
        inner_analyzer.bind(var, domain)
    divider = _Divider(inner_analyzer, sub_iters)
    pairs: list[SubspacePair] = []
    for binding, item in zip(bindings, result.indices, strict=True):
        part = divider.sum(item)
        if part is None:
            return None
        pairs.append(_pair(inner_analyzer, part, item.base, binding))
    conditions = [] if predicate is None else list(conjuncts(predicate))
    inside = [c for c in conditions if uses_var(c, set(sub_iters))]
    outside = [c for c in conditions if not uses_var(c, set(sub_iters))]
    return SubspaceDivision(tuple(pairs), all_of(outside), all_of(inside))


def _pair(analyzer: Analyzer, part: _Part, base: Expr, binding: Expr) -> SubspacePair:
    """Make a pair; the base goes to the outer part if it is a multiple, else to the inner part."""
    space, dtype = analyzer.space, binding.dtype
    start = analyzer.exact(base)
    steps = analyzer.floordiv(start, part.inner_extent)
    if space.mul(steps, part.inner_extent) is start:
        starts = (steps, space.zero)
    else:
        starts = (space.zero, start)
    outer, inner = space.add(part.outer, starts[0]), space.add(part.inner, starts[1])
    sums = (outer, part.outer_extent, inner, part.inner_extent, *starts)
    return SubspacePair(*(analyzer.lower(p, dtype) for p in sums))

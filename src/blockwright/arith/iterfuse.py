"""Loop fusion before iterator-map detection, for indices that obscure the digits of fused loops.

Iterating over `o` and `i` with `o * 8 + i < 420` equals iterating over `s` in [0, 420) with
`o = s // 8` and `i = s % 8`. The map itself is unchanged: it takes the same values, and `s`
distinguishes iterations exactly as `o` and `i` together do. In terms of `s` the indices are
canonical again: `(o * 2 + i // 4) % 7` is `s // 4 % 7`, and `i % 4` is `s % 4`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from blockwright.arith.analyzer import Analyzer
from blockwright.arith.condition import conjuncts, test_of
from blockwright.arith.form import Poly
from blockwright.arith.itermark import IterMapResult, IterMark, IterSplit, IterSum
from blockwright.ir import (
    Expr,
    Range,
    Var,
    add,
    all_of,
    cast_to,
    const,
    floordiv,
    floormod,
    is_const_int,
    sub,
    substitute,
    uses_var,
    widest_type,
)


class Fused(msgspec.Struct, frozen=True, eq=False):
    """An iterator over [0, extent) that replaces loops.

    `digits` holds (loop variable, domain, scale), from the outermost, with the largest scale, to
    the innermost, with scale 1.
    """

    var: Var
    extent: Expr
    digits: tuple[tuple[Var, Range, Expr], ...]


class FusedIterMap(msgspec.Struct, frozen=True, eq=False):
    """Input of iterator-map detection, with the loops fused so far."""

    indices: tuple[Expr, ...]
    iters: Mapping[Var, Range]
    predicate: Expr | None
    fused: tuple[Fused, ...] = ()

    def analyzer(self, analyzer: Analyzer) -> Analyzer:
        """A copy of `analyzer` with the domains of the current iterators bound."""
        known = analyzer.without(self.iters)
        for var, domain in self.iters.items():
            known.bind(var, domain)
        return known


def fuse_bounded(nest: FusedIterMap, analyzer: Analyzer) -> FusedIterMap | None:
    """Fuse the loops of each condition `o * extent + i < bound`; None without such a condition."""
    result: FusedIterMap | None = None
    while nest.predicate is not None:
        known = nest.analyzer(analyzer)
        parts, iters = list(conjuncts(nest.predicate)), nest.iters
        for part in sorted(parts, key=lambda p: sum(uses_var(p, v) for v in iters)):
            matches = _bounded(nest, part, known)
            if matches is not None:
                rest = [p for p in parts if p is not part]
                nest = result = _replaced(nest, matches, rest)
                break
        else:
            break
    return result


def fuse_summed(
    nest: FusedIterMap, sums: Iterable[IterSum], analyzer: Analyzer
) -> FusedIterMap | None:
    """Fuse the loops of the longest of several sums of digits into one iterator."""
    best: list[Var] = []
    for item in sums:
        loops = [s.source.source for s in item.args if isinstance(s.source.source, Var)]
        whole = len(loops) == len(item.args) == len(set(loops))
        if whole and len(loops) > len(best) and _free(nest, loops):
            best = loops
    if len(best) < 2:
        return None
    known = nest.analyzer(analyzer)
    space = known.space
    order: list[tuple[Var, Poly]] = []
    total = space.one
    for var in reversed(best):
        order.append((var, total))
        total = space.mul(total, known.exact(nest.iters[var].extent))
    parts = [] if nest.predicate is None else list(conjuncts(nest.predicate))
    return _replaced(nest, _iterator(nest, order, total, known), parts)


def unfuse(result: IterMapResult, fused: Sequence[Fused]) -> IterMapResult:
    """The result expressed in the original loops."""
    created = {f.var: f for f in fused}
    marks: dict[IterMark, IterMark] = {}

    def split_of(split: IterSplit) -> IterSplit:
        source = mark_of(split.source)
        return IterSplit(source, split.lower_factor, split.extent, split.scale)

    def mark_of(mark: IterMark) -> IterMark:
        if mark not in marks:
            marks[mark] = in_loops(mark)
        return marks[mark]

    def in_loops(mark: IterMark) -> IterMark:
        source = mark.source
        if isinstance(source, IterSum):
            args = tuple(split_of(s) for s in source.args)
            return IterMark(IterSum(args, source.base), mark.extent)
        fusion = created.get(source)
        if fusion is None:
            return mark
        zero = const(0, source.type)
        base = zero if mark.start is None else sub(zero, mark.start)
        return IterMark(IterSum(tuple(digits(fusion)), base), mark.extent)

    def digits(fusion: Fused) -> Iterable[IterSplit]:
        one = const(1, fusion.var.type)
        for var, domain, scale in fusion.digits:
            start = None if is_const_int(domain.min, 0) else domain.min
            extent = cast_to(domain.extent, fusion.var.type)
            yield IterSplit(mark_of(IterMark(var, extent, start)), one, extent, scale)

    indices = tuple(IterSum(tuple(split_of(s) for s in i.args), i.base) for i in result.indices)
    told_apart, single = set(result.told_apart), dict(result.single)
    for fusion in reversed(fused):
        if fusion.var in told_apart:
            told_apart.remove(fusion.var)
            told_apart.update(var for var, _, _ in fusion.digits)
        if fusion.var in single:
            single |= _digit_values(fusion, single.pop(fusion.var))
    return IterMapResult(indices, result.errors, result.padding, frozenset(told_apart), single)


def _bounded(nest: FusedIterMap, part: Expr, known: Analyzer) -> Fused | None:
    """The fusion bounded by a condition: a mixed-radix sum of at least two loops."""
    test = test_of(known, part)
    if test is None or test.kind != ">=":
        return None
    space = known.space
    rest = space.scale(test.sum, -1)  # rest <= 0 is sum(scale * loop) <= limit
    scales: dict[Var, Poly] = {}
    for var in nest.iters:
        result = space.split_atom(rest, space.var_atom(var).id)
        if result is None:
            return None
        if result[0] is not space.zero:
            scales[var], rest = result
    moving = set(nest.iters)
    fixed = [rest, *scales.values()]
    if len(scales) < 2 or not all(moving.isdisjoint(p.variables(space)) for p in fixed):
        return None
    if not _free(nest, list(scales)):
        return None
    limit = space.scale(rest, -1)
    for var, scale in scales.items():
        limit = space.sub(limit, space.mul(scale, known.exact(nest.iters[var].min)))
    chain = _chain(nest, scales, known)
    if chain is None:
        return None
    order, unit, total = chain
    bound = space.add(known.floordiv(limit, space.const(unit)), space.one)
    return _iterator(nest, order, known.minimum([total, bound]), known)


def _chain(
    nest: FusedIterMap, scales: Mapping[Var, Poly], known: Analyzer
) -> tuple[list[tuple[Var, Poly]], int, Poly] | None:
    """Order loops into a mixed-radix chain.

    Returns:
        The loops from the innermost, with scales divided by the smallest scale; the smallest scale;
        the number of values. None if a scale is not the number of values of the loops inside it.
    """
    space = known.space
    numbers = [s.const for s in scales.values() if s.is_const]
    unit = min(numbers, default=0)
    if unit < 1:
        return None
    left = dict(scales)
    order: list[tuple[Var, Poly]] = []
    total = space.one
    while left:
        expected = space.scale(total, unit)
        result = next((v for v, s in left.items() if s is expected), None)
        if result is None:
            return None
        del left[result]
        order.append((result, total))
        total = space.mul(total, known.exact(nest.iters[result].extent))
    return order, unit, total


def _free(nest: FusedIterMap, loops: Sequence[Var]) -> bool:
    """Whether no domain depends on the loops."""
    used = set(loops)
    return not any(uses_var(e, used) for d in nest.iters.values() for e in (d.min, d.extent))


def _iterator(
    nest: FusedIterMap, order: Sequence[tuple[Var, Poly]], extent: Poly, known: Analyzer
) -> Fused:
    dtype = widest_type(v for v, _ in order)
    name = "_".join(v.name for v, _ in reversed(order))
    digits = tuple((v, nest.iters[v], known.lower(s, dtype)) for v, s in reversed(order))
    return Fused(Var(name, dtype), known.lower(extent, dtype), digits)


def _digit_values(fused: Fused, whole: Expr) -> dict[Var, Expr]:
    """The loops as expressions of the fused iterator."""
    dtype = whole.dtype
    values: dict[Var, Expr] = {}
    for position, (var, domain, scale) in enumerate(fused.digits):
        value = floordiv(whole, cast_to(scale, dtype))
        if position > 0:
            value = floormod(value, cast_to(domain.extent, dtype))
        values[var] = cast_to(add(value, cast_to(domain.min, dtype)), var.type)
    return values


def _replaced(nest: FusedIterMap, fused: Fused, conditions: Sequence[Expr]) -> FusedIterMap:
    """The nest in terms of the fused iterator, under the remaining conditions."""
    dtype = fused.var.type
    values = _digit_values(fused, fused.var)
    iters = {fused.var: Range(const(0, dtype), fused.extent)}
    iters |= {v: d for v, d in nest.iters.items() if v not in values}
    predicate = all_of([substitute(c, values) for c in conditions]) if conditions else None
    indices = tuple(substitute(i, values) for i in nest.indices)
    return FusedIterMap(indices, iters, predicate, (*nest.fused, fused))

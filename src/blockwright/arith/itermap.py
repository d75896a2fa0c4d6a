"""Detection of iterator maps, and checks of their level.

- "independent": the indices are sums of digits of the loops and share no digit, so each index
  takes its values independently of the others;
- "injective": independent, and every digit of every loop is used, so no two iterations map to the
  same point;
- "surjective": independent, and each index takes every value of an interval;
- "bijective": injective and surjective.

A predicate does not affect independence, although it may restrict the points to any subset of the
box. Nor can it make two iterations map to one point: at the levels "independent" and "injective",
conditions of another form than `sum < bound` are ignored.

If the indices obscure the digits of a loop that was fused and then split, loops are fused first
(`iterfuse`): those coupled by a condition, then those whose sums are divided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from blockwright.arith.analyzer import Analyzer
from blockwright.arith.form import Poly
from blockwright.arith.iterbound import constrain
from blockwright.arith.iterfuse import FusedIterMap, fuse_bounded, fuse_summed, unfuse
from blockwright.arith.itermark import (
    IterMapError,
    IterMapResult,
    IterMark,
    IterSplit,
    IterSum,
    mark_expr,
    split_expr,
)
from blockwright.arith.iterparse import NotAffine, Parser
from blockwright.arith.text import expr_text
from blockwright.ir import GE, LT, Expr, Range, Var, compare, const, logical_or
from blockwright.ir.dtype import BOOL

Level = Literal["independent", "injective", "surjective", "bijective"]
_GAPS = ("independent", "injective")  # levels at which an index may skip values
_ALL_DIGITS = ("injective", "bijective")
_PASSES = 4


def detect_iter_map(
    indices: Sequence[Expr],
    iters: Mapping[Var, Range],
    predicate: Expr | None,
    analyzer: Analyzer,
    level: Level = "surjective",
    *,
    pad: bool = False,
) -> IterMapResult:
    """Detect the indices as sums of splits of the iterators, and check the required level.

    Args:
        indices: expressions of the iterators and of loop-invariant symbols.
        iters: iterators and their domains; extents may be symbolic products.
        predicate: a conjunction of conditions `sum < bound` on the iterations.
        analyzer: knowledge about the symbols; conditions on the iterators are not used.
        level: required level, see the module docstring.
        pad: add points so that extents become multiples of divisors (see `padding` of the result).
    """
    nest = FusedIterMap(tuple(indices), iters, predicate)
    parser, result = _detect(nest, analyzer, level, pad)
    if result.ok or pad:
        return result
    given, bounded = result, fuse_bounded(nest, analyzer)
    while bounded is not None or parser.fused:
        sums = [m.source for m in parser.fused.values() if isinstance(m.source, IterSum)]
        again = bounded or fuse_summed(nest, sums, analyzer)
        if again is None:
            break
        nest, bounded = again, None
        parser, result = _detect(nest, analyzer, level, pad)
        if result.ok:
            return unfuse(result, nest.fused)
    return given


def _detect(
    nest: FusedIterMap, analyzer: Analyzer, level: Level, pad: bool
) -> tuple[Parser, IterMapResult]:
    """Detect the map of the nest as is; also returns the parser."""
    parser = Parser(nest.iters, analyzer, pad=pad)
    errors: list[str] = []
    if nest.predicate is not None:
        left = constrain(parser, nest.predicate)
        if left is not None and level not in _GAPS:
            errors.append(f"the condition {expr_text(left)} does not bound a fusion of loops")
    sums: list[IterSum] = []
    failed: list[str] = []
    for _ in range(_PASSES):
        periods = dict(parser.periods)
        parser.padded.clear()
        parser.padding.clear()
        failed = []
        sums = [_parse(parser, index, level, failed) for index in nest.indices]
        if parser.periods == periods:
            break
    errors += failed
    told_apart = frozenset[Var]()
    if not errors:
        told_apart = _check(parser, sums, nest.indices, level, errors)
    padding = const(False, BOOL) if errors or not parser.padding else _padding(parser)
    result = IterMapResult(
        () if errors else tuple(sums), tuple(errors), padding, told_apart, _single(parser)
    )
    return parser, result


def _parse(parser: Parser, index: Expr, level: Level, errors: list[str]) -> IterSum:
    try:
        result = parser.parse(parser.analyzer.exact(index))
        if level in _GAPS:
            try:
                return parser.fuse(result)
            except NotAffine:
                return result
        whole = parser.fuse(result)
    except NotAffine as problem:
        errors.append(f"{expr_text(index)}: {problem}")
        return IterSum((), parser.zero)
    unit = not whole.args or parser.poly(whole.args[0].scale) is parser.space.one
    if not unit:
        errors.append(
            f"{expr_text(index)}: takes only every {expr_text(whole.args[0].scale)}th value"
        )
    return whole


def _check(
    parser: Parser, sums: list[IterSum], indices: Sequence[Expr], level: Level, errors: list[str]
) -> frozenset[Var]:
    """Append problems to `errors`; returns the iterators that the indices distinguish."""
    if level in _GAPS:
        for item, index in zip(sums, indices, strict=True):
            if not _separate_digits(parser, item):
                errors.append(f"{expr_text(index)}: its summands overlap")
    uses: dict[IterMark, list[IterSplit]] = {}
    work = [split for item in sums for split in item.args]
    while work:
        split = work.pop()
        if split.source not in uses and isinstance(split.source.source, IterSum):
            work.extend(split.source.source.args)
        uses.setdefault(split.source, []).append(split)
    partly: list[IterMark] = []
    for mark, splits in uses.items():
        problem, missing = _chain(parser, mark, splits)
        if missing is not None:
            partly.append(mark)
        if problem is None and level in _ALL_DIGITS:
            problem = missing
        if problem is not None:
            errors.append(problem)
    if level not in _GAPS:
        _check_constraints(parser, uses, errors)
    told_apart = _told_apart(parser, uses, partly)
    if level in _ALL_DIGITS and not errors:
        for var in parser.marks:
            if var not in told_apart:
                errors.append(f"the loop {var.name} is not used")
    return frozenset() if errors else told_apart


def _told_apart(
    parser: Parser, uses: dict[IterMark, list[IterSplit]], partly: list[IterMark]
) -> frozenset[Var]:
    """Iterators of which every digit is used, including as part of fusions."""
    lost = set(partly)
    while partly:
        mark = partly.pop()
        if isinstance(mark.source, IterSum):
            inner = [d.source for d in mark.source.args if d.source not in lost]
            lost.update(inner)
            partly.extend(inner)
    kept = {v for v, mark in parser.marks.items() if mark in uses and mark not in lost}
    return frozenset(kept | _single(parser).keys())


def _single(parser: Parser) -> dict[Var, Expr]:
    """Iterators with a single value, and that value."""
    return {
        var: parser.zero if mark.start is None else mark.start
        for var, mark in parser.marks.items()
        if parser.poly(mark.extent) is parser.space.one
    }


def _check_constraints(
    parser: Parser, uses: dict[IterMark, list[IterSplit]], errors: list[str]
) -> None:
    """Check that each condition coupling iterators concerns a fusion that the indices use."""
    for mark in parser.constrained:
        if mark not in uses and any(part in uses for part in _parts(mark)):
            errors.append(
                f"the condition on {expr_text(mark_expr(mark))} couples loops that the "
                "indices use separately"
            )


def _parts(mark: IterMark) -> list[IterMark]:
    """All marks that a mark is fused from, transitively."""
    if not isinstance(mark.source, IterSum):
        return []
    direct = [digit.source for digit in mark.source.args]
    return direct + [part for inner in direct for part in _parts(inner)]


def _separate_digits(parser: Parser, item: IterSum) -> bool:
    """Whether a sum is injective in its digits: each scale exceeds the sum of smaller digits."""
    space, analyzer = parser.space, parser.analyzer
    left = list(item.args)
    reach = space.zero  # largest value of the digits processed so far
    while left:
        for split in left:
            scale = parser.poly(split.scale)
            others = [parser.poly(s.scale) for s in left if s is not split]
            if all(analyzer.holds(space.sub(o, scale)) for o in others):
                break
        else:
            return False
        left.remove(split)
        if not analyzer.holds(space.add(space.sub(scale, reach), space.const(-1))):
            return False
        count = space.add(parser.poly(split.extent), space.const(-1))
        reach = space.add(reach, space.mul(scale, count))
    return True


def _chain(
    parser: Parser, mark: IterMark, splits: list[IterSplit]
) -> tuple[str | None, str | None]:
    """Problems of the splits of one mark: an overlap, and missing values; each None if absent."""
    space = parser.space
    left = [s for s in splits if parser.poly(s.extent) is not space.one]
    expected = space.one
    name = expr_text(mark_expr(mark))
    missing: str | None = None
    while left:
        result = _lowest_digit(parser, left)
        if result is None:
            return f"the digits used of {name} overlap: " + ", ".join(
                expr_text(split_expr(s)) for s in splits
            ), None
        lower = parser.poly(result.lower_factor)
        if lower is not expected and missing is None:
            missing = f"values of {name} below {expr_text(result.lower_factor)} are not used"
        left.remove(result)
        expected = space.mul(lower, parser.poly(result.extent))
    whole = parser.poly(mark.extent)
    if missing is None and not parser.same(expected, whole):
        missing = (
            f"{name} has {expr_text(mark.extent)} values, of which the indices distinguish "
            f"{parser.text(expected)}"
        )
    if parser.quotient(whole, expected) is None:
        return f"{name} does not run through whole periods of {parser.text(expected)}", missing
    return None, missing


def _lowest_digit(parser: Parser, splits: list[IterSplit]) -> IterSplit | None:
    for split in splits:
        end = parser.space.mul(parser.poly(split.lower_factor), parser.poly(split.extent))
        others = (s for s in splits if s is not split)
        if all(parser.quotient(parser.poly(s.lower_factor), end) is not None for s in others):
            return split
    return None


def _padding(parser: Parser) -> Expr:
    """Condition for points of a padded mark outside its original values."""
    result: Expr = const(False, BOOL)
    for mark in parser.padding:
        assert isinstance(mark.source, IterSum)
        inner = mark.source.args[0]
        value = split_expr(inner)
        below = compare(LT, value, 0)
        result = logical_or(result, logical_or(below, compare(GE, value, inner.extent)))
    return parser.analyzer.without(parser.variables).simplify(result)


def is_bijective(
    indices: Sequence[Expr],
    iters: Mapping[Var, Range],
    predicate: Expr | None,
    analyzer: Analyzer,
) -> bool:
    """Whether the map from iterations to indices is bijective."""
    return detect_iter_map(indices, iters, predicate, analyzer, "bijective").ok


def require_iter_map(
    indices: Sequence[Expr],
    iters: Mapping[Var, Range],
    predicate: Expr | None,
    analyzer: Analyzer,
    level: Level = "surjective",
    *,
    pad: bool = False,
) -> IterMapResult:
    """Like `detect_iter_map`, but raises `IterMapError` on errors."""
    result = detect_iter_map(indices, iters, predicate, analyzer, level, pad=pad)
    if not result.ok:
        raise IterMapError("; ".join(result.errors))
    return result


def extent_of(item: IterSum, analyzer: Analyzer) -> Poly:
    """Number of values of a fused sum."""
    if not item.args:
        return analyzer.space.one
    return analyzer.exact(item.args[0].extent)

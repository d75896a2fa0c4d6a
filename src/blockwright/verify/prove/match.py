"""Equality of values: same operators over the same leaves, with sums as multisets of terms.

The summands of two sums are paired by what they read. The *key* of a summand consists of the result
instance and of every input element and integer among its leaves. Two sums are equal if keys are
unique on both sides and the key sets are equal. If keys repeat, they are extended by the
lexicographically smallest elements that inner sums read, and then by the reduction iterators as a
heuristic. Every proposed pairing is checked: it must be one-to-one and total, and inner sums of
paired terms must be equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import cast

from blockwright.verify import isl
from blockwright.verify.budget import DEAR, begin_step
from blockwright.verify.model.instance_sets import min_sizes
from blockwright.verify.model.terms import (
    IDEMPOTENT,
    Alternative,
    Leaf,
    Skeleton,
    Sum,
    Term,
    Value,
    is_neutral,
    pulled_leaf,
)
from blockwright.verify.verdict import Mismatch, Unknown

DIVISIONS = 64
"""Limit on integer divisions per basic map in a comparison; 45 is the largest number seen."""


def require_equal(where: isl.Set, before: Value, after: Value, what: str) -> None:
    """Check that both values are equal at all instances.

    Raises:
        Mismatch: with sizes for which they may differ.
        Unknown: the summands cannot be paired.
    """
    for value, side in ((before, "before"), (after, "after")):
        covered = reduce(
            lambda a, b: a.union(b), (a.where for a in value), isl.Set.empty(where.get_space())
        )
        missing = where.subtract(covered)
        if not missing.is_empty():
            raise _mismatch(f"{what} has no value in the program {side}", missing)
    for a, b in itertools.product(before, after):
        begin_step(f"whether {what} has the same cases")
        both = where.intersect(a.where).intersect(b.where)
        if not both.is_empty():
            _require_same(both, a, b, what)


def _require_same(where: isl.Set, a: Alternative, b: Alternative, what: str) -> None:
    combiner = next((v.total.combiner for v in (a, b) if v.total is not None), None)
    if combiner is not None and a.skeleton != b.skeleton:
        _require_sums(where, _as_sum(where, a, combiner), _as_sum(where, b, combiner), what)
        return
    if a.skeleton != b.skeleton:
        raise _mismatch(
            f"{what} is {_shown(a.skeleton)} before and {_shown(b.skeleton)} after", where
        )
    for x, y in zip(a.leaves, b.leaves, strict=True):
        if x.total is not None and y.total is not None:
            _require_sums(where, x.total, y.total, what)
            continue
        assert x.at is not None
        assert y.at is not None
        first, second = x.at.intersect_domain(where), y.at.intersect_domain(where)
        if not first.is_equal(second):
            differ = where.subtract(first.intersect(second).domain())
            raise _mismatch(f"{what} depends on different elements before and after", differ)


def _as_sum(where: isl.Set, value: Alternative, combiner: str) -> Sum:
    """View a value as a sum with the given combiner, of a single term if necessary."""
    if value.total is not None and value.total.combiner == combiner:
        return value.total
    if is_neutral(value.skeleton, value.leaves, combiner):
        return Sum(combiner, ())
    return Sum(combiner, (Term(where.identity(), value.skeleton, value.leaves),))


# -------------------------------------------------------------------------------------------- sums
Side = list[Term]
Kind = tuple[Skeleton, tuple[str, ...]]


def _kind(term: Term) -> Kind:
    """The key by which terms are grouped: only terms of the same kind can be paired."""
    spaces = tuple("" if leaf.at is None else _target(leaf.at) for leaf in term.leaves)
    return term.skeleton, spaces


def _target(at: isl.Map) -> str:
    return at.target() or "int"


def _require_sums(where: isl.Set, before: Sum, after: Sum, what: str) -> None:
    groups: dict[Kind, tuple[Side, Side]] = {}
    for k, total in enumerate((before, after)):
        for term in total.terms:
            pairs = term.pairs.intersect_domain(where)
            if not pairs.is_empty():
                kept = Term(pairs, term.skeleton, term.leaves, term.hint)
                groups.setdefault(_kind(kept), ([], []))[k].append(kept)
    for (skeleton, _), (first, second) in groups.items():
        if not first or not second:
            here, there = ("before", "after") if first else ("after", "before")
            raise _mismatch(
                f"{what} has terms {_shown(skeleton)} {here} and none {there}",
                (first or second)[0].pairs.domain(),
            )
        _pair(first, second, before.combiner, what)


Keys = tuple[list[isl.Map], list[isl.Map]]


def _pair(first: Side, second: Side, combiner: str, what: str) -> None:
    """Pair the terms of both sides, and compare the inner sums of each pair."""
    nested = any(leaf.total is not None for leaf in first[0].leaves)
    proposals: list[Callable[[Term], list[isl.Map] | None]] = [_nothing_more]
    if nested:
        proposals.append(_least_reads)
    proposals.append(_hinted)
    for k, propose in enumerate(proposals):
        begin_step(f"how the terms of {what} correspond")
        keys = [[_key(t, propose(t)) for t in side] for side in (first, second)]
        known = [[m for m in side if m is not None] for side in keys]
        if [len(side) for side in known] != [len(first), len(second)]:
            continue
        if len({str(m.range().get_space()) for side in known for m in side}) > 1:
            continue
        begin_step(f"the keys of the terms of {what}")
        a, b = (_union(side) for side in known)
        if k == 0:
            for x, y, side in ((a, b, "after"), (b, a, "before")):
                begin_step(f"whether terms of {what} are lost", DEAR)
                _require_few_divisions((x, y), what)
                if not x.range().is_subset(y.range()):
                    begin_step(f"for which sizes terms of {what} are lost", 3 * DEAR)
                    lost = x.range().subtract(y.range())
                    raise _mismatch(f"a term of {what} has no partner {side}", lost)
        elif not a.range().is_equal(b.range()):
            continue
        begin_step(f"whether the reads of the terms of {what} distinguish them", DEAR)
        unique = a.is_injective() and b.is_injective() and _once(first) and _once(second)
        if unique or (combiner in IDEMPOTENT and not nested):
            if nested:
                _compare_inner(a.apply_range(b.reverse()), first, second, what)
            return
        if combiner in IDEMPOTENT and _all_alike(a.apply_range(b.reverse()), first, second, what):
            return
        begin_step(f"families of terms of {what}")
        chosen = _term_by_term(known[0], known[1])
        if chosen is not None:
            for at, other in enumerate(chosen if nested else ()):
                pairing = known[0][at].apply_range(known[1][other].reverse())
                _compare_inner(pairing.to_union_map(), [first[at]], [second[other]], what)
            return
    raise Unknown(f"cannot pair the terms of {what}: their reads do not distinguish them")


def require_covered(known: Sequence[Term], asked: Sequence[Term], what: str) -> None:
    """Check that every term in `asked` equals one in `known`.

    A gathered term is covered if all the terms it selects from are covered.
    """
    by_kind: dict[Kind, Side] = {}
    for term in known:
        by_kind.setdefault(_kind(term), []).append(term)
    groups: dict[Kind, Side] = {}
    for term in asked:
        groups.setdefault(_kind(term), []).append(term)
    for kind, terms in groups.items():
        others = by_kind.get(kind, [])
        if not others and kind[0][0] == "gather":
            require_covered(known, [inner for term in terms for inner in _choices(term)], what)
            continue
        if not others:
            raise _mismatch(
                f"the program after uses {what} that the program before does not use",
                terms[0].pairs.range(),
            )
        nested = any(leaf.total is not None for leaf in terms[0].leaves)
        more: Callable[[Term], list[isl.Map] | None] = _least_reads if nested else _nothing_more
        sides = [[_key(t, more(t)) for t in side] for side in (terms, others)]
        a, b = (_union([m for m in side if m is not None]) for side in sides)
        lost = a.range().subtract(b.range())
        if not lost.is_empty():
            raise _mismatch(
                f"the program after uses {what} that the program before does not use", lost
            )
        if nested:
            _compare_inner(a.apply_range(b.reverse()), terms, others, what)


def _choices(term: Term) -> Iterator[Term]:
    """The terms that a gather selects from."""
    total = term.leaves[-1].total
    for one in () if total is None else total.terms:
        yield Term(one.pairs, one.skeleton, one.leaves[1:])  # the first is the position


def _term_by_term(first: list[isl.Map], second: list[isl.Map]) -> list[int] | None:
    """Pair whole families of terms by equal key ranges, as in `a + sum(a, …)`, or return None."""
    if len(first) != len(second) or not all(m.is_injective() for m in (*first, *second)):
        return None
    free = list(range(len(second)))
    chosen: list[int] = []
    for mine in first:
        reached = mine.range()
        other = next((k for k in free if reached.is_equal(second[k].range())), None)
        if other is None:
            return None
        free.remove(other)
        chosen.append(other)
    return chosen


def _require_few_divisions(unions: Iterable[isl.UnionMap], what: str) -> None:
    """Reject sets with many divisions: comparing them is slow without counting many operations."""
    for union in unions:
        if any(count > DIVISIONS for one in union.maps() for count in one.divisions()):
            raise Unknown(
                f"the reads of terms of {what} need more than {DIVISIONS} integer divisions"
            )


def _once(side: Side) -> bool:
    """Whether no term instance occurs twice on a side."""
    names = [_where_computed(t) for t in side]
    if len(set(names)) == len(names):
        return True
    parts = [(n, t.pairs) for n, t in zip(names, side, strict=True)]
    return all(x.is_disjoint(y) for (m, x), (n, y) in itertools.combinations(parts, 2) if m == n)


def _where_computed(term: Term) -> str:
    return str(term.pairs.get_space())


def _key(term: Term, more: list[isl.Map] | None) -> isl.Map | None:
    """(instance, term instance) → instance, leaves, and the additional discriminators."""
    if more is None:
        return None
    right = term.pairs.range_map()
    result = term.pairs.domain_map()
    for leaf in term.leaves:
        if leaf.at is not None:
            result = result.range_product(right.apply_range(leaf.at))
    for extra in more:
        result = result.range_product(right.apply_range(extra))
    return result


def _nothing_more(_: Term) -> list[isl.Map] | None:
    return []


def _hinted(term: Term) -> list[isl.Map] | None:
    return None if term.hint is None else [term.hint]


def _least_reads(term: Term) -> list[isl.Map] | None:
    """The lexicographically smallest element that each kind of read of an inner sum accesses."""
    result: list[isl.Map] = []
    for leaf in term.leaves:
        if leaf.total is not None:
            reads = _reads(leaf.total)
            result += [reads[name].lexmin() for name in sorted(reads)]
    return result


def _reads(total: Sum) -> dict[str, isl.Map]:
    """Instance → elements that a sum reads, by kind of term and leaf position."""
    result: dict[str, isl.Map] = {}
    for term in total.terms:
        for k, leaf in enumerate(term.leaves):
            inner = (
                {"": leaf.at}
                if leaf.at is not None
                else (_reads(leaf.total) if leaf.total is not None else {})
            )
            for name, at in inner.items():
                key = f"{term.skeleton!r}/{k}{name}/{_target(at)}"
                reached = term.pairs.apply_range(at)
                result[key] = result[key].union(reached) if key in result else reached
    return result


def _compare_inner(pairing: isl.UnionMap, first: Side, second: Side, what: str) -> None:
    """Check that the inner sums of paired terms are equal."""
    for pairs in pairing.maps():
        for x, y in itertools.product(first, second):
            left, right = x.pairs.wrap(), y.pairs.wrap()
            if not (
                pairs.domain().get_space().is_equal(left.get_space())
                and pairs.range().get_space().is_equal(right.get_space())
            ):
                continue
            begin_step(f"inner sums of {what}")
            mine = pairs.intersect_domain(left).intersect_range(right)
            if mine.is_empty():
                continue
            to_x = mine.domain_map().apply_range(x.pairs.range_map())
            to_y = mine.range_map().apply_range(y.pairs.range_map())
            for a, b in zip(x.leaves, y.leaves, strict=True):
                if a.total is not None and b.total is not None:
                    _require_sums(mine.wrap(), _sum_at(a, to_x), _sum_at(b, to_y), what)


def _all_alike(pairing: isl.UnionMap, first: Side, second: Side, what: str) -> bool:
    """Whether all terms that differ only in inner sums have equal inner sums."""
    try:
        _compare_inner(pairing, first, second, what)
    except (Mismatch, Unknown):
        return False
    return True


def _sum_at(leaf: Leaf, by: isl.Map) -> Sum:
    total = pulled_leaf(leaf, by).total
    assert total is not None
    return total


def _union(parts: Sequence[isl.Map]) -> isl.UnionMap:
    return reduce(lambda a, b: a.union(b), [m.to_union_map() for m in parts])


# ----------------------------------------------------------------------------------------- reports
def _shown(skeleton: Skeleton) -> str:
    """A skeleton as text for messages."""
    head, *rest = skeleton
    if head == "in":
        return str(rest[0])
    if head == "c":
        return str(rest[1])
    parts = [_shown(cast(Skeleton, r)) if isinstance(r, tuple) else str(r) for r in rest]
    text = f"{head}({', '.join(parts)})" if parts else str(head)
    return text if len(text) <= 120 else text[:117] + "..."


def _mismatch(why: str, where: isl.Set | isl.UnionSet) -> Mismatch:
    return Mismatch(why, min_sizes(where))

"""Values as terms: the result of a read, as a function of the reader's instance.

A value is a list of *alternatives*, each valid on a set of instances. An alternative is an operator
tree (the skeleton, with uninterpreted operators) over leaves: maps from instances to input elements
or to integers. A reduction is a single leaf: a sum of terms, `instance → terms`, in any order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import ml_dtypes
import msgspec

from blockwright import ir
from blockwright.verify import isl

_FINFO: Callable[[Any], Any] = ml_dtypes.finfo
Skeleton = tuple[Any, ...]
IDEMPOTENT = ("min", "max", "and", "or")


def operands(skeleton: Skeleton) -> list[Skeleton]:
    """The operands of an operator: the trailing tuples of its skeleton."""
    return [cast(Skeleton, part) for part in skeleton if isinstance(part, tuple)]


class Term(msgspec.Struct, frozen=True, eq=False):
    """Summands of a reduction, one for each pair of a relation.

    Attributes:
        pairs: instance → instances that compute its summands.
        skeleton: the operators of the summands.
        leaves: over the instances in the range of `pairs`.
        hint: iterators of the range, as a proposal for matching.
    """

    pairs: isl.Map
    skeleton: Skeleton
    leaves: tuple[Leaf, ...]
    hint: isl.Map | None = None


class Sum(msgspec.Struct, frozen=True, eq=False):
    """Terms combined by a commutative, associative operation."""

    combiner: str
    terms: tuple[Term, ...]


class Leaf(msgspec.Struct, frozen=True, eq=False):
    """A leaf of an operator tree.

    Attributes:
        at: instance → element or integer; None for a sum.
        total: the sum.
        number: the integer, if it is constant.
    """

    at: isl.Map | None = None
    total: Sum | None = None
    number: int | None = None


class Alternative(msgspec.Struct, frozen=True, eq=False):
    """A value on a subset of the instances."""

    where: isl.Set
    skeleton: Skeleton
    leaves: tuple[Leaf, ...] = ()

    @property
    def total(self) -> Sum | None:
        """The sum, if the value is just a sum."""
        return self.leaves[0].total if self.skeleton[0] == "sum" else None


Value = list[Alternative]


def pulled_leaf(leaf: Leaf, by: isl.Map) -> Leaf:
    """Compose a leaf with a map from other instances to its instances."""
    if leaf.total is not None:
        return Leaf(total=pulled_sum(leaf.total, by))
    assert leaf.at is not None
    return Leaf(by.apply_range(leaf.at), number=leaf.number)


def pulled_sum(total: Sum, by: isl.Map) -> Sum:
    terms = [msgspec.structs.replace(t, pairs=by.apply_range(t.pairs)) for t in total.terms]
    return Sum(total.combiner, tuple(terms))


def pulled(value: Value, by: isl.Map) -> Value:
    """Compose a value with a single-valued map from other instances to its instances."""
    result: Value = []
    for one in value:
        where = by.intersect_range(one.where).domain()
        if not where.is_empty():
            leaves = tuple(pulled_leaf(leaf, by) for leaf in one.leaves)
            result.append(Alternative(where, one.skeleton, leaves))
    return result


def terms_of(
    value: Value, pairs: isl.Map, combiner: str, hint: isl.Map | None = None
) -> list[Term]:
    """The summands that `value` contributes through `pairs`.

    Nested sums with the same combiner are flattened: one term for each pair of an instance and a
    term of its sum.
    """
    result: list[Term] = []
    for one in value:
        reached = pairs.intersect_range(one.where)
        if reached.is_empty():
            continue
        inner = one.total
        if inner is None or inner.combiner != combiner:
            result.append(Term(reached, one.skeleton, one.leaves, hint))
            continue
        for term in inner.terms:
            both = term.pairs.range_map()
            created = reached.apply_range(term.pairs.domain_map().reverse())
            leaves = tuple(pulled_leaf(leaf, both) for leaf in term.leaves)
            if not created.is_empty():
                result.append(Term(created, term.skeleton, leaves, joined_hint(hint, term)))
    return result


def joined_hint(outer: isl.Map | None, term: Term) -> isl.Map | None:
    """Combine the hints of both levels of a sum of sums."""
    if outer is None or term.hint is None:
        return None
    first = term.pairs.domain_map().apply_range(outer)
    second = term.pairs.range_map().apply_range(term.hint)
    return first.flat_range_product(second)


def is_neutral(skeleton: Skeleton, leaves: tuple[Leaf, ...], combiner: str) -> bool:
    """Whether a summand is the identity of the combiner."""
    if skeleton[0] == "c":
        return skeleton[2] in _neutral_floats(skeleton[1], combiner)
    if skeleton[0] == "int" and leaves[0].number is not None:
        return leaves[0].number == {"+": 0, "*": 1}.get(combiner)
    return (skeleton[0], combiner) in (("true", "and"), ("false", "or"))


@functools.cache
def _neutral_floats(dtype: str, combiner: str) -> tuple[str, ...]:
    """The texts of the floats that are identities of a combiner."""
    kind = ir.dtype_of(dtype)
    if not kind.is_float:
        return ()
    if combiner in ("min", "max"):
        return (repr(extreme(kind, largest=combiner == "min")),)
    values = {"+": (0.0, -0.0), "*": (1.0,)}.get(combiner, ())
    return tuple(repr(v) for v in values if float(kind.numpy().type(v)) == v)


def extreme(dtype: ir.DType, largest: bool) -> float:
    """The largest or smallest number of a floating-point type: infinite, if it has infinities."""
    limit = float("inf") if largest else float("-inf")
    if float(dtype.numpy().type(limit)) == limit:
        return limit
    info = _FINFO(dtype.numpy())
    return float(info.max if largest else info.min)

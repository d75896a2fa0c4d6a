"""Gathers: reads at positions that are themselves values, as in `x[rows[i]]`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from blockwright.verify import isl
from blockwright.verify.model.instance_sets import Extended
from blockwright.verify.model.operators import apply, restricted
from blockwright.verify.model.terms import Alternative, Leaf, Skeleton, Sum, Term, Value, operands


class Table:
    """The values that a gather can read, by position.

    A gather of an operator's results equals the operator applied to gathered operands, so operator
    trees are gathered leaf by leaf.

    Attributes:
        wide: the instances, extended by every position.
        positions: the values of the positions.
        where: the instances that read.
    """

    def __init__(self, wide: Extended, positions: list[Value], where: isl.Set) -> None:
        self.positions = positions
        self.where = where
        self.everywhere = wide.shrink.intersect_range(where).reverse()
        self.place = Leaf(wide.relation(wide.added))

    def chosen_of(self, value: Value) -> Value:
        """The gathered value; gathered leaf by leaf if `value` is one operator tree."""
        one = united(value)
        return self.chosen(value) if one is None else self.tree(one.skeleton, iter(one.leaves))

    def chosen(self, value: Value) -> Value:
        """Gather among alternatives as a whole, without looking into their operators."""
        terms = [
            Term(self.everywhere.intersect_range(a.where), a.skeleton, (self.place, *a.leaves))
            for a in value
        ]
        total = Leaf(total=Sum("gather", tuple(terms)))
        table = [Alternative(self.where, ("sum", "gather"), (total,))]
        return apply(("gather",), [*self.positions, table], self.where)

    def tree(self, skeleton: Skeleton, leaves: Iterator[Leaf]) -> Value:
        """Gather a value that is one operator tree at all positions, leaf by leaf."""
        parts = operands(skeleton)
        if parts and skeleton[0] != "part":
            operator = skeleton[: len(skeleton) - len(parts)]
            return apply(operator, [self.tree(part, leaves) for part in parts], self.where)
        if skeleton[0] not in ("in", "int", "sum", "part"):
            return [Alternative(self.where, skeleton)]
        leaf = next(leaves)
        if leaf.at is not None:
            alike = self.everywhere.apply_range(leaf.at)
            if alike.is_single_valued():  # independent of the position
                return [Alternative(self.where, skeleton, (Leaf(alike, number=leaf.number),))]
        return self.chosen([Alternative(self.everywhere.range(), skeleton, (leaf,))])


def by_instance(value: Value, everywhere: isl.Map) -> Iterator[tuple[Value, isl.Set]]:
    """Split a value given at every position by instances.

    Instances at whose positions a single alternative holds (for example padding) come first, one
    group per alternative; the rest follows.

    Args:
        everywhere: (instance, position) → instance.
    """
    rest = everywhere.range()
    if value and united(value) is None:
        for one in value:
            others = everywhere.domain().subtract(one.where)
            alone = rest.subtract(everywhere.intersect_domain(others).range())
            if not alone.is_empty():
                held = everywhere.intersect_range(alone).domain()
                yield [restricted(one, held)], alone
                rest = rest.subtract(alone)
        left = everywhere.intersect_range(rest).domain()
        value = [
            restricted(one, one.where.intersect(left))
            for one in value
            if not one.where.is_disjoint(left)
        ]
    if value and not rest.is_empty():
        yield value, rest


def united(value: Value) -> Alternative | None:
    """The single operator tree that a value is everywhere; None if it is several."""
    first = value[0]
    if any(one.skeleton != first.skeleton for one in value) or is_undefined(first.skeleton):
        return None
    if len(value) == 1:
        return first
    leaves: list[Leaf] = []
    for column in zip(*(one.leaves for one in value), strict=True):
        both = zip(column, value, strict=True)
        parts = [leaf.at.intersect_domain(one.where) for leaf, one in both if leaf.at is not None]
        if len(parts) != len(value):
            return None
        number = column[0].number if len({leaf.number for leaf in column}) == 1 else None
        leaves.append(Leaf(reduce(lambda a, b: a.union(b), parts), number=number))
    where = reduce(lambda a, b: a.union(b), (one.where for one in value))
    return Alternative(where, first.skeleton, tuple(leaves))


def is_undefined(skeleton: Skeleton) -> bool:
    """Whether a part of a value was never written."""
    return skeleton[0] == "undefined" or any(map(is_undefined, operands(skeleton)))

"""Iterator maps: marks, splits and sums (TensorIR paper, section 3.3).

An `IterMark` is an iterator over [0, extent): a loop variable minus its start, or a sum of splits
fused into one. An `IterSplit` is a digit of a mark, `mark // lower_factor % extent * scale`. An
`IterSum` adds splits and a base. Extents, factors and scales may be products of symbols.
"""

from __future__ import annotations

import msgspec

from blockwright.arith.analyzer import Analyzer
from blockwright.ir import (
    Expr,
    IntImm,
    Var,
    add,
    floordiv,
    floormod,
    is_const_int,
    mul,
    sub,
)
from blockwright.support import BlockwrightError


class IterMapError(BlockwrightError):
    """Index expressions do not form an iterator map of the required level.

    Attributes:
        reason: one sentence per problem.
    """

    default_code = "BW249"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            reason,
            help="bind block iterators to splits and fusions of loops: "
            "i, i // 4, i % 4, i * 4 + j with j < 4",
        )


class IterMark(msgspec.Struct, frozen=True, eq=False):
    """An iterator over [0, extent); for a variable, `source - start`."""

    source: Var | IterSum
    extent: Expr
    start: Expr | None = None


class IterSplit(msgspec.Struct, frozen=True, eq=False):
    """`source // lower_factor % extent * scale`."""

    source: IterMark
    lower_factor: Expr
    extent: Expr
    scale: Expr


class IterSum(msgspec.Struct, frozen=True, eq=False):
    """The sum of `args` and `base`."""

    args: tuple[IterSplit, ...]
    base: Expr


class IterMapResult(msgspec.Struct, frozen=True, eq=False):
    """Result of `detect_iter_map`.

    Attributes:
        indices: one sum per index expression; after a surjective or bijective detection each has at
            most one split, of scale 1. Empty if there are errors.
        errors: why the indices do not form a map of the required level.
        padding: condition on the iterators of padded marks that holds at the points added to make
            extents divisible; false if nothing was padded.
        told_apart: iterators of which every digit is used: iterations that differ in one of them
            map to different points. Empty if there are errors.
        single: iterators that take only one value under the predicate, and that value.
    """

    indices: tuple[IterSum, ...]
    errors: tuple[str, ...]
    padding: Expr
    told_apart: frozenset[Var] = frozenset()
    single: dict[Var, Expr] = {}

    @property
    def ok(self) -> bool:
        return not self.errors


def mark_expr(mark: IterMark) -> Expr:
    """The value of a mark in terms of the variables."""
    if isinstance(mark.source, IterSum):
        return sum_expr(mark.source)
    return mark.source if mark.start is None else sub(mark.source, mark.start)


def split_expr(split: IterSplit) -> Expr:
    """The value of a split in terms of the variables."""
    value = mark_expr(split.source)
    if not is_const_int(split.lower_factor, 1):
        value = floordiv(value, split.lower_factor)
    if not _is_top(split):
        value = floormod(value, split.extent)
    return value if is_const_int(split.scale, 1) else mul(value, split.scale)


def _is_top(split: IterSplit) -> bool:
    """Whether the split reaches the end of its mark, so that no remainder is needed."""
    whole = split.source.extent
    if isinstance(split.extent, IntImm) and isinstance(split.lower_factor, IntImm):
        return isinstance(whole, IntImm) and (
            split.extent.value * split.lower_factor.value == whole.value
        )
    return split.extent is whole and is_const_int(split.lower_factor, 1)


def sum_expr(item: IterSum) -> Expr:
    """The value of a sum in terms of the variables."""
    result: Expr | None = None
    for split in item.args:
        value = split_expr(split)
        result = value if result is None else add(result, value)
    if result is None:
        return item.base
    return result if is_const_int(item.base, 0) else add(result, item.base)


def iter_expr(item: IterMark | IterSplit | IterSum, analyzer: Analyzer | None = None) -> Expr:
    """A mark, split or sum as an expression, simplified if an analyzer is given."""
    if isinstance(item, IterMark):
        value = mark_expr(item)
    else:
        value = split_expr(item) if isinstance(item, IterSplit) else sum_expr(item)
    return value if analyzer is None else analyzer.simplify(value)

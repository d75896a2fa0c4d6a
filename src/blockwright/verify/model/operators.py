"""Apply operators to values: evaluate what is known, build an uninterpreted tree for the rest.

Constants are folded, and so is arithmetic on integers that are functions of the instance (an index
table that the program itself fills). A comparison of such integers splits the instances into
alternatives.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from blockwright import ir
from blockwright.verify import isl
from blockwright.verify.model.terms import (
    Alternative,
    Leaf,
    Skeleton,
    Sum,
    Term,
    Value,
    is_neutral,
    terms_of,
)
from blockwright.verify.verdict import Unknown

_FINFO: Callable[[Any], Any] = ml_dtypes.finfo
MOST_ALTERNATIVES = 64
MOST_LEAVES = 400
_COMMUTATIVE = ("+", "*", "min", "max", "and", "or")
TRUE: Skeleton = ("true",)
FALSE: Skeleton = ("false",)
INTEGER: Skeleton = ("int",)


def apply(operator: Skeleton, args: Sequence[Value], where: isl.Set) -> Value:
    """Apply an operator to values, for every combination of their alternatives."""
    result: Value = []
    for chosen in itertools.product(*args):
        part = where
        for one in chosen:
            if one.where is not where:
                part = part.intersect(one.where)
        if part is not where and part.is_empty():
            continue
        result += _applied(operator, chosen, part)
        if len(result) > MOST_ALTERNATIVES:
            raise Unknown(f"more than {MOST_ALTERNATIVES} cases of one value")
        if len(result[-1].leaves) > MOST_LEAVES:
            raise Unknown(f"a value of more than {MOST_LEAVES} operands")
    return result


def _applied(operator: Skeleton, args: Sequence[Alternative], where: isl.Set) -> Value:
    name = operator[0]
    short = _short_cut(name, args)
    if short is not None:
        return [restricted(short, where)]
    folded = _folded(operator, args)
    if folded is not None:
        return [Alternative(where, folded)]
    if args and all(a.skeleton == INTEGER for a in args):
        known = _on_integers(operator, args, where)
        if known is not None:
            return known
    same = _unmoved(operator, args, where)
    if same is not None:
        return [restricted(same, where)]
    if name == "cast":
        return [_converted(operator, args[0], where)]
    if name in _COMMUTATIVE:
        if any(a.total is not None and a.total.combiner == name for a in args):
            terms = terms_of([restricted(a, where) for a in args], where.identity(), name)
            return [Alternative(where, ("sum", name), (Leaf(total=sum_of(name, terms)),))]
        args = sorted(args, key=lambda a: repr(a.skeleton))
    leaves = tuple(leaf for a in args for leaf in a.leaves)
    return [Alternative(where, (*operator, *(a.skeleton for a in args)), leaves)]


def _short_cut(name: str, args: Sequence[Alternative]) -> Alternative | None:
    """Short-circuit logical operators on constants."""
    if name == "not" and args[0].skeleton in (TRUE, FALSE):
        return Alternative(args[0].where, FALSE if args[0].skeleton == TRUE else TRUE)
    if name in ("and", "or"):
        stops = FALSE if name == "and" else TRUE
        goes = TRUE if name == "and" else FALSE
        for one, other in (args, args[::-1]):
            if one.skeleton == stops:
                return one
            if one.skeleton == goes:
                return other
    return None


def _unmoved(operator: Skeleton, args: Sequence[Alternative], where: isl.Set) -> Alternative | None:
    """Simplify x + 0 and x - 0 for integers; the 0 may be a loop variable with one iteration."""
    name = operator[0]
    if name not in ("+", "Sub") or not ir.dtype_of(operator[1]).is_int:
        return None
    for one, other in (args, args[::-1]) if name == "+" else (args,):
        at = other.leaves[0].at if other.skeleton == INTEGER else None
        zero = isl.Set("{ [0] }", where.context)
        if at is not None and at.intersect_domain(where).range().is_subset(zero):
            return one
    return None


def _converted(operator: Skeleton, arg: Alternative, where: isl.Set) -> Alternative:
    """A conversion, without conversions inside of it to types that hold every value.

    An integer that a float holds exactly saturates on its way to a narrower integer type, instead
    of wrapping: such a conversion stays, with one name for all of those floats.
    """
    _, target, source = operator
    inner = arg.skeleton
    while inner[0] == "cast" and _carries(inner[1], inner[2]):
        if _saturates(inner[2], inner[1], target) and not _carries(target, inner[2]):
            source, inner = "float64", ("cast", "float64", *inner[2:])
            break
        source, inner = inner[2], inner[3]
    if source == target:
        return Alternative(where, inner, arg.leaves)
    return Alternative(where, ("cast", target, source, inner), arg.leaves)


def _saturates(first: str, between: str, last: str) -> bool:
    """Whether an integer is converted to a float and then to an integer."""
    ends = ir.dtype_of(first).is_int and ir.dtype_of(last).is_int
    return ends and ir.dtype_of(between).is_float


@functools.cache
def _carries(wide: str, narrow: str) -> bool:
    """Whether every value of the type `narrow` is a value of the type `wide`."""
    new, old = ir.dtype_of(wide), ir.dtype_of(narrow)
    if new.is_int and old.is_int:
        return new.min_value <= old.min_value and old.max_value <= new.max_value
    if not new.is_float:
        return False
    float_ = _FINFO(new.numpy())
    if old.is_int:
        largest = max(old.max_value, -old.min_value)
        exact = largest <= 1 << (int(float_.nmant) + 1) and largest <= float(float_.max)
        return exact and _has(new, 0.0)
    if not old.is_float:
        return False
    own = _FINFO(old.numpy())
    return bool(
        own.nmant <= float_.nmant
        and float(own.max) <= float(float_.max)
        and float(own.smallest_subnormal) >= float(float_.smallest_subnormal)
        and all(_has(new, v) for v in _SPECIAL if _has(old, v))
    )


_SPECIAL = (0.0, -0.0, float("inf"), float("-inf"), float("nan"))


def _has(dtype: ir.DType, special: float) -> bool:
    """Whether a floating-point type has a special value."""
    kept = float(dtype.numpy().type(special))
    if math.isnan(special):
        return math.isnan(kept)
    return kept == special and math.copysign(1, kept) == math.copysign(1, special)


def _folded(operator: Skeleton, args: Sequence[Alternative]) -> Skeleton | None:
    """Constant folding of floating-point arithmetic, in the program's precision."""
    if operator[0] == "cast" and args[0].skeleton[0] == "int":
        number = args[0].leaves[0].number
        dtype = ir.dtype_of(operator[1])
        if number is None or not dtype.is_float:
            return None
        value = float(dtype.numpy().type(number))  # rounded twice, unless it is exact
        return ("c", operator[1], repr(value)) if value == number else None
    if operator[0] == "cast" and args[0].skeleton[0] == "c":
        _, target, source = operator
        widened = ir.dtype_of(source).is_float and _carries(target, source)
        return ("c", target, args[0].skeleton[2]) if widened else None
    if operator[0] not in ("+", "*", "Sub") or any(a.skeleton[0] != "c" for a in args):
        return None
    dtype = ir.dtype_of(operator[1])
    if not dtype.is_float:
        return None
    numbers: list[Any] = [dtype.numpy().type(float(one.skeleton[2])) for one in args]
    a, b = numbers
    with np.errstate(all="ignore"):
        result = a + b if operator[0] == "+" else a * b if operator[0] == "*" else a - b
    return ("c", operator[1], repr(float(result)))


def sum_of(combiner: str, terms: list[Term]) -> Sum:
    kept = [t for t in terms if not is_neutral(t.skeleton, t.leaves, combiner)]
    return Sum(combiner, tuple(kept))


def restricted(one: Alternative, where: isl.Set) -> Alternative:
    return Alternative(where, one.skeleton, one.leaves)


def parted(where: isl.Set, held: isl.Set) -> Value:
    """Split instances by a condition on indices into true and false alternatives."""
    yes, no = where.intersect(held), where.subtract(held)
    if no.is_empty():
        return [Alternative(where, TRUE)]
    if yes.is_empty():
        return [Alternative(where, FALSE)]
    return [Alternative(yes, TRUE), Alternative(no, FALSE)]


# ------------------------------------------------------------------------------ known integers
_BY_TWO = {
    "+": "x + y", "Sub": "x - y", "min": "min(x, y)", "max": "max(x, y)",
}  # fmt: skip
_BY_NUMBER = {
    "*": "{n} * x", "FloorDiv": "floor(x / {n})", "FloorMod": "x mod {n}",
}  # fmt: skip
_COMPARED = {
    "EQ": "x = y",
    "NE": "x != y",
    "LT": "x < y",
    "LE": "x <= y",
    "GT": "x > y",
    "GE": "x >= y",
}


def _on_integers(operator: Skeleton, args: Sequence[Alternative], where: isl.Set) -> Value | None:
    """Evaluate an operator on integers that are functions of the instance; None if it must stay."""
    name = operator[0]
    if len(operator) < 2 or not ir.dtype_of(operator[1]).is_int:
        return None
    first, dtype = args[0].leaves[0], ir.dtype_of(operator[1])
    if name == "cast":
        assert first.at is not None
        if first.number is not None:
            kept = dtype.min_value <= first.number <= dtype.max_value
        else:
            kept = dtype.bits >= 32 and _fits(first.at.intersect_domain(where), dtype)
        return [Alternative(where, INTEGER, (first,))] if kept else None
    if len(args) != 2 or not all(_holds(a, dtype, where) for a in args):
        return None  # an operand is first converted to the type, which may change its value
    second = args[1].leaves[0]
    text = _BY_TWO.get(name)
    if text is None and name in _BY_NUMBER:
        if name == "*" and second.number is None:
            first, second = second, first
        if second.number is None or (name != "*" and second.number <= 0):
            return None
        text = _BY_NUMBER[name].format(n=second.number)
    assert first.at is not None
    assert second.at is not None
    both = first.at.flat_range_product(second.at).intersect_domain(where)
    context = where.context
    if text is not None:
        result = both.apply_range(isl.Map(f"{{ [x, y] -> [{text}] }}", context))
        if not _fits(result, dtype):
            return None  # it may wrap around
        zero = name == "*" and 0 in (first.number, second.number)
        return [Alternative(where, INTEGER, (Leaf(result, number=0 if zero else None),))]
    if name in _COMPARED:
        held = both.intersect_range(isl.Set(f"{{ [x, y] : {_COMPARED[name]} }}", context))
        return parted(where, held.domain())
    if name == "checked_index":
        inside = isl.Set("{ [x, y] : 0 <= x < y }", context)
        return [Alternative(where, INTEGER, (first,))] if both.range().is_subset(inside) else None
    return None


_LARGEST_SIZE = 1 << 48
"""Upper bound on a 64-bit size."""


def kept_in(value: Value, dtype: ir.DType) -> Value:
    """The value after storing it in memory of the given type.

    An index that may not fit the type is converted by an uninterpreted function.
    """
    if not dtype.is_int:
        return value
    return [
        one
        if one.skeleton != INTEGER or _holds(one, dtype, one.where)
        else Alternative(one.where, ("convert", dtype.name, INTEGER), one.leaves)
        for one in value
    ]


def _holds(one: Alternative, dtype: ir.DType, where: isl.Set) -> bool:
    """Whether a type can represent every value of an integer."""
    leaf = one.leaves[0]
    if leaf.number is not None:
        return dtype.min_value <= leaf.number <= dtype.max_value
    return leaf.at is not None and _fits(leaf.at.intersect_domain(where), dtype)


def _fits(made: isl.Map, dtype: ir.DType) -> bool:
    """Whether integers fit their type for the largest possible sizes."""
    low, high = dtype.min_value, dtype.max_value
    range_ = made.range()
    sizes = range_.parameters()
    largest = min(high, _LARGEST_SIZE)
    limits = [f"{-largest} <= {size} <= {largest}" for size in sizes]
    inside = " and ".join((*limits, f"{low} <= x <= {high}"))
    if sizes:
        known = f"[{', '.join(sizes)}] -> {{ : {' and '.join(limits)} }}"
        range_ = range_.intersect_params(isl.Set(known, made.context))
    return range_.is_subset(isl.Set(f"[{', '.join(sizes)}] -> {{ [x] : {inside} }}", made.context))

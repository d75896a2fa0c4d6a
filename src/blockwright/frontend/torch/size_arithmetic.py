"""Arithmetic on sizes as Python does it: int64 and float64 expressions, and their conversion.

Floats are rounded to integers by integer arithmetic where that is exact: `math.floor(n / m)` is
`n // m` for all sizes below 2^52, and `int(1.5 * n)` is `3 * n // 2`. The analyzer can reason about
such sizes; others stay floating-point computations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from blockwright import ir

INT, FLOAT = ir.dtype_of("int64"), ir.dtype_of("float64")
_FINEST = 1 << 10  # largest denominator of a number that sizes are multiplied by


def alike(a: ir.Expr, b: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """Convert both to integers, or both to floats if one of them is."""
    if a.dtype is b.dtype:
        return a, b
    dtype = FLOAT if a.dtype.is_float or b.dtype.is_float else INT
    return ir.cast_to(a, dtype), ir.cast_to(b, dtype)


def absolute(value: ir.Expr) -> ir.Expr:
    return ir.maximum(value, ir.sub(ir.const(0, value.dtype), value))


def remainder(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    """`a % b`, which has the sign of b, also for floats."""
    a, b = alike(a, b)
    if not a.dtype.is_float:
        return ir.floormod(a, b)
    zero = ir.const(0.0, FLOAT)
    rest = ir.call("fmod", a, b)
    differ = ir.compare(ir.NE, ir.compare(ir.LT, rest, zero), ir.compare(ir.LT, b, zero))
    away = ir.logical_and(ir.compare(ir.NE, rest, zero), differ)
    return ir.if_then_else(away, ir.add(rest, b), rest)


def floored(value: ir.Expr) -> ir.Expr:
    """Floor, by truncating conversion: not all processors have a floor instruction."""
    whole = ir.cast_to(value, INT)
    return ir.sub(whole, _one_if(ir.GT, whole, value))


def raised(value: ir.Expr) -> ir.Expr:
    below = floored(value)
    return ir.add(below, _one_if(ir.GT, value, below))


def nearest(value: ir.Expr) -> ir.Expr:
    """Round to the nearest integer, ties to even."""
    if value.dtype is INT:
        return value
    below = floored(value)
    rest = ir.sub(value, ir.cast_to(below, FLOAT))
    half = ir.const(0.5, FLOAT)
    odd = ir.floormod(below, ir.const(2, INT))
    tie = ir.mul(_one_if(ir.EQ, rest, half), odd)
    return ir.add(below, ir.add(_one_if(ir.GT, rest, half), tie))


def _one_if(op: type[ir.CompareOp], a: ir.Expr, b: ir.Expr) -> ir.Expr:
    return ir.cast_to(ir.compare(op, *alike(a, b)), INT)


_ROUNDED: dict[str, Callable[[ir.Expr], ir.Expr]] = {
    "trunc": lambda value: ir.cast_to(value, INT),
    "floor": floored,
    "ceil": raised,
    "round": nearest,
}


def rounded(how: str, value: ir.Expr) -> ir.Expr:
    """A float as an integer, rounded in floating point.

    Args:
        how: "trunc", "floor", "ceil" or "round" (ties to even).
    """
    return _ROUNDED[how](value)


def rounded_exactly(how: str, value: ir.Expr, is_size: Callable[[ir.Var], bool]) -> ir.Expr | None:
    """`rounded` as integer arithmetic, if no rounding within `value` can change the result.

    Args:
        is_size: whether a variable is known not to be negative.
    """
    if value.dtype is INT:
        return value
    match value:
        case ir.Div(a=a, b=b):
            above, below = _multiple(a), _multiple(b)
        case _:
            above, below = _multiple(value), (ir.const(1, INT), Fraction(1))
    if above is None or below is None or below[1] == 0:
        return None
    factor = above[1] / below[1]
    top = _times(above[0], factor.numerator)
    bottom = _times(below[0], factor.denominator)
    if how == "trunc" and _is_positive(top, is_size) and _is_positive(bottom, is_size):
        how = "floor"  # about which more can be proved
    return _divided(how, top, bottom)


def _times(value: ir.Expr, factor: int) -> ir.Expr:
    return value if factor == 1 else ir.mul(value, ir.const(factor, INT))


def _multiple(value: ir.Expr) -> tuple[ir.Expr, Fraction] | None:
    """An exact float as an integer times a number with few binary digits; None for others."""
    match value:
        case ir.FloatImm(value=number):
            if number in (float("inf"), float("-inf")) or number != number:
                return None
            factor = Fraction(number)
            return (ir.const(1, INT), factor) if factor.denominator <= _FINEST else None
        case ir.Cast(value=inner) if inner.dtype is INT:
            return inner, Fraction(1)
        case ir.Mul(a=a, b=b):
            left, right = _multiple(a), _multiple(b)
            if left is None or right is None:
                return None
            factor = left[1] * right[1]
            return (_product(left[0], right[0]), factor) if _is_short(factor) else None
        case ir.Add(a=a, b=b):
            left, right = _multiple(a), _multiple(b)
            if left is None or right is None or not left[1] or not right[1]:
                return None
            (n, p), (m, q) = left, right
            common = Fraction(
                math.gcd(p.numerator * q.denominator, q.numerator * p.denominator),
                p.denominator * q.denominator,
            )
            total = ir.add(_times(n, int(p / common)), _times(m, int(q / common)))
            return (total, common) if _is_short(common) else None
        case ir.Div(a=a, b=ir.FloatImm(value=number)) if number and Fraction(number) > 0:
            left, factor = _multiple(a), 1 / Fraction(number)
            whole = left is not None and _is_short(left[1] * factor)
            return (left[0], left[1] * factor) if left is not None and whole else None
        case _:
            return None


def _is_positive(value: ir.Expr, is_size: Callable[[ir.Var], bool]) -> bool:
    """Whether an expression of sizes is evidently not negative."""
    match value:
        case ir.IntImm(value=number):
            return number >= 0
        case ir.Var():
            return is_size(value)
        case ir.Add(a=a, b=b) | ir.Mul(a=a, b=b) | ir.FloorDiv(a=a, b=b) | ir.Min(a=a, b=b):
            return _is_positive(a, is_size) and _is_positive(b, is_size)
        case ir.FloorMod(b=b):
            return _is_positive(b, is_size)
        case ir.Max(a=a, b=b):
            return _is_positive(a, is_size) or _is_positive(b, is_size)
        case _:
            return False


def _product(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    return b if ir.is_const_int(a, 1) else a if ir.is_const_int(b, 1) else ir.mul(a, b)


def _is_short(factor: Fraction) -> bool:
    """Whether the denominator is a small power of two."""
    below = factor.denominator
    return below <= _FINEST and not below & (below - 1)


def _divided(how: str, a: ir.Expr, b: ir.Expr) -> ir.Expr:
    """The quotient of integers, rounded."""
    if ir.is_const_int(b, 1):
        return a
    if how == "floor":
        return ir.floordiv(a, b)
    zero = ir.const(0, INT)
    if how == "ceil":
        return ir.sub(zero, ir.floordiv(ir.sub(zero, a), b))
    if how == "trunc":
        return ir.Div(a, b)
    # Half of the divisor is added; a tie is rounded up by that, to an odd number or to an even one.
    two = ir.const(2, INT)
    doubled = ir.add(ir.mul(two, a), b)
    up = ir.floordiv(doubled, ir.mul(two, b))
    tie = ir.compare(ir.EQ, ir.floormod(doubled, ir.mul(two, b)), zero)
    odd = ir.compare(ir.NE, ir.floormod(up, two), zero)
    return ir.sub(up, ir.cast_to(ir.logical_and(tie, odd), INT))

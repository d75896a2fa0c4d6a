"""Constants and type conversion: Python values to expressions, operands to a common type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from blockwright.ir import expr as E
from blockwright.ir.dtype import BOOL, FLOAT32, INT32, DType, dtype_of
from blockwright.ir.expr import Expr, FloatImm, IntImm
from blockwright.support import IRError
from blockwright.support.kinds import is_huge, number_text

_BOOLS: tuple[type, ...] = (bool, np.bool_)
_INTS: tuple[type, ...] = (int, np.integer)
_FLOATS: tuple[type, ...] = (float, np.floating)


def const(value: int | float | bool, dtype: DType | str) -> Expr:
    """A constant of the given type; a broadcast for vector types.

    Raises:
        IRError: BW207 for an integer out of range of the type (`cast_to` reduces modulo 2**n).
    """
    type_ = dtype_of(dtype)
    if is_huge(value):
        raise IRError(
            f"{number_text(value)} does not fit {type_}",
            code="BW207",
            help='write float("inf"), or a number that the type holds',
        )
    if type_.lanes > 1:
        return E.Broadcast(const(value, type_.element), type_.lanes)
    if type_.is_float:
        return FloatImm(float(value), type_)
    if type_.is_bool:
        return IntImm(int(bool(value)), type_)
    number = int(value)
    if type_.is_int and not type_.min_value <= number <= type_.max_value:
        raise IRError(
            f"{number} does not fit {type_}, which holds {type_.min_value} to {type_.max_value}",
            code="BW207",
            help="use a wider type, or cast the number, which reduces it modulo 2**n",
        )
    return IntImm(number, type_)


def as_expr(value: Any, dtype: DType | None = None) -> Expr:
    """Convert `value` to an expression.

    Python ints become int32 (int64 if out of range), floats float32.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, _BOOLS):
        return const(bool(value), dtype or BOOL)
    if isinstance(value, _INTS):
        number = int(value)
        fits = -(1 << 31) <= number < (1 << 31)
        return const(number, dtype or (INT32 if fits else dtype_of("int64")))
    if isinstance(value, _FLOATS):
        return const(float(value), dtype or FLOAT32)
    if isinstance(value, str):
        return E.StringImm(value)
    raise IRError(
        f"cannot turn {type(value).__name__} into an expression",
        code="BW207",
        help="pass an expression, int, float or bool",
    )


def is_const_int(node: Any, value: int | None = None) -> bool:
    """Whether `node` is an integer constant (equal to `value` when given)."""
    return isinstance(node, IntImm) and (value is None or node.value == value)


def const_int(node: Any) -> int | None:
    """The value of an integer constant, or None."""
    return node.value if isinstance(node, IntImm) else None


def cast_to(value: Expr, dtype: DType | str) -> Expr:
    """Convert `value` to a type; constants are folded.

    An int64 constant out of range of int32 is not folded: as an index it keeps its value.
    """
    type_ = dtype_of(dtype)
    if value.dtype is type_:
        return value
    if isinstance(value, IntImm) and type_.is_scalar and not type_.is_handle:
        if type_.is_int:
            both = value.dtype.is_index and type_.is_index
            number = number_of(value.value, type_) if both else _wrap(value.value, type_)
            return E.Cast(type_, value) if number is None else number
        number = _to_odd(value.value) if type_.is_float and type_.bits < 64 else value.value
        return const(number, type_)
    if isinstance(value, FloatImm) and type_.is_float and type_.is_scalar:
        number = value.value
        if value.type.bits < 64:  # round to the type: the constant may be kept with more bits
            number = float(np.asarray(number).astype(value.type.numpy()))
        return FloatImm(number, type_)
    return E.Cast(type_, value)


def _to_odd(value: int) -> int:
    """An integer with at most 53 leading bits that rounds to any narrower float as `value` does.

    Rounding to odd avoids double rounding.
    """
    excess = abs(value).bit_length() - 53
    if excess <= 0:
        return value
    kept, rest = divmod(abs(value), 1 << excess)
    odd = (kept | bool(rest)) << excess
    return odd if value > 0 else -odd


def _wrap(value: int, dtype: DType) -> IntImm:
    span = dtype.max_value - dtype.min_value + 1
    return IntImm((value - dtype.min_value) % span + dtype.min_value, dtype)


def widest_type(items: Iterable[Expr]) -> DType:
    """The widest type among indices or extents; int64 if there are none."""
    return max((e.dtype for e in items), key=lambda t: t.bits, default=dtype_of("int64"))


def match_types(a: Any, b: Any, *, stated: bool = False) -> tuple[Expr, Expr]:
    """Convert both operands to expressions of one type.

    Python numbers and constants take the other operand's type; a scalar is broadcast to match a
    vector; the wider of two integer types or two float types is used; int with float gives float.

    Args:
        stated: keep the type of constants that are wider than the other operand, as for a program
            that writes `T.float32(0.1)` next to a float16.
    """
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        a = as_expr(a)
    if not isinstance(a, Expr):
        a = _adapt(a, b.dtype)
    if not isinstance(b, Expr):
        b = _adapt(b, a.dtype)
    ta, tb = a.dtype, b.dtype
    if ta is tb:
        return a, b
    if ta.lanes != tb.lanes:
        if ta.lanes == 1:
            a = E.Broadcast(a, tb.lanes)
        elif tb.lanes == 1:
            b = E.Broadcast(b, ta.lanes)
        else:
            raise IRError(f"operands have {ta.lanes} and {tb.lanes} lanes", code="BW208")
        ta, tb = a.dtype, b.dtype
    if ta is tb:
        return a, b
    a_const = _adapts(a, tb) and not (stated and ta.bits > tb.bits)
    b_const = _adapts(b, ta) and not (stated and tb.bits > ta.bits)
    target = _common(ta, tb, a_const, b_const)
    return cast_to(a, target), cast_to(b, target)


def _adapts(value: Expr, dtype: DType) -> bool:
    """Whether an operand is a constant that can take the other operand's type."""
    if isinstance(value, IntImm) and dtype.is_int:
        return dtype.min_value <= value.value <= dtype.max_value
    return isinstance(value, (IntImm, FloatImm))


def _adapt(value: Any, dtype: DType) -> Expr:
    if dtype.is_int and isinstance(value, _FLOATS):
        return as_expr(value)
    if dtype.is_bool and not isinstance(value, _BOOLS):
        return as_expr(value)
    if dtype.is_handle:
        raise IRError("a handle cannot be used in arithmetic", code="BW208")
    if dtype.lanes > 1:
        return E.Broadcast(_adapt(value, dtype.element), dtype.lanes)
    return as_expr(value, dtype)


def _common(ta: DType, tb: DType, a_const: bool, b_const: bool) -> DType:
    if ta.is_handle or tb.is_handle:
        raise IRError(f"cannot combine {ta} and {tb}", code="BW208")
    if ta.is_float != tb.is_float:
        return ta if ta.is_float else tb
    if a_const != b_const and ta.is_int == tb.is_int and ta.is_float == tb.is_float:
        return tb if a_const else ta
    if ta.is_bool or tb.is_bool:
        return tb if ta.is_bool else ta
    if ta.bits != tb.bits:
        return ta if ta.bits > tb.bits else tb
    if ta.kind != tb.kind:
        raise IRError(
            f"cannot combine {ta} and {tb} implicitly",
            code="BW208",
            help="cast one side explicitly",
        )
    return ta


def number_of(value: int, dtype: DType) -> IntImm | None:
    """An integer result as a constant; None if it is out of range of an index type.

    Whether such a result is an index (the exact number) or a value (modulo 2**n) is not known here,
    so the operation is kept.
    """
    if dtype.is_index:
        return IntImm(value, dtype) if dtype.min_value <= value <= dtype.max_value else None
    return _wrap(value, dtype)


def match_numbers(a: Any, b: Any, *, stated: bool = False) -> tuple[Expr, Expr]:
    """Convert both operands of arithmetic to one type; two booleans become int32."""
    x, y = match_types(a, b, stated=stated)
    if x.dtype.is_bool and y.dtype.is_bool:
        number = INT32.with_lanes(x.dtype.lanes)
        x, y = cast_to(x, number), cast_to(y, number)
    return x, y

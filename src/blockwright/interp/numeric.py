"""Arithmetic on NumPy values as docs/semantics.md defines it, per data type.

A *value* is a NumPy scalar or array of its type. Index expressions are Python ints or int64 arrays
and do not wrap. All functions accept scalars and arrays. Sub-byte integers are stored in one byte
and wrapped after each operation; float16, bfloat16 and the 8-bit floats compute in float32 and
round the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from blockwright.ir import DType
from blockwright.ir import expr as E

Array = np.ndarray[Any, Any]
Value = Any
Binary = Callable[[Value, Value], Value]


class ZeroDivisor(Exception):
    """Integer division by zero; the expression compiler adds the program location."""


class Overflow(Exception):
    """An index beyond 64 bits; the expression compiler adds the program location."""


def is_array(value: Value) -> bool:
    return type(value) is np.ndarray


def choose(condition: Value, a: Value, b: Value) -> Value:
    """Elementwise selection: `a` where the condition holds, else `b`."""
    return np.where(condition, a, b)  # pyright: ignore[reportUnknownVariableType]  of any element type


def constant(value: float, dtype: DType) -> Value:
    """Convert a Python number to a value of a scalar type."""
    if dtype.is_bool:
        return np.bool_(bool(value))
    if dtype.is_int:
        return dtype.numpy().type(wrap_python(int(value), dtype))
    return round_to(np.float64(value), dtype)


def wrap_python(value: int, dtype: DType) -> int:
    """Wrap a Python int to the range of an integer type."""
    low = dtype.min_value
    return (value - low) % (dtype.max_value - low + 1) + low


def wrap_narrow(value: Value, dtype: DType) -> Value:
    """Wrap an integer computed in 8 bits to a sub-byte type."""
    if dtype.bits >= 8:
        return value
    shift = np.int8(8 - dtype.bits) if dtype.kind == "int" else np.uint8(8 - dtype.bits)
    return np.right_shift(np.left_shift(value, shift), shift)


def from_index(value: Value, dtype: DType) -> Value:
    """Convert a mathematical integer to a wrapping value."""
    if not is_array(value):
        return dtype.numpy().type(wrap_python(int(value), dtype))
    return wrap_narrow(value.astype(dtype.numpy()), dtype)


# ------------------------------------------------------------------------------------- rounding
def _odd_float32(value: Value) -> Value:
    """float64 → float32, rounding inexact results to odd so that a second rounding is exact."""
    near = np.float32(value)
    back = np.float64(near)
    bits = np.asarray(near).view(np.int32)
    away = np.abs(back) > np.abs(value)
    fix = np.isfinite(near) & (back != value) & ((bits & 1) == 0)
    moved = np.where(fix, np.where(away, bits - 1, bits + 1), bits).astype(np.int32)
    return moved.view(np.float32)[()]


def round_to(value: Value, dtype: DType) -> Value:
    """Round float64 or float32 values once, to nearest even, to a float type."""
    kind = dtype.numpy()
    if value.dtype == kind:
        return value
    if value.dtype == np.float64 and dtype.kind != "float":
        value = _odd_float32(value)
    return value.astype(kind)


def is_small(dtype: DType) -> bool:
    """Whether a float type computes in float32."""
    return dtype.is_float and dtype.bits < 32


def fused(a: Value, b: Value, c: Value) -> Value:
    """a * b + c of float32 values, rounded once: exact product plus c, first rounded to odd."""
    product = np.float64(a) * np.float64(b)
    wide = np.float64(c)
    total = product + wide
    part = total - product
    error = (product - (total - part)) + (wide - part)
    bits = np.asarray(total).view(np.int64)
    fix = np.isfinite(total) & (error != 0) & ((bits & 1) == 0)
    outward = (error > 0) == (total > 0)
    moved = np.where(fix, np.where(outward, bits + 1, bits - 1), bits)
    return moved.view(np.float64)[()].astype(np.float32)


# ------------------------------------------------------------------------------------ arithmetic
def _check_divisor(b: Value) -> None:
    if np.any(np.equal(b, 0)):
        raise ZeroDivisor


def _floordiv(a: Value, b: Value) -> Value:
    _check_divisor(b)
    return np.floor_divide(a, b)


def _floormod(a: Value, b: Value) -> Value:
    _check_divisor(b)
    return np.mod(a, b)


def _truncmod(a: Value, b: Value) -> Value:
    _check_divisor(b)
    return np.fmod(a, b)


def _truncdiv(a: Value, b: Value) -> Value:
    rest = _truncmod(a, b)
    return np.floor_divide(a - rest, b)


INTEGER: dict[type[E.BinaryOp], Binary] = {
    E.Add: lambda a, b: a + b,
    E.Sub: lambda a, b: a - b,
    E.Mul: lambda a, b: a * b,
    E.Div: _truncdiv,
    E.Mod: _truncmod,
    E.FloorDiv: _floordiv,
    E.FloorMod: _floormod,
    E.Min: np.minimum,
    E.Max: np.maximum,
}
FLOAT: dict[type[E.BinaryOp], Binary] = {
    **INTEGER,
    E.Div: lambda a, b: a / b,
    E.Mod: np.fmod,
    E.FloorDiv: np.floor_divide,
    E.FloorMod: np.mod,
}


def _py_truncdiv(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _py_truncmod(a: int, b: int) -> int:
    return a - b * _py_truncdiv(a, b)


PYTHON: dict[type[E.BinaryOp], Binary] = {
    E.Add: lambda a, b: a + b,
    E.Sub: lambda a, b: a - b,
    E.Mul: lambda a, b: a * b,
    E.Div: _py_truncdiv,
    E.Mod: _py_truncmod,
    E.FloorDiv: lambda a, b: a // b,
    E.FloorMod: lambda a, b: a % b,
    E.Min: min,
    E.Max: max,
}


def index_binary(kind: type[E.BinaryOp]) -> Binary:
    """The implementation of an operation on index expressions: exact ints, or int64 arrays."""
    exact, lanes = PYTHON[kind], INTEGER[kind]
    if kind in (E.Add, E.Sub, E.Mul):
        return exact  # Python's operators also work on arrays

    def apply(a: Value, b: Value) -> Value:
        if is_array(a) or is_array(b):
            return lanes(a, b)
        if b == 0 and kind not in (E.Min, E.Max):
            raise ZeroDivisor
        return exact(a, b)

    return apply


def leaves_64_bits(a: Value, b: Value) -> bool:
    """Whether a product of index expressions overflows 64 bits in some lane."""
    if not (is_array(a) or is_array(b)):
        return not -(1 << 63) <= int(a) * int(b) < 1 << 63
    if _largest(a) * _largest(b) < 1 << 63:
        return False
    product = np.asarray(a).astype(np.float64) * np.asarray(b)
    return bool(np.any((product >= 2.0**63) | (product < -(2.0**63))))


def index_shift_left(a: Value, b: Value) -> Value:
    """An index shifted by at least 0 and less than 64 digits."""
    result = a << b
    if is_array(result):
        fits = (result >> b) == a
        if not fits.all():
            raise Overflow
    elif not -(1 << 63) <= result < 1 << 63:
        raise Overflow
    return result


def _largest(x: Value) -> int:
    if not is_array(x):
        return abs(int(x))
    return max(abs(int(x.max(initial=0))), abs(int(x.min(initial=0))))


def value_binary(kind: type[E.BinaryOp], dtype: DType) -> Binary:
    """The implementation of an operation on values of one type."""
    if dtype.is_float:
        op = FLOAT[kind]
        if not is_small(dtype):
            return op
        result = dtype.numpy()
        return lambda a, b: op(a.astype(np.float32), b.astype(np.float32)).astype(result)
    op = INTEGER[kind]
    if dtype.bits < 8:
        element = dtype.element
        return lambda a, b: wrap_narrow(op(a, b), element)
    return op


COMPARE: dict[type[E.CompareOp], Binary] = {
    E.EQ: lambda a, b: a == b,
    E.NE: lambda a, b: a != b,
    E.LT: lambda a, b: a < b,
    E.LE: lambda a, b: a <= b,
    E.GT: lambda a, b: a > b,
    E.GE: lambda a, b: a >= b,
}


# ----------------------------------------------------------------------------------------- casts
def _float_to_int(value: Value, dtype: DType) -> Value:
    """Truncate toward zero with saturation; NaN becomes 0."""
    wide = np.trunc(np.float64(value))
    low, high = dtype.min_value, dtype.max_value
    inside = (wide > low) & (wide < high)  # a rounded-up `high` (2**63, 2**64) stays outside
    kind = dtype.numpy()
    result = np.where(inside, wide, 0).astype(kind)
    result = np.where(wide >= high, kind.type(high), result)
    result = np.where(wide <= low, kind.type(low), result)
    return result.astype(kind)[()]


def cast(value: Value, source: DType, target: DType) -> Value:
    """Convert a value between element types."""
    if source.element is target.element:
        return value
    if target.is_bool:
        return value != 0
    if source.is_float and target.is_float:
        if source.bits < 32:
            value = value.astype(np.float32)
        return round_to(value, target)
    if source.is_float:
        return _float_to_int(value, target)
    if target.is_float:
        if is_small(target):
            return round_to(value.astype(np.float64), target)
        return value.astype(target.numpy())
    return wrap_narrow(value.astype(target.numpy()), target)

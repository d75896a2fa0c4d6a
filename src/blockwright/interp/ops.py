"""Implementations of the builtin operations: one entry per pure row of `ir.op.OPS`.

Real functions are evaluated by NumPy or `math` in float64 and rounded once to the argument type.
For float64 the library's result is used as is, within the 4 units in the last place that
docs/semantics.md allows. Entries take the element type and values (NumPy scalars or arrays), and
return values of the same type, or bool for tests such as `isnan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, cast

import numpy as np

from blockwright.interp.numeric import (
    Value,
    fused,
    index_shift_left,
    is_small,
    round_to,
    wrap_narrow,
)
from blockwright.ir import DType
from blockwright.support import special_functions

Row = Callable[..., Value]


class Unsupported(Exception):
    """The operation is not defined on the type; carries the reason."""


class BadShift(Exception):
    """A shift amount outside of the bit width."""


def _scalar(x: Value) -> Value:
    """Convert a zero-dimensional array to a scalar."""
    return x[()]


def _per_element(fn: Callable[[float], float]) -> Callable[[Value], Value]:
    lifted = np.frompyfunc(fn, 1, 1)
    return lambda x: np.asarray(lifted(x)).astype(np.float64)[()]


def _sigmoid(x: Value) -> Value:
    small = np.exp(-np.abs(x))
    return _scalar(np.where(x >= 0, 1.0 / (1.0 + small), small / (1.0 + small)))


_REAL: dict[str, Callable[[Value], Value]] = {
    "exp": np.exp, "exp_ftz": np.exp, "exp2": np.exp2, "exp10": lambda x: np.power(10.0, x),
    "expm1": np.expm1,
    "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "erf": _per_element(math.erf), "sigmoid": _sigmoid,
    "erfc": _per_element(math.erfc), "erfcx": _per_element(special_functions.erfcx),
    "erfinv": _per_element(special_functions.erfinv),
    "lgamma": _per_element(special_functions.lgamma),
    "digamma": _per_element(special_functions.digamma),
    **{
        f"i{order}{'e' * scaled}": _per_element(
            partial(special_functions.bessel_i, order, scaled=scaled)
        )
        for order in (0, 1)
        for scaled in (False, True)
    },
}  # fmt: skip

_REAL2: dict[str, Callable[[Value, Value], Value]] = {
    "pow": np.power, "atan2": np.arctan2, "hypot": np.hypot,
}  # fmt: skip

_ROUNDING: dict[str, Callable[[Value], Value]] = {
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "round": np.rint, "nearbyint": np.rint, "sqrt": np.sqrt,
}  # fmt: skip


def _need_float(name: str, dtype: DType) -> None:
    if not dtype.is_float:
        raise Unsupported(f"{name} needs a float, not {dtype}")


def _need_int(name: str, dtype: DType) -> None:
    if not (dtype.is_int or dtype.is_bool):
        raise Unsupported(f"{name} needs an integer, not {dtype}")


def _real(name: str, fn: Callable[..., Value]) -> Row:
    def apply(dtype: DType, *args: Value) -> Value:
        _need_float(name, dtype)
        return round_to(fn(*(a.astype(np.float64) for a in args)), dtype)

    return apply


def _pow(dtype: DType, a: Value, b: Value) -> Value:
    if dtype.is_float:
        return round_to(np.power(a.astype(np.float64), b.astype(np.float64)), dtype)
    _need_int("pow", dtype)
    if np.any(np.less(b, 0)):
        raise Unsupported("pow of integers needs an exponent that is not negative")
    return wrap_narrow(np.power(a, b), dtype)


def _rounding(name: str, fn: Callable[[Value], Value]) -> Row:
    def apply(dtype: DType, x: Value) -> Value:
        if not dtype.is_float:
            if name == "sqrt":
                raise Unsupported(f"sqrt needs a float, not {dtype}")
            return x
        if is_small(dtype):
            return fn(x.astype(np.float32)).astype(dtype.numpy())
        return fn(x)

    return apply


def _abs(dtype: DType, x: Value) -> Value:
    if is_small(dtype):
        return np.abs(x.astype(np.float32)).astype(dtype.numpy())
    return wrap_narrow(np.abs(x), dtype) if dtype.is_int else np.abs(x)


def _fmod(dtype: DType, a: Value, b: Value) -> Value:
    _need_float("fmod", dtype)
    if is_small(dtype):
        return np.fmod(a.astype(np.float32), b.astype(np.float32)).astype(dtype.numpy())
    return np.fmod(a, b)


def _copysign(dtype: DType, a: Value, b: Value) -> Value:
    _need_float("copysign", dtype)
    return np.copysign(a, b)


def _nextafter(dtype: DType, a: Value, b: Value) -> Value:
    _need_float("nextafter", dtype)
    # NumPy keeps the sign of a zero for some types only, and ml_dtypes ignores some kinds of NaN
    moved = cast("Value", np.where(np.equal(a, b) | np.isnan(b), b, np.nextafter(a, b)))
    return cast("Value", np.where(np.isnan(a), a, moved))[()]


def _unsigned(dtype: DType, x: Value) -> Value:
    """Reinterpret the bits of an integer as an unsigned number."""
    bits = np.asarray(x).view(f"u{dtype.numpy().itemsize}")
    return bits & np.uint8((1 << dtype.bits) - 1) if dtype.bits < 8 else bits


def _popcount(dtype: DType, x: Value) -> Value:
    _need_int("popcount", dtype)
    return np.bitwise_count(_unsigned(dtype, x)).astype(dtype.numpy())[()]


_bit_length = np.frompyfunc(lambda v: int(v).bit_length(), 1, 1)


def _clz(dtype: DType, x: Value) -> Value:
    _need_int("clz", dtype)
    lengths = np.asarray(_bit_length(_unsigned(dtype, x))).astype(np.int64)
    return (dtype.bits - lengths).astype(dtype.numpy())[()]


def _bitwise(name: str, fn: Callable[..., Value]) -> Row:
    def apply(dtype: DType, *args: Value) -> Value:
        _need_int(name, dtype)
        return wrap_narrow(fn(*args), dtype) if dtype.is_int else fn(*args)

    return apply


def _shift(name: str, fn: Callable[[Value, Value], Value]) -> Row:
    def apply(dtype: DType, a: Value, b: Value) -> Value:
        if not dtype.is_int:
            raise Unsupported(f"{name} needs an integer, not {dtype}")
        _check_amount(dtype, b)
        return wrap_narrow(fn(a, b), dtype)

    return apply


def _check_amount(dtype: DType, amount: Value) -> None:
    if np.any(np.less(amount, 0) | np.greater_equal(amount, dtype.bits)):
        raise BadShift


def _index_shift(fn: Callable[[Value, Value], Value]) -> Row:
    def apply(dtype: DType, a: Value, b: Value) -> Value:
        _check_amount(dtype, b)
        return fn(a, b)

    return apply


def _test(on_int: bool, fn: Callable[[Value], Value]) -> Row:
    def apply(dtype: DType, x: Value) -> Value:
        if not dtype.is_float:
            return np.full(np.shape(x), on_int)[()]
        return fn(x.astype(np.float32) if is_small(dtype) else x)

    return apply


def _exact_fma(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        return a * b + c if a == 0 or b == 0 else 0.0
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


_fma_double = np.frompyfunc(_exact_fma, 3, 1)


def _fma(dtype: DType, a: Value, b: Value, c: Value) -> Value:
    if dtype.is_int:
        return wrap_narrow(a * b + c, dtype)
    if dtype.bits == 64:
        return np.asarray(_fma_double(a, b, c)).astype(np.float64)[()]
    wide = fused(*(x.astype(np.float32) for x in (a, b, c)))
    return wide.astype(dtype.numpy())


def _by_halves(combine: Callable[[Value, Value], Value], x: Value) -> Value:
    """Combine lanes by halves, as compiled code does; an odd last lane is combined into lane 0."""
    while (lanes := x.shape[-1]) > 1:
        half = lanes // 2
        joined = combine(x[..., :half], x[..., half : 2 * half])
        if lanes % 2:
            joined[..., 0] = combine(joined[..., 0], x[..., -1])
        x = joined
    return x[..., 0]


def _reduce(fn: Callable[[Value, Value], Value]) -> Row:
    def apply(dtype: DType, x: Value) -> Value:
        if dtype.lanes == 1:
            return x
        if is_small(dtype):
            return _by_halves(fn, x.astype(np.float32)).astype(dtype.numpy())
        result = _by_halves(fn, x)
        return wrap_narrow(result, dtype) if dtype.is_int else result

    return apply


def _same(dtype: DType, x: Value) -> Value:
    return x


PURE: dict[str, Row] = {
    **{name: _real(name, fn) for name, fn in _REAL.items()},
    **{name: _real(name, fn) for name, fn in _REAL2.items()},
    **{name: _rounding(name, fn) for name, fn in _ROUNDING.items()},
    "pow": _pow, "abs": _abs, "fmod": _fmod, "copysign": _copysign, "nextafter": _nextafter,
    "popcount": _popcount, "clz": _clz, "fma": _fma,
    "bitwise_and": _bitwise("bitwise_and", np.bitwise_and),
    "bitwise_or": _bitwise("bitwise_or", np.bitwise_or),
    "bitwise_xor": _bitwise("bitwise_xor", np.bitwise_xor),
    "bitwise_not": _bitwise("bitwise_not", np.invert),
    "shift_left": _shift("shift_left", np.left_shift),
    "shift_right": _shift("shift_right", np.right_shift),
    "isnan": _test(False, np.isnan), "isinf": _test(False, np.isinf),
    "isfinite": _test(True, np.isfinite),
    "likely": _same,
    "vector_reduce_add": _reduce(lambda a, b: a + b),
    "vector_reduce_min": _reduce(np.minimum),
    "vector_reduce_max": _reduce(np.maximum),
}  # fmt: skip


def reinterpret(value: Any, target: DType) -> Value:
    """Reinterpret the bits as another type of the same width."""
    return np.asarray(value).view(target.numpy())[()]


def _index_and(_: DType, a: Value, b: Value) -> Value:
    return a & b


def _digits_dropped(a: Value, by: Value) -> Value:
    return a >> by


# On indices, which are mathematical integers: Python ints or int64 arrays.
OF_INDICES: dict[str, Row] = {
    "bitwise_and": _index_and,
    "shift_left": _index_shift(index_shift_left),
    "shift_right": _index_shift(_digits_dropped),
}

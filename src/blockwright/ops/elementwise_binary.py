"""Elementwise operators of two tensors, or of a tensor and a scalar attribute."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.binary_row import Body, binary, rounded
from blockwright.ops.row import Array, OpRow, Sample
from blockwright.ops.samples import bools, floats, ints, special, values


def _floats_differ_in_sign(a: Any, b: Any) -> Any:
    zero = ir.const(0, a.dtype)
    return ir.compare(ir.NE, ir.cast_to(a < zero, "int32"), ir.cast_to(b < zero, "int32"))


def _divisor(b: Any) -> Any:
    """An integer divisor; the call fails if it is 0."""
    return b if ir.const_int(b) else ir.call("checked_divisor", b)


def _remainder(a: Any, b: Any) -> Any:
    """Remainder with the sign of the divisor; exact for floats because `fmod` is."""
    if not a.dtype.is_float:
        return ir.floormod(a, _divisor(b))
    rest = ir.var("rest", a.dtype)
    wrong = ir.logical_and(ir.NE(rest, ir.const(0, a.dtype)), _floats_differ_in_sign(rest, b))
    return ir.Let(rest, ir.call("fmod", a, b), ir.select(wrong, rest + b, rest))


def _floor_divide(a: Any, b: Any) -> Any:
    return ir.floordiv(a, b if a.dtype.is_float else _divisor(b))


def _checked_integers(divide: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """An oracle that raises ZeroDivisionError for integers, where NumPy returns 0."""

    def oracle(a: Array, b: Array) -> Array:
        if a.dtype.kind in "iu" and np.broadcast(a, b).size and not np.all(b):
            raise ZeroDivisionError
        return divide(a, b)

    return oracle


def _floor_divide_numbers(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":
        return a // b
    return np.asarray(np.where(b == 0, a / b, np.floor_divide(a, b)), a.dtype)


def _fmod(a: Any, b: Any) -> Any:
    return ir.call("fmod", a, b) if a.dtype.is_float else ir.binary(ir.Mod, a, _divisor(b))


def _power_of_scalar(scalar: Any, dtype: ir.DType) -> Body | None:
    """A body with products and roots for common exponents, or None."""
    small: dict[float, Callable[[Any], Any]] = {
        1: lambda x: x,
        2: lambda x: x * x,
        3: lambda x: x * x * x,
    }
    if dtype.is_float:
        small |= {
            0.5: lambda x: ir.call("sqrt", x),
            -0.5: lambda x: ir.call("rsqrt", x),
            -1: lambda x: ir.const(1, x.dtype) / x,
            -2: lambda x: ir.const(1, x.dtype) / (x * x),
        }
    if dtype.name == "float16":
        small |= {
            0.5: lambda x: ir.call("sqrt", _above_zero(x)),
            -0.5: lambda x: ir.call("rsqrt", _above_zero(x)),
        }
    chosen = small.get(scalar) if isinstance(scalar, (int, float)) else None
    if chosen is None and dtype.is_int and isinstance(scalar, int) and scalar >= 0:
        return lambda x, _: _whole_power(x, scalar)
    return None if chosen is None else lambda x, _: chosen(x)


def _above_zero(x: Any) -> Any:
    """x, with -0 replaced by +0 and -∞ by +∞, for which `pow` and `sqrt` differ.

    PyTorch uses `pow` for float16, and `sqrt` for the other types.
    """
    zero, infinity = ir.const(0, x.dtype), ir.const(math.inf, x.dtype)
    return ir.select(ir.EQ(x, zero), zero, ir.select(ir.EQ(x, -infinity), infinity, x))


def _whole_power(x: Any, exponent: int) -> Any:
    """x to an integer power by squaring; for large powers, intermediate squares are let-bound."""
    if exponent < 2:
        return x if exponent else ir.const(1, x.dtype)
    root = _whole_power(x, exponent // 2)
    rest = x if exponent % 2 else ir.const(1, x.dtype)
    if exponent <= 8:
        return ir.mul(ir.mul(root, root), rest)
    half = ir.var("half", x.dtype)
    return ir.Let(half, root, ir.mul(ir.mul(half, half), rest))


def _pow(a: Any, b: Any) -> Any:
    if a.dtype.is_float:
        return ir.call("pow", a, b)
    zero, one = ir.const(0, a.dtype), ir.const(1, a.dtype)
    if a.dtype.kind == "uint":
        return ir.call("pow", a, b)
    odd = ir.NE(ir.call("bitwise_and", b, one), zero)
    sign = ir.select(ir.logical_and(ir.EQ(a, -one), odd), -one, one)
    below = ir.select(ir.logical_or(ir.EQ(a, one), ir.EQ(a, -one)), sign, zero)
    return ir.select(b < zero, below, ir.call("pow", a, ir.maximum(b, zero)))


def _bits(call: str, logical: Callable[[Any, Any], Any]) -> Body:
    return lambda a, b: logical(a, b) if a.dtype.is_bool else ir.call(call, a, b)


def _present(a: Any, b: Any, chosen: Any) -> Any:
    """`chosen` of two numbers, or the other operand if one is NaN."""
    if not a.dtype.is_float:
        return chosen
    rest = ir.select(ir.call("isnan", b), a, chosen)
    return ir.select(ir.call("isnan", a), b, rest)


def _extreme(number: Callable[[Any, Any], Any], logical: Callable[[Any, Any], Any]) -> Body:
    return lambda a, b: logical(a, b) if a.dtype.is_bool else number(a, b)


_BASIC = (
    Sample((floats(7, 3), floats(7, 3))),
    Sample((floats(3, 1, 17), floats(5, 1))),
    Sample((floats(4), floats()), why="a rank-0 operand broadcasts"),
    Sample((floats(3, 5),), {"scalar": 2.5}),
    Sample((floats(3, 5),), {"scalar": 2.5, "scalar_side": "left"}),
    Sample((floats(9, dtype="float16"), floats(9, dtype="float16"))),
    Sample((floats(9, dtype="bfloat16"), floats(1, dtype="bfloat16"))),
    Sample((special(), special())),
    Sample((special(), values(2.0, 0.0, -0.0, dtype="float32", shape=(3, 1)))),
)
_WHOLE = (
    Sample((ints(3, 5), ints(5)), tolerance=0.0),
    Sample((ints(4, dtype="int64"),), {"scalar": 3}),
)
_DIVIDING = (
    Sample((ints(3, 5), ints(5, low=1))),
    Sample((ints(7), ints(7, low=-9, high=-1))),
    Sample((ints(4, dtype="int64"),), {"scalar": -3}),
)
_EXACT = (
    Sample((floats(3, 17), floats(3, 17, low=0.1, high=2)), tolerance=0.0),
    Sample((floats(3, 17), floats(17, low=-2, high=-0.1)), tolerance=0.0),
    Sample((values(1.0, -1.0, 6.0, -6.0, 0.0),), {"scalar": 0.1}, tolerance=0.0),
)
_BITS = (
    Sample((ints(3, 5), ints(5))),
    Sample((bools(3, 5), bools(3, 5))),
    Sample((ints(4, dtype="int64"),), {"scalar": 5}),
    Sample((ints(4),), {"scalar": 6, "scalar_side": "left"}),
)
_SHIFT = (
    Sample((ints(3, 5), ints(5, low=0, high=8))),
    Sample((ints(4),), {"scalar": 2}),
    Sample((ints(5, low=0, high=8),), {"scalar": -3, "scalar_side": "left"}),
)
_EXTREME = (*_BASIC, *_WHOLE, Sample((bools(4), bools(4))))
ROWS: tuple[OpRow, ...] = (
    binary("add", ir.add, rounded(np.add), onnx=("Add",), samples=(*_BASIC, *_WHOLE), doc="a + b."),
    binary(
        "subtract",
        ir.sub,
        rounded(np.subtract),
        onnx=("Sub",),
        samples=(*_BASIC, *_WHOLE),
        torch=("aten.sub.Tensor", "aten.sub.Scalar"),
        doc="a - b.",
    ),
    binary(
        "multiply",
        ir.mul,
        rounded(np.multiply),
        onnx=("Mul",),
        samples=(*_BASIC, *_WHOLE),
        torch=("aten.mul.Tensor", "aten.mul.Scalar"),
        keeps_divisor=True,
        doc="a · b.",
    ),
    binary(
        "divide",
        ir.truediv,
        rounded(np.divide),
        kind="float",
        onnx=("Div",),
        samples=_BASIC,
        torch=("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor"),
        keeps_divisor=True,
        doc="a / b of floats.",
    ),
    binary(
        "floor_divide",
        _floor_divide,
        _checked_integers(_floor_divide_numbers),
        samples=(*_DIVIDING, *_EXACT),
        torch=("aten.floor_divide.default", "aten.floor_divide.Scalar"),
        keeps_divisor=True,
        doc="Largest integer not above a / b.",
    ),
    binary(
        "remainder",
        _remainder,
        _checked_integers(lambda a, b: np.remainder(a, b)),
        samples=(
            *_DIVIDING,
            *_EXACT,
            Sample((ints(5, low=1),), {"scalar": 7, "scalar_side": "left"}),
        ),
        torch=("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor"),
        doc="a - b · floor(a / b), with the sign of the divisor.",
    ),
    binary(
        "fmod",
        _fmod,
        _checked_integers(lambda a, b: np.fmod(a, b)),
        samples=(*_DIVIDING, *_EXACT),
        doc="Remainder of the division toward zero, with the sign of the dividend.",
    ),
    binary(
        "power",
        _pow,
        rounded(np.power),
        onnx=("Pow",),
        special_body=_power_of_scalar,
        torch=("aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar", "aten.pow.Scalar"),
        samples=(
            Sample((floats(7, 3, low=0.1), floats(7, 3))),
            Sample((floats(5, low=0.1),), {"scalar": 2.0, "scalar_side": "left"}),
            Sample((special(),), {"scalar": 2}),
            Sample((floats(5),), {"scalar": 3}),
            Sample((floats(5, low=0.1),), {"scalar": 0.5}),
            Sample((floats(5, low=0.1),), {"scalar": -0.5}),
            Sample((floats(5, low=0.1),), {"scalar": 1.7}),
            Sample((values(-2.0, -1.0, 2.0, 0.0), values(3.0, 2.0, -1.0, 0.0))),
            Sample((ints(5),), {"scalar": 2}),
            Sample((ints(5),), {"scalar": 0}),
            Sample((ints(5),), {"scalar": 7}),
            Sample((ints(5, dtype="int64"),), {"scalar": 21}),
        ),
        doc="a to the power b.",
    ),
    binary(
        "atan2",
        lambda a, b: ir.call("atan2", a, b),
        rounded(np.arctan2),
        kind="float",
        torch=("aten.atan2.default",),
        samples=_BASIC[:2],
        doc="Angle of the point (b, a).",
    ),
    binary(
        "hypot",
        lambda a, b: ir.call("hypot", a, b),
        rounded(np.hypot),
        kind="float",
        torch=("aten.hypot.default",),
        samples=_BASIC[:2],
        doc="Length of the vector (a, b).",
    ),
    binary(
        "copysign",
        lambda a, b: ir.call("copysign", a, b),
        np.copysign,
        kind="float",
        samples=(
            *_BASIC[:2],
            Sample((floats(3, 5),), {"scalar": -0.0}),
            Sample((special(), special())),
        ),
        doc="The magnitude of a with the sign of b.",
    ),
    binary(
        "nextafter",
        lambda a, b: ir.call("nextafter", a, b),
        np.nextafter,
        kind="float",
        torch=("aten.nextafter.default",),
        samples=(
            *_BASIC[:1],
            Sample((special(), special())),
            Sample((floats(3, 5, dtype="float16"), floats(3, 5, dtype="float16"))),
        ),
        doc="The number of the type next to a in the direction of b.",
        widens=False,
    ),
    binary(
        "fmin",
        lambda a, b: _present(a, b, _extreme(ir.minimum, ir.logical_and)(a, b)),
        np.fmin,
        kind="any",
        torch=("aten.fmin.default",),
        samples=_EXTREME,
        doc="The smaller element; the other one if one is NaN.",
    ),
    binary(
        "fmax",
        lambda a, b: _present(a, b, _extreme(ir.maximum, ir.logical_or)(a, b)),
        np.fmax,
        kind="any",
        torch=("aten.fmax.default",),
        samples=_EXTREME,
        doc="The larger element; the other one if one is NaN.",
    ),
    binary(
        "minimum",
        _extreme(ir.minimum, ir.logical_and),
        np.minimum,
        kind="any",
        onnx=("Min",),
        torch=("aten.minimum.default",),
        samples=_EXTREME,
        doc="The smaller element; NaN if either is.",
    ),
    binary(
        "maximum",
        _extreme(ir.maximum, ir.logical_or),
        np.maximum,
        kind="any",
        onnx=("Max",),
        torch=("aten.maximum.default",),
        samples=_EXTREME,
        doc="The larger element; NaN if either is.",
    ),
    binary(
        "bitwise_and",
        _bits("bitwise_and", ir.logical_and),
        np.bitwise_and,
        kind="bits",
        torch=(
            "aten.bitwise_and.Tensor",
            "aten.bitwise_and.Scalar",
            "aten.bitwise_and.Scalar_Tensor",
            "aten.__and__.Tensor",
            "aten.__and__.Scalar",
        ),
        onnx=("BitwiseAnd",),
        samples=_BITS,
        doc="Bitwise and.",
    ),
    binary(
        "bitwise_or",
        _bits("bitwise_or", ir.logical_or),
        np.bitwise_or,
        kind="bits",
        torch=(
            "aten.bitwise_or.Tensor",
            "aten.bitwise_or.Scalar",
            "aten.bitwise_or.Scalar_Tensor",
            "aten.__or__.Tensor",
            "aten.__or__.Scalar",
        ),
        onnx=("BitwiseOr",),
        samples=_BITS,
        doc="Bitwise or.",
    ),
    binary(
        "bitwise_xor",
        _bits("bitwise_xor", lambda a, b: ir.NE(a, b)),
        np.bitwise_xor,
        kind="bits",
        torch=(
            "aten.bitwise_xor.Tensor",
            "aten.bitwise_xor.Scalar",
            "aten.bitwise_xor.Scalar_Tensor",
            "aten.__xor__.Tensor",
            "aten.__xor__.Scalar",
        ),
        onnx=("BitwiseXor",),
        samples=_BITS,
        doc="Bitwise exclusive or.",
    ),
    binary(
        "left_shift",
        lambda a, b: ir.call("shift_left", a, b),
        np.left_shift,
        kind="int",
        torch=(
            "aten.__lshift__.Tensor",
            "aten.__lshift__.Scalar",
            "aten.bitwise_left_shift.Tensor",
            "aten.bitwise_left_shift.Tensor_Scalar",
            "aten.bitwise_left_shift.Scalar_Tensor",
        ),
        samples=_SHIFT,
        doc="Bits shifted left; shift amounts are below the bit width.",
    ),
    binary(
        "right_shift",
        lambda a, b: ir.call("shift_right", a, b),
        np.right_shift,
        kind="int",
        torch=(
            "aten.__rshift__.Tensor",
            "aten.__rshift__.Scalar",
            "aten.bitwise_right_shift.Tensor",
            "aten.bitwise_right_shift.Tensor_Scalar",
            "aten.bitwise_right_shift.Scalar_Tensor",
        ),
        samples=_SHIFT,
        doc="Bits shifted right, arithmetically for signed integers.",
    ),
)

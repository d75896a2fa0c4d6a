"""Elementwise operators whose operands or attributes differ from those of the rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from blockwright import ir
from blockwright.frontend.float8 import LARGEST, saturated
from blockwright.frontend.onnx.call import Call, Converters, Value, dims_of, dtype_of
from blockwright.frontend.onnx.model import element_type

TABLE = Converters()
_FLOAT32 = ir.dtype_of("float32")


def truncated_quotient(call: Call, a: ir.GraphExpr, b: ir.GraphExpr) -> ir.GraphExpr:
    """The quotient of integers, truncated toward zero."""
    if dtype_of(a).kind == "uint":
        return call.apply("floor_divide", a, b)
    rest = call.apply("fmod", a, b)
    return call.apply("floor_divide", call.apply("subtract", a, rest), b)


@TABLE.op("Div")
def _div(call: Call) -> Value:
    a, b = call.tensor(0), call.tensor(1)
    if dtype_of(a).is_float:
        return call.apply("divide", a, b)
    return truncated_quotient(call, a, b)


@TABLE.op("Mod")
def _mod(call: Call) -> Value:
    """The remainder with the sign of the divisor, or of the dividend if `fmod` is set."""
    name = "fmod" if call.attr("fmod") else "remainder"
    return call.apply(name, call.tensor(0), call.tensor(1))


@TABLE.op("Pow")
def _pow(call: Call) -> Value:
    """A power in the type of the base; a fractional exponent of an integer is not rounded."""
    a, b = call.tensor(0), call.tensor(1)
    dtype = dtype_of(a)
    if dtype.is_float or not dtype_of(b).is_float:
        return call.apply("power", a, call.cast(b, dtype))
    wide = ir.dtype_of("float64")
    return call.cast(call.apply("power", call.cast(a, wide), call.cast(b, wide)), dtype)


@TABLE.op("BitShift")
def _bit_shift(call: Call) -> Value:
    name = "left_shift" if call.attr("direction") == "LEFT" else "right_shift"
    return call.apply(name, call.tensor(0), call.tensor(1))


def _several(row: str) -> Callable[[Call], Value]:
    """A converter for an operator of any number of operands."""

    def convert(call: Call) -> Value:
        first, *others = call.tensors()
        return reduce(lambda a, b: call.apply(row, a, b), others, first)

    return convert


TABLE.op("Max")(_several("maximum"))
TABLE.op("Min")(_several("minimum"))
TABLE.op("Sum")(_several("add"))


@TABLE.op("Mean")
def _mean(call: Call) -> Value:
    total = _several("add")(call)
    count = call.scalar(len(call.operands), dtype_of(total))
    return call.apply("divide", total, count)


@TABLE.op("Clip")
def _clip(call: Call) -> Value:
    """min(max(x, low), high), where either bound may be missing; in version 6 they are numbers."""
    x = call.tensor(0)
    for position, name, row in ((1, "min", "maximum"), (2, "max", "minimum")):
        if name in call.attrs or name in call.defaults:
            x = call.apply(row, x, call.scalar(call.attr(name), dtype_of(x)))
        elif call.has(position):
            x = call.apply(row, x, call.tensor(position))
    return x if x is not call.tensor(0) else call.reshape(x, dims_of(x))


@TABLE.op("IsInf")
def _is_inf(call: Call) -> Value:
    x = call.tensor(0)
    negative, positive = call.attr("detect_negative"), call.attr("detect_positive")
    if negative and positive:
        return call.apply("isinf", x)
    if not negative and not positive:
        return call.apply("not_equal", call.apply("isinf", x), call.apply("isinf", x))
    infinity = call.scalar(np.inf if positive else -np.inf, dtype_of(x))
    return call.apply("equal", x, infinity)


@TABLE.op("Equal")
def _equal(call: Call) -> Value:
    a, b = call.tensor(0), call.tensor(1)
    if dtype_of(a).is_bool:
        return call.apply("logical_not", call.apply("logical_xor", a, b))
    return call.apply("equal", a, b)


@TABLE.op("Sign")
def _sign(call: Call) -> Value:
    """-1, 0 or 1; NaN of NaN, of which the row gives 0 as PyTorch does."""
    x = call.tensor(0)
    sign = call.apply("sign", x)
    if not dtype_of(x).is_float:
        return sign
    return call.apply("where", call.apply("isnan", x), x, sign)


@TABLE.op("Cast")
def _cast(call: Call) -> Value:
    dtype = element_type(call.attr("to"), "the result")
    return converted(call, call.tensor(0), dtype)


@TABLE.op("BitCast")
def _bit_cast(call: Call) -> Value:
    return call.apply(
        "reinterpret", call.tensor(0), dtype=element_type(call.attr("to"), "the result")
    )


@TABLE.op("CastLike")
def _cast_like(call: Call) -> Value:
    return converted(call, call.tensor(0), call.imp.dtype(call.value(1)))


def converted(call: Call, x: ir.GraphExpr, dtype: ir.DType) -> ir.GraphExpr:
    """The elements converted to another type."""
    if dtype_of(x) is dtype:
        return call.reshape(x, dims_of(x))
    if dtype.is_bool:
        return call.apply("not_equal", x, call.scalar(0, dtype_of(x)))
    if dtype.name == "float8_e8m0fnu":
        return _power_of_two(call, x, dtype)
    if dtype.name in LARGEST and call.attr("saturate", 1):
        x = saturated(call.apply, x, dtype)
    if dtype.is_int and dtype.bits < 8 and dtype_of(x).is_float:
        x = _low_bits(call, call.apply("astype", x, dtype=ir.dtype_of("int32")), dtype)
    return call.apply("astype", x, dtype=dtype)


def _low_bits(call: Call, x: ir.GraphExpr, dtype: ir.DType) -> ir.GraphExpr:
    """The low bits of integers, as a number of a type of fewer than 8 bits."""
    low = call.apply("bitwise_and", x, scalar=(1 << dtype.bits) - 1, scalar_side="right")
    if dtype.kind == "uint":
        return low
    half = 1 << (dtype.bits - 1)
    flipped = call.apply("bitwise_xor", low, scalar=half, scalar_side="right")
    return call.apply("subtract", flipped, scalar=half, scalar_side="right")


def _power_of_two(call: Call, x: ir.GraphExpr, dtype: ir.DType) -> ir.GraphExpr:
    """The exponents of single-precision numbers, rounded as the node says; infinities become NaN.

    The sign is dropped, and 0 becomes the smallest power.
    """

    def step(name: str, a: ir.GraphExpr, number: int) -> ir.GraphExpr:
        return call.apply(name, a, scalar=number, scalar_side="right")

    bits = call.apply("reinterpret", call.cast(x, "float32"), dtype="int32")
    exponent = step("bitwise_and", step("right_shift", bits, 23), 0xFF)
    fraction = step("bitwise_and", bits, 0x7FFFFF)
    mode, saturate = call.attr("round_mode", "up"), bool(call.attr("saturate", 1))
    up = step("greater", fraction, 0)
    if mode == "nearest":  # half of a normal number is even at the larger power
        above = step("greater", fraction, 0x400000)
        half = step("greater_equal", fraction, 0x400000)
        up = call.apply("where", step("greater", exponent, 0), half, above)
    if mode != "down":
        room = step("less", exponent, 0xFE if saturate else 0xFF)
        rounded = call.apply("logical_and", up, room)
        exponent = call.apply("add", exponent, call.cast(rounded, "int32"))
    return call.apply("reinterpret", call.cast(exponent, "uint8"), dtype=dtype)


@TABLE.op("Selu")
def _selu(call: Call) -> Value:
    """gamma · x where x is positive, else gamma · alpha · (exp(x) - 1).

    Both constants are attributes of type float32, also for operands of float64.
    """
    x, alpha, gamma = call.tensor(0), call.attr("alpha"), call.attr("gamma")
    usual = np.isclose(alpha, 1.6732632) and np.isclose(gamma, 1.050701)
    if usual and dtype_of(x).name != "float64":
        return call.apply("selu", x)
    return call.apply(
        "multiply", call.apply("elu", x, alpha=alpha), call.scalar(gamma, dtype_of(x))
    )


@TABLE.op("Dropout")
def _dropout(call: Call) -> Value:
    """The identity of inference; the mask keeps every element."""
    x = call.tensor(0)
    training = call.has(2) and bool(call.known(2, "training_mode"))
    if training and not (call.has(1) and float(call.known(1, "ratio")) == 0.0):
        raise call.error("models are compiled for inference", "set training_mode to false")
    mask = None
    if call.wants(1):
        mask = call.apply("full_like", x, fill_value=True, dtype="bool")
    return [call.reshape(x, dims_of(x)), mask]

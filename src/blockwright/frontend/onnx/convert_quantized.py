"""Quantization: QuantizeLinear, DequantizeLinear and products of quantized operands."""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.frontend.onnx.call import (
    Call,
    Converters,
    Value,
    axis_of,
    dims_of,
    dtype_of,
    rank_of,
)
from blockwright.frontend.onnx.convert_elementwise import converted
from blockwright.frontend.onnx.convert_windows import convolve, with_channels
from blockwright.frontend.onnx.model import element_type

TABLE = Converters()
_FLOAT32 = ir.dtype_of("float32")
_INT32 = ir.dtype_of("int32")


def spread(call: Call, x: ir.GraphExpr, scale: ir.GraphExpr) -> ir.GraphExpr:
    """Scales or zero points in a shape that broadcasts to the operand.

    One for the whole tensor, for each slice along `axis`, or for each block of `block_size` slices.
    """
    rank = rank_of(x)
    if rank_of(scale) == 0 or (rank_of(scale) == 1 and ir.is_const_int(dims_of(scale)[0], 1)):
        return call.reshape(scale, ())
    axis, block = axis_of(call.attr("axis", 1), rank), call.attr("block_size", 0)
    if rank_of(scale) == 1 and not block:
        return call.reshape(scale, [dims_of(scale)[0] if k == axis else 1 for k in range(rank)])
    return call.apply(
        "slice",
        call.apply("repeat", scale, repeats=block, axis=axis),
        axis=axis,
        begin=0,
        end=dims_of(x)[axis],
        step=1,
    )


def quantized(
    call: Call, x: ir.GraphExpr, scale: ir.GraphExpr, zero: ir.GraphExpr | None, dtype: ir.DType
) -> ir.GraphExpr:
    """round(x / scale) + zero, saturated; `scale` and `zero` broadcast."""
    wide = _FLOAT32 if dtype_of(x).bits <= 32 else dtype_of(x)
    value = call.apply("divide", call.cast(x, wide), call.cast(scale, wide))
    if dtype.is_float:
        return converted(call, value, dtype)
    return rounded(call, value, zero, dtype)


def rounded(
    call: Call, value: ir.GraphExpr, zero: ir.GraphExpr | None, dtype: ir.DType
) -> ir.GraphExpr:
    """round(value) + zero as integers of a type, saturated."""
    wide = dtype_of(value)
    value = call.apply("round", value)
    if zero is not None:
        value = call.apply("add", value, call.cast(zero, wide))
    low, high = call.scalar(dtype.min_value, wide), call.scalar(dtype.max_value, wide)
    value = call.apply("minimum", call.apply("maximum", value, low), high)
    return call.apply("astype", value, dtype=dtype)


@TABLE.op("QuantizeLinear", domain="com.microsoft")
@TABLE.op("QuantizeLinear")
def _quantize(call: Call) -> Value:
    x, scale = call.tensor(0), call.tensor(1)
    given = call.attr("output_dtype", 0)
    dtype = element_type(given, "the result") if given else ir.dtype_of("uint8")
    zero = call.optional(2)
    if zero is not None:
        dtype = dtype_of(zero)
        zero = None if dtype.is_float else spread(call, x, zero)
    return quantized(call, x, spread(call, x, scale), zero, dtype)


@TABLE.op("DequantizeLinear", domain="com.microsoft")
@TABLE.op("DequantizeLinear")
def _dequantize(call: Call) -> Value:
    """(x - zero) · scale in the type of the scale."""
    x, scale = call.tensor(0), call.tensor(1)
    given = call.attr("output_dtype", 0)
    dtype = element_type(given, "the result") if given else dtype_of(scale)
    zero = call.optional(2)
    if zero is not None and dtype_of(x).is_float:
        zero = None
    return dequantized(call, x, scale, zero, dtype)


def dequantized(
    call: Call, x: ir.GraphExpr, scale: ir.GraphExpr, zero: ir.GraphExpr | None, dtype: ir.DType
) -> ir.GraphExpr:
    wide = _INT32 if not dtype_of(x).is_float else _FLOAT32
    value = call.cast(x, wide)
    if zero is not None:
        value = call.apply("subtract", value, call.cast(spread(call, x, zero), wide))
    factor = call.cast(spread(call, x, scale), _FLOAT32)
    value = call.apply("multiply", call.cast(value, _FLOAT32), factor)
    return call.cast(value, dtype)


@TABLE.op("DynamicQuantizeLinear")
def _dynamic_quantize(call: Call) -> Value:
    return list(dynamically_quantized(call, call.tensor(0)))


def dynamically_quantized(
    call: Call, x: ir.GraphExpr
) -> tuple[ir.GraphExpr, ir.GraphExpr, ir.GraphExpr]:
    """An operand as uint8, with the scale and zero point of its range, which includes 0.

    The scale of an operand that is 0 is 1.
    """
    uint8 = ir.dtype_of("uint8")
    zero = call.scalar(0, _FLOAT32)
    axes = tuple(range(rank_of(x)))
    low = call.apply("minimum", call.apply("min", x, axes=axes), zero)
    high = call.apply("maximum", call.apply("max", x, axes=axes), zero)
    steps = call.scalar(255, _FLOAT32)
    scale = call.apply("divide", call.apply("subtract", high, low), steps)
    empty = call.apply("equal", high, low)
    scale = call.apply("where", empty, call.scalar(1, _FLOAT32), scale)
    place = call.apply("divide", call.apply("subtract", zero, low), scale)
    place = rounded(call, place, None, uint8)
    return quantized(call, x, scale, place, uint8), scale, place


def centred(call: Call, x: ir.GraphExpr, zero: ir.GraphExpr | None, axis: int) -> ir.GraphExpr:
    """x - zero as int32; several zero points belong to slices along an axis."""
    value = call.cast(x, _INT32)
    if zero is None:
        return value
    zero = call.cast(zero, _INT32)
    return call.apply("subtract", value, row_scale(call, x, zero, axis))


@TABLE.op("MatMulInteger")
def _matmul_integer(call: Call) -> Value:
    a, b = call.tensor(0), call.tensor(1)
    if not call.has(2) and not call.has(3):
        return call.apply("matmul", a, b, out_dtype="int32")
    left = centred(call, a, call.optional(2), -2)
    return call.apply("matmul", left, centred(call, b, call.optional(3), -1))


@TABLE.op("ConvInteger")
def _conv_integer(call: Call) -> Value:
    x = centred(call, call.tensor(0), call.optional(2), 1)
    return convolve(call, x, centred(call, call.tensor(1), call.optional(3), 0))


@TABLE.op("QLinearMatMul")
def _qlinear_matmul(call: Call) -> Value:
    """The factor of all scales is rounded to their type, as in the reference implementation."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = call.tensors()
    total = call.apply("matmul", centred(call, a, a_zero, -2), centred(call, b, b_zero, -1))
    left, right = row_scale(call, a, a_scale, -2), row_scale(call, b, b_scale, -1)
    factor = call.apply("multiply", left, right)
    factor = call.apply("divide", factor, row_scale(call, a, y_scale, -2))
    value = call.apply("multiply", call.cast(total, _FLOAT32), call.cast(factor, _FLOAT32))
    return rounded(call, value, row_scale(call, a, y_zero, -2), dtype_of(y_zero))


def row_scale(call: Call, x: ir.GraphExpr, scale: ir.GraphExpr, axis: int) -> ir.GraphExpr:
    """One number for the tensor, or one for each slice along an axis; others as they are."""
    if rank_of(scale) > 1:
        return scale
    if rank_of(scale) == 0 or ir.is_const_int(dims_of(scale)[0], 1):
        return call.reshape(scale, ())
    rank = rank_of(x)
    return call.reshape(scale, [dims_of(scale)[0] if k == axis % rank else 1 for k in range(rank)])


@TABLE.op("QLinearConv")
def qlinear_conv(call: Call) -> Value:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = call.tensors()[:8]
    total = convolve(call, centred(call, x, x_zero, 1), centred(call, w, w_zero, 0))
    total = with_channels(call, total, call.optional(8))
    per_channel = rank_of(w_scale) == 1 and not ir.is_const_int(dims_of(w_scale)[0], 1)
    shape: list[Any] = [dims_of(w_scale)[0], *([1] * (rank_of(x) - 2))] if per_channel else []
    factor = call.apply("multiply", call.reshape(x_scale, ()), call.reshape(w_scale, shape))
    value = call.apply("multiply", call.cast(total, _FLOAT32), factor)
    y_zero = call.reshape(y_zero, ())
    return quantized(call, value, call.reshape(y_scale, ()), y_zero, dtype_of(y_zero))

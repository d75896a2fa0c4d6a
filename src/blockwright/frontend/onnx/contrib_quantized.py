"""Quantized operators of `com.microsoft`: products, convolutions, sums, pools, activations.

Operands are bytes with a scale and a zero point. Most results are what the operator computes of the
real numbers that the operands stand for, quantized again.
"""

from __future__ import annotations

from collections.abc import Callable
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
from blockwright.frontend.onnx.contrib_attention import self_attention
from blockwright.frontend.onnx.contrib_fused import CONTRIB, channels_first, channels_last
from blockwright.frontend.onnx.convert_quantized import (
    centred,
    dequantized,
    dynamically_quantized,
    qlinear_conv,
    quantized,
    rounded,
    row_scale,
)
from blockwright.frontend.onnx.convert_recurrent import Weights, lstm, part_of, state_size
from blockwright.frontend.onnx.convert_shapes import product
from blockwright.frontend.onnx.convert_windows import average_pool, max_pool

TABLE = Converters()
Tensor = ir.GraphExpr
_FLOAT32 = ir.dtype_of("float32")
_INT32 = ir.dtype_of("int32")


# ---------------------------------------------------------------------------------------- products


def _product(
    call: Call, a: tuple[Tensor, Tensor | None], b: tuple[Tensor, Tensor | None]
) -> Tensor:
    """The product of two quantized matrices, given with their zero points, as int32."""
    (left, left_zero), (right, right_zero) = a, b
    if left_zero is None and right_zero is None:
        return call.apply("matmul", left, right, out_dtype="int32")
    return call.apply(
        "matmul", centred(call, left, left_zero, -2), centred(call, right, right_zero, -1)
    )


def _to_float(call: Call, total: Tensor, factor: Tensor, bias: Tensor | None) -> Tensor:
    value = call.apply("multiply", call.cast(total, _FLOAT32), factor)
    return value if bias is None else call.apply("add", value, bias)


@TABLE.op("MatMulIntegerToFloat", domain=CONTRIB)
def _matmul_integer_to_float(call: Call) -> Value:
    """The product of what A and B stand for, plus a bias."""
    a, b = call.tensor(0), call.tensor(1)
    single = [k for k in (2, 4) if call.has(k) and not _is_one(call.tensor(k))]
    if single or dtype_of(call.tensor(2)) is not _FLOAT32:
        return NotImplemented
    total = _product(call, (a, call.optional(4)), (b, call.optional(5)))
    factor = call.apply(
        "multiply", call.reshape(call.tensor(2), ()), row_scale(call, b, call.tensor(3), -1)
    )
    return _to_float(call, total, factor, call.optional(6))


def _is_one(x: Tensor) -> bool:
    """Whether a tensor has one element."""
    return all(ir.is_const_int(d, 1) for d in dims_of(x))


@TABLE.op("DynamicQuantizeMatMul", domain=CONTRIB)
def _dynamic_quantize_matmul(call: Call) -> Value:
    """The product of A, quantized by its range, and of what B stands for, plus a bias."""
    b = call.tensor(1)
    a, a_scale, a_zero = dynamically_quantized(call, call.tensor(0))
    total = _product(call, (a, a_zero), (b, call.optional(3)))
    factor = call.apply("multiply", a_scale, row_scale(call, b, call.tensor(2), -1))
    return _to_float(call, total, factor, call.optional(4))


@TABLE.op("DynamicQuantizeLSTM", domain=CONTRIB)
def _dynamic_quantize_lstm(call: Call) -> Value:
    """An LSTM of quantized weights; the inputs and each state are quantized by their range.

    Inputs behind the longest sequence do not count for the range.
    """
    x = call.tensor(0)
    if call.has(4):
        shape = (dims_of(x)[0], 1, 1)
        step = call.apply("arange", begin=0, end=dims_of(x)[0], step=1, dtype="int64")
        longest = call.apply("max", call.cast(call.tensor(4), ir.dtype_of("int64")), axes=(0,))
        inside = call.apply("less", call.reshape(step, shape), longest)
        x = call.apply("where", inside, x, call.scalar(0, _FLOAT32))

    def product_with(k: int, position: int, scale_position: int) -> Callable[[Tensor], Tensor]:
        weight, scale, zero = (
            part_of(call, n, k) if call.has(n) else None
            for n in (position, scale_position, scale_position + 1)
        )
        assert weight is not None
        assert scale is not None

        def product(a: Tensor) -> Tensor:
            a, a_scale, a_zero = dynamically_quantized(call, a)
            total = _product(call, (a, a_zero), (weight, zero))
            return _to_float(call, total, call.apply("multiply", a_scale, scale), None)

        return product

    def weights(call: Call, k: int) -> Weights:
        size = state_size(call, dims_of(call.tensor(2))[1])
        return Weights(product_with(k, 1, 8), product_with(k, 2, 10), None, size)

    return lstm(call, x, weights)


@TABLE.op("MatMulInteger16", domain=CONTRIB)
def _matmul_integer16(call: Call) -> Value:
    a, b = call.tensor(0), call.tensor(1)
    unsigned = all(dtype_of(t) is ir.dtype_of("uint16") for t in (a, b))
    return call.apply("matmul", a, b, out_dtype="uint32" if unsigned else "int32")


@TABLE.op("QGemm", domain=CONTRIB)
def _qgemm(call: Call) -> Value:
    """alpha · A' · B' of what they stand for, plus C in int32; quantized if a scale is given."""
    a, b = call.tensor(0), call.tensor(3)
    if call.attr("transA", 0):
        a = call.apply("permute_dims", a, axes=(1, 0))
    if call.attr("transB", 0):
        b = call.apply("permute_dims", b, axes=(1, 0))
    total = _product(call, (a, call.tensor(2)), (b, call.tensor(5)))
    if call.has(6):
        total = call.apply("add", total, call.tensor(6))
    right = row_scale(call, b, call.tensor(4), -1)
    factor = call.apply("multiply", call.reshape(call.tensor(1), ()), right)
    alpha = call.attr("alpha", 1.0)
    if alpha != 1:
        factor = call.apply("multiply", factor, call.scalar(alpha, _FLOAT32))
    if not call.has(7):
        return _to_float(call, total, factor, None)
    factor = call.apply("divide", factor, call.reshape(call.tensor(7), ()))
    zero = call.reshape(call.tensor(8), ()) if call.has(8) else None
    dtype = dtype_of(a) if zero is None else dtype_of(zero)
    return rounded(call, _to_float(call, total, factor, None), zero, dtype)


@TABLE.op("QAttention", domain=CONTRIB)
def _qattention(call: Call) -> Value:
    """Attention with a quantized projection; the rest is computed in float32."""
    if call.attr("do_rotary", 0) or call.attr("past_present_share_buffer", 0):
        return NotImplemented
    if dtype_of(call.tensor(3)) is not _FLOAT32:
        return NotImplemented
    x, weight = call.tensor(0), call.tensor(1)
    total = _product(call, (x, call.optional(6)), (weight, call.optional(7)))
    factor = call.apply(
        "multiply", call.reshape(call.tensor(3), ()), row_scale(call, weight, call.tensor(4), -1)
    )
    merged = _to_float(call, total, factor, call.tensor(2))
    return self_attention(call, merged, mask=5, past=8)


# ----------------------------------------------------------------------- operators on real numbers


def _real(call: Call, position: int) -> Tensor:
    """What an operand stands for; its scale and zero point are the next two inputs."""
    zero = call.optional(position + 2)
    return dequantized(call, call.tensor(position), call.tensor(position + 1), zero, _FLOAT32)


def _stored(call: Call, value: Tensor, position: int, dtype: ir.DType) -> Tensor:
    """Numbers as quantized ones of the scale and zero point at a position."""
    zero = call.optional(position + 1)
    zero = None if zero is None else call.reshape(zero, ())
    return quantized(call, value, call.reshape(call.tensor(position), ()), zero, dtype)


def _of_one(call: Call, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """An operator on one operand: x, its scale and zero point, and those of the result."""
    return _stored(call, compute(_real(call, 0)), 3, dtype_of(call.tensor(0)))


@TABLE.op("QLinearAdd", domain=CONTRIB)
def _qlinear_add(call: Call) -> Value:
    total = call.apply("add", _real(call, 0), _real(call, 3))
    return _stored(call, total, 6, dtype_of(call.tensor(0)))


@TABLE.op("QLinearMul", domain=CONTRIB)
def _qlinear_mul(call: Call) -> Value:
    """The product of integers, which is exact, times the factor of all scales."""
    a, b = (centred(call, call.tensor(k), call.optional(k + 2), 0) for k in (0, 3))
    scales = [call.reshape(call.tensor(k), ()) for k in (1, 4, 6)]
    factor = call.apply("divide", call.apply("multiply", scales[0], scales[1]), scales[2])
    value = _to_float(call, call.apply("multiply", a, b), factor, None)
    zero = call.reshape(call.tensor(7), ()) if call.has(7) else None
    return rounded(call, value, zero, dtype_of(call.tensor(0)))


@TABLE.op("QLinearSigmoid", domain=CONTRIB)
def _qlinear_sigmoid(call: Call) -> Value:
    return _of_one(call, lambda x: call.apply("sigmoid", x))


@TABLE.op("QLinearLeakyRelu", domain=CONTRIB)
def _qlinear_leaky_relu(call: Call) -> Value:
    alpha = call.attr("alpha", 0.01)
    return _of_one(call, lambda x: call.apply("leaky_relu", x, alpha=alpha))


@TABLE.op("QLinearSoftmax", domain=CONTRIB)
def _qlinear_softmax(call: Call) -> Value:
    """Along one axis; before opset 13, over all axes from it on."""

    def softmax(x: Tensor) -> Tensor:
        dims: tuple[Any, ...] = dims_of(x)
        axis = axis_of(call.attr("axis", -1), len(dims))
        if call.attr("opset") >= 13 or axis == len(dims) - 1:
            return call.apply("softmax", x, axis=axis)
        flat = call.reshape(x, (*dims[:axis], product(dims[axis:])))
        return call.reshape(call.apply("softmax", flat, axis=axis), dims)

    return _of_one(call, softmax)


@TABLE.op("QLinearReduceMean", domain=CONTRIB)
def _qlinear_reduce_mean(call: Call) -> Value:
    rank, keeps = rank_of(call.tensor(0)), bool(call.attr("keepdims", 1))
    axes = tuple(axis_of(axis, rank) for axis in call.attr("axes", range(rank)))
    return _of_one(call, lambda x: call.apply("mean", x, axes=axes, keepdims=keeps))


@TABLE.op("QLinearConcat", domain=CONTRIB)
def _qlinear_concat(call: Call) -> Value:
    """Tensors with scales and zero points of their own, from the third input on."""
    dtype = dtype_of(call.tensor(1))
    parts = [_stored(call, _real(call, k), 0, dtype) for k in range(2, len(call.operands), 3)]
    return call.apply("concat", *parts, axis=axis_of(call.attr("axis"), rank_of(parts[0])))


@TABLE.op("QLinearWhere", domain=CONTRIB)
def _qlinear_where(call: Call) -> Value:
    parts = [_stored(call, _real(call, k), 7, dtype_of(call.tensor(1))) for k in (1, 4)]
    return call.apply("where", call.tensor(0), *parts)


# --------------------------------------------------------------------------- pools and convolutions


@TABLE.op("QLinearAveragePool", domain=CONTRIB)
def _qlinear_average_pool(call: Call) -> Value:
    return _of_one(call, lambda x: _with_channels_first(call, x, average_pool))


@TABLE.op("QLinearGlobalAveragePool", domain=CONTRIB)
def _qlinear_global_average_pool(call: Call) -> Value:
    rank = rank_of(call.tensor(0))
    axes = tuple(range(1, rank - 1)) if call.attr("channels_last", 0) else tuple(range(2, rank))
    return _of_one(call, lambda x: call.apply("mean", x, axes=axes, keepdims=True))


def _with_channels_first(call: Call, x: Tensor, convert: Callable[[Call], Value]) -> Value:
    """The result of a converter whose operand has channels first, in the layout of the node."""
    if not call.attr("channels_last", 0):
        return convert(call.like(x, *call.operands[1:]))
    moved = channels_first(call, x)
    return channels_last(call, convert(call.like(moved, *call.operands[1:])))


@TABLE.op("QLinearConv", domain=CONTRIB)
def _qlinear_conv(call: Call) -> Value:
    return _with_channels_first(call, call.tensor(0), qlinear_conv)


@TABLE.op("NhwcMaxPool", domain=CONTRIB)
def _nhwc_max_pool(call: Call) -> Value:
    x = channels_first(call, call.tensor(0))
    return channels_last(call, max_pool(call.like(x)))

"""Products, convolutions and activations that ONNX Runtime's optimizer fuses (`com.microsoft`)."""

from __future__ import annotations

from collections.abc import Sequence
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
from blockwright.frontend.onnx.convert_products import gemm
from blockwright.frontend.onnx.convert_shapes import product
from blockwright.frontend.onnx.convert_windows import convolve, with_channels
from blockwright.frontend.onnx.sizes import expr

TABLE = Converters()
CONTRIB = "com.microsoft"


# ------------------------------------------------------------------------------------------- sizes


def proved(call: Call, a: Any, b: Any) -> bool:
    """Whether two sizes are equal."""
    return call.imp.builder.analyzer.prove_equal(expr(a), expr(b))


def with_shape(
    call: Call, x: ir.GraphExpr, shape: Sequence[Any], unless: str
) -> ir.GraphExpr | None:
    """A tensor that must have a shape, which calls check unless it is proved.

    Args:
        unless: what is wrong with a call in which it has another one.

    Returns None if it has another one in all calls.
    """
    dims = dims_of(x)
    wanted = [expr(d) for d in shape]
    pairs = list(zip(dims, wanted, strict=True))
    if all(proved(call, a, b) for a, b in pairs):
        return x
    analyzer = call.imp.builder.analyzer
    if any(analyzer.prove(ir.compare(ir.NE, a, b)) for a, b in pairs):
        return None
    info = ir.TensorInfo(tuple(wanted), dtype_of(x))
    message = f"BW708: {call.op} {call.name}: {unless}\nhelp: pass inputs of other sizes"
    return call.imp.builder.match_cast(x, info, "fitted", message)


# ---------------------------------------------------------------------------------------- products


@TABLE.op("FusedMatMul", "TransposeMatMul", domain=CONTRIB)
def _fused_matmul(call: Call) -> Value:
    """alpha · A' · B'; `transBatchA` moves the first axis before the rows, `transA` swaps."""
    a = _transposed(call, call.tensor(0), call.attr("transBatchA", 0), call.attr("transA", 0))
    b = _transposed(call, call.tensor(1), call.attr("transBatchB", 0), call.attr("transB", 0))
    result, alpha = call.apply("matmul", a, b), call.attr("alpha", 1.0)
    return result if alpha == 1 else _scaled(call, result, alpha)


def _transposed(call: Call, x: ir.GraphExpr, batch: int, last: int) -> ir.GraphExpr:
    """A factor of a product; a vector stays as it is."""
    rank = rank_of(x)
    order = list(range(rank))
    if batch and rank > 2:
        order = [*order[1:-1], 0, order[-1]]
    if last and rank > 1:
        order[-2:] = order[:-3:-1]
    return x if order == list(range(rank)) else call.apply("permute_dims", x, axes=tuple(order))


def _scaled(call: Call, x: ir.GraphExpr, factor: float) -> ir.GraphExpr:
    return call.apply("multiply", x, call.scalar(factor, dtype_of(x)))


@TABLE.op("FusedMatMulActivation", domain=CONTRIB)
def _fused_matmul_activation(call: Call) -> Value:
    numbers = [call.attr(f"activation_{name}", None) for name in ("alpha", "beta")]
    return _activated(call, _fused_matmul(call), [n for n in numbers if n is not None])


@TABLE.op("FusedGemm", domain=CONTRIB)
def _fused_gemm(call: Call) -> Value:
    numbers = [call.attr(f"activation_{name}", None) for name in ("alpha", "beta")]
    return _activated(call, gemm(call), [n for n in numbers if n is not None])


_PLAIN = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Softplus": "softplus"}


def _activated(call: Call, x: ir.GraphExpr, numbers: Sequence[float]) -> Value:
    """The activation that a node names, of its result; NotImplemented for others."""
    name = call.attr("activation", "")
    if not name or name in _PLAIN:
        return call.apply(_PLAIN[name], x) if name else x
    if name == "LeakyRelu":
        return call.apply("leaky_relu", x, alpha=numbers[0] if numbers else 0.01)
    if name == "Clip" and len(numbers) == 2:
        return call.apply("clip", x, min=numbers[0], max=numbers[1])
    if name == "HardSigmoid" and len(numbers) in (0, 2):
        slope, start = numbers or (0.2, 0.5)
        line = call.apply("add", _scaled(call, x, slope), call.scalar(start, dtype_of(x)))
        return call.apply("clip", line, min=0.0, max=1.0)
    return NotImplemented


# ------------------------------------------------------------------------------------ convolutions


@TABLE.op("FusedConv", domain=CONTRIB)
def _fused_conv(call: Call) -> Value:
    """A convolution with bias, plus a tensor, then an activation."""
    value = convolve(call, call.tensor(0), call.tensor(1))
    value = with_channels(call, value, call.optional(2))
    if call.has(3):
        value = call.apply("add", value, call.tensor(3))
    return _activated(call, value, call.attr("activation_params", ()))


@TABLE.op("NhwcConv", "NhwcFusedConv", domain=CONTRIB)
def _nhwc_conv(call: Call) -> Value:
    """The same for tensors with channels last; the weight is as in Conv."""
    moved = [
        channels_first(call, call.tensor(k)) if k in (0, 3) else call.tensor(k)
        for k in range(len(call.operands))
        if call.has(k) or k < 2
    ]
    given = iter(moved)
    operands = [next(given) if call.has(k) else None for k in range(len(call.operands))]
    value = _fused_conv(call.like(*operands))
    return value if value is NotImplemented else channels_last(call, value)


def channels_first(call: Call, x: ir.GraphExpr) -> ir.GraphExpr:
    """Move the last axis to the second place."""
    rank = rank_of(x)
    return call.apply("permute_dims", x, axes=(0, rank - 1, *range(1, rank - 1)))


def channels_last(call: Call, x: ir.GraphExpr) -> ir.GraphExpr:
    """Move the second axis to the last place."""
    return call.apply("permute_dims", x, axes=(0, *range(2, rank_of(x)), 1))


# ------------------------------------------------------------------------------------- activations


@TABLE.op("Gelu", "BiasGelu", domain=CONTRIB)
def _gelu(call: Call) -> Value:
    return call.apply("gelu", _sum(call))


@TABLE.op("FastGelu", domain=CONTRIB)
def _fast_gelu(call: Call) -> Value:
    return call.apply("gelu", _sum(call), approximate="tanh")


@TABLE.op("GemmFastGelu", domain=CONTRIB)
def _gemm_fast_gelu(call: Call) -> Value:
    value = call.apply("matmul", call.tensor(0), call.tensor(1))
    if call.has(2):
        value = call.apply("add", value, call.tensor(2))
    return call.apply("gelu", value, approximate="tanh")


@TABLE.op("BiasAdd", domain=CONTRIB)
def _bias_add(call: Call) -> Value:
    return _sum(call)


def _sum(call: Call) -> ir.GraphExpr:
    """The sum of all operands that are given."""
    total = call.tensor(0)
    for position in range(1, len(call.operands)):
        if call.has(position):
            total = call.apply("add", total, call.tensor(position))
    return total


@TABLE.op("QuickGelu", domain=CONTRIB)
def _quick_gelu(call: Call) -> Value:
    """x · sigmoid(alpha · x)."""
    x, alpha = call.tensor(0), call.attr("alpha", 1.702)
    if alpha == 1:
        return call.apply("silu", x)
    return call.apply("multiply", x, call.apply("sigmoid", _scaled(call, x, alpha)))


@TABLE.op("BiasSplitGelu", domain=CONTRIB)
def _bias_split_gelu(call: Call) -> Value:
    """The first half of the sum, times GELU of the second half."""
    total = _sum(call)
    axis = rank_of(total) - 1
    size = dims_of(total)[axis]
    half = ir.floordiv(size, ir.const(2, "int64"))
    first = call.apply("slice", total, axis=axis, begin=0, end=half, step=1)
    second = call.apply("slice", total, axis=axis, begin=half, end=size, step=1)
    return call.apply("multiply", first, call.apply("gelu", second))


@TABLE.op("BiasSoftmax", domain=CONTRIB)
def _bias_softmax(call: Call) -> Value:
    """Softmax of data plus bias over all axes from `axis` on.

    A bias of lower rank that is repeated along inner axes does not broadcast as in NumPy.
    """
    x, bias = call.tensor(0), call.tensor(1)
    if call.attr("is_inner_broadcast") and rank_of(bias) != rank_of(x):
        return NotImplemented
    total, rank = call.apply("add", x, bias), rank_of(x)
    axis = axis_of(call.attr("axis", 1), rank)
    if axis == rank - 1:
        return call.apply("softmax", total, axis=axis)
    dims: tuple[Any, ...] = dims_of(x)
    flat = call.reshape(total, (*dims[:axis], product(dims[axis:])))
    return call.reshape(call.apply("softmax", flat, axis=axis), dims)

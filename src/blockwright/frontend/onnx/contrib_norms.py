"""Normalizations that ONNX Runtime's optimizer fuses with sums and look-ups (`com.microsoft`)."""

from __future__ import annotations

from collections.abc import Callable

from blockwright import ir
from blockwright.frontend.onnx.call import Call, Converters, Value, dims_of, dtype_of, rank_of
from blockwright.frontend.onnx.contrib_fused import CONTRIB, with_shape
from blockwright.frontend.onnx.convert_norms import fit, rms_norm
from blockwright.frontend.onnx.convert_quantized import dequantized

TABLE = Converters()
_FLOAT32 = ir.dtype_of("float32")
_INT32 = ir.dtype_of("int32")


@TABLE.op("SimplifiedLayerNormalization", domain=CONTRIB)
@TABLE.op("SimplifiedLayerNormalization")
def _simplified_layer_norm(call: Call) -> Value:
    """RMS normalization; exporters name it also without a domain."""
    if call.wants(1):
        return NotImplemented
    return rms_norm(call.like(*call.operands, axis=call.attr("axis", -1), epsilon=_eps(call, 1e-5)))


def _eps(call: Call, default: float) -> float:
    return call.attr("epsilon", default)


@TABLE.op("SkipLayerNormalization", domain=CONTRIB)
def _skip_layer_norm(call: Call) -> Value:
    """Layer norm of input + skip + bias, and this sum."""
    return _skip_norm(call, "layer_norm", bias=4, weights=(2, 3))


@TABLE.op("SkipSimplifiedLayerNormalization", domain=CONTRIB)
def _skip_simplified_layer_norm(call: Call) -> Value:
    """RMS norm of input + skip + bias, and this sum."""
    return _skip_norm(call, "rms_norm", bias=3, weights=(2,))


def _skip_norm(call: Call, row: str, bias: int, weights: tuple[int, ...]) -> Value:
    total = call.apply("add", call.tensor(0), call.tensor(1))
    if call.has(bias):
        total = call.apply("add", total, call.tensor(bias))
    factors = [call.tensor(k) for k in weights if call.has(k)]
    axis = rank_of(total) - 1
    if call.wants(1) or call.wants(2) or not fit(call, total, (axis,), factors):
        return NotImplemented
    normed = call.apply(row, total, *factors, axes=(axis,), eps=_eps(call, 1e-12))
    return [normed, None, None, total]


@TABLE.op("EmbedLayerNormalization", domain=CONTRIB)
def _embed_layer_norm(call: Call) -> Value:
    """Layer norm of the sum of embeddings of words, positions and segments."""
    return _embedded(call, lambda rows, _: rows, call.optional(8))


@TABLE.op("QEmbedLayerNormalization", domain=CONTRIB)
def _quantized_embed_layer_norm(call: Call) -> Value:
    """The same for quantized tables and weights, whose scales and zero points are last."""

    def real(rows: ir.GraphExpr, k: int) -> ir.GraphExpr:
        return dequantized(call, rows, call.tensor(k + 6), call.optional(k + 11), _FLOAT32)

    return _embedded(call, real, None)


def _embedded(
    call: Call, real: Callable[[ir.GraphExpr, int], ir.GraphExpr], place: ir.GraphExpr | None
) -> Value:
    """All results of a node.

    Args:
        real: what rows of the operand at a position stand for.
        place: positions; None for those from 0 on.
    """
    ids, places = call.tensor(0), call.tensor(3)
    total = real(call.apply("take", call.tensor(2), ids, axis=0), 2)
    if place is not None:
        at = call.apply("take", places, place, axis=0)
    else:
        length = dims_of(ids)[1]
        first = call.apply("slice", places, axis=0, begin=0, end=length, step=1)
        shape = (length, dims_of(places)[1])
        at = with_shape(call, first, shape, "there are too few positions")
        if at is None:
            return NotImplemented
    total = call.apply("add", total, real(at, 3))
    if call.has(1) != call.has(4):
        return NotImplemented
    if call.has(1):
        segments = call.apply("take", call.tensor(4), call.tensor(1), axis=0)
        total = call.apply("add", total, real(segments, 4))
    factors = [real(call.tensor(k), k) for k in (5, 6)]
    if not fit(call, total, (2,), factors):
        return NotImplemented
    normed = call.apply("layer_norm", total, *factors, axes=(2,), eps=_eps(call, 1e-12))
    return [normed, _mask_index(call, ids) if call.wants(1) else None, total]


def _mask_index(call: Call, ids: ir.GraphExpr) -> ir.GraphExpr:
    """The number of ones in each row of the mask; 0 without a mask."""
    if not call.has(7):
        return call.apply("full", shape=(dims_of(ids)[0],), fill_value=0, dtype=_INT32)
    ones = call.apply("equal", call.tensor(7), call.scalar(1, dtype_of(call.tensor(7))))
    return call.apply("sum", call.cast(ones, _INT32), axes=(1,), keepdims=False)


@TABLE.op("GroupNorm", domain=CONTRIB)
def _group_norm(call: Call) -> Value:
    if call.attr("activation", 0) not in (0, 1):
        return NotImplemented
    return _grouped(call, call.tensor(0))


@TABLE.op("SkipGroupNorm", domain=CONTRIB)
def _skip_group_norm(call: Call) -> Value:
    """Group norm of x + skip + bias, and this sum; skip may be one vector for each image."""
    if call.attr("activation", 0) not in (0, 1):
        return NotImplemented
    x, skip = call.tensor(0), call.tensor(3)
    last = call.attr("channels_last", 1)
    spread = (1,) * (rank_of(x) - 2)
    if rank_of(skip) == 2:
        batch, channels = dims_of(skip)
        shape = (batch, *spread, channels) if last else (batch, channels, *spread)
        skip = call.reshape(skip, shape)
    total = call.apply("add", x, skip)
    if call.has(4):
        bias = call.tensor(4)
        size = dims_of(bias)[0]
        bias = bias if last else call.reshape(bias, (size, *spread))
        total = call.apply("add", total, bias)
    return [_grouped(call, total), total]


def _grouped(call: Call, x: ir.GraphExpr) -> ir.GraphExpr:
    """Group norm with scale and shift in the type of the operand, then SiLU if asked for."""
    normed = call.apply(
        "nn.group_norm",
        x,
        *(call.cast(call.tensor(k), dtype_of(x)) for k in (1, 2)),
        num_groups=call.attr("groups"),
        channel_axis=rank_of(x) - 1 if call.attr("channels_last", 1) else 1,
        epsilon=_eps(call, 1e-5),
    )
    return call.apply("silu", normed) if call.attr("activation", 0) else normed

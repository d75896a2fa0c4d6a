"""Normalization operators and attention, where they are those of the rows; else their bodies."""

from __future__ import annotations

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

TABLE = Converters()
_FLOAT32 = ir.dtype_of("float32")


@TABLE.op("LayerNormalization")
def _layer_norm(call: Call) -> Value:
    """The row, if only the normalized values are used and scale and bias have their shape."""
    x = call.tensor(0)
    rank = rank_of(x)
    axes = tuple(range(axis_of(call.attr("axis"), rank), rank))
    weights = [call.tensor(k) for k in (1, 2) if call.has(k)]
    if call.wants(1) or call.wants(2) or not fit(call, x, axes, weights):
        return NotImplemented
    return call.apply("layer_norm", x, *weights, axes=axes, eps=call.attr("epsilon"))


@TABLE.op("RMSNormalization")
def rms_norm(call: Call) -> Value:
    x, scale = call.tensor(0), call.tensor(1)
    rank = rank_of(x)
    axes = tuple(range(axis_of(call.attr("axis"), rank), rank))
    if not fit(call, x, axes, [scale]):
        return NotImplemented
    return call.apply("rms_norm", x, scale, axes=axes, eps=call.attr("epsilon"))


def fit(call: Call, x: ir.GraphExpr, axes: tuple[int, ...], weights: list[ir.GraphExpr]) -> bool:
    """Whether weights have the type of the operand and the shape of its normalized axes."""
    wanted = [dims_of(x)[axis] for axis in axes]
    analyzer = call.imp.builder.analyzer
    return all(
        dtype_of(w) is dtype_of(x)
        and rank_of(w) == len(wanted)
        and all(analyzer.prove_equal(a, b) for a, b in zip(dims_of(w), wanted, strict=True))
        for w in weights
    )


@TABLE.op("BatchNormalization")
def _batch_norm(call: Call) -> Value:
    x, *parameters = call.tensors()
    dtype = dtype_of(x)
    if call.attr("training_mode", 0):
        return _trained_batch_norm(call, x, parameters)
    if any(dtype_of(p) is not dtype for p in parameters):
        wide = [call.cast(v, _FLOAT32) for v in (x, *parameters)]
        normed = call.apply("nn.batch_norm", *wide, axis=1, epsilon=call.attr("epsilon"))
        return call.cast(normed, dtype)
    return call.apply("nn.batch_norm", x, *parameters, axis=1, epsilon=call.attr("epsilon"))


def _trained_batch_norm(call: Call, x: ir.GraphExpr, parameters: list[ir.GraphExpr]) -> list[Value]:
    """Normalize by the statistics of the batch, which the running ones follow."""
    kind = max((_FLOAT32, *map(dtype_of, (x, *parameters))), key=lambda dtype: dtype.bits)
    wide, *known = (call.cast(v, kind) for v in (x, *parameters))
    axes = tuple(k for k in range(rank_of(x)) if k != 1)
    mean = call.apply("mean", wide, axes=axes, keepdims=True)
    difference = call.apply("subtract", wide, mean)
    square = call.apply("multiply", difference, difference)
    batch = [
        call.reshape(v, dims_of(parameters[0]))
        for v in (mean, call.apply("mean", square, axes=axes, keepdims=True))
    ]
    scale, bias = known[:2]
    y = call.apply("nn.batch_norm", wide, scale, bias, *batch, axis=1, epsilon=call.attr("epsilon"))
    momentum: float = call.attr("momentum")
    running: list[Value] = []
    for before, now, source in zip(known[2:], batch, parameters[2:], strict=True):
        kept = call.apply("multiply", before, scalar=momentum, scalar_side="right")
        added = call.apply("multiply", now, scalar=1 - momentum, scalar_side="right")
        running.append(call.cast(call.apply("add", kept, added), dtype_of(source)))
    return [call.cast(y, dtype_of(x)), *running]


@TABLE.op("InstanceNormalization")
def _instance_norm(call: Call) -> Value:
    x, scale, bias = call.tensors()
    return call.apply("nn.instance_norm", x, scale, bias, epsilon=call.attr("epsilon"))


@TABLE.op("GroupNormalization")
def _group_norm(call: Call) -> Value:
    x, scale, bias = call.tensors()
    return call.apply(
        "nn.group_norm",
        x,
        scale,
        bias,
        num_groups=call.attr("num_groups"),
        epsilon=call.attr("epsilon"),
    )


@TABLE.op("PRelu")
def _prelu(call: Call) -> Value:
    """The row for one slope per channel; in general slopes broadcast to the operand."""
    x, slope = call.tensor(0), call.tensor(1)
    scaled = call.apply("multiply", x, slope)
    below = call.apply("less", x, call.scalar(0, dtype_of(x)))
    return call.apply("where", below, scaled, x)


@TABLE.op("LpNormalization")
def _lp_normalization(call: Call) -> Value:
    """x divided by its norm along an axis; a norm of 0 gives 0."""
    x = call.tensor(0)
    axis = axis_of(call.attr("axis"), rank_of(x))
    if call.attr("p") == 1:
        size = call.apply("sum", call.apply("abs", x), axes=(axis,), keepdims=True)
    else:
        squares = call.apply("sum", call.apply("multiply", x, x), axes=(axis,), keepdims=True)
        size = call.apply("sqrt", squares)
    zero = call.scalar(0, dtype_of(x))
    result = call.apply("divide", x, size)
    return call.apply("where", call.apply("equal", size, zero), zero, result)


@TABLE.op("LRN")
def _lrn(call: Call) -> Value:
    """x / (bias + alpha / size · Σ x²)^beta, with the sum over neighbouring channels."""
    x, size = call.tensor(0), call.attr("size")
    before = (size - 1) // 2
    width = tuple((before, size - 1 - before) if k == 1 else (0, 0) for k in range(rank_of(x)))
    squares = call.apply("pad", call.apply("multiply", x, x), pad_width=width)
    channels = dims_of(x)[1]
    total: ir.GraphExpr | None = None
    for k in range(size):
        end = ir.add(channels, ir.const(k, "int64"))
        part = call.apply("slice", squares, axis=1, begin=k, end=end, step=1)
        total = part if total is None else call.apply("add", total, part)
    assert total is not None
    dtype = dtype_of(x)
    scaled = call.apply("multiply", total, call.scalar(call.attr("alpha") / size, dtype))
    base = call.apply("add", scaled, call.scalar(call.attr("bias"), dtype))
    return call.apply("divide", x, call.apply("power", base, call.scalar(call.attr("beta"), dtype)))


_PLAIN_ATTENTION = frozenset({"scale", "is_causal"})


@TABLE.op("Attention")
def _attention(call: Call) -> Value:
    """The row, for (batch, heads, length, size) without caches, windows or other outputs."""
    q, k, v = (call.tensor(position) for position in range(3))
    plain = all(
        name in _PLAIN_ATTENTION or call.attr(name) == call.defaults.get(name)
        for name in call.attrs
    )
    more = any(call.has(position) for position in range(4, 7))
    used = any(call.wants(position) for position in range(1, 4))
    if not plain or more or used or rank_of(q) != 4 or call.attr("is_causal", 0):
        return NotImplemented
    analyzer = call.imp.builder.analyzer
    same = all(analyzer.prove_equal(dims_of(q)[1], dims_of(t)[1]) for t in (k, v))
    if not same or dtype_of(q) is not _FLOAT32 or dtype_of(v) is not _FLOAT32:
        return NotImplemented
    operands = [q, k, v]
    if call.has(3):
        return NotImplemented
    return call.apply("attention", *operands, scale=call.attr("scale", None))

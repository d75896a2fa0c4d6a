"""Normalization by channels: batch norm with given statistics, group and instance norm, PReLU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    ZERO,
    accumulator,
    as_dim,
    axes_of,
    fold,
    inputs,
    require_kind,
    result,
    same_dtype,
    tensors,
    unknown,
    wide,
    widen,
)
from blockwright.ops.row import (
    REQUIRED,
    Array,
    Attrs,
    OpContext,
    OpRow,
    Sample,
    dims_text,
    known_dtype,
    normalize_axis,
)
from blockwright.ops.samples import floats, values
from blockwright.script.compute import Program, Tensor


def _deduce_channels(
    ctx: OpContext, infos: Sequence[ir.Info], low: int, high: int, axis: int
) -> tuple[ir.TensorInfo, list[ir.TensorInfo]]:
    """The tensor and its vector arguments, which have one element per index of `axis`."""
    x, *vectors = matches = tensors(ctx, infos, low, high)
    require_kind(ctx, same_dtype(ctx, matches), "float")
    for position, info in enumerate(vectors, 1):
        if info.rank not in (-1, 1):
            raise ctx.error(f"argument {position} has rank {info.rank}, not 1")
        if info.shape is not None and x.shape is not None:
            channels = x.shape[normalize_axis(ctx, axis, x.rank)]
            ctx.require_equal(info.shape[0], channels, f"argument {position} does not fit the axis")
    return x, matches


def _same(x: ir.TensorInfo) -> ir.Info:
    return unknown([x], x.dtype, x.rank) if x.shape is None else result([x], x.shape, x.dtype)


def _along(vector: Array, axis: int, rank: int) -> Array:
    shape = [1] * rank
    shape[axis] = -1
    return wide(vector).reshape(shape)


# -------------------------------------------------------------------------------------- batch norm
def _deduce_batch(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    x, _ = _deduce_channels(ctx, infos, 5, 5, attrs["axis"])
    return _same(x)


def _lower_batch(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    dtype = known_dtype(ctx, infos[0], 0)
    inner = accumulator(dtype)
    program = Program(ctx.name)
    x, gamma, beta, mean, variance = inputs(ctx, program, infos)
    axis = normalize_axis(ctx, attrs["axis"], len(x.shape))
    epsilon = ir.const(float(attrs["epsilon"]), inner)

    def factor(c: Any) -> Any:
        inverse = ir.call("rsqrt", ir.add(widen(variance[c]), epsilon))
        return ir.mul(widen(gamma[c]), inverse) if attrs["scale"] else inverse

    scale = program.compute("scale", gamma.shape, factor, inner, axes=("c",))

    def normalised(*i: Any) -> Any:
        c = i[axis]
        value = ir.mul(ir.sub(widen(x[i]), widen(mean[c])), scale[c])
        return ir.add(value, widen(beta[c])) if attrs["center"] else value

    return program.finish([program.compute("out", x.shape, normalised, dtype)])


def _batch_oracle(
    x: Array,
    gamma: Array,
    beta: Array,
    mean: Array,
    variance: Array,
    *,
    axis: int,
    epsilon: float,
    center: bool,
    scale: bool,
) -> Array:
    def along(vector: Array) -> Array:
        return _along(vector, axis, x.ndim)

    value = (wide(x) - along(mean)) / np.sqrt(along(variance) + epsilon)
    value = value * along(gamma) if scale else value
    return np.asarray(value + along(beta) if center else value).astype(x.dtype)


# ----------------------------------------------------------------------------- group, instance norm
def _groups(ctx: OpContext, attrs: Attrs, channels: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """The number of groups and of channels per group; instance norm has a group per channel."""
    if ctx.name == "nn.instance_norm":
        return channels, as_dim(1)
    groups = attrs["num_groups"]
    if not isinstance(groups, int) or groups < 1:
        raise ctx.error(f"num_groups={groups!r} is not a positive number")
    if not ctx.equal(ir.floormod(channels, as_dim(groups)), ZERO):
        raise ctx.error(f"{dims_text(channels)} channels are not divisible into {groups} groups")
    return as_dim(groups), ctx.analyzer.simplify(ir.floordiv(channels, as_dim(groups)))


def _reduced(ctx: OpContext, attrs: Attrs, rank: int) -> tuple[int, tuple[int, ...]]:
    """The channel axis and the spatial axes to normalize over; the other axes are batch."""
    channel = normalize_axis(ctx, attrs["channel_axis"], rank)
    if attrs["axes"] is None:
        return channel, tuple(a for a in range(1, rank) if a != channel)
    axes = axes_of(ctx, attrs["axes"], rank)
    if channel in axes:
        raise ctx.error(f"axis {channel} is the channel axis; `axes` must not include it")
    return channel, axes


def _deduce_group(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    x, _ = _deduce_channels(ctx, infos, 1, 3, attrs["channel_axis"])
    if x.shape is not None:
        channel, _ = _reduced(ctx, attrs, x.rank)
        _groups(ctx, attrs, x.shape[channel])
    return _same(x)


class _Grouped:
    """Index mapping: statistics are indexed by batch axes and group; sums run over the rest."""

    def __init__(self, ctx: OpContext, attrs: Attrs, x: Tensor) -> None:
        rank = len(x.shape)
        self.channel, axes = _reduced(ctx, attrs, rank)
        self.groups, self.size = _groups(ctx, attrs, x.shape[self.channel])
        self.batch = [a for a in range(rank) if a != self.channel and a not in axes]
        self.axes, self.rank = axes, rank
        self.shape = [*(x.shape[a] for a in self.batch), self.groups]
        self.one_each = ir.is_const_int(self.size, 1)
        self.over = [*([] if self.one_each else [self.size]), *(x.shape[a] for a in axes)]

    def element(self, index: Sequence[Any]) -> tuple[Any, ...]:
        """Index into the tensor from (batch…, group | channel in the group, spatial…)."""
        out: dict[int, Any] = dict(zip(self.batch, index, strict=False))
        group, rest = index[len(self.batch)], list(index[len(self.batch) + 1 :])
        within = ZERO if self.one_each else rest.pop(0)
        out[self.channel] = ir.add(ir.mul(group, self.size), within)
        out.update(zip(self.axes, rest, strict=True))
        return tuple(out[a] for a in range(self.rank))

    def group_of(self, index: Sequence[Any]) -> tuple[Any, ...]:
        """Index of the statistics for an element."""
        group = ir.floordiv(index[self.channel], self.size)
        return (*(index[a] for a in self.batch), group)

    def count(self, dtype: ir.DType) -> ir.Expr:
        total: ir.Expr = self.size
        for extent in self.over[0 if self.one_each else 1 :]:
            total = ir.mul(total, extent)
        return ir.cast_to(total, dtype)


def _lower_group(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    dtype = known_dtype(ctx, infos[0], 0)
    inner = accumulator(dtype)
    program = Program(ctx.name)
    x, *vectors = inputs(ctx, program, infos)
    what = _Grouped(ctx, attrs, x)
    count, lead = what.count(inner), len(what.shape)
    epsilon = ir.const(float(attrs["epsilon"]), inner)

    def value(*index: Any) -> Any:
        return widen(x[what.element(index)])

    total = fold(program, "total", what.shape, what.over, value, "sum", inner)
    mean = program.compute("mean", what.shape, lambda *i: ir.truediv(total[i], count))

    def squared(*index: Any) -> Any:
        difference = ir.sub(value(*index), mean[index[:lead]])
        return ir.mul(difference, difference)

    squares = fold(program, "squares", what.shape, what.over, squared, "sum", inner)

    def inverse(*i: Any) -> Any:
        return ir.call("rsqrt", ir.add(ir.truediv(squares[i], count), epsilon))

    scale = program.compute("scale", what.shape, inverse)

    def normalised(*i: Any) -> Any:
        at, c = what.group_of(i), i[what.channel]
        out = ir.mul(ir.sub(widen(x[i]), mean[at]), scale[at])
        if vectors and attrs["scale"]:
            out = ir.mul(out, widen(vectors[0][c]))
        return ir.add(out, widen(vectors[1][c])) if len(vectors) > 1 and attrs["center"] else out

    return program.finish([program.compute("out", x.shape, normalised, dtype)])


def _group_oracle(
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    *,
    num_groups: int | None,
    channel_axis: int,
    axes: Any,
    epsilon: float,
    center: bool,
    scale: bool,
) -> Array:
    channel = channel_axis % x.ndim
    spatial = (
        [a % x.ndim for a in axes]
        if axes is not None
        else [a for a in range(1, x.ndim) if a != channel]
    )
    value = np.moveaxis(wide(x), channel, -1)
    spatial = [a - (a > channel) for a in spatial]
    groups = value.shape[-1] if num_groups is None else num_groups
    parts: list[Any] = []
    for part in np.split(value, groups, -1):
        over = (*spatial, -1)
        centred = part - part.mean(over, keepdims=True)
        parts.append(centred / np.sqrt((centred**2).mean(over, keepdims=True) + epsilon))
    value = np.moveaxis(np.concatenate(parts, -1), -1, channel)
    if gamma is not None and scale:
        value = value * _along(gamma, channel, x.ndim)
    if beta is not None and center:
        value = value + _along(beta, channel, x.ndim)
    return np.asarray(value).astype(x.dtype)


def _instance_oracle(x: Array, *vectors: Array, **attrs: Any) -> Array:
    return _group_oracle(x, *vectors, num_groups=None, **attrs)


# ------------------------------------------------------------------------------------------- PReLU
def _deduce_prelu(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    x, alpha = matches = tensors(ctx, infos, 2, 2)
    require_kind(ctx, same_dtype(ctx, matches), "float")
    if alpha.shape is not None and x.shape is not None:
        if len(alpha.shape) != 1:
            raise ctx.error(f"the slopes have rank {len(alpha.shape)}, not 1")
        if not ir.is_const_int(alpha.shape[0], 1):
            channels = x.shape[normalize_axis(ctx, attrs["axis"], x.rank)]
            ctx.require_equal(alpha.shape[0], channels, "the slopes do not fit the axis")
    return _same(x)


def _lower_prelu(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    dtype = known_dtype(ctx, infos[0], 0)
    program = Program(ctx.name)
    x, alpha = inputs(ctx, program, infos)
    one = ir.is_const_int(alpha.shape[0], 1)
    axis = 0 if one else normalize_axis(ctx, attrs["axis"], len(x.shape))

    def body(*i: Any) -> Any:
        value: Any = widen(x[i])
        slope = widen(alpha[ZERO if one else i[axis]])
        return ir.select(value > ir.const(0, value.dtype), value, ir.mul(value, slope))

    return program.finish([program.compute("out", x.shape, body, dtype)])


def _prelu_oracle(x: Array, alpha: Array, *, axis: int) -> Array:
    slope = wide(alpha) if alpha.size == 1 else _along(alpha, axis, x.ndim)
    return np.where(wide(x) > 0, wide(x), wide(x) * slope).astype(x.dtype)


_WHY = "x - mean cancels: the error is one of the mean, which the terms' size bounds"


def _case(*args: Any, absolute: float = 1e-5, **attrs: Any) -> Sample:
    return Sample(args, attrs, 16.0, absolute, _WHY)


def _vectors(count: int, dtype: str = "float32") -> tuple[Any, ...]:
    """Scale, shift, mean and variance of `count` channels."""
    return (*(floats(count, dtype=dtype),) * 3, floats(count, dtype=dtype, low=0.1, high=4.0))


_GROUP = {"channel_axis": 1, "axes": None, "epsilon": 1e-5, "center": True, "scale": True}

ROWS: tuple[OpRow, ...] = (
    OpRow(
        "nn.batch_norm",
        ("data", "gamma", "beta", "moving_mean", "moving_var"),
        _deduce_batch,
        _lower_batch,
        _batch_oracle,
        {"axis": 1, "epsilon": 1e-5, "center": True, "scale": True},
        ("aten.batch_norm.default",),
        ("BatchNormalization",),
        (
            _case(floats(2, 3, 4, 5), *_vectors(3)),
            _case(floats(3, 7), *_vectors(7), epsilon=1e-3),
            _case(floats(2, 4, 3), *_vectors(3), axis=-1),
            _case(floats(2, 3, 4), *_vectors(3), scale=False, center=False),
            _case(floats(0, 3), *_vectors(3)),
            _case(floats(2, 3, 4, dtype="float16"), *_vectors(3, "float16"), absolute=1e-2),
        ),
        "(x - mean) / sqrt(variance + epsilon) · gamma + beta with the given statistics.",
        layout="axis",
        kinds={"axis": "int"},
    ),
    OpRow(
        "nn.group_norm",
        ("data", "gamma?", "beta?"),
        _deduce_group,
        _lower_group,
        _group_oracle,
        {"num_groups": REQUIRED, **_GROUP},
        ("aten.group_norm.default",),
        ("GroupNormalization",),
        (
            _case(floats(2, 6, 5, 4), floats(6), floats(6), num_groups=3),
            _case(floats(2, 4, 7), num_groups=1, epsilon=1e-3),
            _case(floats(2, 4), floats(4), num_groups=2),
            _case(floats(1, 5, 3, 4), floats(4), floats(4), num_groups=2, channel_axis=-1),
            _case(floats(2, 4, 3, 5), num_groups=4, axes=(3,)),
            _case(floats(1, 4, 9, dtype="float16"), num_groups=2, absolute=2e-3),
        ),
        "Group norm: (x - mean) / sqrt(variance + epsilon) over the channels of each group and the "
        "spatial axes; the first axis, and others not listed in `axes`, are batch.",
        layout="channel norm",
    ),
    OpRow(
        "nn.instance_norm",
        ("data", "gamma?", "beta?"),
        _deduce_group,
        _lower_group,
        _instance_oracle,
        dict(_GROUP),
        ("aten.instance_norm.default",),
        ("InstanceNormalization",),
        (
            _case(floats(2, 3, 5, 4), floats(3), floats(3)),
            _case(floats(2, 3, 9)),
            _case(floats(1, 4, 5, 3), channel_axis=3, epsilon=1e-2),
        ),
        "Group norm with one group per channel.",
        layout="channel norm",
    ),
    OpRow(
        "nn.prelu",
        ("data", "alpha"),
        _deduce_prelu,
        _lower_prelu,
        _prelu_oracle,
        {"axis": 1},
        ("aten.prelu.default",),
        ("PRelu",),
        (
            Sample((floats(2, 3, 4), floats(3))),
            Sample((floats(2, 3, 4), floats(1))),
            Sample((floats(2, 3, 4), floats(4)), {"axis": -1}),
            Sample((values(float("nan"), 0.0, -0.0, float("-inf")), values(0.5)), {"axis": 0}),
        ),
        doc="x where positive, else alpha · x, with one alpha or one per channel.",
        layout="axis",
        kinds={"axis": "int"},
    ),
)

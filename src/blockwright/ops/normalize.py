"""Normalization over trailing axes: statistics in two passes, then one pass over the elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    accumulator,
    axes_of,
    broadcast_info,
    inputs,
    require_kind,
    same_dtype,
    tensors,
    wide,
    widen,
)
from blockwright.ops.reduction_axes import ReductionAxes
from blockwright.ops.row import Array, Attrs, OpContext, OpRow, Sample, known_dtype
from blockwright.ops.samples import floats, values
from blockwright.script.compute import Program

_ATTRS: dict[str, Any] = {"axes": -1, "eps": 1e-5}


def _trailing(ctx: OpContext, attrs: Attrs, rank: int) -> tuple[int, ...]:
    axes = axes_of(ctx, attrs["axes"], rank)
    if not axes or axes != tuple(range(rank - len(axes), rank)):
        raise ctx.error(
            f"axes {attrs['axes']} are not the last ones of rank {rank}", "permute_dims first"
        )
    return axes


def _deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    result = tensors(ctx, infos, 1, 3 if ctx.name == "layer_norm" else 2)
    x = result[0]
    dtype = same_dtype(ctx, result)
    require_kind(ctx, dtype, "float")
    if x.shape is not None:
        axes = _trailing(ctx, attrs, x.rank)
        for position, extra in enumerate(result[1:], 1):
            if extra.rank >= 0 and extra.rank != len(axes):
                raise ctx.error(f"argument {position} has rank {extra.rank}, not {len(axes)}")
            for have, axis in zip(extra.shape or (), axes, strict=False):
                ctx.require_equal(
                    have, x.shape[axis], f"argument {position} does not fit axis {axis}"
                )
    return broadcast_info(ctx, result[:1], dtype)


def _lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    dtype = known_dtype(ctx, infos[0], 0)
    inner = accumulator(dtype)
    program = Program(ctx.name)
    x, *extra = inputs(ctx, program, infos)
    axes = _trailing(ctx, attrs, len(x.shape))
    what = ReductionAxes(x.shape, axes, keepdims=False)
    lead, count = len(what.shape), what.count(inner)
    eps = ir.const(float(attrs["eps"]), inner)

    if ctx.name == "layer_norm":
        total = what.run(program, "total", "sum", lambda *i: widen(x[i]), inner)
        mean = program.compute("mean", what.shape, lambda *i: ir.truediv(total[i], count))

        def centred(i: Sequence[Any]) -> Any:
            return ir.sub(widen(x[tuple(i)]), mean[tuple(i[:lead])])
    else:

        def centred(i: Sequence[Any]) -> Any:
            return widen(x[tuple(i)])

    def squared(*i: Any) -> Any:
        return ir.mul(centred(i), centred(i))

    squares = what.run(program, "squares", "sum", squared, inner)
    scale = program.compute(
        "scale",
        what.shape,
        lambda *i: ir.call("rsqrt", ir.add(ir.truediv(squares[i], count), eps)),
    )

    def normalised(*i: Any) -> Any:
        value = ir.mul(centred(i), scale[tuple(i[:lead])])
        if extra:
            value = ir.mul(value, widen(extra[0][tuple(i[lead:])]))
        if len(extra) > 1:
            value = ir.add(value, widen(extra[1][tuple(i[lead:])]))
        return value

    return program.finish([program.compute("out", x.shape, normalised, dtype)])


def _numpy_axes(axes: Any) -> tuple[int, ...]:
    return (axes,) if isinstance(axes, int) else tuple(axes)


def _layer_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, *, axes: Any, eps: float
) -> Array:
    value = wide(x)
    value = value - value.mean(axis=_numpy_axes(axes), keepdims=True)
    value = value / np.sqrt((value**2).mean(axis=_numpy_axes(axes), keepdims=True) + eps)
    if weight is not None:
        value = value * wide(weight)
    return np.asarray(value if bias is None else value + wide(bias)).astype(x.dtype)


def _rms_norm(x: Array, weight: Array | None = None, *, axes: Any, eps: float) -> Array:
    value = wide(x)
    value = value / np.sqrt((value**2).mean(axis=_numpy_axes(axes), keepdims=True) + eps)
    return np.asarray(value if weight is None else value * wide(weight)).astype(x.dtype)


_WHY = "x - mean cancels: the error is that of the mean, proportional to the size of the terms"


def _case(*args: Any, absolute: float = 3e-6, **attrs: Any) -> Sample:
    return Sample(args, attrs, 16.0, absolute, _WHY)


ROWS: tuple[OpRow, ...] = (
    OpRow(
        "layer_norm",
        ("x", "weight?", "bias?"),
        _deduce,
        _lower,
        _layer_norm,
        dict(_ATTRS),
        ("aten.layer_norm.default",),
        ("LayerNormalization",),
        (
            _case(floats(3, 17), floats(17), floats(17), eps=1e-12),
            _case(floats(2, 3, 7)),
            _case(floats(3, 1), floats(1), absolute=2e-3),
            _case(floats(2, 3, 5), floats(3, 5), floats(3, 5), axes=(-2, -1)),
            _case(floats(0, 5)),
            _case(values(1.0, float("nan"), 2.0, 1.0, 2.0, 4.0, shape=(2, 3))),
            _case(floats(3, 8, dtype="float16"), floats(8, dtype="float16"), absolute=1e-3),
        ),
        "(x - mean) / sqrt(variance + eps) · weight + bias over the last axes.",
    ),
    OpRow(
        "rms_norm",
        ("x", "weight?"),
        _deduce,
        _lower,
        _rms_norm,
        dict(_ATTRS),
        ("aten.rms_norm.default",),
        ("RMSNormalization",),
        (
            _case(floats(3, 17), floats(17), eps=1e-6),
            _case(floats(2, 3, 7)),
            _case(floats(2, 3, 5), axes=(1, 2)),
            _case(floats(3, 8, dtype="bfloat16")),
        ),
        "x / sqrt(mean of squares + eps) · weight over the last axes.",
    ),
)

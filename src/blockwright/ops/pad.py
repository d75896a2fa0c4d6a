"""Padding with a constant or with elements of the tensor itself (reflect, replicate, circular)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    ONE,
    ZERO,
    as_dim,
    bordered,
    copy_program,
    result,
    scalar_constant,
    tensors,
    unknown,
)
from blockwright.ops.row import REQUIRED, Array, Attrs, OpContext, OpRow, dims_text, known_shape
from blockwright.ops.samples import bools, exact, floats, ints
from blockwright.script.compute import Tensor

_PAD_MODES = ("constant", "reflect", "replicate", "circular")


def _pad_width(ctx: OpContext, attrs: Attrs, rank: int) -> list[tuple[ir.Expr, ir.Expr]]:
    width = [tuple(as_dim(v) for v in pair) for pair in attrs["pad_width"]]
    if len(width) != rank or any(len(pair) != 2 for pair in width):
        raise ctx.error(f"pad_width must hold {rank} pairs (before, after)")
    for value in (v for pair in width for v in pair):
        if isinstance(value, ir.IntImm) and value.value < 0:
            raise ctx.error(f"negative padding {value.value}", "use slice")
    return [(pair[0], pair[1]) for pair in width]


def _filler(ctx: OpContext, attrs: Attrs, dtype: ir.DType) -> ir.Expr:
    """The padding constant in an element type; the default of 0 is False for bool."""
    value = attrs["pad_value"]
    unset = isinstance(value, int) and value == 0
    return ir.const(0, dtype) if unset else scalar_constant(ctx, value, dtype)


def _check_pad_fits(ctx: OpContext, attrs: Attrs, shape: Sequence[ir.Expr]) -> None:
    """Check that an axis has elements to repeat, and enough to reflect."""
    mode = attrs["pad_mode"]
    for size, pair in zip(shape, _pad_width(ctx, attrs, len(shape)), strict=True):
        for wide in pair:
            if mode == "constant" or ir.is_const_int(wide, 0):
                continue
            what = f"padding {dims_text(wide)} is too wide for an axis of {dims_text(size)} to"
            if mode == "reflect":
                ctx.require(ir.compare(ir.LT, wide, size), f"{what} reflect")
            else:
                enough = ir.compare(ir.GT, size, ZERO)
                none = ir.compare(ir.EQ, wide, ZERO)
                ctx.require(ir.logical_or(enough, none), f"{what} repeat")


def _padded_shape(ctx: OpContext, attrs: Attrs, shape: Sequence[ir.Expr]) -> list[ir.Expr]:
    width = _pad_width(ctx, attrs, len(shape))
    return [
        ctx.analyzer.simplify(ir.add(ir.add(d, low), high))
        for d, (low, high) in zip(shape, width, strict=True)
    ]


def _deduce_pad(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = matches = tensors(ctx, infos, 1, 1)
    if x.dtype is not None:
        _filler(ctx, attrs, x.dtype)
    if attrs["pad_mode"] not in _PAD_MODES:
        raise ctx.error(f"pad_mode {attrs['pad_mode']!r} is none of {', '.join(_PAD_MODES)}")
    if x.shape is None:
        return unknown(matches, x.dtype, x.rank)
    _check_pad_fits(ctx, attrs, x.shape)
    return result(matches, _padded_shape(ctx, attrs, x.shape), x.dtype)


def _mirrored(index: Any, size: ir.Expr, mode: str) -> ir.Expr:
    """The position of the element that padding places at `index`, which may be out of range."""
    last = ir.sub(size, ONE)
    if mode == "circular":
        return ir.floormod(index, size)
    if mode == "replicate":
        return ir.minimum(ir.maximum(index, ZERO), last)
    below = ir.select(index < ZERO, ir.sub(ZERO, index), index)
    return ir.select(below > last, ir.sub(ir.mul(last, as_dim(2)), below), below)


def _lower_pad(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    shape = known_shape(ctx, infos[0], 0)
    width = _pad_width(ctx, attrs, len(shape))
    mode = attrs["pad_mode"]

    def element(x: Tensor, dims: Sequence[ir.Expr], i: Sequence[Any]) -> Any:
        if mode == "constant":
            return bordered(x, i, width, _filler(ctx, attrs, x.dtype))
        where = [
            v
            if ir.is_const_int(low, 0) and ir.is_const_int(high, 0)
            else _mirrored(ir.sub(v, low), size, mode)
            for v, size, (low, high) in zip(i, shape, width, strict=True)
        ]
        return x[tuple(where)]

    return copy_program(ctx, infos, lambda x: _padded_shape(ctx, attrs, shape), element)


def _pad_oracle(x: Array, pad_width: Any, pad_value: Any, pad_mode: str) -> Array:
    if pad_mode == "constant":
        return np.pad(x, pad_width, constant_values=pad_value)
    modes: dict[str, Any] = {"replicate": "edge", "circular": "wrap"}
    return np.pad(x, pad_width, mode=modes.get(pad_mode, pad_mode))


ROWS: tuple[OpRow, ...] = (
    OpRow(
        "pad",
        ("x",),
        _deduce_pad,
        _lower_pad,
        _pad_oracle,
        {"pad_width": REQUIRED, "pad_value": 0, "pad_mode": "constant"},
        ("aten.constant_pad_nd.default",),
        ("Pad",),
        exact(
            (floats(3, 5), {"pad_width": ((1, 0), (0, 2))}),
            (floats(3), {"pad_width": ((2, 3),), "pad_value": -1.5}),
            (floats(0, 2), {"pad_width": ((1, 1), (0, 0))}),
            (ints(3), {"pad_width": ((0, 0),)}),
            (bools(3), {"pad_width": ((1, 2),)}),
            (bools(3), {"pad_width": ((1, 2),), "pad_value": True}),
            (floats(2, 5), {"pad_width": ((0, 0), (4, 3)), "pad_mode": "reflect"}),
            (floats(3, 1), {"pad_width": ((0, 2), (1, 3)), "pad_mode": "replicate"}),
            (floats(3, 2), {"pad_width": ((3, 1), (2, 2)), "pad_mode": "circular"}),
        ),
        "Padding (before, after) for each axis: a constant, or elements of the axis itself.",
        layout="pad",
        conditional=True,
    ),
)

"""Convolutions that sample the image at displaced places: `nn.deform_conv2d`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    accumulator,
    as_dim,
    finish_rounded,
    fold,
    inputs,
    require_kind,
    result,
    same_dtype,
    tensors,
    unknown,
    widen,
)
from blockwright.ops.grid_sample import checked_element, index_inside
from blockwright.ops.row import Array, Attrs, OpContext, OpRow, Sample, known_dtype
from blockwright.ops.samples import floats
from blockwright.ops.window import Window, windows_of
from blockwright.script.compute import Program, Tensor


def _windows(ctx: OpContext, attrs: Attrs, weight: Sequence[ir.Expr]) -> list[Window]:
    return list(windows_of(ctx, attrs, weight[2:], attrs["strides"]).values())


def _deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    matches = tensors(ctx, infos, 3, 4)
    dtype = same_dtype(ctx, matches)
    require_kind(ctx, dtype, "float")
    if any(info.rank not in (-1, 4) for info in matches):
        raise ctx.error("needs tensors of rank 4", "add or remove axes")
    shapes = [info.shape for info in matches if info.shape is not None]
    if len(shapes) < len(matches):
        return unknown(matches, dtype, 4)
    x, weight, offset = shapes[:3]
    groups, shared = as_dim(attrs["groups"]), as_dim(attrs["offset_groups"])
    ctx.require_equal(x[1], ir.mul(weight[1], groups), "channels and those of the weight differ")
    size = [w.steps(ctx, x[2 + k]) for k, w in enumerate(_windows(ctx, attrs, weight))]
    taps = ir.mul(ir.mul(weight[2], weight[3]), shared)
    for name, shape, count in zip(("offset", "mask"), shapes[2:], (2, 1), strict=False):
        wanted = (x[0], ir.mul(taps, as_dim(count)), *size)
        for ours, theirs in zip(shape, wanted, strict=True):
            ctx.require_equal(ours, theirs, f"the shape of {name} does not fit")
    return result(matches, (x[0], weight[0], *offset[2:]), dtype)


def _sampled(ctx: OpContext, program: Program, operands: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """The samples (n, c, kh, kw, oh, ow) that the taps of the kernel multiply."""
    x, weight, offset, *rest = operands
    windows = _windows(ctx, attrs, weight.shape)
    high, wide = weight.shape[2:]
    kind = accumulator(x.dtype)
    shared = attrs["offset_groups"]
    per_group = ir.floordiv(x.shape[1], as_dim(shared))

    def tap(g: Any, i: Any, j: Any) -> ir.Expr:
        return ir.add(ir.mul(ir.add(ir.mul(g, high), i), wide), j)

    def coordinate(*index: Any) -> ir.Expr:
        n, g, axis, i, j, p, q = index
        moved = widen(offset[n, ir.add(ir.mul(tap(g, i, j), as_dim(2)), axis), p, q])
        fixed = [
            ir.sub(w.at(step, k), as_dim(w.before))
            for w, step, k in zip(windows, (p, q), (i, j), strict=True)
        ]
        first = ir.compare(ir.EQ, axis, as_dim(0))
        return moved + ir.cast_to(ir.select(first, *fixed), kind)

    size = offset.shape[2:]
    shape = (x.shape[0], as_dim(shared), as_dim(2), high, wide, *size)
    at = program.compute("at", shape, coordinate, kind)

    def sample(*index: Any) -> ir.Expr:
        n, c, i, j, p, q = index
        g = ir.floordiv(c, per_group)
        total: ir.Expr | None = None
        for down in (0, 1):
            for right in (0, 1):
                where: list[ir.Expr] = []
                weight: ir.Expr | None = None
                for axis, end in enumerate((down, right)):
                    value = at[n, g, as_dim(axis), i, j, p, q]
                    low = ir.call("floor", value)
                    part = value - low
                    part = part if end else ir.const(1.0, kind) - part
                    weight = part if weight is None else weight * part
                    where.append(index_inside(low + ir.const(float(end), kind), x.shape[2 + axis]))
                assert weight is not None
                term = checked_element(x, (n, c), where) * weight
                total = term if total is None else total + term
        assert total is not None
        return total * widen(rest[0][n, tap(g, i, j), p, q]) if rest else total

    return program.compute("sampled", (*x.shape[:2], high, wide, *size), sample, kind)


def _lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    program = Program(ctx.name)
    operands = inputs(ctx, program, infos)
    dtype = known_dtype(ctx, infos[0], 0)
    x, weight, offset = operands[:3]
    found = _sampled(ctx, program, operands, attrs)
    outputs = ir.floordiv(weight.shape[0], as_dim(attrs["groups"]))
    single = attrs["groups"] == 1

    def term(n: Any, o: Any, p: Any, q: Any, c: Any, i: Any, j: Any) -> ir.Expr:
        channel = c if single else ir.add(ir.mul(ir.floordiv(o, outputs), weight.shape[1]), c)
        return found[n, channel, i, j, p, q] * widen(weight[o, c, i, j])

    shape = (x.shape[0], weight.shape[0], *offset.shape[2:])
    total = fold(program, "total", shape, weight.shape[1:], term, "sum", accumulator(dtype))
    return finish_rounded(program, total, dtype)


def _oracle(
    x: Array,
    weight: Array,
    offset: Array,
    mask: Array | None = None,
    *,
    strides: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    offset_groups: int,
) -> Array:
    """The sum of hat functions around displaced places times the image, in float64."""
    n, channels, *sizes = x.shape
    taps, size = weight.shape[2:], offset.shape[2:]
    strides, dilation = np.broadcast_to(strides, 2), np.broadcast_to(dilation, 2)
    before = np.broadcast_to(padding, 2) if np.size(padding) < 4 else np.asarray(padding)[:2]
    moved = offset.reshape(n, offset_groups, *taps, 2, *size).astype(np.float32)
    scale = np.ones((n, offset_groups, *taps, *size)) if mask is None else mask
    scale = scale.reshape(n, offset_groups, *taps, *size)
    out = np.zeros((n, weight.shape[0], *size))
    each, per_offset = weight.shape[0] // groups, channels // offset_groups
    for b, o, p, q in np.ndindex(out.shape):
        for c in range(weight.shape[1]):
            channel = o // each * weight.shape[1] + c
            group = channel // per_offset
            for tap in np.ndindex(*taps):
                hats: list[Array] = []
                for axis in range(2):
                    fixed = (p, q)[axis] * strides[axis] + tap[axis] * dilation[axis] - before[axis]
                    at: Any = np.float32(fixed) + moved[(b, group, *tap, axis, p, q)]
                    distance: Array = float(at) - np.arange(int(sizes[axis]))
                    hats.append(np.maximum(0, 1 - np.abs(distance)))
                value = hats[0] @ x[b, channel].astype(np.float64) @ hats[1]
                out[b, o, p, q] += value * weight[(o, c, *tap)] * scale[(b, group, *tap, p, q)]
    return out.astype(x.dtype)


_WHY = "sums of terms of both signs"

ROWS: tuple[OpRow, ...] = (
    OpRow(
        "nn.deform_conv2d",
        ("data", "weight", "offset", "mask?"),
        _deduce,
        _lower,
        _oracle,
        {"strides": 1, "padding": 0, "dilation": 1, "groups": 1, "offset_groups": 1},
        onnx=("DeformConv",),
        samples=(
            Sample(
                (floats(1, 2, 5, 6), floats(3, 2, 2, 3), floats(1, 12, 5, 5)),
                {"padding": (1, 1, 0, 0)},
                16,
                1e-5,
                _WHY,
            ),
            Sample(
                (
                    floats(2, 4, 5, 5),
                    floats(4, 2, 3, 3),
                    floats(2, 36, 2, 2),
                    floats(2, 18, 2, 2),
                ),
                {"strides": 2, "padding": 1, "dilation": 2, "groups": 2, "offset_groups": 2},
                16,
                2e-5,
                _WHY,
            ),
        ),
        doc="A convolution whose taps are displaced by `offset` (row and column of each tap, for "
        "each group of channels), interpolated, and scaled by `mask`.",
        kinds={"offset_groups": "int"},
        conditional=True,
    ),
)

"""Means or maxima of samples in the cells of boxes: `vision.roi_align`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    I64,
    ONE,
    ZERO,
    accumulator,
    as_dim,
    inputs,
    require_kind,
    result,
    same_dtype,
    tensors,
    unknown,
    widen,
)
from blockwright.ops.row import Array, Attrs, OpContext, OpRow, Sample, known_dtype, positions_of
from blockwright.ops.samples import floats, values
from blockwright.ops.window import numbers
from blockwright.script.compute import Program, Tensor

_MODES = ("avg", "max")


def _deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    matches = tensors(ctx, infos, 3, 3)
    x, boxes, batch = matches
    for name, info, rank in (
        ("the image", x, 4),
        ("the boxes", boxes, 2),
        ("their images", batch, 1),
    ):
        if info.rank not in (-1, rank):
            raise ctx.error(f"{name} has rank {info.rank}, not {rank}", "reshape it")
    dtype = same_dtype(ctx, [x, boxes])
    require_kind(ctx, dtype, "float")
    require_kind(ctx, batch.dtype, "int")
    rows, columns = numbers(ctx, "output_size", attrs["output_size"], 2, 1)
    if x.shape is None or boxes.shape is None:
        return unknown(matches, dtype, 4)
    ctx.require_equal(boxes.shape[1], as_dim(4), "a box has 4 coordinates")
    if batch.shape is not None:
        ctx.require_equal(boxes.shape[0], batch.shape[0], "every box needs an image")
    return result(matches, (boxes.shape[0], x.shape[1], as_dim(rows), as_dim(columns)), dtype)


class _Side:
    """One side of a box: where its cells begin, their length, and the samples in each."""

    def __init__(self, box: Tensor, row: ir.Expr, axis: int, cells: int, attrs: Attrs) -> None:
        dtype = accumulator(box.dtype)
        scale, offset = ir.const(attrs["spatial_scale"], dtype), ir.const(0.5, dtype)
        low, high = (widen(box[row, as_dim(k)]) * scale for k in (1 - axis, 3 - axis))
        if attrs["aligned"]:
            low, high = low - offset, high - offset
        length = high - low
        if not attrs["aligned"]:
            length = ir.maximum(length, ir.const(1.0, dtype))
        self.start, self.cell = low, length / ir.const(float(cells), dtype)
        ratio: int = attrs["sampling_ratio"]
        finite = ir.call("isfinite", self.cell)
        adaptive = ir.select(finite, ir.cast_to(ir.call("ceil", self.cell), I64), ZERO)
        self.samples: ir.Expr = as_dim(ratio) if ratio > 0 else adaptive

    def at(self, cell: ir.Expr, sample: ir.Expr) -> ir.Expr:
        """The coordinate of a sample."""
        dtype = self.start.dtype
        half = ir.cast_to(sample, dtype) + ir.const(0.5, dtype)
        part = half * self.cell / ir.cast_to(self.samples, dtype)
        return self.start + ir.cast_to(cell, dtype) * self.cell + part


class _Near:
    """The two elements next to a coordinate along an axis, and their weights."""

    def __init__(self, at: ir.Expr, size: ir.Expr) -> None:
        dtype, last = at.dtype, ir.sub(size, ONE)
        zero, one = ir.const(0.0, dtype), ir.const(1.0, dtype)
        self.inside = ir.logical_and(
            ir.compare(ir.GE, at, ir.const(-1.0, dtype)),
            ir.compare(ir.LE, at, ir.cast_to(size, dtype)),
        )
        held = ir.minimum(ir.maximum(at, zero), ir.cast_to(last, dtype))
        low = ir.cast_to(held, I64)
        part = held - ir.cast_to(low, dtype)
        self.index = tuple(
            ir.call("checked_index", ir.minimum(ir.add(low, as_dim(k)), last), size) for k in (0, 1)
        )
        self.weight = one - part, part


def _lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    program = Program(ctx.name)
    x, boxes, batch = inputs(ctx, program, infos)
    dtype = known_dtype(ctx, infos[0], 0)
    kind = accumulator(dtype)
    rows, columns = numbers(ctx, "output_size", attrs["output_size"], 2, 1)
    shape = (boxes.shape[0], x.shape[1], as_dim(rows), as_dim(columns))
    out = program.alloc("out", shape, dtype)
    place = {name: ir.Buffer(name, I64, (ONE,)) for name in ("down", "right")}
    total = ir.Buffer("total", kind, (ONE,))
    zero = ir.const(0.0, kind)

    def repeated(name: str, count: ir.Expr, body: Callable[[ir.Expr], ir.Stmt]) -> ir.Stmt:
        """`body(0)`, …, `body(count - 1)`."""
        here = ir.load(place[name], ZERO)
        step = ir.BufferStore(place[name], ir.add(here, ONE), (ZERO,))
        loop = ir.While(ir.compare(ir.LT, here, count), ir.seq([body(here), step]))
        return ir.seq([ir.BufferStore(place[name], ZERO, (ZERO,)), loop])

    def cell(r: ir.Expr, c: ir.Expr, i: ir.Expr, j: ir.Expr) -> ir.Stmt:
        height = _Side(boxes, r, 0, rows, attrs)
        width = _Side(boxes, r, 1, columns, attrs)
        image = ir.call("checked_index", ir.cast_to(batch[r], I64), x.shape[0])
        start = ir.const(float("-inf"), kind) if attrs["mode"] == "max" else zero

        def sample(down: ir.Expr, right: ir.Expr) -> ir.Stmt:
            y = _Near(height.at(i, down), x.shape[2])
            z = _Near(width.at(j, right), x.shape[3])
            terms = [
                y.weight[a] * z.weight[b] * widen(x[image, c, y.index[a], z.index[b]])
                for a in (0, 1)
                for b in (0, 1)
            ]
            now = ir.load(total, ZERO)
            inside = ir.logical_and(y.inside, z.inside)
            if attrs["mode"] == "max":
                best = ir.maximum(ir.maximum(terms[0], terms[1]), ir.maximum(terms[2], terms[3]))
                value = ir.maximum(now, ir.if_then_else(inside, best, zero))
            else:
                found = terms[0] + terms[1] + terms[2] + terms[3]
                value = now + ir.if_then_else(inside, found, zero)
            return ir.BufferStore(total, value, (ZERO,))

        samples = repeated(
            "down",
            height.samples,
            lambda down: repeated("right", width.samples, lambda right: sample(down, right)),
        )
        count = ir.maximum(ir.mul(height.samples, width.samples), ONE)
        found = ir.load(total, ZERO)
        some = ir.logical_and(
            ir.compare(ir.GT, height.samples, ZERO), ir.compare(ir.GT, width.samples, ZERO)
        )
        value = (
            ir.select(some, found, zero)
            if attrs["mode"] == "max"
            else found / ir.cast_to(count, kind)
        )
        return ir.seq(
            [
                ir.BufferStore(total, start, (ZERO,)),
                samples,
                ir.BufferStore(out.buffer, ir.cast_to(value, dtype), (r, c, i, j)),
            ]
        )

    program.block("cell", shape, cell, allocated=[total, *place.values()])
    return program.finish([out])


def _aligned_regions(
    x: Array,
    boxes: Array,
    batch: Array,
    output_size: Any,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    aligned: bool = True,
    mode: str = "avg",
) -> Array:
    """All samples of a cell, as a product of hat functions at both axes with the image."""
    kind = np.float64 if x.dtype == np.float64 else np.float32
    shape: list[int] = np.broadcast_to(output_size, 2).tolist()
    out = np.zeros((len(boxes), x.shape[1], *shape))
    batch = positions_of(batch, len(x), from_end=False)
    for r, box in enumerate(boxes.astype(kind)):
        hats: list[list[Array]] = []  # for each axis and cell: (samples, elements)
        for axis, cells in enumerate(shape):
            low, high = box[[1 - axis, 3 - axis]] * kind(spatial_scale) - kind(0.5 * aligned)
            length = high - low if aligned else max(high - low, kind(1))
            step = length / kind(cells)
            count = sampling_ratio if sampling_ratio > 0 else max(int(np.ceil(step)), 0)
            size = int(x.shape[2 + axis])
            at = (
                low
                + np.arange(cells)[:, None] * step
                + (np.arange(count) + 0.5) * step / max(count, 1)
            )
            held = np.clip(at, 0, size - 1).astype(np.float64)
            distance: Array = held[..., None] - np.arange(size)
            hat = np.maximum(0, 1 - np.abs(distance))
            hats.append(list(hat * ((at >= -1) & (at <= size))[..., None]))
        image = x[batch[r]].astype(np.float64)
        for i, down in enumerate(hats[0]):
            for j, right in enumerate(hats[1]):
                samples = len(down) * len(right)
                terms = image[:, None, None] * down[:, None, :, None] * right[None, :, None, :]
                if mode == "avg":
                    out[r, :, i, j] = terms.sum((1, 2, 3, 4)) / max(samples, 1)
                elif samples:
                    weights = (down[:, None, :, None] * right[None, :, None, :]) > 0
                    least = np.where(weights.sum((2, 3)) < 4, 0.0, -np.inf)[..., None, None]
                    every = np.where(weights, terms, least)
                    out[r, :, i, j] = every.max((1, 2, 3, 4))
    return out.astype(x.dtype)


_BOXES = values(
    0.4, 0.7, 6.1, 5.2, 1.0, 1.5, 3.4, 7.3, -2.0, -3.0, 2.2, 1.7, 5.3, 4.1, 4.2, 6.6, shape=(4, 4)
)
_IMAGES = values(0, 1, 1, 0, dtype="int64")
_WHY = "sums of terms of both signs"

ROWS: tuple[OpRow, ...] = (
    OpRow(
        "vision.roi_align",
        ("x", "boxes", "images"),
        _deduce,
        _lower,
        _aligned_regions,
        {
            "output_size": 1,
            "sampling_ratio": 0,
            "spatial_scale": 1.0,
            "aligned": True,
            "mode": "avg",
        },
        onnx=("RoiAlign",),
        samples=(
            Sample((floats(2, 3, 7, 8), _BOXES, _IMAGES), {"output_size": (2, 3)}, 16, 1e-5, _WHY),
            Sample(
                (floats(2, 1, 7, 8), _BOXES, _IMAGES),
                {"output_size": (3, 2), "aligned": False, "sampling_ratio": 2},
                16,
                1e-5,
                _WHY,
            ),
            Sample(
                (floats(2, 2, 7, 8), _BOXES, _IMAGES),
                {"output_size": (2, 2), "mode": "max", "spatial_scale": 0.75},
                16,
                1e-5,
                _WHY,
            ),
        ),
        doc="The mean of samples in each cell of boxes (x, y, x, y) of images; a sample is "
        "interpolated between four elements. The mode max takes the largest weighted element.",
        kinds={"mode": _MODES, "output_size": "ints"},
    ),
)

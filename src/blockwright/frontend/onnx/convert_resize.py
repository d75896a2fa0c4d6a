"""Resize and Upsample: every axis by itself, as a weighted sum of a few elements.

Positions and weights are computed at import in float64, for axes of known size. Up to four elements
are gathered and added; with antialiasing more are involved, and the axis is multiplied by a matrix.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

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
Array = np.ndarray[Any, Any]
_FEW = 4


class Axis(msgspec.Struct, frozen=True):
    """One axis: its size before and after, the scale, and the region of `tf_crop_and_resize`."""

    size: int
    result: int
    scale: float
    start: float = 0.0
    end: float = 1.0


class Taps(msgspec.Struct, frozen=True, eq=False):
    """For each element of the result: positions and weights, and whether it is outside."""

    positions: Array
    weights: Array
    outside: Array


@TABLE.op("Resize", since=11)
def _resize(call: Call) -> Value:
    x = call.tensor(0)
    rank = rank_of(x)
    axes = [axis_of(a, rank) for a in call.attr("axes", None) or range(rank)]
    sizes = _sizes(call, x, axes)
    mode = call.attr("coordinate_transformation_mode")
    if mode == "tf_crop_and_resize":
        region = [float(v) for v in call.known(1, "roi").reshape(-1)]
        half = len(region) // 2
        places = dict(zip(axes, zip(region[:half], region[half:], strict=True), strict=True))
        sizes = {
            axis: msgspec.structs.replace(s, start=places[axis][0], end=places[axis][1])
            for axis, s in sizes.items()
        }
    return _resized(call, x, sizes, mode)


@TABLE.op("Upsample")
def _upsample(call: Call) -> Value:
    x = call.tensor(0)
    scales = call.attr("scales") if "scales" in call.attrs else call.known(1, "scales")
    sizes: dict[int, Axis] = {}
    for axis, scale in enumerate(scales):
        size = _known(call, x, axis)
        sizes[axis] = Axis(size, math.floor(size * float(scale)), float(scale))
    return _resized(call, x, sizes, "asymmetric", "floor")


def _known(call: Call, x: ir.GraphExpr, axis: int) -> int:
    size = ir.const_int(dims_of(x)[axis])
    if size is None:
        raise call.error(f"dimension {axis} has no known size", "declare it as a number")
    return size


def _sizes(call: Call, x: ir.GraphExpr, axes: list[int]) -> dict[int, Axis]:
    """The axes to resize, from scales or from sizes."""
    found: dict[int, Axis] = {}
    if call.has(3):
        wanted = call.sizes(3, "sizes")
        policy = call.attr("keep_aspect_ratio_policy", "stretch")
        pairs = [(a, s) for a, s in zip(axes, wanted, strict=True) if not _unchanged(x, a, s)]
        known = [(a, _known(call, x, a), int(s)) for a, s in pairs]
        if policy == "stretch":
            return {a: Axis(size, s, s / size) for a, size, s in known}
        every = [(a, _known(call, x, a), int(s)) for a, s in zip(axes, wanted, strict=True)]
        choose = min if policy == "not_larger" else max
        scale = choose(s / size for _, size, s in every)
        return {a: Axis(size, math.floor(size * scale + 0.5), scale) for a, size, _ in every}
    for axis, scale in zip(axes, call.known(2, "scales").reshape(-1).tolist(), strict=True):
        if scale != 1:
            size = _known(call, x, axis)
            found[axis] = Axis(size, math.floor(size * scale), scale)
    return found


def _unchanged(x: ir.GraphExpr, axis: int, size: Any) -> bool:
    dim = dims_of(x)[axis]
    if isinstance(size, ir.Expr):
        return ir.structural_equal(dim, size)
    return ir.is_const_int(dim, size)


def _resized(
    call: Call, x: ir.GraphExpr, sizes: dict[int, Axis], mode: str, nearest: str | None = None
) -> ir.GraphExpr:
    """The operand with some axes resized."""
    dtype = dtype_of(x)
    kind = call.attr("mode")
    linear = kind != "nearest"
    value = call.cast(x, "float32") if linear and dtype.is_int else x
    outside: dict[int, Array] = {}
    for axis, size in sizes.items():
        taps = _taps(call, size, mode, nearest)
        value = _along(call, value, axis, taps, linear)
        if mode == "tf_crop_and_resize" and taps.outside.any():
            outside[axis] = taps.outside
    for axis, mask in outside.items():
        shape = [len(mask) if k == axis else 1 for k in range(rank_of(x))]
        extrapolated = call.scalar(call.attr("extrapolation_value"), dtype_of(value))
        where = call.imp.tensor(mask.reshape(shape))
        value = call.apply("where", where, extrapolated, value)
    if value is x:
        return call.reshape(x, dims_of(x))
    if linear and dtype.is_int:
        low, high = float(dtype.min_value), float(dtype.max_value)
        value = call.apply("clip", call.apply("round", value), min=low, max=high)
    return call.cast(value, dtype)


def _along(call: Call, x: ir.GraphExpr, axis: int, taps: Taps, linear: bool) -> ir.GraphExpr:
    """The weighted sum of elements along an axis."""
    count = taps.positions.shape[1]
    if not linear:
        return call.apply("take", x, call.imp.tensor(taps.positions[:, 0].copy()), axis=axis)
    kind = dtype_of(x).numpy()
    if count > _FEW:
        size = ir.const_int(dims_of(x)[axis])
        assert size is not None
        matrix = np.zeros((len(taps.positions), size))
        for row, (where, weight) in enumerate(zip(taps.positions, taps.weights, strict=True)):
            np.add.at(matrix[row], where, weight)
        order = (*(k for k in range(rank_of(x)) if k != axis), axis)
        moved = call.apply("permute_dims", x, axes=order)
        product = call.apply("matmul", moved, call.imp.tensor(matrix.T.astype(kind)))
        return call.apply("permute_dims", product, axes=tuple(map(order.index, range(len(order)))))
    total: ir.GraphExpr | None = None
    shape = [len(taps.positions) if k == axis else 1 for k in range(rank_of(x))]
    for k in range(count):
        part = call.apply("take", x, call.imp.tensor(taps.positions[:, k].copy()), axis=axis)
        weight = call.imp.tensor(taps.weights[:, k].reshape(shape).astype(kind))
        part = call.apply("multiply", part, weight)
        total = part if total is None else call.apply("add", total, part)
    assert total is not None
    return total


def _coordinates(axis: Axis, mode: str) -> Array:
    """The position in the operand of each element of the result."""
    index = np.arange(axis.result, dtype=np.float64)
    if mode == "half_pixel":
        return (index + 0.5) / axis.scale - 0.5
    if mode == "half_pixel_symmetric":
        adjustment = axis.result / (axis.scale * axis.size)
        center = axis.size / 2
        return center * (1 - adjustment) + (index + 0.5) / axis.scale - 0.5
    if mode == "pytorch_half_pixel":
        return (index + 0.5) / axis.scale - 0.5 if axis.result > 1 else np.zeros(axis.result)
    if mode == "align_corners":
        last = axis.scale * axis.size - 1  # the scaled size is not rounded
        return index * (axis.size - 1) / last if last > 0 else np.zeros(axis.result)
    if mode == "asymmetric":
        return index / axis.scale
    span = axis.end - axis.start
    if axis.result > 1:
        step = span * (axis.size - 1) / (axis.result - 1)
        return axis.start * (axis.size - 1) + index * step
    return np.full(axis.result, 0.5 * (axis.start + axis.end) * (axis.size - 1))


def _taps(call: Call, axis: Axis, mode: str, nearest: str | None) -> Taps:
    at = _coordinates(axis, mode)
    outside = (at < 0) | (at > axis.size - 1)
    if call.attr("mode") == "nearest":
        rounded = _rounded(at, nearest or call.attr("nearest_mode"))
        where = np.clip(rounded, 0, axis.size - 1).astype(np.int64)[:, None]
        return Taps(where, np.ones(where.shape), outside)
    cubic = call.attr("mode") == "cubic"
    shrinks = bool(call.attr("antialias", 0)) and axis.scale < 1
    stretch = axis.scale if shrinks else 1.0
    reach = (2 if cubic else 1) / stretch
    first = np.floor(at).astype(np.int64)
    low, high = math.floor(-reach) + 1, math.ceil(reach)
    offsets = np.arange(low, high + 1) if shrinks else np.arange(*((-1, 3) if cubic else (0, 2)))
    where = first[:, None] + offsets
    distance = np.abs(at[:, None] - where) * stretch
    a = call.attr("cubic_coeff_a", -0.75)
    weights = _cubic(distance, a) if cubic else np.maximum(1 - distance, 0)
    if call.attr("exclude_outside", 0):
        weights = np.where((where < 0) | (where >= axis.size), 0, weights)
    if shrinks or call.attr("exclude_outside", 0):
        weights = weights / weights.sum(1, keepdims=True)
    return Taps(np.clip(where, 0, axis.size - 1), weights, outside)


def _rounded(at: Array, mode: str) -> Array:
    if mode == "floor":
        return np.floor(at)
    if mode == "ceil":
        return np.ceil(at)
    return np.ceil(at - 0.5) if mode == "round_prefer_floor" else np.floor(at + 0.5)


def _cubic(t: Array, a: float) -> Array:
    """The cubic convolution kernel."""
    near = (a + 2) * t**3 - (a + 3) * t**2 + 1
    far = a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0))

"""Resize and Upsample: every axis by itself, as a weighted sum of a few elements.

Positions and weights are computed in float64: at import for axes of known size, else by the
program, with the same formulas (`run_time_arrays`). Up to four elements are gathered and added;
with antialiasing more are involved, and an axis of known size is multiplied by a matrix.

Scales are float32. Where a formula decides between two integers, its steps are rounded to float32
as in ONNX Runtime: 5 · 1.4 is 7, though the float32 nearest to 1.4 is less. So are sizes, positions
of nearest elements and the edge of a region. Steps in float64 that are rounded to float32 give what
steps in float32 give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

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
from blockwright.frontend.onnx.run_time_arrays import RunTimeArray
from blockwright.frontend.onnx.run_time_sizes import loaded, sizes_of
from blockwright.frontend.onnx.size_floats import known_number, scaled_size
from blockwright.frontend.onnx.sizes import Floats, expr

TABLE = Converters()
Array = np.ndarray[Any, Any]
Numbers = Any
"""A NumPy array or number, or a `RunTimeArray`."""
_where: Any = np.where
_FEW = 4
_TIE = 1e-6
"""How far from the middle of two elements a position counts as the middle, as in ONNX Runtime."""
_MODES = frozenset(
    {
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_half_pixel_for_nn",
    }
)
"""Transformations of coordinates that map an axis of scale 1 to itself."""


class Axis(msgspec.Struct, frozen=True):
    """One axis: its size before and after, the scale, and the region of `tf_crop_and_resize`.

    Sizes are ints or expressions, and the scale is a number or computed by the program.
    """

    size: Any
    result: Any
    scale: Numbers
    start: Numbers = 0.0
    end: Numbers = 1.0

    @property
    def is_known(self) -> bool:
        numbers = (self.scale, self.start, self.end)
        computed = any(isinstance(v, RunTimeArray) for v in numbers)
        return isinstance(self.size, int) and isinstance(self.result, int) and not computed

    @property
    def is_kept(self) -> bool:
        """Whether all elements stay as they are: the scale is 1, and the region is the whole."""
        scale = 0.0 if isinstance(self.scale, RunTimeArray) else self.scale
        return (scale, self.start, self.end) == (1.0, 0.0, 1.0)


class Taps(msgspec.Struct, frozen=True, eq=False):
    """The elements that are added: for each a vector of positions and one of weights.

    Attributes: `outside` says which elements of the result lie outside of the operand.
    """

    positions: list[Numbers]
    weights: list[Numbers]
    outside: Numbers


@TABLE.op("Resize")
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
    elif mode not in _MODES:
        raise call.error(f"{mode!r} is no coordinate_transformation_mode", "use half_pixel")
    return _resized(call, x, sizes, mode)


@TABLE.op("Upsample")
def _upsample(call: Call) -> Value:
    x = call.tensor(0)
    scales = call.attr("scales") if "scales" in call.attrs else _scales(call, 1)
    return _resized(call, x, _by_scales(call, x, range(rank_of(x)), scales), "asymmetric", "floor")


def _size(x: ir.GraphExpr, axis: int) -> Any:
    """The size of an axis: a number where it is known."""
    dim = dims_of(x)[axis]
    number = ir.const_int(dim)
    return dim if number is None else number


def _scales(call: Call, position: int) -> Sequence[Numbers]:
    """The scales of all axes, which the program may compute.

    A quotient of sizes such as 2n / n is a number; calls check what makes it one.
    """
    value = call.value(position)
    if not isinstance(value, ir.GraphExpr) or isinstance(value, ir.Constant):
        return call.known(position, "scales").reshape(-1).tolist()
    count = ir.const_int(dims_of(value)[0]) if rank_of(value) == 1 else None
    if count is None:
        raise call.unknown(position, "the number of scales")
    wide, noted = call.cast(value, "float64"), call.imp.noted(value)
    known = noted.items.tolist() if isinstance(noted, Floats) else [None] * count
    return [
        RunTimeArray(call, call.apply("slice", wide, axis=0, begin=k, end=k + 1, step=1))
        if number is None
        else number
        for k, number in enumerate(known_number(call, v) for v in known)
    ]


def _sizes(call: Call, x: ir.GraphExpr, axes: list[int]) -> dict[int, Axis]:
    """The axes to resize, from scales or from sizes."""
    if not call.has(3):
        return _by_scales(call, x, axes, _scales(call, 2))
    wanted = sizes_of(call, 3, "sizes")
    policy = call.attr("keep_aspect_ratio_policy", "stretch")
    every = [(a, _size(x, a), s) for a, s in zip(axes, wanted, strict=True)]
    quotients = [_quotient(call, size, s) for _, size, s in every]
    if policy == "stretch":
        pairs = zip(every, quotients, strict=True)
        return {a: Axis(size, s, q) for (a, size, s), q in pairs}
    choose: Any = np.minimum if policy == "not_larger" else np.maximum
    scale = quotients[0]
    for quotient in quotients[1:]:
        scale = choose(scale, quotient)
    scale = _single(scale)
    return {a: Axis(size, _scaled(call, size, scale, 0.5), scale) for a, size, _ in every}


def _by_scales(
    call: Call, x: ir.GraphExpr, axes: Sequence[int], scales: Sequence[Numbers]
) -> dict[int, Axis]:
    return {
        axis: Axis(_size(x, axis), _scaled(call, _size(x, axis), scale), scale)
        for axis, scale in zip(axes, scales, strict=True)
    }


def _number(call: Call, size: Any) -> Numbers:
    return RunTimeArray.of_size(call, size) if isinstance(size, ir.Expr) else float(size)


def _single(value: Numbers) -> Numbers:
    """Numbers rounded to float32, as float64."""
    return value.in_single() if isinstance(value, RunTimeArray) else np.float64(np.float32(value))


def _exact(value: Numbers) -> Numbers:
    return value


def _scaled(call: Call, size: Any, scale: Numbers, more: float = 0.0) -> Any:
    """⌊size · scale + more⌋: a number, an expression, or a symbol that the program computes.

    Calls check that an expression is what float32 gives.
    """
    if isinstance(size, int) and not isinstance(scale, RunTimeArray):
        return math.floor(_single(_single(size) * scale) + more)
    if not isinstance(scale, RunTimeArray) and scale == 1:
        return size
    if not isinstance(scale, RunTimeArray):
        exact = scaled_size(call, expr(size), float(scale), more)
        if exact is not None:
            return exact
    count = np.floor(_single(_single(_number(call, size)) * scale) + more)
    return loaded(call, cast("RunTimeArray", count).as_integers())[0]


def _quotient(call: Call, size: Any, wanted: Any) -> Numbers:
    """The scale from one size to another."""
    if isinstance(size, int) and isinstance(wanted, int):
        return 1.0 if size == wanted else wanted / size
    both = isinstance(size, ir.Expr) and isinstance(wanted, ir.Expr)
    if both and ir.structural_equal(size, wanted):
        return 1.0
    return _number(call, wanted) / _number(call, size)


def _resized(
    call: Call, x: ir.GraphExpr, sizes: dict[int, Axis], mode: str, nearest: str | None = None
) -> ir.GraphExpr:
    """The operand with some axes resized."""
    sizes = {axis: size for axis, size in sizes.items() if not size.is_kept}
    dtype = dtype_of(x)
    linear = call.attr("mode") != "nearest"
    value = call.cast(x, "float32") if linear and dtype.is_int else x
    outside: dict[int, Numbers] = {}
    for axis, size in sizes.items():
        with np.errstate(all="ignore"):
            taps = _taps(call, size, mode, nearest)
        value = _along(call, value, axis, taps, linear)
        if mode == "tf_crop_and_resize":
            outside[axis] = taps.outside
    for axis, mask in outside.items():
        extrapolated = call.scalar(call.attr("extrapolation_value"), dtype_of(value))
        where = _spread(call, _tensor(call, mask), axis, rank_of(x))
        value = call.apply("where", where, extrapolated, value)
    if value is x:
        return call.reshape(x, dims_of(x))
    if linear and dtype.is_int:
        low, high = float(dtype.min_value), float(dtype.max_value)
        value = call.apply("clip", call.apply("round", value), min=low, max=high)
    return call.cast(value, dtype)


def _along(call: Call, x: ir.GraphExpr, axis: int, taps: Taps, linear: bool) -> ir.GraphExpr:
    """The weighted sum of elements along an axis."""
    if not linear:
        return call.apply("take", x, _places(call, taps.positions[0]), axis=axis)
    kind = dtype_of(x)
    if len(taps.positions) > _FEW and isinstance(taps.positions[0], np.ndarray):
        return _times_matrix(call, x, axis, taps)
    total: ir.GraphExpr | None = None
    for where, weight in zip(taps.positions, taps.weights, strict=True):
        part = call.apply("take", x, _places(call, where), axis=axis)
        factor = call.cast(_spread(call, _tensor(call, weight), axis, rank_of(x)), kind)
        part = call.apply("multiply", part, factor)
        total = part if total is None else call.apply("add", total, part)
    assert total is not None
    return total


def _times_matrix(call: Call, x: ir.GraphExpr, axis: int, taps: Taps) -> ir.GraphExpr:
    size = ir.const_int(dims_of(x)[axis])
    assert size is not None
    rows = np.arange(len(taps.positions[0]))
    matrix = np.zeros((len(rows), size))
    for where, weight in zip(taps.positions, taps.weights, strict=True):
        np.add.at(matrix, (rows, where.astype(np.int64)), weight)
    order = (*(k for k in range(rank_of(x)) if k != axis), axis)
    moved = call.apply("permute_dims", x, axes=order)
    product = call.apply("matmul", moved, call.imp.tensor(matrix.T.astype(dtype_of(x).numpy())))
    return call.apply("permute_dims", product, axes=tuple(map(order.index, range(len(order)))))


def _tensor(call: Call, numbers: Numbers) -> ir.GraphExpr:
    return numbers.value if isinstance(numbers, RunTimeArray) else call.imp.tensor(numbers)


def _places(call: Call, positions: Numbers) -> ir.GraphExpr:
    if isinstance(positions, RunTimeArray):
        return positions.as_integers()
    return call.imp.tensor(positions.astype(np.int64))


def _spread(call: Call, vector: ir.GraphExpr, axis: int, rank: int) -> ir.GraphExpr:
    """A vector along one axis of tensors with `rank` axes."""
    (size,) = dims_of(vector)
    return call.reshape(vector, [size if k == axis else 1 for k in range(rank)])


def _coordinates(
    index: Numbers,
    size: Numbers,
    result: Numbers,
    axis: Axis,
    mode: str,
    r: Callable[[Numbers], Numbers],
) -> Numbers:
    """The position in the operand of each element of the result.

    Args:
        r: rounds each step.
    """
    scale = r(axis.scale)
    if mode == "half_pixel":
        return r(r((index + 0.5) / scale) - 0.5)
    if mode == "half_pixel_symmetric":
        adjustment = r(result / r(scale * size))
        offset = r(size / 2 * r(1 - adjustment))
        return r(offset + (index + 0.5) / scale - 0.5)
    if mode == "pytorch_half_pixel":
        return _where(result > 1, r(r((index + 0.5) / scale) - 0.5), index * 0.0)
    if mode == "align_corners":
        last = r(r(axis.scale * size) - 1)  # the scaled size is no integer
        return _where(last > 0, r(r(index * (size - 1)) / last), index * 0.0)
    if mode == "asymmetric":
        return r(index / scale)
    if mode == "tf_half_pixel_for_nn":
        return r((index + 0.5) / scale)
    begin = r(axis.start * (size - 1))
    moved = r(r(index * r(axis.end - axis.start)) * (size - 1))
    middle = r(index * 0.0 + 0.5 * r(axis.start + axis.end) * (size - 1))
    return _where(result > 1, r(begin + r(moved / np.maximum(result - 1, 1))), middle)


def _taps(call: Call, axis: Axis, mode: str, nearest: str | None) -> Taps:
    size: Numbers
    result: Numbers
    if axis.is_known:
        size, result = np.float64(axis.size), np.float64(axis.result)
        index: Numbers = np.arange(axis.result, dtype=np.float64)
    else:
        size, result = (RunTimeArray.of_size(call, n) for n in (axis.size, axis.result))
        numbers = call.apply("arange", begin=0, end=axis.result, step=1, dtype="float64")
        index = RunTimeArray(call, numbers)
    decides = call.attr("mode") == "nearest" or mode == "tf_crop_and_resize"
    at = _coordinates(index, size, result, axis, mode, _single if decides else _exact)
    outside = (at < 0) | (at > size - 1)

    def inside(place: Numbers) -> Numbers:
        return np.minimum(np.maximum(place, 0), size - 1)

    if call.attr("mode") == "nearest":
        return Taps([inside(_rounded(at, nearest or call.attr("nearest_mode")))], [], outside)
    cubic = call.attr("mode") == "cubic"
    shrinks = bool(call.attr("antialias", 0))
    if shrinks and isinstance(axis.scale, RunTimeArray):
        raise call.unknown(3 if call.has(3) else 2, "the scale of a resize with antialiasing")
    shrinks = shrinks and axis.scale < 1
    stretch = axis.scale if shrinks else 1.0
    reach = (2 if cubic else 1) / stretch
    low, high = math.floor(-reach) + 1, math.ceil(reach)
    offsets = range(low, high + 1) if shrinks else range(*((-1, 3) if cubic else (0, 2)))
    a = call.attr("cubic_coeff_a", -0.75)
    first = np.floor(at)
    positions = [first + offset for offset in offsets]
    weights: list[Numbers] = []
    for where in positions:
        distance = np.absolute(at - where) * stretch
        weight = _cubic(distance, a) if cubic else np.maximum(1 - distance, 0)
        if call.attr("exclude_outside", 0):
            weight = _where((where < 0) | (where >= size), 0.0, weight)
        weights.append(weight)
    if shrinks or call.attr("exclude_outside", 0):
        total = weights[0]
        for weight in weights[1:]:
            total = total + weight
        weights = [weight / total for weight in weights]
    return Taps([inside(place) for place in positions], weights, outside)


def _rounded(at: Numbers, mode: str) -> Numbers:
    up = mode in ("ceil", "round_prefer_floor")
    half = {"round_prefer_floor": -0.5 - _TIE, "round_prefer_ceil": 0.5 + _TIE}.get(mode, 0.0)
    rounded: Numbers = np.ceil(at + half) if up else np.floor(at + half)
    return rounded


def _cubic(t: Numbers, a: float) -> Numbers:
    """The cubic convolution kernel."""
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return _where(t <= 1, near, _where(t < 2, far, 0.0))

"""Sampling at computed places: `image.grid_sample`, in any number of spatial axes.

A result is a weighted sum of the elements around a place: 1, 2 or 4 along each axis. Their indices
and weights are computed once for all channels; the index -1 stands for an element outside, which
counts as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    I64,
    ONE,
    ZERO,
    accumulator,
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
from blockwright.ops.row import Array, Attrs, OpContext, OpRow, Sample, known_dtype
from blockwright.ops.samples import Maker, floats, values
from blockwright.script.compute import Program, Tensor

METHODS = ("bilinear", "nearest", "bicubic")
PADDING_MODES = ("zeros", "border", "reflection")
_TAPS = {"nearest": 1, "bilinear": 2, "bicubic": 4}
_MOST_WRITTEN_OUT = 16  # terms of a sum that is one expression
_A = -0.75  # of the cubic kernel


# ------------------------------------------------------------------------------- coordinates
def _unnormalized(value: ir.Expr, size: ir.Expr, aligned: bool) -> ir.Expr:
    """A coordinate in [-1, 1] in units of elements."""
    extent = ir.cast_to(size, value.dtype)
    one, two = ir.const(1.0, value.dtype), ir.const(2.0, value.dtype)
    if aligned:
        return (value + one) / two * (extent - one)
    return ((value + one) * extent - one) / two


def _moved_inside(at: ir.Expr, size: ir.Expr, padding: str, aligned: bool) -> ir.Expr:
    """A coordinate moved into the image: clamped, or first reflected at the borders; 0 for NaN."""
    if padding == "zeros":
        return at
    extent, zero = ir.cast_to(size, at.dtype), ir.const(0.0, at.dtype)
    one, two = ir.const(1.0, at.dtype), ir.const(2.0, at.dtype)
    if padding == "reflection":
        start = zero if aligned else ir.const(-0.5, at.dtype)
        span = ir.maximum(extent - one if aligned else extent, zero)
        some = ir.compare(ir.GT, span, zero)
        divisor = ir.select(some, span, one)
        offset = ir.call("abs", at - start)
        turns = ir.call("floor", offset / divisor)
        rest = offset - turns * divisor
        odd = ir.compare(ir.NE, turns - two * ir.call("floor", turns / two), zero)
        at = ir.select(some, ir.select(odd, span - rest, rest) + start, zero)
    return ir.select(ir.compare(ir.GT, at, zero), ir.minimum(at, extent - one), zero)


def _cubic(t: ir.Expr, tap: int) -> ir.Expr:
    """The weight of the cubic kernel for element `tap` - 1 of a place at `t` in [0, 1)."""

    def number(value: float) -> ir.Expr:
        return ir.const(value, t.dtype)

    near = t if tap == 1 else number(1.0) - t
    if tap in (1, 2):
        return ((number(_A + 2) * near - number(_A + 3)) * near * near) + number(1.0)
    far = t + number(1.0) if tap == 0 else number(2.0) - t
    inner = (number(_A) * far - number(5 * _A)) * far + number(8 * _A)
    return inner * far - number(4 * _A)


def _choose(options: Sequence[ir.Expr], tap: ir.Expr) -> ir.Expr:
    """Element `tap` of a list of expressions."""
    chosen = options[-1]
    for number in reversed(range(len(options) - 1)):
        here = ir.compare(ir.EQ, tap, ir.const(number, I64))
        chosen = ir.select(here, options[number], chosen)
    return chosen


def checked_element(x: Tensor, lead: Sequence[ir.Expr], index: Sequence[ir.Expr]) -> ir.Expr:
    """The element of `x` at `lead` and the computed `index`; 0 if a part of the index is -1."""
    inside = ir.all_of([ir.compare(ir.GE, i, ZERO) for i in index])
    dims = x.shape[len(lead) :]
    where = [
        ir.call("checked_index", ir.minimum(ir.maximum(i, ZERO), ir.sub(dim, ONE)), dim)
        for i, dim in zip(index, dims, strict=True)
    ]
    return ir.select(inside, widen(x[(*lead, *where)]), ir.const(0.0, accumulator(x.dtype)))


def index_inside(at: ir.Expr, size: ir.Expr) -> ir.Expr:
    """A whole coordinate as an index, -1 if it is outside or NaN."""
    extent, zero = ir.cast_to(size, at.dtype), ir.const(0.0, at.dtype)
    inside = ir.logical_and(ir.compare(ir.GE, at, zero), ir.compare(ir.LT, at, extent))
    return ir.cast_to(ir.select(inside, at, ir.const(-1.0, at.dtype)), I64)


# ------------------------------------------------------------------------------------ programs
def _deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    x, grid = matches = tensors(ctx, infos, 2, 2)
    require_kind(ctx, x.dtype, "float")
    require_kind(ctx, grid.dtype, "float")
    dtype = same_dtype(ctx, matches)
    if x.shape is None or grid.shape is None:
        return unknown(matches, dtype, max(x.rank, grid.rank))
    if x.rank < 3 or grid.rank != x.rank:
        raise ctx.error(
            f"an image of rank {x.rank} and a grid of rank {grid.rank}",
            "pass an image (n, c, …) and a grid (n, …, d) with one number for each of d axes",
        )
    ctx.require_equal(x.shape[0], grid.shape[0], "image and grid differ in their batch")
    count = ir.const(x.rank - 2, I64)
    ctx.require_equal(grid.shape[-1], count, "the last axis of the grid lists coordinates")
    return result(matches, (*x.shape[:2], *grid.shape[1:-1]), dtype)


class _Taps:
    """The elements that contribute to each place: their indices and weights."""

    def __init__(self, program: Program, x: Tensor, grid: Tensor, attrs: Attrs) -> None:
        self.program, self.attrs = program, attrs
        self.sizes, self.places = x.shape[2:], grid.shape[:-1]
        self.axes = len(self.sizes)
        self.method: str = attrs["method"]
        self.count = _TAPS[self.method]
        dtype = accumulator(grid.dtype)

        def coordinate(axis: ir.Expr, *place: Any) -> ir.Expr:
            found = widen(grid[(*place, ir.sub(ir.const(self.axes - 1, I64), axis))])
            at = _unnormalized(found, self._size(axis), attrs["align_corners"])
            if self.method == "bicubic":  # there, the elements around the place are moved inside
                return at
            return self._inside(at, axis)

        # Places come last, so that those next to each other are in one vector.
        shape = (ir.const(self.axes, I64), *self.places)
        self.at = program.compute("at", shape, coordinate, dtype)
        taps = (shape[0], ir.const(self.count, I64), *self.places)
        self.index = program.compute("index", taps, self._index, I64)
        self.weight: Tensor | None = None
        if self.count > 1:
            self.weight = program.compute("weight", taps, self._weight, dtype)

    def _size(self, axis: ir.Expr) -> ir.Expr:
        return _choose(self.sizes, axis)

    def _inside(self, at: ir.Expr, axis: ir.Expr) -> ir.Expr:
        padding, aligned = self.attrs["padding_mode"], self.attrs["align_corners"]
        return _moved_inside(at, self._size(axis), padding, aligned)

    def _index(self, axis: ir.Expr, tap: ir.Expr, *place: Any) -> ir.Expr:
        at = self.at[(axis, *place)]
        if self.method == "nearest":
            return index_inside(ir.call("nearbyint", at), self._size(axis))
        first = ir.const(1 if self.method == "bicubic" else 0, I64)
        element = ir.call("floor", at) + ir.cast_to(ir.sub(tap, first), at.dtype)
        if self.method == "bicubic":
            element = ir.call("nearbyint", self._inside(element, axis))
        return index_inside(element, self._size(axis))

    def _weight(self, axis: ir.Expr, tap: ir.Expr, *place: Any) -> ir.Expr:
        at = self.at[(axis, *place)]
        part = at - ir.call("floor", at)
        if self.method == "bicubic":
            return _choose([_cubic(part, k) for k in range(4)], tap)
        weight = _choose([ir.const(1.0, at.dtype) - part, part], tap)
        if self.axes == 2:
            return weight
        # At places that are not finite, weights are NaN and all elements are outside: the result
        # is 0 in volumes and NaN in planes, as in PyTorch's kernels.
        outside = ir.compare(ir.LT, self.index[(axis, tap, *place)], ZERO)
        return ir.select(outside, ir.const(0.0, at.dtype), weight)

    def term(self, x: Tensor, lead: Sequence[ir.Expr], place: Any, taps: Sequence[Any]) -> ir.Expr:
        """The contribution of one element."""
        each = [(ir.const(k, I64), tap, *place) for k, tap in enumerate(taps)]
        term = checked_element(x, lead, [self.index[e] for e in each])
        if self.weight is not None:
            for e in each:
                term = term * ir.cast_to(self.weight[e], term.dtype)
        return term


def _lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    program = Program(ctx.name)
    x, grid = inputs(ctx, program, infos)
    dtype = known_dtype(ctx, infos[0], 0)
    taps = _Taps(program, x, grid, attrs)
    shape, axes = (*x.shape[:2], *grid.shape[1:-1]), taps.axes
    rank = len(shape)

    def term(*i: Any) -> ir.Expr:
        return taps.term(x, i[:2], (i[0], *i[2:rank]), i[rank:])

    if taps.count**axes <= _MOST_WRITTEN_OUT:
        every = [
            [ir.const(k, I64) for k in corner] for corner in product(range(taps.count), repeat=axes)
        ]

        def total_of(*i: Any) -> ir.Expr:
            first, *rest = (term(*i, *corner) for corner in every)
            return sum(rest, first)

        return program.finish([program.compute("out", shape, total_of, dtype)])
    over = [ir.const(taps.count, I64)] * axes
    total = fold(program, "total", shape, over, term, "sum", accumulator(dtype))
    return finish_rounded(program, total, dtype)


# -------------------------------------------------------------------------------------- oracle
def _reflected(at: Array, size: int, aligned: bool) -> Array:
    """Coordinates reflected at both borders until they are between them."""
    low, high = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
    if high <= low:
        return np.zeros_like(at)
    phase = np.mod(at - low, 2 * (high - low))
    return low + np.minimum(phase, 2 * (high - low) - phase)


def _keys(distance: Array) -> Array:
    """Keys' cubic convolution kernel."""
    s = np.abs(distance)
    near = (_A + 2) * s**3 - (_A + 3) * s**2 + 1
    far = _A * s**3 - 5 * _A * s**2 + 8 * _A * s - 4 * _A
    return np.where(s <= 1, near, np.where(s < 2, far, 0.0))


def _sampled(
    x: Array,
    grid: Array,
    method: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Array:
    """Sum over all elements near a place of element times kernel, in float64."""
    kind = np.float64 if x.dtype == np.float64 else np.float32
    sizes, batch = x.shape[2:], x.shape[0]

    def inside(at: Array, size: int) -> Array:
        if padding_mode == "zeros":
            return at
        moved = _reflected(at, size, align_corners) if padding_mode == "reflection" else at
        return np.clip(moved, 0, size - 1)

    every: list[list[tuple[Array, Array]]] = []  # for each axis: (index, weight) of each tap
    for axis, size in enumerate(sizes):
        place = grid[..., len(sizes) - 1 - axis].astype(kind)
        scaled = (place + 1) / 2 * (size - 1) if align_corners else ((place + 1) * size - 1) / 2
        at = scaled.astype(np.float64)
        if method == "nearest":
            every.append([(np.rint(inside(at, size)), np.ones_like(at))])
        elif method == "bilinear":
            at = inside(at, size)
            low = np.floor(at)
            every.append([(low + k, np.maximum(0, 1 - np.abs(at - low - k))) for k in (0, 1)])
        else:
            low = np.floor(at)
            taps = [(low + k, _keys(at - low - k)) for k in (-1, 0, 1, 2)]
            every.append([(np.rint(inside(index, size)), weight) for index, weight in taps])
    total = np.zeros((batch, x.shape[1], *grid.shape[1:-1]))
    for corner in product(*every):
        valid = np.ones(grid.shape[:-1], bool)
        where: list[Array] = []
        for (index, _), size in zip(corner, sizes, strict=True):
            within = (index >= 0) & (index < size)
            valid &= within
            where.append(np.where(within, index, 0).astype(np.int64))
        weight = np.prod([weight for _, weight in corner], axis=0)
        for n in range(batch):
            picked = x[n].astype(np.float64)[(slice(None), *(w[n] for w in where))]
            total[n] += np.where(valid[n], picked, 0) * weight[n]
    return total.astype(x.dtype)


def _far(*shape: int) -> Maker:
    """Places inside and outside of the image."""
    return floats(*shape, low=-2.2, high=2.2)


_NEAR_ZERO = "terms of both signs nearly cancel"

ROWS: tuple[OpRow, ...] = (
    OpRow(
        "image.grid_sample",
        ("x", "grid"),
        _deduce,
        _lower,
        _sampled,
        {"method": "bilinear", "padding_mode": "zeros", "align_corners": False},
        torch=("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default"),
        samples=(
            *(
                Sample(
                    (floats(2, 3, 5, 7), _far(2, 4, 3, 2)),
                    {
                        "method": method,
                        "padding_mode": padding,
                        "align_corners": padding == "zeros",
                    },
                    16,
                    1e-5,
                    _NEAR_ZERO,
                )
                for method in METHODS
                for padding in PADDING_MODES
            ),
            Sample(
                (floats(1, 2, 3, 4, 2), _far(1, 2, 2, 3, 3)),
                {"padding_mode": "reflection", "align_corners": True},
                16,
                1e-5,
                _NEAR_ZERO,
            ),
            Sample((floats(2, 1, 9), floats(2, 5, 1)), {"method": "bicubic"}, 16, 1e-5, _NEAR_ZERO),
            Sample(
                (floats(1, 1, 1, 1), floats(1, 3, 3, 2)),
                {"padding_mode": "reflection", "align_corners": True},
            ),
            Sample(
                (floats(2, 3, 4, 4, dtype="float64"), floats(2, 2, 2, 2, dtype="float64")),
                {"method": "bicubic", "padding_mode": "border"},
                64,
                1e-13,
                _NEAR_ZERO,
            ),
            Sample(
                (
                    floats(1, 2, 4, 4, dtype="float16"),
                    values(-1, 1, 0, 0.5, dtype="float16", shape=(1, 1, 2, 2)),
                ),
                {"align_corners": True},
            ),
            Sample((floats(0, 3, 4, 4), floats(0, 2, 2, 2))),
        ),
        doc="Elements of an image (n, c, …) at places (n, …, d) in [-1, 1], which list the last "
        "axis first: the nearest, or interpolated between neighbours.",
        kinds={"method": METHODS, "padding_mode": PADDING_MODES},
    ),
)

"""The axes of a reduction: shapes, annotations, and index mapping between input and result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blockwright import ir
from blockwright.ops.common import ONE, axes_of, fold, result, unknown
from blockwright.ops.row import Attrs, OpContext
from blockwright.script.compute import Program, Tensor

AXES: dict[str, Any] = {"axes": None, "keepdims": False}
AXIS: dict[str, Any] = {"axis": None, "keepdims": False}


def given_axes(attrs: Attrs) -> Any:
    """The reduced axes: `axes`, or `axis` for operators with a single axis."""
    return attrs["axes"] if "axes" in attrs else attrs["axis"]


def kept_shape(shape: Sequence[ir.Expr], axes: Sequence[int], keepdims: bool) -> list[ir.Expr]:
    """The shape without the reduced axes, or with 1 in their places."""
    return [ONE if i in axes else d for i, d in enumerate(shape) if keepdims or i not in axes]


def deduce_axes(
    ctx: OpContext, x: ir.TensorInfo, attrs: Attrs, dtype: ir.DType | None
) -> ir.TensorInfo:
    """Annotation of a reduction over the axes in `attrs`."""
    axis, keep = given_axes(attrs), attrs["keepdims"]
    if x.shape is not None:
        return result([x], kept_shape(x.shape, axes_of(ctx, axis, x.rank), keep), dtype)
    if keep or x.rank >= 0:
        reduced = 0 if keep else len(axes_of(ctx, axis, x.rank))
        return unknown([x], dtype, x.rank if keep else x.rank - reduced)
    return result([x], (), dtype) if axis is None else unknown([x], dtype, -1)


IN_ORDER = "n additions in order round n times; the terms bound the sum's size"


class ReductionAxes:
    """Index mapping of one reduction between result indices, reduced indices and the input."""

    def __init__(self, shape: Sequence[ir.Expr], axes: Sequence[int], keepdims: bool) -> None:
        self.axes = tuple(axes)
        self.rank = len(shape)
        self.keepdims = keepdims
        self.shape = kept_shape(shape, axes, keepdims)
        self.over = [shape[axis] for axis in axes]

    def full_index(self, indices: Sequence[Any]) -> tuple[Any, ...]:
        """Index into the input from the result indices followed by the reduced ones."""
        spatial = list(indices[: len(self.shape)])
        reduced = list(indices[len(self.shape) :])
        out: list[Any] = []
        for axis in range(self.rank):
            if axis in self.axes:
                out.append(reduced.pop(0))
                if self.keepdims:
                    spatial.pop(0)
            else:
                out.append(spatial.pop(0))
        return tuple(out)

    def count(self, dtype: ir.DType) -> ir.Expr:
        """Number of reduced elements, in the given type."""
        total: ir.Expr = ONE
        for extent in self.over:
            total = ir.mul(total, extent)
        return ir.cast_to(total, dtype)

    def run(
        self, program: Program, name: str, combiner: str, body: Callable[..., Any], dtype: ir.DType
    ) -> Tensor:
        """The reduction block; a copy if there are no axes. `body` receives an input index."""
        if not self.axes:
            return program.compute(name, self.shape, lambda *i: body(*i), dtype)
        return fold(
            program,
            name,
            self.shape,
            self.over,
            lambda *i: body(*self.full_index(i)),
            combiner,
            dtype,
        )


def reduction_of(ctx: OpContext, x: Tensor, attrs: Attrs) -> ReductionAxes:
    """The reduction described by axes and keepdims attributes."""
    return ReductionAxes(x.shape, axes_of(ctx, given_axes(attrs), len(x.shape)), attrs["keepdims"])


def numpy_axis(axis: Any) -> Any:
    return axis if axis is None or isinstance(axis, int) else tuple(axis)

"""Views, permutation and broadcasting: one block each that loads from a computed position.

`reshape`, `flatten`, `expand_dims` and `squeeze` only change the shape; passes treat them as views.
"""

# Rows are tables of short lambdas over scalar expressions, whose types `OpRow` declares.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    ONE,
    axes_of,
    copy_program,
    require_shape,
    result,
    shape_operand,
    tensors,
    unknown,
)
from blockwright.ops.relabel import SymbolicProduct, resolve, source_index
from blockwright.ops.row import (
    REQUIRED,
    Array,
    Attrs,
    Kind,
    OpContext,
    OpRow,
    Sample,
    broadcast_index,
    dims_text,
    known_shape,
    normalize_axis,
)
from blockwright.ops.samples import bools, exact, floats, ints
from blockwright.script.compute import Tensor

ShapeRule = Callable[[OpContext, ir.TensorInfo, Attrs], tuple[ir.Expr, ...]]


# ------------------------------------------------------------------------------------------ views
def _relabelled(ctx: OpContext) -> Callable[[Tensor, Sequence[ir.Expr], Sequence[Any]], Any]:
    return lambda x, dims, i: x[source_index(ctx, x.shape, dims, i)]


def _deduce_reshape(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    matches, wanted, rank = shape_operand(ctx, infos, attrs)
    (x,) = tensors(ctx, matches, 1, 1)
    if wanted is None:
        return unknown(matches, x.dtype, rank)
    if x.shape is None:
        holes = any(ir.is_const_int(d, -1) for d in wanted)
        return unknown(matches, x.dtype, rank) if holes else result(matches, wanted, x.dtype)
    return result(matches, resolve(ctx, x.shape, wanted), x.dtype)


def _lower_reshape(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    matches, wanted, _ = shape_operand(ctx, infos, attrs)
    target = resolve(ctx, known_shape(ctx, matches[0], 0), require_shape(ctx, wanted))
    return copy_program(ctx, matches, lambda x: target, _relabelled(ctx))


def _reshaped(x: Array, shape: Sequence[int]) -> Array:
    return x.reshape(tuple(shape))


def _view(
    name: str,
    rule: ShapeRule,
    rank_of: Callable[[int, Attrs], int],
    oracle: Callable[..., Any],
    attrs: dict[str, Any],
    torch: tuple[str, ...],
    onnx: tuple[str, ...],
    samples: tuple[Sample, ...],
    doc: str,
    kinds: dict[str, Kind] | None = None,
) -> OpRow:
    """A row whose result has the same elements with the shape returned by `rule`."""

    def deduce(ctx: OpContext, infos: Sequence[ir.Info], attributes: Attrs) -> ir.Info:
        (x,) = matches = tensors(ctx, infos, 1, 1)
        if x.shape is None:
            return unknown(matches, x.dtype, -1 if x.rank < 0 else rank_of(x.rank, attributes))
        return result(matches, rule(ctx, x, attributes), x.dtype)

    def lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attributes: Attrs) -> ir.PrimFunc:
        known_shape(ctx, infos[0], 0)
        target = rule(ctx, infos[0], attributes)
        return copy_program(ctx, infos, lambda x: target, _relabelled(ctx))

    return OpRow(
        name, ("x",), deduce, lower, oracle, attrs, torch, onnx, samples, doc, kinds=kinds or {}
    )


def _flat_shape(ctx: OpContext, x: ir.TensorInfo, attrs: Attrs) -> tuple[ir.Expr, ...]:
    shape = known_shape(ctx, x, 0)
    if not shape:
        return (ONE,)
    start = normalize_axis(ctx, attrs["start"], len(shape))
    end = normalize_axis(ctx, attrs["end"], len(shape))
    if start > end:
        raise ctx.error(f"start {start} is greater than end {end}")
    return (*shape[:start], SymbolicProduct(shape[start : end + 1]).expr(), *shape[end + 1 :])


def _flat_rank(rank: int, attrs: Attrs) -> int:
    return rank - (attrs["end"] % rank - attrs["start"] % rank) if rank else 1


def _flat_oracle(x: Array, start: int, end: int) -> Array:
    if x.ndim == 0:
        return x.reshape(1)
    first, last = start % x.ndim, end % x.ndim
    size = int(np.prod(x.shape[first : last + 1]))
    return x.reshape((*x.shape[:first], size, *x.shape[last + 1 :]))


def _as_tuple(axis: Any) -> tuple[int, ...]:
    return (axis,) if isinstance(axis, int) else tuple(axis)


def _expanded_shape(ctx: OpContext, x: ir.TensorInfo, attrs: Attrs) -> tuple[ir.Expr, ...]:
    shape = list(known_shape(ctx, x, 0))
    rank = len(shape) + len(_as_tuple(attrs["axis"]))
    axes = axes_of(ctx, attrs["axis"], rank)
    return tuple(ONE if axis in axes else shape.pop(0) for axis in range(rank))


def _squeezed_shape(ctx: OpContext, x: ir.TensorInfo, attrs: Attrs) -> tuple[ir.Expr, ...]:
    shape = known_shape(ctx, x, 0)
    if attrs["axis"] is None:
        return tuple(d for d in shape if not ir.is_const_int(d, 1))
    axes = axes_of(ctx, attrs["axis"], len(shape))
    for axis in axes:
        if not ctx.equal(shape[axis], ONE):
            raise ctx.error(f"dimension {axis} is {dims_text(shape[axis])}, not 1")
    return tuple(d for axis, d in enumerate(shape) if axis not in axes)


def _squeezed_rank(rank: int, attrs: Attrs) -> int:
    return -1 if attrs["axis"] is None else rank - len(_as_tuple(attrs["axis"]))


# ------------------------------------------------------------------------- permuting, broadcasting
def _order(ctx: OpContext, attrs: Attrs, rank: int) -> tuple[int, ...]:
    if attrs["axes"] is None:
        return tuple(reversed(range(rank)))
    axes = tuple(normalize_axis(ctx, a, rank) for a in attrs["axes"])
    if sorted(axes) != list(range(rank)):
        raise ctx.error(f"axes {attrs['axes']} are not a permutation of {rank} axes")
    return axes


def _deduce_permute(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = matches = tensors(ctx, infos, 1, 1)
    if x.shape is None:
        return unknown(matches, x.dtype, x.rank)
    return result(matches, [x.shape[a] for a in _order(ctx, attrs, x.rank)], x.dtype)


def _lower_permute(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    order = _order(ctx, attrs, len(known_shape(ctx, infos[0], 0)))
    back = [order.index(axis) for axis in range(len(order))]
    return copy_program(
        ctx,
        infos,
        lambda x: [x.shape[a] for a in order],
        lambda x, dims, i: x[tuple(i[b] for b in back)],
    )


def _broadcast_target(
    ctx: OpContext, shape: Sequence[ir.Expr], wanted: Sequence[ir.Expr]
) -> tuple[ir.Expr, ...]:
    """The requested shape with each -1 replaced by the dimension it keeps."""
    if len(wanted) < len(shape):
        raise ctx.error(
            f"cannot broadcast a tensor of rank {len(shape)} to {len(wanted)} dimensions"
        )
    out = list(wanted)
    for offset, dim in enumerate(reversed(shape)):
        position = len(wanted) - 1 - offset
        if ir.is_const_int(out[position], -1):
            out[position] = dim
        elif not ir.is_const_int(dim, 1):
            ctx.require_equal(dim, out[position], f"dimension {position} does not broadcast")
    if any(ir.is_const_int(d, -1) for d in out):
        raise ctx.error("-1 is used for a dimension that the tensor does not have")
    return tuple(out)


def _deduce_broadcast(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    matches, wanted, rank = shape_operand(ctx, infos, attrs)
    (x,) = tensors(ctx, matches, 1, 1)
    if wanted is None or x.shape is None:
        return unknown(matches, x.dtype, rank)
    return result(matches, _broadcast_target(ctx, x.shape, wanted), x.dtype)


def _stretched(x: Tensor, dims: Sequence[ir.Expr], i: Sequence[Any]) -> Any:
    return x[broadcast_index(x.shape, i)]


def _lower_broadcast(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    matches, wanted, _ = shape_operand(ctx, infos, attrs)
    target = _broadcast_target(ctx, known_shape(ctx, matches[0], 0), require_shape(ctx, wanted))
    return copy_program(ctx, matches, lambda x: target, _stretched)


def _broadcast_oracle(x: Array, shape: Sequence[int]) -> Array:
    lead = len(shape) - x.ndim
    return np.broadcast_to(x, [x.shape[i - lead] if d == -1 else d for i, d in enumerate(shape)])


ROWS: tuple[OpRow, ...] = (
    OpRow(
        "reshape",
        ("x", "shape?"),
        _deduce_reshape,
        _lower_reshape,
        _reshaped,
        {"shape": None},
        ("aten.reshape.default", "aten.view.default", "aten._unsafe_view.default"),
        ("Reshape",),
        exact(
            (floats(3, 17, 8), {"shape": (3, 17, 2, 4)}),
            (floats(3, 7, 2, 4), {"shape": (3, 7, -1)}),
            (floats(6, 4), {"shape": (2, 12)}),
            (floats(6, 4), {"shape": (4, 6)}),
            (floats(1, 5), {"shape": (5, 1, 1)}),
            (floats(), {"shape": (1, 1)}),
            (floats(1), {"shape": ()}),
            (floats(3, 0), {"shape": (0, 7)}),
            (ints(2, 3, 4, 5), {"shape": (6, -1, 2)}),
        ),
        "The same elements in row-major order with another shape; one dimension may be -1.",
        conditional=True,
    ),
    _view(
        "flatten",
        _flat_shape,
        _flat_rank,
        _flat_oracle,
        {"start": 0, "end": -1},
        ("aten.flatten.using_ints",),
        ("Flatten",),
        exact(
            (floats(3, 5, 2), {}),
            (floats(3, 5, 2), {"start": 1}),
            (floats(2, 3, 1, 4), {"start": -3, "end": 2}),
            (floats(), {}),
        ),
        "Adjacent dimensions merged into one.",
        {"end": "int"},
    ),
    _view(
        "expand_dims",
        _expanded_shape,
        lambda rank, attrs: rank + len(_as_tuple(attrs["axis"])),
        lambda x, axis: np.expand_dims(x, axis),
        {"axis": REQUIRED},
        ("aten.unsqueeze.default",),
        ("Unsqueeze",),
        exact(
            (floats(3, 5), {"axis": 0}),
            (floats(3, 5), {"axis": -1}),
            (floats(3, 5), {"axis": (0, 2)}),
            (floats(), {"axis": 0}),
        ),
        "Dimensions of size 1 inserted at the given axes of the result.",
    ),
    _view(
        "squeeze",
        _squeezed_shape,
        _squeezed_rank,
        lambda x, axis: np.squeeze(x, axis),
        {"axis": None},
        ("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims"),
        ("Squeeze",),
        exact(
            (floats(1, 3, 1), {}), (floats(1, 3, 1), {"axis": -1}), (floats(1, 1), {"axis": (0, 1)})
        ),
        "Dimensions of size 1 removed.",
    ),
    OpRow(
        "permute_dims",
        ("x",),
        _deduce_permute,
        _lower_permute,
        lambda x, axes: np.transpose(x, axes),
        {"axes": None},
        ("aten.permute.default",),
        ("Transpose",),
        exact(
            (floats(3, 5), {}),
            (floats(2, 3, 4, 5), {"axes": (0, 2, 1, 3)}),
            (floats(2, 3, 7), {"axes": (-1, 0, 1)}),
            (floats(), {}),
        ),
        "Axes permuted; reversed by default.",
        kinds={"axes": "tuple"},
    ),
    OpRow(
        "broadcast_to",
        ("x", "shape?"),
        _deduce_broadcast,
        _lower_broadcast,
        _broadcast_oracle,
        {"shape": None},
        ("aten.expand.default", "aten.broadcast_to.default", "aten.expand_as.default"),
        ("Expand",),
        exact(
            (floats(3, 1), {"shape": (3, 5)}),
            (floats(5), {"shape": (2, 3, -1)}),
            (floats(), {"shape": (3,)}),
            (bools(1, 1, 7, 1), {"shape": (2, -1, 7, 7)}),
            (floats(1), {"shape": (0,)}),
        ),
        "Elements repeated along dimensions of size 1; -1 keeps a dimension.",
        layout="broadcast_to",
    ),
)

"""Position of the first maximum or minimum: argmax, argmin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import I32, I64, ONE, as_dim, inputs, require_kind, tensors, wide
from blockwright.ops.reduction_axes import AXIS, deduce_axes, reduction_of
from blockwright.ops.row import Array, Attrs, OpContext, OpRow, Sample, TorchCall, known_dtype
from blockwright.ops.samples import floats, ints, values
from blockwright.script.compute import Program


def _deduce_position(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = tensors(ctx, infos, 1, 1)
    require_kind(ctx, x.dtype, "number")
    if attrs["axis"] is not None and not isinstance(attrs["axis"], int):
        raise ctx.error("takes one axis or None")
    return deduce_axes(ctx, x, attrs, I64)


def _position_type(ctx: OpContext, over: Sequence[ir.Expr]) -> ir.DType:
    """The narrowest type for positions: int32 if all provably fit, for more vector lanes.

    The position over an empty domain is the largest int64, so the domain must also be nonempty.
    """
    total: ir.Expr = ONE
    for extent in over:
        total = ir.mul(total, extent)
    fits = ir.compare(ir.LE, total, ir.const(I32.max_value, I64))
    some = ir.compare(ir.GE, total, ONE)
    return I32 if ctx.analyzer.prove(fits) and ctx.analyzer.prove(some) else I64


def _position(name: str, combiner: str, fn: Callable[..., Any], onnx: str) -> OpRow:
    """A row for the first position of an extreme: one reduction of (element, position) pairs.

    NaN counts as the extreme, as in NumPy. Over an empty domain the position is the largest
    integer.
    """

    def lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
        dtype = known_dtype(ctx, infos[0], 0)
        program = Program(ctx.name)
        (x,) = inputs(ctx, program, infos)
        what = reduction_of(ctx, x, attrs)
        if not what.axes or any(ir.is_const_int(extent, 0) for extent in what.over):
            only = as_dim(0) if not what.axes else ir.const(I64.max_value, I64)
            return program.finish([program.compute("out", what.shape, lambda *_: only, I64)])

        kind = _position_type(ctx, what.over)

        def pair(*indices: Any) -> tuple[ir.Expr, ir.Expr]:
            index = what.full_index(indices)
            here: Any = as_dim(0)
            for axis in what.axes:
                here = here * x.shape[axis] + index[axis]
            return x[index], ir.cast_to(here, kind)

        names = ("best", "out" if kind is I64 else "where")
        _, out = program.reduce_tuple(names, what.shape, what.over, pair, combiner, (dtype, kind))
        if kind is I64:
            return program.finish([out])
        where = out
        return program.finish([program.compute("out", what.shape, lambda *i: where[i], I64)])

    def oracle(x: Array, *, axis: Any, keepdims: bool) -> Array:
        if x.size if axis is None else x.shape[axis]:
            return np.asarray(fn(wide(x), axis=axis, keepdims=keepdims), np.int64)
        shape = np.max(x, axis=axis, keepdims=keepdims, initial=0).shape
        return np.full(shape, I64.max_value, np.int64)

    return OpRow(
        name,
        ("x",),
        _deduce_position,
        lower,
        oracle,
        dict(AXIS),
        (f"aten.{name}.default",),
        (onnx,),
        (
            Sample((floats(3, 17),), {"axis": -1}),
            Sample((ints(4, 5, low=0, high=3),), {"axis": 0}),
            Sample((ints(4, 5, low=0, high=3),), {"axis": 0, "keepdims": True}),
            Sample((floats(3, 5),)),
            Sample((values(1.0, float("nan"), 9.0),), {"axis": 0}),
            Sample((floats(2, 0),), {"axis": 1}),
            Sample((floats(0, 2),), {"axis": 1, "keepdims": True}),
        ),
        "Position of the first extreme along an axis, or in the flattened tensor.",
        TorchCall(needs_elements=True),
        layout="axis reduced",
        kinds={"axis": "int"},
    )


ROWS: tuple[OpRow, ...] = (
    _position("argmax", "argmax", np.argmax, "ArgMax"),
    _position("argmin", "argmin", np.argmin, "ArgMin"),
)

"""Positions of values in sorted sequences: `searchsorted` and `bucketize`.

The position is found by bisection with the comparisons of PyTorch, so that sequences that are not
sorted, or hold NaN, give the same positions too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import (
    I32,
    I64,
    ONE,
    ZERO,
    as_dim,
    inputs,
    require_kind,
    result,
    same_dtype,
    tensors,
    unknown,
)
from blockwright.ops.row import Array, Attrs, OpContext, OpRow, Sample, TorchCall
from blockwright.ops.samples import floats, ints, values
from blockwright.script.compute import Program, Tensor


def _position_type(attrs: Attrs) -> ir.DType:
    return I32 if attrs["out_int32"] else I64


def _right(attrs: Attrs) -> bool:
    """Whether a value that equals boundaries belongs after them."""
    return attrs["right"] or attrs.get("side") == "right"


def _positions(
    ctx: OpContext, sequence: ir.TensorInfo, x: ir.TensorInfo, attrs: Attrs
) -> ir.TensorInfo:
    """Annotation of the positions of the elements of `x`."""
    require_kind(ctx, same_dtype(ctx, [sequence, x]), "number")
    if attrs["right"] and attrs.get("side") == "left":
        raise ctx.error("right=True contradicts side='left'", "pass one of them")
    dtype = _position_type(attrs)
    if sequence.shape is None or x.shape is None:
        return unknown([x], dtype, x.rank)
    if len(sequence.shape) > 1:
        if len(x.shape) != len(sequence.shape):
            raise ctx.error(
                f"sequences of rank {sequence.rank} and values of rank {x.rank}",
                "pass one sequence, or values with the same leading dimensions",
            )
        for ours, theirs in zip(sequence.shape[:-1], x.shape[:-1], strict=True):
            ctx.require_equal(ours, theirs, "each row of values needs a sequence")
    elif not sequence.shape:
        raise ctx.error("the sequence is a scalar", "pass a tensor with at least one axis")
    return result([x], x.shape, dtype)


def _bisected(
    ctx: OpContext, program: Program, sequence: Tensor, x: Tensor, attrs: Attrs
) -> ir.PrimFunc:
    dtype, size = _position_type(attrs), sequence.shape[-1]
    single = len(sequence.shape) == 1
    out = program.alloc("out", x.shape, dtype)
    low, high = (ir.Buffer(name, I64, (ONE,)) for name in ("low", "high"))

    def search(*place: Any) -> ir.Stmt:
        """Keep low ≤ position ≤ high; a NaN belongs after all boundaries."""
        start, end = ir.load(low, ZERO), ir.load(high, ZERO)
        middle = ir.Var("middle", I64)
        at = ir.call("checked_index", middle, size)
        boundary = sequence[at] if single else sequence[(*place[:-1], at)]
        before = boundary > x[place] if _right(attrs) else boundary >= x[place]
        step = ir.IfThenElse(
            before,
            ir.BufferStore(high, middle, (ZERO,)),
            ir.BufferStore(low, ir.add(middle, ONE), (ZERO,)),
        )
        halved = ir.LetStmt(middle, ir.floordiv(ir.add(start, end), as_dim(2)), step)
        return ir.seq(
            [
                ir.BufferStore(low, ZERO, (ZERO,)),
                ir.BufferStore(high, size, (ZERO,)),
                ir.While(ir.compare(ir.LT, start, end), halved),
                ir.BufferStore(out.buffer, ir.cast_to(start, dtype), place),
            ]
        )

    program.block("search", x.shape, search, allocated=[low, high])
    return program.finish([out])


def _positions_of(sequence: Array, x: Array, attrs: Attrs) -> Array:
    found = np.zeros(x.shape, np.int32 if attrs["out_int32"] else np.int64)
    for place in np.ndindex(x.shape):
        row = sequence if sequence.ndim == 1 else sequence[place[:-1]]
        low, high = 0, row.shape[0]
        while low < high:
            middle = (low + high) // 2
            before = row[middle] > x[place] if _right(attrs) else row[middle] >= x[place]
            low, high = (low, middle) if before else (middle + 1, high)
        found[place] = low
    return found


def _deduce_search(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    sequence, x = tensors(ctx, infos, 2, 2)
    return _positions(ctx, sequence, x, attrs)


def _lower_search(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    program = Program(ctx.name)
    sequence, x = inputs(ctx, program, infos)
    return _bisected(ctx, program, sequence, x, attrs)


def _search(sequence: Array, x: Array, **attrs: Any) -> Array:
    return _positions_of(sequence, x, attrs)


def _deduce_buckets(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    x, boundaries = tensors(ctx, infos, 2, 2)
    if boundaries.rank not in (-1, 1):
        raise ctx.error(f"boundaries of rank {boundaries.rank}", "pass one sequence of boundaries")
    return _positions(ctx, boundaries, x, attrs)


def _lower_buckets(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    program = Program(ctx.name)
    x, boundaries = inputs(ctx, program, infos)
    return _bisected(ctx, program, boundaries, x, attrs)


def _buckets(x: Array, boundaries: Array, **attrs: Any) -> Array:
    return _positions_of(boundaries, x, attrs)


_BOUNDARIES = values(-2.0, -0.5, 0.0, 0.0, 1.0, 2.5)
_NAN = values(float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 2.5)
_ROWS_OF = values(-2.0, 0.0, 1.0, -1.0, -1.0, 0.5, shape=(2, 3))

ROWS: tuple[OpRow, ...] = (
    OpRow(
        "searchsorted",
        ("sorted_sequence", "x"),
        _deduce_search,
        _lower_search,
        _search,
        {"out_int32": False, "right": False, "side": None},
        ("aten.searchsorted.Tensor",),
        samples=(
            Sample((_BOUNDARIES, floats(3, 7))),
            Sample((_BOUNDARIES, values(-2.0, 0.0, 3.0)), {"right": True}),
            Sample((_BOUNDARIES, _NAN), {"side": "right", "out_int32": True}),
            Sample((_ROWS_OF, floats(2, 5))),
            Sample((_ROWS_OF, values(-1.0, 0.5, -1.0, 0.0, shape=(2, 2))), {"side": "left"}),
            Sample((values(1, 3, 3, 200, dtype="uint8"), values(0, 3, 255, dtype="uint8"))),
            Sample((values(dtype="float32"), floats(4))),
            Sample((floats(9), floats(7))),
            Sample((_BOUNDARIES, values(0.25, shape=()))),
        ),
        doc="The position in a sorted sequence at which each value would be inserted.",
        torch_call=TorchCall(types="promoted"),
        kinds={"side": ("left", "right")},
    ),
    OpRow(
        "bucketize",
        ("x", "boundaries"),
        _deduce_buckets,
        _lower_buckets,
        _buckets,
        {"out_int32": False, "right": False},
        ("aten.bucketize.Tensor",),
        samples=(
            Sample((floats(5, 9), _BOUNDARIES)),
            Sample((_NAN, _BOUNDARIES), {"right": True}),
            Sample((ints(4, 3), values(-5, 0, 5, dtype="int32")), {"out_int32": True}),
            Sample((floats(4, dtype="float16"), values(-1.0, 1.0, dtype="float16"))),
            Sample((floats(4), values(dtype="float32"))),
        ),
        doc="The bucket of each value between sorted boundaries.",
        torch_call=TorchCall(types="promoted"),
    ),
)

"""Sorting along an axis: sort, argsort, topk.

Sorting is stable, and NaN counts as larger than all numbers, as in PyTorch.
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
    result,
    tensors,
    unknown,
    wide,
)
from blockwright.ops.row import (
    Array,
    Attrs,
    OpContext,
    OpRow,
    Sample,
    dims_text,
    known_dtype,
    normalize_axis,
)
from blockwright.ops.samples import bools, floats, ints, values
from blockwright.ops.sorting import precedes, shortlist, sorted_line
from blockwright.script.compute import Program

_SHORT = 32
"""Largest k for which topk inserts into a list of k; beyond, merge sort takes fewer steps."""


def _lines(
    ctx: OpContext,
    infos: Sequence[ir.TensorInfo],
    attrs: Attrs,
    outputs: Sequence[tuple[str, ir.DType]],
    descending: bool,
    count: Any = None,
) -> ir.PrimFunc:
    """The first `count` elements of each sorted line (all by default).

    Arguments: `outputs` lists what the program computes: "values" and "indices", with their types.
    A scalar is a line of one element.
    """
    program = Program(ctx.name)
    (x,) = inputs(ctx, program, infos)
    axis = normalize_axis(ctx, attrs["axis"], max(1, len(x.shape)))
    shape = x.shape or (ONE,)
    size = shape[axis]
    count = size if count is None else as_dim(count)
    kept = (*shape[:axis], count, *shape[axis + 1 :]) if x.shape else ()
    results = [program.alloc(name, kept, dtype) for name, dtype in outputs]
    short = ir.const_int(count)
    buffers: list[ir.Buffer] = []

    def before(a: ir.Expr, b: ir.Expr) -> ir.Expr:
        return precedes(a, b, descending)

    def line(*around: Any) -> ir.Stmt:
        def element(p: ir.Expr) -> ir.Expr:
            return x[(*around[:axis], p, *around[axis:])] if x.shape else x[()]

        def before_at(p: ir.Expr, q: ir.Expr) -> ir.Expr:
            checked = (ir.call("checked_index", k, size) for k in (p, q))
            return before(*map(element, checked))

        found = (
            shortlist(size, short, x.dtype, element, before)
            if short is not None and count is not size and 0 < short <= _SHORT
            else sorted_line(size, before_at)
        )
        buffers.extend(found.buffers)
        k = ir.Var("k", I64)
        p = ir.call("checked_index", found.position(ir.call("checked_index", k, size)), size)
        here = (*around[:axis], k, *around[axis:]) if x.shape else ()
        given = {"values": element(p), "indices": p}
        give = ir.seq(
            ir.BufferStore(t.buffer, ir.cast_to(given[name], t.dtype), here)
            for t, (name, _) in zip(results, outputs, strict=True)
        )
        return ir.seq([found.body, ir.For(k, ZERO, count, ir.ForKind.SERIAL, give)])

    around = (*shape[:axis], *shape[axis + 1 :])
    program.block("line", around, line, allocated=buffers)
    return program.finish(results)


def _order(x: Array, axis: int, descending: bool) -> Array:
    """The stable order of lines, with NaN as the largest value."""
    if x.ndim == 0:
        return np.zeros((), np.int64)
    keys = wide(x) if x.dtype.kind != "b" else x
    if not descending:
        return np.argsort(keys, axis=axis, kind="stable")
    last = x.shape[axis] - 1
    return np.flip(last - np.argsort(np.flip(keys, axis), axis=axis, kind="stable"), axis)


def _picked(x: Array, order: Array, axis: int) -> Array:
    return np.take_along_axis(x, order, axis) if x.ndim else x


def _deduce_sort(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = tensors(ctx, infos, 1, 1)
    if x.rank >= 0:
        normalize_axis(ctx, attrs["axis"], max(1, x.rank))
    return x


def _deduce_argsort(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    x = _deduce_sort(ctx, infos, attrs)
    assert isinstance(x, ir.TensorInfo)
    dtype = _index_type(ctx, attrs)
    return unknown([x], dtype, x.rank) if x.shape is None else result([x], x.shape, dtype)


def _index_type(ctx: OpContext, attrs: Attrs) -> ir.DType:
    dtype = ir.dtype_of(attrs["dtype"])
    if dtype not in (I32, I64):
        raise ctx.error(f"positions of type {dtype}", "pass dtype='int32' or 'int64'")
    return dtype


def _lower_sort(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    outputs = [("values", known_dtype(ctx, infos[0], 0))]
    return _lines(ctx, infos, attrs, outputs, attrs["descending"])


def _lower_argsort(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    outputs = [("indices", _index_type(ctx, attrs))]
    return _lines(ctx, infos, attrs, outputs, attrs["descending"])


def _sort(x: Array, axis: int, descending: bool) -> Array:
    return _picked(x, _order(x, axis, descending), axis)


def _argsort(x: Array, axis: int, descending: bool, dtype: Any) -> Array:
    return _order(x, axis, descending).astype(ir.dtype_of(dtype).numpy())


def _outputs_of(ctx: OpContext, attrs: Attrs, dtype: ir.DType) -> list[tuple[str, ir.DType]]:
    both = [("values", dtype), ("indices", _index_type(ctx, attrs))]
    return [pair for pair in both if attrs["ret_type"] in ("both", pair[0])]


def _deduce_topk(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = tensors(ctx, infos, 1, 1)
    index_type = _index_type(ctx, attrs)
    if x.shape is None:
        fields = (unknown([x], x.dtype, x.rank), unknown([x], index_type, x.rank))
    else:
        axis = normalize_axis(ctx, attrs["axis"], max(1, len(x.shape)))
        shape, count = x.shape or (ONE,), as_dim(attrs["k"])
        wrong = f"k is {dims_text(count)}, for lines of {dims_text(shape[axis])} elements"
        for low, high in ((ZERO, count), (count, shape[axis])):
            ctx.require(ir.compare(ir.LE, low, high), wrong)
        kept = (*shape[:axis], count, *shape[axis + 1 :]) if x.shape else ()
        fields = (result([x], kept, x.dtype), result([x], kept, index_type))
    wanted = attrs["ret_type"]
    if wanted == "both":
        return ir.TupleInfo(fields)
    return fields[1] if wanted == "indices" else fields[0]


def _lower_topk(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    outputs = _outputs_of(ctx, attrs, known_dtype(ctx, infos[0], 0))
    return _lines(ctx, infos, attrs, outputs, attrs["largest"], attrs["k"])


def _topk(x: Array, *, k: int, axis: int, largest: bool, ret_type: str, dtype: Any) -> Any:
    order = _order(x, axis, largest)
    order = np.take(order, range(k), axis) if x.ndim else order
    indices = order.astype(ir.dtype_of(dtype).numpy())
    both = [_picked(x, order, axis), indices]
    return both if ret_type == "both" else both[1 if ret_type == "indices" else 0]


_RETURNED = ("both", "values", "indices")
_TIES = ints(4, 37, low=0, high=5)
_SPECIAL = values(1.0, float("nan"), -0.0, float("inf"), 0.0, float("nan"), -float("inf"), 2.0)

ROWS: tuple[OpRow, ...] = (
    OpRow(
        "argsort",
        ("x",),
        _deduce_argsort,
        _lower_argsort,
        _argsort,
        {"axis": -1, "descending": False, "dtype": "int64"},
        samples=(
            Sample((floats(3, 17),), {}, 0.0),
            Sample((_TIES,), {"descending": True}, 0.0),
            Sample((floats(9, 2, 3),), {"axis": 0, "dtype": "int32"}, 0.0),
            Sample((_SPECIAL,), {}, 0.0),
            Sample((_SPECIAL,), {"descending": True}, 0.0),
            Sample((bools(3, 8),), {}, 0.0),
            Sample((ints(5, dtype="uint8", low=0, high=255),), {}, 0.0),
            Sample((floats(2, 0),), {}, 0.0),
            Sample((floats(),), {}, 0.0),
        ),
        doc="Positions that sort lines along an axis, stably; NaN is the largest value.",
        kinds={"axis": "int", "dtype": "type"},
    ),
    OpRow(
        "sort",
        ("x",),
        _deduce_sort,
        _lower_sort,
        _sort,
        {"axis": -1, "descending": False},
        samples=(
            Sample((floats(3, 64),), {}, 0.0),
            Sample((floats(9, dtype="float16"),), {"descending": True}, 0.0),
            Sample((_SPECIAL,), {"descending": True}, 0.0),
            Sample((ints(2, 5, 3, dtype="int64"),), {"axis": 1}, 0.0),
            Sample((floats(),), {}, 0.0),
        ),
        doc="Lines along an axis in order; NaN is the largest value.",
        kinds={"axis": "int"},
    ),
    OpRow(
        "topk",
        ("x",),
        _deduce_topk,
        _lower_topk,
        _topk,
        {"k": 1, "axis": -1, "largest": True, "ret_type": "both", "dtype": "int64"},
        onnx=("TopK",),
        samples=(
            Sample((floats(3, 17),), {"k": 5}, 0.0),
            Sample((_TIES,), {"k": 3, "largest": False}, 0.0),
            Sample((floats(80, 3),), {"k": 50, "axis": 0}, 0.0),
            Sample((_SPECIAL,), {"k": 4}, 0.0),
            Sample((_SPECIAL,), {"k": 8, "largest": False}, 0.0),
            Sample((floats(4, 6),), {"k": 2, "ret_type": "values"}, 0.0),
            Sample((floats(4, 6),), {"k": 2, "ret_type": "indices", "dtype": "int32"}, 0.0),
            Sample((floats(4, 6),), {"k": 0}, 0.0),
            Sample((floats(),), {}, 0.0),
        ),
        conditional=True,
        doc="The k first elements of lines in order, and their positions; NaN is the largest.",
        kinds={
            "axis": "int",
            "k": "size",
            "ret_type": ("both", "values", "indices"),
            "dtype": "type",
        },
    ),
)

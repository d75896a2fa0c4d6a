"""Operators that select elements by position: gather, scatter, sort, one-hot."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.frontend.onnx.call import (
    Call,
    Converters,
    Value,
    axis_of,
    dims_of,
    dtype_of,
    own_axis,
    rank_of,
)
from blockwright.frontend.onnx.convert_shapes import product
from blockwright.frontend.onnx.run_time_sizes import sizes_of
from blockwright.frontend.onnx.sizes import I64, expr
from blockwright.graph import shape_value

TABLE = Converters()


@TABLE.op("Gather")
def _gather(call: Call) -> Value:
    x, indices = call.tensor(0), call.tensor(1)
    axis = own_axis(call.attr("axis"), rank_of(x))
    return call.apply("take", x, indices, axis=axis)


@TABLE.op("GatherElements")
def _gather_elements(call: Call) -> Value:
    x, indices = call.tensor(0), call.tensor(1)
    axis = axis_of(call.attr("axis"), rank_of(x))
    return call.apply("gather", x, _from_front(call, indices, dims_of(x)[axis]), axis=axis)


def _from_front(call: Call, indices: ir.GraphExpr, size: ir.Expr) -> ir.GraphExpr:
    """Positions counted from the front."""
    indices = call.cast(indices, I64)
    wrapped = call.apply("add", indices, scalar=size, scalar_side="right")
    below = call.apply("less", indices, scalar=0, scalar_side="right")
    return call.apply("where", below, wrapped, indices)


@TABLE.op("GatherND")
def gather_nd(call: Call) -> Value:
    """The last axis of indices lists coordinates, each checked against the size of its own axis.

    A coordinate of a batch axis is the position in that axis of indices.
    """
    x, indices = call.tensor(0), call.cast(call.tensor(1), I64)
    batch, places = call.attr("batch_dims"), dims_of(indices)
    depth, rank = ir.const_int(places[-1]), len(places) - 1
    if depth is None:
        raise call.error("the size of the last axis of indices is symbolic", "declare it")
    coordinates: list[ir.GraphExpr] = []
    for axis, size in enumerate(dims_of(x)[:batch]):
        own = call.apply("arange", begin=0, end=size, step=1, dtype="int64")
        coordinates.append(call.reshape(own, [size if k == axis else 1 for k in range(rank)]))
    for k in range(depth):
        part = call.apply("slice", indices, axis=rank, begin=k, end=k + 1, step=1)
        coordinates.append(call.reshape(part, places[:-1]))
    return call.apply("index", x, *coordinates)


_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}


@TABLE.op("ScatterElements", "Scatter")
def _scatter_elements(call: Call) -> Value:
    x, indices, updates = call.tensors()
    return call.apply(
        "scatter_elements",
        x,
        indices,
        updates,
        axis=axis_of(call.attr("axis"), rank_of(x)),
        reduction=_REDUCTIONS[call.attr("reduction", "none")],
    )


@TABLE.op("ScatterND")
def _scatter_nd(call: Call) -> Value:
    x, indices, updates = call.tensors()
    reduction = _REDUCTIONS[call.attr("reduction", "none")]
    return call.apply("scatter_nd", x, indices, updates, reduction=reduction)


@TABLE.op("OneHot")
def _one_hot(call: Call) -> Value:
    """values[1] where the index along a new axis is that of the operand, else values[0]."""
    indices, depth = call.tensor(0), sizes_of(call, 1, "the depth")[0]
    values = call.tensor(2)
    rank = rank_of(indices) + 1
    axis = axis_of(call.attr("axis"), rank)
    places = _from_front(call, indices, expr(depth))
    shape = list(dims_of(indices))
    shape.insert(axis, ir.const(1, I64))
    index = call.apply("arange", begin=0, end=expr(depth), step=1, dtype="int64")
    index = call.reshape(index, [depth if k == axis else 1 for k in range(rank)])
    hit = call.apply("equal", call.reshape(places, shape), index)
    off, on = (
        call.reshape(call.apply("slice", values, axis=0, begin=k, end=k + 1, step=1), ())
        for k in (0, 1)
    )
    return call.apply("where", hit, on, off)


@TABLE.op("TopK")
def _top_k(call: Call) -> Value:
    x, k = call.tensor(0), sizes_of(call, 1, "k")[0]
    both = call.imp.builder.emit(
        ir.GraphCall(
            ir.OpRef("topk"),
            (x,),
            {
                "k": k,
                "axis": axis_of(call.attr("axis"), rank_of(x)),
                "largest": bool(call.attr("largest")),
                "ret_type": "both",
                "dtype": "int64",
            },
        ),
        "topk",
    )
    return [call.item(both, 0), call.item(both, 1)]


@TABLE.op("ReverseSequence")
def _reverse_sequence(call: Call) -> Value:
    """Position t of a sequence of length s is s - 1 - t if t < s, else t."""
    x, lengths = call.tensor(0), call.cast(call.tensor(1), I64)
    rank = rank_of(x)
    time: int = call.attr("time_axis")
    batch: int = call.attr("batch_axis")
    size = dims_of(x)[time]
    index = call.apply("arange", begin=0, end=size, step=1, dtype="int64")
    index = call.reshape(index, [size if k == time else 1 for k in range(rank)])
    length = call.reshape(lengths, [d if k == batch else 1 for k, d in enumerate(dims_of(x))])
    back = call.apply("subtract", call.apply("subtract", length, index), call.scalar(1, I64))
    where = call.apply("where", call.apply("less", index, length), back, index)
    where = call.apply("broadcast_to", where, shape_value(dims_of(x)))
    return call.apply("gather", x, where, axis=time)


@TABLE.op("TensorScatter")
def _tensor_scatter(call: Call) -> Value:
    """Write `update` into a cache from a position on, for each row of the batch."""
    past, update = call.tensor(0), call.tensor(1)
    rank = rank_of(past)
    axis: int = axis_of(call.attr("axis", -2), rank)
    size = dims_of(past)[axis]
    steps = call.apply("arange", begin=0, end=dims_of(update)[axis], step=1, dtype="int64")
    steps = call.reshape(steps, [dims_of(update)[axis] if k == axis else 1 for k in range(rank)])
    where: Any = steps
    if call.has(2):
        first = call.cast(call.tensor(2), I64)
        first = call.reshape(first, [dims_of(first)[0], *([1] * (rank - 1))])
        where = call.apply("add", first, steps)
    if call.attr("mode", "linear") == "circular":
        where = call.apply("remainder", where, scalar=size, scalar_side="right")
    where = call.apply("broadcast_to", where, shape_value(dims_of(update)))
    return call.apply("scatter_elements", past, where, update, axis=axis)


@TABLE.op("Compress")
def _compress(call: Call) -> Value:
    """The slices along an axis, or the elements, where the condition holds."""
    x, condition = call.tensor(0), call.tensor(1)
    axis = call.attr("axis", None)
    if axis is None:
        x, axis = call.reshape(x, (product(dims_of(x)),)), 0
    found = _places(call, condition)
    where = call.reshape(found, dims_of(found)[1:])
    return call.apply("take", x, where, axis=axis_of(axis, rank_of(x)))


@TABLE.op("NonZero")
def _nonzero(call: Call) -> Value:
    return _places(call, call.tensor(0))


def _places(call: Call, x: ir.GraphExpr) -> ir.GraphExpr:
    """The positions of elements that are not 0, a column each; their number is a new symbol."""
    found = call.apply("nonzero", x)
    count = ir.Var(call.imp.dimensions.unique("count"), I64)
    info = ir.TensorInfo((ir.const(rank_of(x), I64), count), I64)
    return call.imp.builder.match_cast(found, info, "places")


@TABLE.op("Unique")
def _unique(call: Call) -> Value:
    """Distinct elements, or slices along an axis; all results have as many as there are.

    Those that are not to be sorted are in the order of their first positions.
    """
    x, axis = call.tensor(0), call.attr("axis", None)
    wanted = [call.wants(k) for k in range(4)]
    ordered = bool(call.attr("sorted", 1))
    wanted[1] = wanted[1] or not ordered
    attrs = {"return_index": wanted[1], "return_inverse": wanted[2], "return_counts": wanted[3]}
    node = ir.GraphCall(
        ir.OpRef("unique"),
        (x,),
        {"axis": None if axis is None else axis_of(axis, rank_of(x)), **attrs},
    )
    found = call.imp.builder.emit(node, "unique")
    fields = (
        [call.item(found, k) for k in range(1 + sum(wanted[1:]))]
        if isinstance(found.info, ir.TupleInfo)
        else [found]
    )
    count = ir.Var(call.imp.dimensions.unique("count"), I64)
    dims = list(dims_of(x)) if axis is not None else [count]
    if axis is not None:
        dims[axis_of(axis, rank_of(x))] = count
    rest = iter(fields[1:])
    results: list[Value] = [_sized(call, fields[0], dims)]
    for k, used in enumerate(wanted[1:]):
        part = next(rest) if used else None
        if part is not None and k != 1:
            part = _sized(call, part, [count])
        elif part is not None and axis is None:
            part = call.reshape(part, [-1])
        results.append(None if part is None else call.cast(part, I64))
    return results if ordered else _in_order_of_appearance(call, results, axis or 0)


def _in_order_of_appearance(call: Call, results: list[Value], axis: int) -> list[Value]:
    """The results of Unique, with the groups in the order of their first positions."""
    distinct, index, inverse, counts = results
    order = call.apply("argsort", index, axis=0)
    places = call.apply("argsort", order, axis=0)
    return [
        call.apply("take", distinct, order, axis=axis_of(axis, rank_of(distinct))),
        call.apply("take", index, order, axis=0),
        None if inverse is None else call.apply("take", places, inverse, axis=0),
        None if counts is None else call.apply("take", counts, order, axis=0),
    ]


def _sized(call: Call, value: ir.GraphExpr, dims: Any) -> ir.GraphExpr:
    info = ir.TensorInfo(tuple(dims), value.tensor_info.dtype)
    return call.imp.builder.match_cast(value, info, "sized")


@TABLE.op("Col2Im")
def _col2im(call: Call) -> Value:
    """Add each column to the window that it was taken from; windows may overlap."""
    x, image, block = call.tensor(0), call.ints(1, "image_shape"), call.ints(2, "block_shape")
    rank = len(image)
    strides: tuple[int, ...] = call.attr("strides", (1,) * rank)
    dilations: tuple[int, ...] = call.attr("dilations", (1,) * rank)
    pads: tuple[int, ...] = call.attr("pads", (0,) * 2 * rank)
    padded = [size + pads[k] + pads[k + rank] for k, size in enumerate(image)]
    counts = [
        (padded[k] - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1 for k in range(rank)
    ]
    place: np.ndarray[Any, Any] = np.zeros((*block, *counts), np.int64)
    for k in range(rank):
        within = np.arange(block[k]) * dilations[k]
        start = np.arange(counts[k]) * strides[k]
        shape = [1] * (2 * rank)
        shape[k], shape[rank + k] = block[k], counts[k]
        place = place * padded[k] + (within[:, None] + start[None, :]).reshape(shape)
    batch, channels = dims_of(x)[0], ir.const_int(dims_of(x)[1])
    if channels is None:
        raise call.error("the number of channels is symbolic", "declare it as a number")
    depth = channels // math.prod(block)
    flat = call.reshape(x, (batch, depth, place.size))
    where = call.imp.tensor(place.reshape(1, 1, -1))
    where = call.apply(
        "broadcast_to", where, shape_value([batch, ir.const(depth, I64), place.size])
    )
    shape = (batch, ir.const(depth, I64), ir.const(math.prod(padded), I64))
    empty = call.apply("full", shape=shape, fill_value=0, dtype=dtype_of(x))
    total = call.apply("scatter_elements", empty, where, flat, axis=2, reduction="add")
    result = call.reshape(total, (batch, depth, *padded))
    for k, size in enumerate(image):
        begin, end = pads[k], pads[k] + size
        result = call.apply("slice", result, axis=2 + k, begin=begin, end=end, step=1)
    return result

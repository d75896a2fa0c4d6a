"""Operators that select elements by position: gather, scatter, sort, one-hot."""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.frontend.onnx.call import (
    Call,
    Converters,
    Value,
    axis_of,
    dims_of,
    rank_of,
)
from blockwright.frontend.onnx.convert_shapes import product
from blockwright.frontend.onnx.sizes import I64, expr
from blockwright.graph import shape_value

TABLE = Converters()


@TABLE.op("Gather")
def _gather(call: Call) -> Value:
    x, indices = call.tensor(0), call.tensor(1)
    axis = axis_of(call.attr("axis"), rank_of(x))
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
def _gather_nd(call: Call) -> Value:
    """The last axis of indices lists coordinates; they become one coordinate of a flat axis."""
    x, indices = call.tensor(0), call.cast(call.tensor(1), I64)
    batch, dims, places = call.attr("batch_dims"), dims_of(x), dims_of(indices)
    depth = ir.const_int(places[-1])
    if depth is None:
        raise call.error("the size of the last axis of indices is symbolic", "declare it")
    lead, inner, rest = dims[:batch], dims[batch : batch + depth], dims[batch + depth :]
    position: ir.GraphExpr | None = None
    for k, size in enumerate(inner):
        part = call.apply("slice", indices, axis=len(places) - 1, begin=k, end=k + 1, step=1)
        part = _from_front(call, call.reshape(part, places[:-1]), size)
        if position is None:
            position = part
        else:
            scaled = call.apply("multiply", position, scalar=size, scalar_side="right")
            position = call.apply("add", scaled, part)
    assert position is not None
    if batch:
        index = call.apply("arange", begin=0, end=product(lead), step=1, dtype="int64")
        index = call.reshape(index, [*lead, *([1] * (len(places) - 1 - batch))])
        step = call.apply("multiply", index, scalar=product(inner), scalar_side="right")
        position = call.apply("add", position, step)
    flat = call.reshape(x, [product([*lead, *inner]), *rest])
    return call.apply("take", flat, position, axis=0)


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
    indices, depth = call.tensor(0), call.sizes(1, "the depth")[0]
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
    x, k = call.tensor(0), call.sizes(1, "k")[0]
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

"""Reductions and positions of extremes; axes are an attribute, or an input in newer versions."""

from __future__ import annotations

from collections.abc import Callable

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
from blockwright.frontend.onnx.convert_shapes import axes_of
from blockwright.frontend.onnx.sizes import I64

TABLE = Converters()
_MINIMUM = {"ReduceMax": "max", "ReduceMin": "min"}


def reduced_axes(call: Call, x: ir.GraphExpr) -> tuple[int, ...] | None:
    """The axes over which to reduce; None if the operator is the identity of the reduction."""
    axes = axes_of(call, 1)
    if not axes:
        if call.attr("noop_with_empty_axes", 0):
            return None
        return tuple(range(rank_of(x)))
    return tuple(sorted(axis_of(axis, rank_of(x)) for axis in axes))


Change = Callable[[Call, ir.GraphExpr], ir.GraphExpr]


def _reduced(
    call: Call, x: ir.GraphExpr, row: str, before: Change | None = None, after: Change | None = None
) -> ir.GraphExpr:
    """`x` after `before`, reduced over the node's axes, after `after`: in the type of `x`."""
    axes = reduced_axes(call, x)
    value = before(call, x) if before else x
    if axes:
        keeps = bool(call.attr("keepdims"))
        value = call.apply(row, value, axes=axes, keepdims=keeps)
        value = call.cast(value, dtype_of(x))
    value = after(call, value) if after else value
    return value if value is not x else call.reshape(x, dims_of(x))


def _reduction(row: str, before: Change | None = None) -> Callable[[Call], Value]:
    """A converter for a reduction with a function of each element before."""
    return lambda call: _reduced(call, call.tensor(0), row, before)


def _in_floats(reduce: Change) -> Callable[[Call], Value]:
    """A converter that reduces integers in float64; the result is cut off to their type."""

    def convert(call: Call) -> Value:
        x = call.tensor(0)
        if dtype_of(x).is_float:
            return reduce(call, x)
        return call.cast(reduce(call, call.cast(x, "float64")), dtype_of(x))

    return convert


def _log(call: Call, x: ir.GraphExpr) -> ir.GraphExpr:
    return call.apply("log", x)


def _absolute(call: Call, x: ir.GraphExpr) -> ir.GraphExpr:
    return call.apply("abs", x)


def _square(call: Call, x: ir.GraphExpr) -> ir.GraphExpr:
    return call.apply("multiply", x, x)


TABLE.op("ReduceSum")(_reduction("sum"))
TABLE.op("ReduceProd")(_reduction("prod"))
TABLE.op("ReduceL1")(_reduction("sum", _absolute))
TABLE.op("ReduceSumSquare")(_reduction("sum", _square))


@TABLE.op("ReduceMean")
@_in_floats
def _mean(call: Call, x: ir.GraphExpr) -> ir.GraphExpr:
    return _reduced(call, x, "mean")


@TABLE.op("ReduceL2")
@_in_floats
def _l2(call: Call, x: ir.GraphExpr) -> ir.GraphExpr:
    return _reduced(call, x, "sum", _square, lambda c, v: c.apply("sqrt", v))


@TABLE.op("ReduceLogSum")
@_in_floats
def _log_sum(call: Call, x: ir.GraphExpr) -> ir.GraphExpr:
    return _reduced(call, x, "sum", None, _log)


@TABLE.op("ReduceLogSumExp")
@_in_floats
def _log_sum_exp(call: Call, x: ir.GraphExpr) -> ir.GraphExpr:
    """log Σ exp(x), with the largest element subtracted before; it is added again."""
    axes = reduced_axes(call, x)
    if not axes:
        return call.reshape(x, dims_of(x))
    if any(ir.is_const_int(dims_of(x)[axis], 0) for axis in axes):
        return _reduced(call, x, "sum", lambda c, v: c.apply("exp", v), _log)
    keeps = bool(call.attr("keepdims"))
    high = call.apply("max", x, axes=axes, keepdims=True)
    finite = call.apply("isfinite", high)
    high = call.apply("where", finite, high, call.scalar(0, dtype_of(x)))
    total = call.apply("exp", call.apply("subtract", x, high))
    total = _log(call, call.apply("sum", total, axes=axes, keepdims=True))
    result = call.apply("add", total, high)
    if keeps:
        return result
    return call.reshape(result, [d for k, d in enumerate(dims_of(x)) if k not in axes])


@TABLE.op("ReduceMax", "ReduceMin")
def _extreme(call: Call) -> Value:
    x = call.tensor(0)
    name = _MINIMUM[call.op]
    if not dtype_of(x).is_bool:
        return _reduction(name)(call)
    axes = reduced_axes(call, x)
    if not axes:
        return call.reshape(x, dims_of(x))
    truth = "any" if name == "max" else "all"
    return call.apply(truth, x, axes=axes, keepdims=bool(call.attr("keepdims")))


@TABLE.op("ArgMax", "ArgMin")
def _position(call: Call) -> Value:
    """The first extreme along an axis; the last one is the first of the reversed axis."""
    x = call.tensor(0)
    axis = axis_of(call.attr("axis"), rank_of(x))
    keeps, last = bool(call.attr("keepdims")), bool(call.attr("select_last_index", 0))
    row = "argmax" if call.op == "ArgMax" else "argmin"
    source = call.apply("flip", x, axis=axis) if last else x
    found = call.apply(row, source, axis=axis, keepdims=keeps)
    found = call.cast(found, I64)
    if not last:
        return found
    end = ir.sub(dims_of(x)[axis], ir.const(1, I64))
    return call.apply("subtract", found, scalar=end, scalar_side="left")


@TABLE.op("CumSum", "CumProd")
def _cumulative(call: Call) -> Value:
    """Exclusive results are shifted by one element; reversed ones run from the end."""
    x = call.tensor(0)
    axis = axis_of(call.ints(1, "the axis")[0], rank_of(x))
    row = "cumsum" if call.op == "CumSum" else "cumprod"
    reverse, exclusive = call.attr("reverse"), call.attr("exclusive")
    value = call.apply("flip", x, axis=axis) if reverse else x
    if exclusive:  # padded before it is cut off: an axis may have no elements
        width = tuple((int(k == axis), 0) for k in range(rank_of(x)))
        start = 0 if row == "cumsum" else 1
        padded = call.apply("pad", value, pad_width=width, pad_value=start)
        end = dims_of(x)[axis]
        value = call.apply("slice", padded, axis=axis, begin=0, end=end, step=1)
    value = call.cast(call.apply(row, value, axis=axis), dtype_of(x))
    return call.apply("flip", value, axis=axis) if reverse else value


@TABLE.op("Hardmax")
def _hardmax(call: Call) -> Value:
    """1 at the first largest element along an axis, 0 elsewhere."""
    x = call.tensor(0)
    rank = rank_of(x)
    axis = axis_of(call.attr("axis"), rank)
    first = call.apply("argmax", x, axis=axis, keepdims=True)
    size = dims_of(x)[axis]
    index = call.apply("arange", begin=0, end=size, step=1, dtype="int64")
    index = call.reshape(index, [size if k == axis else 1 for k in range(rank)])
    return call.cast(call.apply("equal", call.cast(first, I64), index), dtype_of(x))

"""Operators that create tensors: constants, ranges, diagonals, triangles."""

from __future__ import annotations

import numpy as np

from blockwright import ir
from blockwright.frontend.onnx.call import Call, Converters, Value, dims_of, dtype_of
from blockwright.frontend.onnx.convert_shapes import number_of
from blockwright.frontend.onnx.model import element_type
from blockwright.frontend.onnx.run_time_sizes import range_count, sizes_of
from blockwright.frontend.onnx.sizes import I64, Sizes, expr
from blockwright.graph import shape_value

TABLE = Converters()


@TABLE.op("ConstantOfShape")
def _constant_of_shape(call: Call) -> Value:
    shape = [expr(d) for d in sizes_of(call, 0, "the shape")]
    value = call.attr("value", np.zeros(1, np.float32))
    element = value.reshape(())[()]
    return call.apply(
        "full",
        shape_value(shape),
        fill_value=number_of(element),
        dtype=ir.dtype_of(value.dtype),
    )


@TABLE.op("Range")
def range_(call: Call) -> Value:
    dtype = call.imp.dtype(call.value(0))
    what = "a bound of the range"
    if not all(isinstance(call.value(k), (np.ndarray, ir.Constant, Sizes)) for k in range(3)):
        return _range_at_run_time(call, dtype)
    if dtype.is_float:
        begin, end, step = (float(call.known(k, what).reshape(())) for k in range(3))
    else:
        begin, end, step = (call.sizes(k, what)[0] for k in range(3))
    return call.apply("arange", begin=begin, end=end, step=step, dtype=dtype)


def _range_at_run_time(call: Call, dtype: ir.DType) -> ir.GraphExpr:
    """A range whose bounds or step are computed when the model runs."""
    wide = ir.dtype_of("float64") if dtype.is_float else I64
    begin, end, step = (call.cast(call.reshape(value, ()), wide) for value in call.tensors())
    count = range_count(call, begin, end, step)
    numbers = call.apply("arange", begin=0, end=count, step=1, dtype=wide)
    return call.cast(call.apply("add", begin, call.apply("multiply", numbers, step)), dtype)


@TABLE.op("EyeLike")
def _eye_like(call: Call) -> Value:
    x = call.tensor(0)
    rows, columns = dims_of(x)
    dtype = element_type(call.attr("dtype"), "the result") if "dtype" in call.attrs else dtype_of(x)
    index = [
        call.apply("arange", begin=0, end=size, step=1, dtype="int64") for size in (rows, columns)
    ]
    shifted = call.apply("add", index[0], call.scalar(call.attr("k"), I64))
    same = call.apply(
        "equal", call.reshape(shifted, (rows, 1)), call.reshape(index[1], (1, columns))
    )
    return call.cast(same, dtype)


@TABLE.op("Trilu")
def trilu(call: Call) -> Value:
    """The triangle above or below a diagonal, which the program may compute."""
    x = call.tensor(0)
    value = call.value(1) if call.has(1) else None
    if isinstance(value, ir.GraphExpr) and not isinstance(value, ir.Constant):
        return _triangle(call, x, call.cast(call.reshape(value, ()), I64))
    k = call.sizes(1, "k")[0] if call.has(1) else 0
    name = "triu" if call.attr("upper") else "tril"
    if dtype_of(x).is_bool:
        wide = call.apply(name, call.cast(x, "uint8"), k=k)
        return call.apply("not_equal", wide, call.scalar(0, ir.dtype_of("uint8")))
    return call.apply(name, x, k=k)


def _triangle(call: Call, x: ir.GraphExpr, k: ir.GraphExpr) -> ir.GraphExpr:
    """The elements whose column is at least, or at most, k beyond their row; else 0."""
    rows, columns = dims_of(x)[-2:]
    row, column = (
        call.reshape(call.apply("arange", begin=0, end=size, step=1, dtype="int64"), shape)
        for size, shape in ((rows, (rows, 1)), (columns, (1, columns)))
    )
    beyond = call.apply("subtract", column, row)
    kept = call.apply("greater_equal" if call.attr("upper") else "less_equal", beyond, k)
    zero = call.scalar(False if dtype_of(x).is_bool else 0, dtype_of(x))
    return call.apply("where", kept, x, zero)

"""Results that a program allocates itself, when it knows their sizes.

The entry passes a record for each of them. `result_size(handle, axis, size)` is the size of an axis
of memory that the caller lends for the result, or `size` if there is none; the program compares it.
`result_memory(handle, dtype, sizes…)` is the address of that memory or of a new tensor, which the
entry returns, or releases if the program fails later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockwright.codegen.llvm import ffi
from blockwright.codegen.llvm.structs import Field, StructType
from blockwright.codegen.llvm.values import NULL, Value, int_const
from blockwright.ir import Call, IntImm, StringImm

if TYPE_CHECKING:
    from blockwright.codegen.llvm.expr import ExprEmitter

LATE_RESULT = StructType(
    (
        Field("object", "ptr", "the tensor object, null until it is allocated"),
        Field("shape", "ptr", "the sizes of lent memory, or null"),
        Field("data", "ptr", "lent memory"),
    )
)
"""What the entry and the program know of a late result."""


def result_size(c: ExprEmitter, expr: Call) -> Value:
    """The size of an axis of the memory lent for a late result."""
    handle, axis, size = expr.args
    assert isinstance(axis, IntImm)
    e, expected = c.e, c.index(size)
    shape = LATE_RESULT.at(e, c.value(handle)).load("shape")

    def lent() -> Value:
        return e.load("i64", e.offset(shape, 8 * axis.value), 8)

    return e.choose(e.compare("ne", shape, NULL), lent, lambda: expected)


def result_memory(c: ExprEmitter, expr: Call) -> Value:
    """The address of the memory of a late result."""
    e = c.e
    handle, dtype, *sizes = expr.args
    assert isinstance(dtype, StringImm)
    extents = [c.index(size) for size in sizes]
    record = LATE_RESULT.at(e, c.value(handle))

    def new() -> Value:
        shape, place = e.stack(8 * max(len(extents), 1), 8), e.stack(8, 8)
        for axis, extent in enumerate(extents):
            e.store(extent, e.offset(shape, 8 * axis), 8)
        rank, code = int_const(len(extents), "i32"), int_const(ffi.dlpack_dtype(dtype.value), "i32")
        c.context.check(e.call("i32", "bw_tensor_alloc", shape, rank, code, place))
        tensor = e.load("ptr", place, 8)
        record.store("object", tensor)
        return ffi.TENSOR_OBJECT.at(e, tensor).inner("tensor").load("data")

    lent = e.compare("ne", record.load("shape"), NULL)
    return e.choose(lent, lambda: record.load("data"), new)

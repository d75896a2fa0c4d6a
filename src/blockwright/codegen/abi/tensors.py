"""Functions that an entry calls to read a tensor argument."""

from __future__ import annotations

from blockwright.codegen.llvm import ffi
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.values import NULL, TRUE, Value, int_const


@routine("bw_tensor_of", "ptr", "ptr", attributes="alwaysinline")
def tensor_of(e: FunctionEmitter, packed: Value) -> Value:
    """The DLTensor of a packed value, or null when it is not a tensor."""
    slot = ffi.ANY.at(e, packed)
    kind, value = slot.load("type"), slot.load("value", type_="ptr")
    view = ffi.TENSOR_OBJECT.at(e, value).place("tensor")
    is_raw = e.compare("eq", kind, ffi.DLTENSOR_PTR)
    is_object = e.compare("eq", kind, ffi.TENSOR)
    return e.select(is_raw, value, e.select(is_object, view, NULL))


@routine("bw_tensor_data", "ptr", "ptr", attributes="alwaysinline")
def tensor_data(e: FunctionEmitter, tensor: Value) -> Value:
    """The address of the first element of a DLTensor."""
    view = ffi.DLTENSOR.at(e, tensor)
    data = view.load("data")
    return e.offset(data, view.load("byte_offset"))


@routine("bw_tensor_is_contiguous", "i1", "ptr")
def is_contiguous(e: FunctionEmitter, tensor: Value) -> Value:
    """Whether a DLTensor is laid out in row-major order without gaps; axes of size 1 and empty
    tensors may have any stride."""
    view = ffi.DLTENSOR.at(e, tensor)
    rank = e.convert("sext", view.load("ndim"), "i64")
    shape, strides = view.load("shape"), view.load("strides")
    with e.guarded(e.compare("eq", strides, NULL)):
        e.ret(TRUE)
    with e.loop(rank, int_const(1), TRUE) as loop:
        left, expected, fits = loop.values
        with e.guarded(e.compare("sle", left, 0)):
            loop.leave()
        axis = e.binary("sub", left, 1)
        extent = e.load("i64", e.offset(shape, axis, 8), 8)
        with e.guarded(e.compare("eq", extent, 0)):
            e.ret(TRUE)
        stride = e.load("i64", e.offset(strides, axis, 8), 8)
        single = e.compare("eq", extent, 1)
        fine = e.binary("or", single, e.compare("eq", stride, expected))
        loop.again(axis, e.binary("mul", expected, extent), e.binary("and", fits, fine))
    return fits

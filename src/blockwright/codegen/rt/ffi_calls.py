"""Calls of the FFI's C functions from support code: errors, objects, global functions.

The layouts are those of apache-tvm-ffi's `c_api.h`.
"""

from __future__ import annotations

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.structs import Field, StructType
from blockwright.codegen.llvm.values import NULL, Value

ANY = StructType(
    (
        Field("type", "i32", "type index"),
        Field("padding", "i32", "zero"),
        Field("value", "i64", "number or pointer"),
    )
)
"""A packed value, TVMFFIAny."""

BYTE_ARRAY = StructType((Field("data", "ptr"), Field("size", "i64")))


def byte_array(e: FunctionEmitter, data: Value, size: Value | int) -> Value:
    """The address of a TVMFFIByteArray."""
    array = BYTE_ARRAY.allocate(e)
    array.store("data", data)
    array.store("size", size)
    return array.address


def pointer_slot(e: FunctionEmitter) -> Value:
    """The address of a null pointer, for an object that a call returns."""
    slot = e.stack(8, 8)
    e.store(NULL, slot, 8)
    return slot


def take_error(e: FunctionEmitter) -> Value:
    """Take the error that was raised in this thread; null if there is none."""
    slot = pointer_slot(e)
    e.call("void", "TVMFFIErrorMoveFromRaised", slot)
    return e.load("ptr", slot, 8)


def release(e: FunctionEmitter, item: Value) -> None:
    """Drop a reference to an object."""
    e.call("i32", "TVMFFIObjectDecRef", item)


def raise_text(e: FunctionEmitter, kind: str, message: str) -> None:
    """Raise an error of a Python exception kind."""
    strings = (e.module.string(text) for text in (kind, message))
    e.call("void", "TVMFFIErrorSetRaisedFromCStr", *strings)

"""Calls of the FFI's C functions from support code: errors, objects, global functions."""

from __future__ import annotations

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.ffi import BYTE_ARRAY
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.values import NULL, Value, int_const

FAILURE = int_const(-1, "i32")


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


def global_function(e: FunctionEmitter, name: str) -> Value:
    """A function that is registered under a global name, with a new reference; null if none is."""
    size = len(name.encode())
    key, slot = byte_array(e, e.module.string(name), size), pointer_slot(e)
    e.call("i32", "TVMFFIFunctionGetGlobal", key, slot)
    return e.load("ptr", slot, 8)


def take_error(e: FunctionEmitter) -> Value:
    """Take the error that was raised in this thread; null if there is none."""
    slot = pointer_slot(e)
    e.call("void", "TVMFFIErrorMoveFromRaised", slot)
    return e.load("ptr", slot, 8)


def release(e: FunctionEmitter, item: Value) -> None:
    """Drop a reference to an object."""
    e.call("i32", "TVMFFIObjectDecRef", item)


def raise_text(e: FunctionEmitter, kind: str, message: str) -> None:
    """Raise an error of a Python exception kind, with a backtrace."""
    strings = (e.module.string(text) for text in (kind, message))
    e.call("void", "TVMFFIErrorSetRaisedFromCStr", *strings)


@routine("bw_raise", "i32", "ptr", "ptr", linkage="hidden", attributes="cold noinline")
def bw_raise(e: FunctionEmitter, kind: Value, message: Value) -> Value:
    """Raise an error of a Python exception kind; return -1.

    The error has no backtrace: to compute one, the FFI reads the debug information of all loaded
    libraries, which takes a second in a process that has loaded torch.
    """
    sizes = [e.call("i64", "strlen", text) for text in (kind, message)]
    texts = [byte_array(e, *pair) for pair in zip((kind, message), sizes, strict=True)]
    backtrace, slot = byte_array(e, message, 0), pointer_slot(e)
    e.call("i32", "TVMFFIErrorCreate", *texts, backtrace, slot)
    error = e.load("ptr", slot, 8)
    with e.guarded(e.compare("ne", error, NULL)):
        e.call("void", "TVMFFIErrorSetRaised", error)
        release(e, error)
        e.ret(FAILURE)
    e.call("void", "TVMFFIErrorSetRaisedFromCStr", kind, message)
    return FAILURE

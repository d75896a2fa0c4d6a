"""Functions that name kinds of values and data types in error messages."""

from __future__ import annotations

from collections.abc import Mapping

from blockwright.codegen.llvm import ffi
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.values import Value

_KINDS = {
    ffi.NONE: "None",
    ffi.INT: "an integer",
    ffi.BOOL: "a bool",
    ffi.FLOAT: "a float",
    ffi.OPAQUE_PTR: "an opaque pointer",
    ffi.DTYPE: "a data type",
    ffi.DEVICE: "a device",
    ffi.DLTENSOR_PTR: "a tensor",
    ffi.RAW_STR: "a string",
    ffi.SMALL_STR: "a string",
    ffi.STR: "a string",
    ffi.FUNCTION: "a function",
    ffi.SHAPE: "a shape",
    ffi.TENSOR: "a tensor",
    ffi.ARRAY: "an array of values",
    ffi.MAP: "a map",
    ffi.MODULE: "a module",
}

_TYPE_CODES = {
    0: "int",
    1: "uint",
    2: "float",
    3: "handle",
    4: "bfloat",
    5: "complex",
    6: "bool",
    10: "float8_e4m3fn",
    11: "float8_e4m3fnuz",
    12: "float8_e5m2",
    13: "float8_e5m2fnuz",
    14: "float8_e8m0fnu",
}


@routine("bw_kind_name", "ptr", "i32", attributes="cold noinline")
def kind_name(e: FunctionEmitter, kind: Value) -> None:
    """The kind of a packed value, given its type index."""
    _return_name(e, kind, _KINDS, "another object")


@routine("bw_dtype_name", "ptr", "i32", attributes="cold noinline")
def dtype_name(e: FunctionEmitter, dtype: Value) -> None:
    """The kind of a DLPack data type, whose code is the lowest byte."""
    _return_name(e, e.binary("and", dtype, 255), _TYPE_CODES, "another type")


def _return_name(e: FunctionEmitter, key: Value, names: Mapping[int, str], other: str) -> None:
    labels, otherwise = {number: e.fresh("name") for number in names}, e.fresh("other")
    e.switch(key, labels, otherwise)
    for number, label in labels.items():
        e.label(label)
        e.ret(e.module.string(names[number]))
    e.label(otherwise)
    e.ret(e.module.string(other))

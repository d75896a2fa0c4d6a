"""The calling convention of compiled functions: type indices, struct layouts, error kinds.

A compiled function is `i32 @__tvm_ffi_NAME(ptr self, ptr args, i32 num_args, ptr result)`, the
packed C ABI of apache-tvm-ffi (its `c_api.h`): `args` points to 16-byte values of type `ANY`. The
function returns 0 and writes one such value to `result`, or raises an error and returns -1.

Errors are raised as standard Python exception kinds with a message "BW7xx: what\\nhelp: remedy", so
that they are readable through plain `tvm_ffi`; `blockwright.runtime` converts them to its own
classes.
"""

from __future__ import annotations

import re

from blockwright.codegen.llvm.structs import Field, StructType
from blockwright.support import BuildError

SYMBOL_PREFIX = "__tvm_ffi_"

# Type indices of a packed value.
NONE, INT, BOOL, FLOAT, OPAQUE_PTR, DTYPE, DEVICE = 0, 1, 2, 3, 4, 5, 6
DLTENSOR_PTR, RAW_STR, SMALL_STR = 7, 8, 11
STR, ERROR, FUNCTION, SHAPE, TENSOR, ARRAY, MAP, MODULE = 65, 67, 68, 69, 70, 71, 72, 73
FIRST_OBJECT = 64
"""Values with this type index or a larger one hold a reference to an object."""

DEVICE_CPU, DEVICE_CUDA = 1, 2

ANY = StructType(
    (
        Field("type", "i32", "type index"),
        Field("padding", "i32", "zero"),
        Field("value", "i64", "number or pointer"),
    )
)
"""TVMFFIAny, a packed value."""

BYTE_ARRAY = StructType((Field("data", "ptr"), Field("size", "i64")))
"""TVMFFIByteArray."""

DLTENSOR = StructType(
    (
        Field("data", "ptr"),
        Field("device_type", "i32"),
        Field("device_id", "i32"),
        Field("ndim", "i32"),
        Field("dtype", "i32", "see `dlpack_dtype`"),
        Field("shape", "ptr"),
        Field("strides", "ptr", "in elements; null for a compact tensor"),
        Field("byte_offset", "i64", "of the first element from `data`"),
    )
)

MANAGED_TENSOR = StructType(
    (Field("tensor", DLTENSOR), Field("context", "ptr"), Field("deleter", "ptr", "void (ptr self)"))
)
"""DLManagedTensor, a tensor that owns its memory."""

OBJECT = StructType(
    (
        Field("references", "i64", "strong and weak count"),
        Field("type", "i32", "type index"),
        Field("padding", "i32"),
        Field("deleter", "ptr"),
    )
)
"""TVMFFIObject, the header of an object."""

TENSOR_OBJECT = StructType((Field("header", OBJECT), Field("tensor", DLTENSOR)))

_CODES = {"int": 0, "uint": 1, "float": 2, "handle": 3, "bfloat": 4, "complex": 5, "bool": 6}
_SPECIAL = {
    "bool": (6, 8),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
    "float6_e2m3fn": (15, 6),
    "float6_e3m2fn": (16, 6),
    "float4_e2m1fn": (1, 8),
    **{f"{kind}{bits}": (_CODES[kind], 8) for kind in ("int", "uint") for bits in (2, 4)},
}
"""Types with another code or width than their name says: integers of 4 and 2 bits and codes of
`float4_e2m1fn` are passed as bytes, one for each element."""


def dlpack_dtype(name: str) -> int:
    """The 32-bit word of a DLPack data type: code, bits, lanes.

    `dlpack_dtype("float32")` is 0x00012002. Raises BuildError (BW670) for types without a DLPack
    code.
    """
    if name in _SPECIAL:
        code, bits = _SPECIAL[name]
        return code | bits << 8 | 1 << 16
    result = re.fullmatch(r"(int|uint|float|bfloat|complex)(\d+)(?:x(\d+))?", name)
    if result is None:
        raise BuildError(f"data type '{name}' cannot be passed in a call", code="BW670")
    return _CODES[result[1]] | int(result[2]) << 8 | int(result[3] or 1) << 16


def error_kind(code: str) -> str:
    """The Python exception kind of an error code for users of the plain FFI."""
    kinds = {"BW701": "TypeError", "BW702": "TypeError", "BW703": "TypeError"}
    return kinds.get(code) or ("ValueError" if code.startswith("BW7") else "RuntimeError")

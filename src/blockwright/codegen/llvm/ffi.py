"""The calling convention of compiled functions, as constants and LLVM text.

A compiled function is `i32 @__tvm_ffi_NAME(ptr self, ptr args, i32 num_args, ptr result)`, the
packed C ABI of apache-tvm-ffi (its `c_api.h`): `args` points to 16-byte values {i32 type index,
i32 zero, i64 payload}. The function returns 0 and writes one such value to `result`, or raises an
error and returns -1. `INLINE_IR` is added to every module that unpacks arguments; `runtime_ir()` is
compiled once and linked into each library.

Errors are raised as standard Python exception kinds with a message "BW7xx: what\\nhelp: remedy", so
that they are readable through plain `tvm_ffi`; `blockwright.runtime` converts them to its own
classes.
"""

from __future__ import annotations

import re

from blockwright.codegen.rt.result_allocator import results_ir
from blockwright.support import BuildError

SYMBOL_PREFIX = "__tvm_ffi_"

# Type indices of a packed value.
NONE, INT, BOOL, FLOAT, OPAQUE_PTR, DTYPE, DEVICE = 0, 1, 2, 3, 4, 5, 6
DLTENSOR_PTR, RAW_STR, SMALL_STR = 7, 8, 11
STR, ERROR, FUNCTION, SHAPE, TENSOR, ARRAY, MAP, MODULE = 65, 67, 68, 69, 70, 71, 72, 73

ANY_SIZE = 16
ANY_TYPE, ANY_VALUE = 0, 8
OBJECT_HEADER_SIZE = 24
TENSOR_DLTENSOR = OBJECT_HEADER_SIZE
"""Offset of the DLTensor in a tensor object, after the object header."""

# Byte offsets in a DLTensor.
DL_DATA, DL_DEVICE_TYPE, DL_DEVICE_ID, DL_NDIM, DL_DTYPE = 0, 8, 12, 16, 20
DL_SHAPE, DL_STRIDES, DL_BYTE_OFFSET, DL_SIZE = 24, 32, 40, 48
DEVICE_CPU, DEVICE_CUDA = 1, 2

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
    "float4_e2m1fn": (17, 4),
}


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


def c_string(text: str) -> tuple[int, str]:
    """The size and the `c"..."` form of a null-terminated LLVM string constant."""
    data = text.encode() + b"\0"
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data)
    return len(data), 'c"' + "".join(plain) + '"'


DECLARATIONS_IR = """
declare i32 @bw_tensor_alloc(ptr, i32, i32, ptr)
declare void @bw_return_tensor(ptr, ptr)
declare i32 @bw_return_tuple(ptr, ptr, i32)
declare i32 @bw_raise(ptr, ptr)
declare i64 @bw_clock()
declare i32 @bw_poll(ptr)
declare i32 @bw_parallel_for(ptr, ptr, i64)
declare i32 @bw_num_threads()
"""
"""Declarations that a module needs to use `runtime_ir()` and the thread pool."""

INLINE_IR = """
; The DLTensor of a packed value, or null when it is not a tensor.
define internal ptr @bw_tensor_of(ptr %any) alwaysinline {
  %type = load i32, ptr %any, align 8
  %vp = getelementptr i8, ptr %any, i64 8
  %value = load ptr, ptr %vp, align 8
  %body = getelementptr i8, ptr %value, i64 24
  %raw = icmp eq i32 %type, 7
  %object = icmp eq i32 %type, 70
  %r0 = select i1 %object, ptr %body, ptr null
  %r1 = select i1 %raw, ptr %value, ptr %r0
  ret ptr %r1
}

; The address of the first element of a DLTensor.
define internal ptr @bw_tensor_data(ptr %tensor) alwaysinline {
  %base = load ptr, ptr %tensor, align 8
  %op = getelementptr i8, ptr %tensor, i64 40
  %offset = load i64, ptr %op, align 8
  %data = getelementptr i8, ptr %base, i64 %offset
  ret ptr %data
}

; Whether a DLTensor is laid out in row-major order without gaps; axes of size 1 and empty tensors
; may have any stride.
define internal i1 @bw_tensor_is_contiguous(ptr %tensor) {
entry:
  %np = getelementptr i8, ptr %tensor, i64 16
  %n32 = load i32, ptr %np, align 8
  %n = sext i32 %n32 to i64
  %sp = getelementptr i8, ptr %tensor, i64 24
  %shape = load ptr, ptr %sp, align 8
  %tp = getelementptr i8, ptr %tensor, i64 32
  %strides = load ptr, ptr %tp, align 8
  %compact = icmp eq ptr %strides, null
  br i1 %compact, label %yes, label %loop
loop:
  %i = phi i64 [ %n, %entry ], [ %i1, %keep ]
  %expected = phi i64 [ 1, %entry ], [ %expected1, %keep ]
  %good = phi i1 [ true, %entry ], [ %good1, %keep ]
  %more = icmp sgt i64 %i, 0
  br i1 %more, label %axis, label %done
axis:
  %i1 = sub i64 %i, 1
  %ep = getelementptr i64, ptr %shape, i64 %i1
  %extent = load i64, ptr %ep, align 8
  %empty = icmp eq i64 %extent, 0
  br i1 %empty, label %yes, label %keep
keep:
  %stp = getelementptr i64, ptr %strides, i64 %i1
  %stride = load i64, ptr %stp, align 8
  %single = icmp eq i64 %extent, 1
  %match = icmp eq i64 %stride, %expected
  %fits = or i1 %single, %match
  %good1 = and i1 %good, %fits
  %expected1 = mul i64 %expected, %extent
  br label %loop
done:
  ret i1 %good
yes:
  ret i1 true
}
"""
"""Internal helper functions for modules that unpack arguments."""


def runtime_ir() -> str:
    """A module of helpers, one copy per library: result tensors, tuples, errors.

    - `i32 @bw_tensor_alloc(ptr shape, i32 ndim, i32 dtype, ptr out)`: allocates a row-major tensor
      in host memory with data aligned to 64 bytes, owned by the FFI object written to `out`.
      Returns 0, or raises BW720 (kind MemoryError) and returns -1. Elements are uninitialized. The
      most recently released tensor of 4 MiB or more is cached for the next one of its size.
    - `void @bw_return_tensor(ptr result, ptr object)`: returns a tensor object to the caller.
    - `i32 @bw_return_tuple(ptr result, ptr values, i32 count)`: returns an array of packed values;
      the array holds its own references, and those in `values` are released.
    - `i32 @bw_raise(ptr kind, ptr message)`: raises and returns -1.
    - `void @bw_results_idle(i32 idle)`, exported: while it is 1, no result memory is cached
      (`blockwright.runtime.reclaim`).
    - `i64 @bw_clock()`: monotonic clock in nanoseconds.
    - `i32 @bw_poll(ptr due)`: lets the caller's signal handlers run between the kernels of a long
      call. `due` is initially 0. Returns 0, or -1 when a handler raised; that exception stays in
      the caller's interpreter, and the raised error kind refers to it.
    """
    return _RUNTIME_IR + results_ir()


_RUNTIME_IR = r"""
declare i32 @TVMFFIFunctionGetGlobal(ptr, ptr)
declare i32 @TVMFFIFunctionCall(ptr, ptr, i32, ptr)
declare i32 @TVMFFIObjectDecRef(ptr)
declare void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)
declare i32 @TVMFFIErrorCreate(ptr, ptr, ptr, ptr)
declare void @TVMFFIErrorSetRaised(ptr)
declare i64 @strlen(ptr)
@bw.rt.held = private constant [19 x i8] c"EnvErrorAlreadySet\00"
@bw.rt.handler = private constant [24 x i8] c"a signal handler raised\00"
@bw.rt.array = private constant [9 x i8] c"ffi.Array"

declare i32 @clock_gettime(i32, ptr)
declare i32 @TVMFFIEnvCheckSignals()

define internal i64 @bw.rt.now(i32 %clock) {
  %time = alloca [2 x i64], align 8
  store i64 0, ptr %time, align 8
  %np = getelementptr i8, ptr %time, i64 8
  store i64 0, ptr %np, align 8
  %rc = call i32 @clock_gettime(i32 %clock, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %rest = load i64, ptr %np, align 8
  %scaled = mul i64 %seconds, 1000000000
  %now = add i64 %scaled, %rest
  ret i64 %now
}

define hidden i64 @bw_clock() {
  %now = call i64 @bw.rt.now(i32 1)
  ret i64 %now
}

; A check takes the interpreter lock, which another thread may hold for milliseconds. It is
; done once per 50 ms by the coarse clock (6), which takes a few nanoseconds to read.
define hidden i32 @bw_poll(ptr %due) {
entry:
  %now = call i64 @bw.rt.now(i32 6)
  %when = load i64, ptr %due, align 8
  %early = icmp slt i64 %now, %when
  br i1 %early, label %fine, label %renew
renew:
  %next = add i64 %now, 50000000
  store i64 %next, ptr %due, align 8
  %first = icmp eq i64 %when, 0
  br i1 %first, label %fine, label %check
check:
  %rc = call i32 @TVMFFIEnvCheckSignals()
  %calm = icmp eq i32 %rc, 0
  br i1 %calm, label %fine, label %raised
raised:
  %answer = call i32 @bw_raise(ptr @bw.rt.held, ptr @bw.rt.handler)
  ret i32 %answer
fine:
  ret i32 0
}

; No backtrace: to compute one, the FFI reads the debug information of all loaded libraries, which
; takes a second in a process that has loaded torch.
define hidden i32 @bw_raise(ptr %kind, ptr %message) cold noinline {
  %k = alloca [2 x i64], align 8
  %m = alloca [2 x i64], align 8
  %b = alloca [2 x i64], align 8
  %out = alloca ptr, align 8
  %kn = call i64 @strlen(ptr %kind)
  %mn = call i64 @strlen(ptr %message)
  store ptr %kind, ptr %k, align 8
  %ks = getelementptr i8, ptr %k, i64 8
  store i64 %kn, ptr %ks, align 8
  store ptr %message, ptr %m, align 8
  %ms = getelementptr i8, ptr %m, i64 8
  store i64 %mn, ptr %ms, align 8
  store ptr %message, ptr %b, align 8
  %bs = getelementptr i8, ptr %b, i64 8
  store i64 0, ptr %bs, align 8
  store ptr null, ptr %out, align 8
  %rc = call i32 @TVMFFIErrorCreate(ptr %k, ptr %m, ptr %b, ptr %out)
  %error = load ptr, ptr %out, align 8
  %made = icmp ne ptr %error, null
  br i1 %made, label %set, label %plain
set:
  call void @TVMFFIErrorSetRaised(ptr %error)
  %rd = call i32 @TVMFFIObjectDecRef(ptr %error)
  ret i32 -1
plain:
  call void @TVMFFIErrorSetRaisedFromCStr(ptr %kind, ptr %message)
  ret i32 -1
}

define hidden void @bw_return_tensor(ptr %result, ptr %object) {
  store i64 70, ptr %result, align 8
  %vp = getelementptr i8, ptr %result, i64 8
  store ptr %object, ptr %vp, align 8
  ret void
}

define hidden i32 @bw_return_tuple(ptr %result, ptr %values, i32 %count) {
entry:
  %key = alloca [2 x i64], align 8
  %function = alloca ptr, align 8
  store ptr @bw.rt.array, ptr %key, align 8
  %sp = getelementptr i8, ptr %key, i64 8
  store i64 9, ptr %sp, align 8
  %rg = call i32 @TVMFFIFunctionGetGlobal(ptr %key, ptr %function)
  %f = load ptr, ptr %function, align 8
  %rc = call i32 @TVMFFIFunctionCall(ptr %f, ptr %values, i32 %count, ptr %result)
  %rd = call i32 @TVMFFIObjectDecRef(ptr %f)
  %n = zext i32 %count to i64
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %look, label %out
look:
  %offset = mul i64 %i, 16
  %value = getelementptr i8, ptr %values, i64 %offset
  %type = load i32, ptr %value, align 8
  %owned = icmp sge i32 %type, 64
  br i1 %owned, label %release, label %next
release:
  %vp = getelementptr i8, ptr %value, i64 8
  %object = load ptr, ptr %vp, align 8
  %ro = call i32 @TVMFFIObjectDecRef(ptr %object)
  br label %next
next:
  %i1 = add i64 %i, 1
  br label %loop
out:
  ret i32 %rc
}
"""

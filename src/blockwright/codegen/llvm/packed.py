"""Emit calls of functions that are registered with the FFI by name.

The function is looked up at its first call and cached. A buffer is passed as a tensor object that
views it, valid until the call returns. If a function is missing or raises, the calling function
returns the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blockwright.codegen.llvm import access, ffi, types
from blockwright.codegen.llvm.values import Value, int_const
from blockwright.ir import BufferLoad, Call, DType, Expr, StringImm
from blockwright.support import BuildError

if TYPE_CHECKING:
    from blockwright.codegen.llvm.expr import ExprEmitter


def call(c: ExprEmitter, name: str, args: Sequence[Expr], result: DType) -> Value:
    """Call the global function `name`; numbers are returned as `result`, other results freed."""
    e = c.e
    values = e.stack(ffi.ANY_SIZE * (len(args) + 1), 16)
    objects: list[Value] = []
    function = _lookup(c, name)
    for number, arg in enumerate(args):
        _pack(c, e.offset(values, ffi.ANY_SIZE * number), arg, objects)
    answer = e.offset(values, ffi.ANY_SIZE * len(args))
    e.store(int_const(0), answer, 8)
    e.store(int_const(0), e.offset(answer, ffi.ANY_VALUE), 8)
    count = int_const(len(args), "i32")
    status = e.call("i32", "TVMFFIFunctionCall", function, values, count, answer)
    for item in objects:
        e.call("i32", "TVMFFIObjectDecRef", item)
    c.context.check(status)
    return _unpack(c, answer, result)


def _lookup(c: ExprEmitter, name: str) -> Value:
    e, module = c.e, c.e.module
    symbol = f"@bw.packed.{''.join(ch if ch.isalnum() else f'_{ord(ch):x}' for ch in name)}"
    module.add_global_once(symbol, f"{symbol} = internal global ptr null, align 8")
    slot = Value("ptr", symbol)
    known = e.load("ptr", slot, 8, order="acquire")

    def find() -> Value:
        key, out = e.stack(16, 8), e.stack(8, 8)
        e.store(module.string(name), key, 8)
        e.store(int_const(len(name.encode())), e.offset(key, 8), 8)
        e.store(Value("ptr", "null"), out, 8)
        status = e.call("i32", "TVMFFIFunctionGetGlobal", key, out)
        c.context.check(status)
        result = e.load("ptr", out, 8)
        missing = e.compare("eq", result, Value("ptr", "null"))
        with e.guarded(missing, likely=False):
            text = (
                f"BW711: no packed function is registered as '{name}'\n"
                "help: register it with tvm_ffi.register_global_func first"
            )
            e.call("i32", "bw_raise", module.string("RuntimeError"), module.string(text))
            c.context.leave(int_const(-1, "i32"))
        e.store(result, slot, 8, order="release")
        return result

    return e.choose(e.compare("ne", known, Value("ptr", "null")), lambda: known, find)


def _pack(c: ExprEmitter, slot: Value, arg: Expr, objects: list[Value]) -> None:
    e = c.e
    value_slot = e.offset(slot, ffi.ANY_VALUE)
    if isinstance(arg, StringImm):
        kind, value = ffi.RAW_STR, e.module.string(arg.value)
    elif isinstance(arg, Call) and arg.op == "tensor":
        kind, value = ffi.TENSOR, _tensor_object(c, arg.args[0], objects)
    elif arg.dtype.is_handle:
        kind, value = ffi.OPAQUE_PTR, c.value(arg)
    elif arg.dtype.is_float:
        kind = ffi.FLOAT
        value = types.cast(e, c.value(arg), arg.dtype, DType("float", 64))
    else:
        kind = ffi.BOOL if arg.dtype.is_bool else ffi.INT
        value = types.cast(e, c.value(arg), arg.dtype, DType("int", 64))
    e.store(int_const(kind), slot, 8)
    e.store(value, value_slot, 8)


def _tensor_object(c: ExprEmitter, place: Expr, objects: list[Value]) -> Value:
    """A tensor object that views a buffer; if that fails, earlier objects are released."""
    e = c.e
    view, rank = _tensor_view(c, place)
    e.module.add_global_once("bw_view_object", _VIEW_IR)
    for name, result, params in (
        ("malloc", "ptr", "i64"),
        ("free", "void", "ptr"),
        ("TVMFFITensorFromDLPack", "i32", "ptr, i32, i32, ptr"),
    ):
        e.module.declare(name, result, params)
    out = e.stack(8, 8)
    status = e.call_local("i32", "bw_view_object", view, int_const(rank), out)
    failed = e.compare("ne", status, int_const(0, "i32"))
    with e.guarded(failed, likely=False):
        for item in objects:
            e.call("i32", "TVMFFIObjectDecRef", item)
        c.context.leave(status)
    created = e.load("ptr", out, 8)
    objects.append(created)
    return created


def _tensor_view(c: ExprEmitter, place: Expr) -> tuple[Value, int]:
    """A DLTensor on the stack that views a buffer, and its rank."""
    if not isinstance(place, BufferLoad):
        raise BuildError(
            "tensor takes a buffer element",
            code="BW615",
            help='write Call("tensor", (BufferLoad(buffer, zeros),))',
        )
    e, buffer = c.e, place.buffer
    rank = buffer.ndim
    view = e.stack(ffi.DL_SIZE + 16 * rank, 8)
    shape = e.offset(view, ffi.DL_SIZE)
    strides = e.offset(shape, 8 * rank)
    extents = [c.index(extent) for extent in buffer.shape]
    step = int_const(1)
    for axis in reversed(range(rank)):
        e.store(extents[axis], e.offset(shape, 8 * axis), 8)
        stride = c.index(buffer.strides[axis]) if buffer.strides else step
        e.store(stride, e.offset(strides, 8 * axis), 8)
        step = e.binary("mul", step, extents[axis])
    code = ffi.dlpack_dtype(buffer.dtype.name)
    e.store(access.address(c, place), view, 8)
    e.store(int_const(ffi.DEVICE_CPU), e.offset(view, ffi.DL_DEVICE_TYPE), 8)
    e.store(int_const(rank, "i32"), e.offset(view, ffi.DL_NDIM), 8)
    e.store(int_const(code, "i32"), e.offset(view, ffi.DL_DTYPE), 4)
    e.store(shape, e.offset(view, ffi.DL_SHAPE), 8)
    e.store(strides, e.offset(view, ffi.DL_STRIDES), 8)
    e.store(int_const(0), e.offset(view, ffi.DL_BYTE_OFFSET), 8)
    return view, rank


def _unpack(c: ExprEmitter, answer: Value, result: DType) -> Value:
    e = c.e
    kind = e.load("i32", answer, 8)
    slot = e.offset(answer, ffi.ANY_VALUE)
    owned = e.compare("sge", kind, int_const(64, "i32"))
    with e.guarded(owned, likely=False):
        e.call("i32", "TVMFFIObjectDecRef", e.load("ptr", slot, 8))
    if result.is_float:
        is_float = e.compare("eq", kind, int_const(ffi.FLOAT, "i32"))
        real = e.load("double", slot, 8)
        whole = e.convert("sitofp", e.load("i64", slot, 8), "double")
        return types.cast(e, e.select(is_float, real, whole), DType("float", 64), result)
    if result.is_handle:
        return e.load("ptr", slot, 8)
    return types.cast(e, e.load("i64", slot, 8), DType("int", 64), result)


# Copies a DLTensor, followed by its shape and strides, into a managed tensor that owns only itself.
_VIEW_IR = r"""
define internal void @bw_view_delete(ptr %managed) {
  call void @free(ptr %managed)
  ret void
}
define internal i32 @bw_view_object(ptr %view, i64 %rank, ptr %out) {
  %tables = mul i64 %rank, 16
  %head = add i64 %tables, 64
  %m = call ptr @malloc(i64 %head)
  call void @llvm.memcpy.p0.p0.i64(ptr %m, ptr %view, i64 48, i1 false)
  %from = getelementptr i8, ptr %view, i64 48
  %sizes = getelementptr i8, ptr %m, i64 64
  call void @llvm.memcpy.p0.p0.i64(ptr %sizes, ptr %from, i64 %tables, i1 false)
  %half = mul i64 %rank, 8
  %strides = getelementptr i8, ptr %sizes, i64 %half
  %sp = getelementptr i8, ptr %m, i64 24
  store ptr %sizes, ptr %sp, align 8
  %tp = getelementptr i8, ptr %m, i64 32
  store ptr %strides, ptr %tp, align 8
  %cp = getelementptr i8, ptr %m, i64 48
  store ptr null, ptr %cp, align 8
  %xp = getelementptr i8, ptr %m, i64 56
  store ptr @bw_view_delete, ptr %xp, align 8
  %rc = call i32 @TVMFFITensorFromDLPack(ptr %m, i32 0, i32 0, ptr %out)
  ret i32 %rc
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""

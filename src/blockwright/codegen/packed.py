"""Calls of functions known to the FFI by name, from compiled code.

The function is looked up at its first call and kept; tensor views and values are built on the
stack. A function that is missing, or raises, makes the caller return its error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blockwright.codegen import access, ffi_ir, types
from blockwright.codegen.emitter import Value, int_const
from blockwright.ir import BufferLoad, Call, DType, Expr, StringImm
from blockwright.support import BuildError

if TYPE_CHECKING:
    from blockwright.codegen.expr import ExprCompiler


def call(c: ExprCompiler, name: str, args: Sequence[Expr], result: DType) -> Value:
    """Calls the global function `name`; numbers come back as `result`, other results are freed."""
    e = c.e
    values = e.stack(ffi_ir.ANY_SIZE * (len(args) + 1), 16)
    for number, arg in enumerate(args):
        _pack(c, e.offset(values, ffi_ir.ANY_SIZE * number), arg)
    answer = e.offset(values, ffi_ir.ANY_SIZE * len(args))
    e.store(int_const(0), answer, 8)
    e.store(int_const(0), e.offset(answer, ffi_ir.ANY_VALUE), 8)
    function = _lookup(c, name)
    count = int_const(len(args), "i32")
    c.context.check(e.call("i32", "TVMFFIFunctionCall", function, values, count, answer))
    return _unpack(c, answer, result)


def _lookup(c: ExprCompiler, name: str) -> Value:
    e, module = c.e, c.e.module
    slot = f"@bw.packed.{''.join(ch if ch.isalnum() else f'_{ord(ch):x}' for ch in name)}"
    module.add_global_once(slot, f"{slot} = internal global ptr null, align 8")
    known = e.emit("ptr", f"load atomic ptr, ptr {slot} acquire, align 8")

    def find() -> Value:
        key, out = e.stack(16, 8), e.stack(8, 8)
        e.store(module.string(name), key, 8)
        e.store(int_const(len(name.encode())), e.offset(key, 8), 8)
        e.store(Value("ptr", "null"), out, 8)
        status = e.call("i32", "TVMFFIFunctionGetGlobal", key, out)
        c.context.check(status)
        found = e.load("ptr", out, 8)
        missing = e.compare("eq", found, Value("ptr", "null"))
        with e.guarded(missing, likely=False):
            text = (f"BW711: no packed function is registered as '{name}'\n"
                    "help: register it with tvm_ffi.register_global_func first")  # fmt: skip
            e.call("i32", "bw_raise", module.string("RuntimeError"), module.string(text))
            c.context.leave(int_const(-1, "i32"))
        e.line(f"store atomic {found.typed}, ptr {slot} release, align 8")
        return found

    return e.choose(e.compare("ne", known, Value("ptr", "null")), lambda: known, find)


def _pack(c: ExprCompiler, slot: Value, arg: Expr) -> None:
    e = c.e
    value_slot = e.offset(slot, ffi_ir.ANY_VALUE)
    if isinstance(arg, StringImm):
        kind, value = ffi_ir.RAW_STR, e.module.string(arg.value)
    elif isinstance(arg, Call) and arg.op == "tensor":
        kind, value = ffi_ir.DLTENSOR_PTR, tensor_view(c, arg.args[0])
    elif arg.dtype.is_handle:
        kind, value = ffi_ir.OPAQUE_PTR, c.value(arg)
    elif arg.dtype.is_float:
        kind = ffi_ir.FLOAT
        value = types.cast(e, c.value(arg), arg.dtype, DType("float", 64))
    else:
        kind = ffi_ir.BOOL if arg.dtype.is_bool else ffi_ir.INT
        value = types.cast(e, c.value(arg), arg.dtype, DType("int", 64))
    e.store(int_const(kind), slot, 8)
    e.store(value, value_slot, 8)


def tensor_view(c: ExprCompiler, place: Expr) -> Value:
    """A DLTensor on the stack that views a buffer."""
    if not isinstance(place, BufferLoad):
        raise BuildError("tensor takes a buffer element", code="BW615",
                         help='write Call("tensor", (BufferLoad(buffer, zeros),))')  # fmt: skip
    e, buffer = c.e, place.buffer
    rank = buffer.ndim
    view = e.stack(ffi_ir.DL_SIZE + 16 * rank, 8)
    shape = e.offset(view, ffi_ir.DL_SIZE)
    strides = e.offset(shape, 8 * rank)
    extents = [c.index(extent) for extent in buffer.shape]
    step = int_const(1)
    for axis in reversed(range(rank)):
        e.store(extents[axis], e.offset(shape, 8 * axis), 8)
        stride = c.index(buffer.strides[axis]) if buffer.strides else step
        e.store(stride, e.offset(strides, 8 * axis), 8)
        step = e.binary("mul", step, extents[axis])
    code = ffi_ir.dlpack_dtype(buffer.dtype.name)
    e.store(access.address(c, place), view, 8)
    e.store(int_const(ffi_ir.DEVICE_CPU), e.offset(view, ffi_ir.DL_DEVICE_TYPE), 8)
    e.store(int_const(rank, "i32"), e.offset(view, ffi_ir.DL_NDIM), 8)
    e.store(int_const(code, "i32"), e.offset(view, ffi_ir.DL_DTYPE), 4)
    e.store(shape, e.offset(view, ffi_ir.DL_SHAPE), 8)
    e.store(strides, e.offset(view, ffi_ir.DL_STRIDES), 8)
    e.store(int_const(0), e.offset(view, ffi_ir.DL_BYTE_OFFSET), 8)
    return view


def _unpack(c: ExprCompiler, answer: Value, result: DType) -> Value:
    e = c.e
    kind = e.load("i32", answer, 8)
    slot = e.offset(answer, ffi_ir.ANY_VALUE)
    owned = e.compare("sge", kind, int_const(64, "i32"))
    with e.guarded(owned, likely=False):
        e.call("i32", "TVMFFIObjectDecRef", e.load("ptr", slot, 8))
    if result.is_float:
        is_float = e.compare("eq", kind, int_const(ffi_ir.FLOAT, "i32"))
        real = e.load("double", slot, 8)
        whole = e.convert("sitofp", e.load("i64", slot, 8), "double")
        return types.cast(e, e.select(is_float, real, whole), DType("float", 64), result)
    if result.is_handle:
        return e.load("ptr", slot, 8)
    return types.cast(e, e.load("i64", slot, 8), DType("int", 64), result)

"""Emit calls of functions that are registered with the FFI by name.

The function is looked up at its first call and cached. A buffer is passed as a tensor object that
views it, valid until the call returns. If a function is missing or raises, the calling function
returns the error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from blockwright.codegen.llvm import access, ffi, types
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.structs import Global, Record
from blockwright.codegen.llvm.values import NULL, Value, int_const
from blockwright.ir import (
    LARGE_ARGUMENT,
    LARGE_ARGUMENT_HELP,
    BufferLoad,
    Call,
    DType,
    Expr,
    StringImm,
)
from blockwright.support import BuildError

if TYPE_CHECKING:
    from blockwright.codegen.llvm.expr import ExprEmitter


_TOO_LARGE = f"BW708: {LARGE_ARGUMENT}\nhelp: {LARGE_ARGUMENT_HELP}"


def call(c: ExprEmitter, name: str, args: Sequence[Expr], result: DType) -> Value:
    """Call the global function `name`; numbers are returned as `result`, other results freed."""
    e = c.e
    values = e.stack(ffi.ANY.size * (len(args) + 1), 16)
    objects: list[Value] = []
    function = lookup(c, name)
    for number, arg in enumerate(args):
        pack(c, e.offset(values, ffi.ANY.size * number), arg, objects, lambda: _release(c, objects))
    answer = ffi.ANY.at(e, e.offset(values, ffi.ANY.size * len(args)))
    answer.store("type", int_const(ffi.NONE))
    answer.store("value", 0)
    count = int_const(len(args), "i32")
    status = e.call("i32", "TVMFFIFunctionCall", function, values, count, answer.address)
    _release(c, objects)
    c.context.check(status)
    return _unpack(c, answer, result)


def lookup(c: ExprEmitter, name: str) -> Value:
    e, module = c.e, c.e.module
    symbol = f"bw.packed.{''.join(ch if ch.isalnum() else f'_{ord(ch):x}' for ch in name)}"
    slot = Global(symbol, "ptr", initial="null")
    known = slot.load(e, order="acquire")

    def find() -> Value:
        key, out = ffi.BYTE_ARRAY.allocate(e), e.stack(8, 8)
        key.store("data", module.string(name))
        key.store("size", len(name.encode()))
        e.store(NULL, out, 8)
        status = e.call("i32", "TVMFFIFunctionGetGlobal", key.address, out)
        c.context.check(status)
        result = e.load("ptr", out, 8)
        missing = e.compare("eq", result, NULL)
        with e.guarded(missing, likely=False):
            text = (
                f"BW711: no packed function is registered as '{name}'\n"
                "help: register it with tvm_ffi.register_global_func first"
            )
            e.call("i32", "bw_raise", module.string("RuntimeError"), module.string(text))
            c.context.leave(int_const(-1, "i32"))
        slot.store(e, result, order="release")
        return result

    return e.choose(e.compare("ne", known, NULL), lambda: known, find)


def _release(c: ExprEmitter, objects: Sequence[Value]) -> None:
    for item in objects:
        c.e.call("i32", "TVMFFIObjectDecRef", item)


def pack(
    c: ExprEmitter, slot: Value, arg: Expr, objects: list[Value], release: Callable[[], None]
) -> None:
    """Write an argument; `release` drops those before it if the call fails."""
    e = c.e
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
        if arg.dtype.kind == "uint" and arg.dtype.bits == 64:
            with e.guarded(e.compare("slt", value, 0), likely=False):
                release()
                kind_text, text = (e.module.string(t) for t in ("RuntimeError", _TOO_LARGE))
                e.call("i32", "bw_raise", kind_text, text)
                c.context.leave(int_const(-1, "i32"))
    packed = ffi.ANY.at(e, slot)
    packed.store("type", int_const(kind))
    packed.store("value", value)


def _tensor_object(c: ExprEmitter, place: Expr, objects: list[Value]) -> Value:
    """A tensor object that views a buffer; if that fails, earlier objects are released."""
    e = c.e
    view, rank = tensor_view(c, place)
    out = e.stack(8, 8)
    status = view_object.call(e, view, rank, out)
    failed = e.compare("ne", status, int_const(0, "i32"))
    with e.guarded(failed, likely=False):
        _release(c, objects)
        c.context.leave(status)
    created = e.load("ptr", out, 8)
    objects.append(created)
    return created


def tensor_view(c: ExprEmitter, place: Expr) -> tuple[Value, int]:
    """A DLTensor on the stack that views a buffer, and its rank."""
    if not isinstance(place, BufferLoad):
        raise BuildError(
            "tensor takes a buffer element",
            code="BW615",
            help='write Call("tensor", (BufferLoad(buffer, zeros),))',
        )
    e, buffer = c.e, place.buffer
    rank = buffer.ndim
    view = ffi.DLTENSOR.at(e, e.stack(ffi.DLTENSOR.size + 16 * rank, 8))
    shape = e.offset(view.address, ffi.DLTENSOR.size)
    strides = e.offset(shape, 8 * rank)
    extents = [c.index(extent) for extent in buffer.shape]
    step = int_const(1)
    for axis in reversed(range(rank)):
        e.store(extents[axis], e.offset(shape, 8 * axis), 8)
        stride = c.index(buffer.strides[axis]) if buffer.strides else step
        e.store(stride, e.offset(strides, 8 * axis), 8)
        step = e.binary("mul", step, extents[axis])
    code = ffi.dlpack_dtype(buffer.dtype.name)
    view.store("data", access.address(c, place))
    view.store("device_type", int_const(ffi.DEVICE_CPU))
    view.store("ndim", rank)
    view.store("dtype", code)
    view.store("shape", shape)
    view.store("strides", strides)
    view.store("byte_offset", 0)
    return view.address, rank


def _unpack(c: ExprEmitter, answer: Record, result: DType) -> Value:
    e = c.e
    kind = answer.load("type")
    owned = e.compare("sge", kind, ffi.FIRST_OBJECT)
    with e.guarded(owned, likely=False):
        e.call("i32", "TVMFFIObjectDecRef", answer.load("value", type_="ptr"))
    if result.is_float:
        is_float = e.compare("eq", kind, int_const(ffi.FLOAT, "i32"))
        real = answer.load("value", type_="double")
        whole = e.convert("sitofp", answer.load("value"), "double")
        return types.cast(e, e.select(is_float, real, whole), DType("float", 64), result)
    if result.is_handle:
        return answer.load("value", type_="ptr")
    return types.cast(e, answer.load("value"), DType("int", 64), result)


@routine("bw_view_object", "i32", "ptr", "i64", "ptr")
def view_object(e: FunctionEmitter, view: Value, rank: Value, out: Value) -> Value:
    """Copy a DLTensor, followed by its shape and strides, into a managed tensor that owns only
    itself; write its object to `out`."""
    tables = e.binary("mul", rank, 2 * 8)
    block = e.call("ptr", "malloc", e.binary("add", tables, ffi.MANAGED_TENSOR.size))
    managed = ffi.MANAGED_TENSOR.at(e, block)
    sizes = e.offset(block, ffi.MANAGED_TENSOR.size)
    e.copy(block, view, ffi.DLTENSOR.size)
    e.copy(sizes, e.offset(view, ffi.DLTENSOR.size), tables)
    tensor = managed.inner("tensor")
    tensor.store("shape", sizes)
    tensor.store("strides", e.offset(sizes, rank, 8))
    managed.store("context", NULL)
    managed.store("deleter", delete_view.address(e.module))
    none = int_const(0, "i32")
    return e.call("i32", "TVMFFITensorFromDLPack", block, none, none, out)


@routine("bw_view_delete", "void", "ptr")
def delete_view(e: FunctionEmitter, managed: Value) -> None:
    """The deleter of a tensor that `view_object` creates."""
    e.call("void", "free", managed)

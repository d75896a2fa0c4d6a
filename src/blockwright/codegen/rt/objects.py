"""FFI values of host programs: slots, calls of functions that are values, and closures.

A slot is a `TVMFFIAny` that owns its value; an empty slot holds None. A closure is an FFI function
whose resource is a `CLOSURE`, followed by the captured values:

    closure(a, b)  →  __tvm_ffi_NAME(a, b, captured values …)

It owns the captured values, and the module of the library where that is known, so that constants
stay valid; the code of a library is never unloaded.

Functions that call each other through values pass the number of active calls in the place of the
result, which the callee overwrites: type None, `DEPTH_MARK` as value, the number as padding. Other
callers leave 0 there.
"""

from __future__ import annotations

import functools

from blockwright.codegen.abi.names import dtype_name, kind_name
from blockwright.codegen.abi.tensors import is_contiguous, tensor_data, tensor_of
from blockwright.codegen.llvm import ffi
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.module_emitter import ModuleEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.structs import Field, StructType
from blockwright.codegen.llvm.values import NULL, Value, int_const
from blockwright.codegen.rt.ffi_calls import pointer_slot, release
from blockwright.target import Target

DEPTH_MARK = 0x6277_6465_7074_6800
"""Value of an empty result whose padding is a number of active calls."""

MAX_DEPTH = 1000
"""Calls of functions that call each other that may be active at once."""

LIBRARY_MODULE = "__tvm_ffi__library_ctx"
"""Exported variable that `tvm_ffi` sets to the module object of the library."""

CLOSURE = StructType(
    (
        Field("entry", "ptr", "the entry of the function"),
        Field("module", "ptr", "module object of the library, or null"),
        Field("params", "i32", "arguments that callers pass"),
        Field("captured", "i32", "values that follow"),
    )
)

_SUCCESS, _ZERO = int_const(0, "i32"), int_const(0)


def raise_formatted(e: FunctionEmitter, kind: str, text: str, *values: Value) -> None:
    """Raise an error with a printf format, and return -1."""
    size = 512
    message = e.stack(size, 16)
    format = e.module.string(text)
    e.call("i32", "snprintf", message, int_const(size), format, *values, variadic="ptr, i64, ptr")
    e.ret(e.call("i32", "bw_raise", e.module.string(kind), message))


@routine("bw_object_clear", "void", "ptr", linkage="hidden")
def bw_object_clear(e: FunctionEmitter, slot: Value) -> None:
    """Empty a slot."""
    value = ffi.ANY.at(e, slot)
    kind, item = value.load("type"), value.load("value", type_="ptr")
    value.store("type", int_const(ffi.NONE))
    value.store("value", 0)
    with e.guarded(e.compare("sge", kind, ffi.FIRST_OBJECT)):
        release(e, item)


@routine("bw_object_copy", "i32", "ptr", "ptr", linkage="hidden")
def bw_object_copy(e: FunctionEmitter, out: Value, source: Value) -> Value:
    """Store another reference to a value in an empty slot."""
    return e.call("i32", "TVMFFIAnyViewToOwnedAny", source, out)


@routine("bw_object_call", "i32", "ptr", "ptr", "ptr", "i32", "i32", linkage="hidden")
def bw_object_call(
    e: FunctionEmitter, out: Value, callee: Value, args: Value, count: Value, depth: Value
) -> Value:
    """Call the function in a slot with packed values; its result replaces the content of `out`."""
    function, answer = ffi.ANY.at(e, callee), ffi.ANY.at(e, out)
    kind, item = function.load("type"), function.load("value", type_="ptr")
    with e.guarded(e.compare("ne", kind, ffi.FUNCTION), likely=False):
        text = "BW702: a value that is called is %s, not a function\nhelp: pass a function"
        raise_formatted(e, "TypeError", text, kind_name.call(e, kind))
    with e.guarded(e.compare("uge", depth, MAX_DEPTH), likely=False):
        text = (
            f"BW723: more than {MAX_DEPTH} calls of functions that call each other are active\n"
            "help: make sure that the recursion ends, or use a loop in a tensor program"
        )
        raise_formatted(e, "RuntimeError", text)
    bw_object_clear.call(e, out)
    answer.store("padding", depth)
    answer.store("value", DEPTH_MARK)
    status = e.call("i32", "TVMFFIFunctionCall", item, args, count, out)
    fails = e.compare("ne", status, 0)
    nothing = e.compare("eq", answer.load("type"), ffi.NONE)
    with e.guarded(e.binary("or", fails, nothing)):
        answer.store("type", _ZERO)
        answer.store("value", 0)
    return status


@routine("bw_call_depth", "i32", "ptr", linkage="hidden")
def bw_call_depth(e: FunctionEmitter, result: Value) -> Value:
    """The number of active calls that the caller of an entry passes; 0 if it passes none."""
    answer = ffi.ANY.at(e, result)
    empty = e.compare("eq", answer.load("type"), ffi.NONE)
    marked = e.compare("eq", answer.load("value"), DEPTH_MARK)
    return e.select(e.binary("and", empty, marked), answer.load("padding"), _SUCCESS)


@routine("bw_tensor_bytes", "i64", "ptr")
def tensor_bytes(e: FunctionEmitter, tensor: Value) -> Value:
    """Bytes of the elements of a DLTensor."""
    view = ffi.DLTENSOR.at(e, tensor)
    dtype, shape = view.load("dtype"), view.load("shape")
    rank = e.convert("sext", view.load("ndim"), "i64")
    bits = e.binary("and", e.binary("lshr", dtype, 8), 255)
    element = e.convert("zext", e.binary("mul", bits, e.binary("lshr", dtype, 16)), "i64")
    with e.loop(_ZERO, element) as loop:
        axis, total = loop.values
        with e.guarded(e.compare("sge", axis, rank)):
            loop.leave()
        extent = e.load("i64", e.offset(shape, axis, 8), 8)
        loop.again(e.binary("add", axis, 1), e.binary("mul", total, extent))
    return e.binary("lshr", e.binary("add", total, 7), 3)


@routine("bw_tensor_object", "i32", "ptr", "ptr", linkage="hidden")
def bw_tensor_object(e: FunctionEmitter, out: Value, tensor: Value) -> Value:
    """Store a new tensor with the elements of a contiguous DLTensor in an empty slot."""
    view, place = ffi.DLTENSOR.at(e, tensor), pointer_slot(e)
    shape, rank, dtype = (view.load(f) for f in ("shape", "ndim", "dtype"))
    status = e.call("i32", "bw_tensor_alloc", shape, rank, dtype, place)
    with e.guarded(e.compare("ne", status, 0), likely=False):
        e.ret(status)
    item = e.load("ptr", place, 8)
    data = ffi.TENSOR_OBJECT.at(e, item).inner("tensor").load("data")
    e.copy(data, tensor_data.call(e, tensor), tensor_bytes.call(e, tensor))
    answer = ffi.ANY.at(e, out)
    answer.store("type", int_const(ffi.TENSOR))
    answer.store("value", item)
    return _SUCCESS


def _check_dtype(e: FunctionEmitter, dtype: Value, wanted: Value, name: Value) -> None:
    """Raise BW703 unless a tensor has elements of a type."""
    with e.guarded(e.compare("ne", dtype, wanted), likely=False):
        bits = e.binary("and", e.binary("lshr", dtype, 8), 255)
        wanted_bits = e.binary("and", e.binary("lshr", wanted, 8), 255)
        text = (
            "BW703: the value of %s has elements of %s%d, not of %s%d\n"
            "help: convert it to the annotated type"
        )
        names = dtype_name.call(e, dtype), bits, dtype_name.call(e, wanted), wanted_bits
        raise_formatted(e, "TypeError", text, name, *names)


def _check_rank(e: FunctionEmitter, rank: Value, wanted: Value, name: Value) -> None:
    """Raise BW704 unless a tensor has a number of dimensions."""
    with e.guarded(e.compare("ne", rank, wanted), likely=False):
        text = "BW704: the value of %s has %d dimensions, not %d\nhelp: correct its annotation"
        raise_formatted(e, "ValueError", text, name, rank, wanted)


@routine("bw_object_check", "i32", "ptr", "i32", "i32", "i32", "i32", "ptr", linkage="hidden")
def bw_object_check(
    e: FunctionEmitter,
    slot: Value,
    kind: Value,
    dtype: Value,
    number: Value,
    counts: Value,
    name: Value,
) -> Value:
    """Check the value in a slot: its kind, type (unless 0) and rank (unless -1) of a tensor.

    If `counts`, the value is a number of fields.
    """
    value = ffi.ANY.at(e, slot)
    found = value.load("type")
    with e.guarded(e.compare("eq", kind, ffi.TENSOR)):
        tensor = tensor_of.call(e, slot)
        with e.guarded(e.compare("ne", tensor, NULL)):
            view = ffi.DLTENSOR.at(e, tensor)
            with e.guarded(e.compare("ne", dtype, 0)):
                _check_dtype(e, view.load("dtype"), dtype, name)
            with e.guarded(e.compare("sge", number, 0)):
                _check_rank(e, view.load("ndim"), number, name)
            e.ret(_SUCCESS)
    with e.guarded(e.compare("ne", found, kind), likely=False):
        text = "BW702: the value of %s is %s, not %s\nhelp: correct its annotation"
        names = kind_name.call(e, found), kind_name.call(e, kind)
        raise_formatted(e, "TypeError", text, name, *names)
    with e.guarded(e.compare("ne", counts, 0)):
        count, fields = value.load("value"), e.convert("sext", number, "i64")
        with e.guarded(e.compare("ne", count, fields), likely=False):
            text = "BW702: the value of %s has %lld fields, not %lld\nhelp: correct its annotation"
            raise_formatted(e, "TypeError", text, name, count, fields)
    return _SUCCESS


@routine("bw_object_load", "i32", "ptr", "ptr", "ptr", linkage="hidden")
def bw_object_load(e: FunctionEmitter, tensor: Value, slot: Value, name: Value) -> Value:
    """Copy the tensor in a slot to the memory of a contiguous DLTensor of the expected type and
    shape; `name` is that of the value in messages."""
    wanted, found = ffi.DLTENSOR.at(e, tensor), tensor_of.call(e, slot)
    with e.guarded(e.compare("eq", found, NULL), likely=False):
        text = "BW702: the value of %s is %s, not a tensor\nhelp: return a tensor"
        kind = kind_name.call(e, ffi.ANY.at(e, slot).load("type"))
        raise_formatted(e, "TypeError", text, name, kind)
    view, rank = ffi.DLTENSOR.at(e, found), wanted.load("ndim")
    _check_dtype(e, view.load("dtype"), wanted.load("dtype"), name)
    _check_rank(e, view.load("ndim"), rank, name)
    wide = e.convert("sext", rank, "i64")
    with e.loop(_ZERO) as loop:
        (axis,) = loop.values
        with e.guarded(e.compare("sge", axis, wide)):
            loop.leave()
        size = e.load("i64", e.offset(view.load("shape"), axis, 8), 8)
        right = e.load("i64", e.offset(wanted.load("shape"), axis, 8), 8)
        with e.guarded(e.compare("ne", size, right), likely=False):
            text = (
                "BW704: dimension %lld of the value of %s is %lld, which is not %lld\n"
                "help: pass arguments of sizes that agree"
            )
            raise_formatted(e, "ValueError", text, axis, name, size, right)
        loop.again(e.binary("add", axis, 1))
    device = e.compare("eq", view.load("device_type"), ffi.DEVICE_CPU)
    with e.guarded(e.negated(device), likely=False):
        text = "BW705: the value of %s is not in CPU memory\nhelp: move it to the CPU"
        raise_formatted(e, "ValueError", text, name)
    with e.guarded(e.negated(is_contiguous.call(e, found)), likely=False):
        text = "BW706: the value of %s is not contiguous\nhelp: return a contiguous copy"
        raise_formatted(e, "ValueError", text, name)
    e.copy(wanted.load("data"), tensor_data.call(e, found), tensor_bytes.call(e, tensor))
    return _SUCCESS


@routine("bw_closure_make", "i32", "ptr", "ptr", "i32", "ptr", "i32", linkage="hidden")
def bw_closure_make(
    e: FunctionEmitter, out: Value, code: Value, params: Value, values: Value, count: Value
) -> Value:
    """Store a closure in an empty slot: an entry with the values of its last arguments."""
    wide = e.convert("zext", count, "i64")
    size = e.binary("add", e.binary("mul", wide, ffi.ANY.size), CLOSURE.size)
    block = e.call("ptr", "calloc", size, int_const(1))
    with e.guarded(e.compare("eq", block, NULL), likely=False):
        text = "BW720: no memory for a closure\nhelp: free other memory"
        raise_formatted(e, "MemoryError", text)
    closure = CLOSURE.at(e, block)
    closure.store("entry", code)
    closure.store("params", params)
    closure.store("captured", count)
    module = module_object.call(e)
    with e.guarded(e.compare("ne", module, NULL)):
        e.call("i32", "TVMFFIObjectIncRef", module)
        closure.store("module", module)
    with e.loop(_ZERO) as loop:
        (index,) = loop.values
        with e.guarded(e.compare("sge", index, wide)):
            loop.leave()
        place = captured_value(e, block, index)
        status = bw_object_copy.call(e, place, e.offset(values, index, ffi.ANY.size))
        with e.guarded(e.compare("ne", status, 0), likely=False):
            delete_closure.call(e, block)
            e.ret(status)
        loop.again(e.binary("add", index, 1))
    place = pointer_slot(e)
    call, deleter = call_closure.address(e.module), delete_closure.address(e.module)
    status = e.call("i32", "TVMFFIFunctionCreate", block, call, deleter, place)
    with e.guarded(e.compare("ne", status, 0), likely=False):
        delete_closure.call(e, block)
        e.ret(status)
    answer = ffi.ANY.at(e, out)
    answer.store("type", int_const(ffi.FUNCTION))
    answer.store("value", e.load("ptr", place, 8))
    return _SUCCESS


@routine("bw.rt.module_object", "ptr")
def module_object(e: FunctionEmitter) -> Value:
    """The module object of the library, or null.

    `LIBRARY_MODULE` holds its address as a C++ object, which may begin with a pointer to its
    functions; the type index in the header tells.
    """
    symbol = f'@"{LIBRARY_MODULE}"'
    e.module.add_global_once(symbol, f"{symbol} = global ptr null, align 8")
    found = e.load("ptr", Value("ptr", symbol), 8)
    with e.guarded(e.compare("ne", found, NULL)):
        for start in (0, 8):
            header = e.offset(found, start)
            kind = ffi.OBJECT.at(e, header).load("type")
            with e.guarded(e.compare("eq", kind, ffi.MODULE)):
                e.ret(header)
    return NULL


def captured_value(e: FunctionEmitter, block: Value, index: Value) -> Value:
    """The address of a captured value."""
    return e.offset(e.offset(block, CLOSURE.size), index, ffi.ANY.size)


@routine("bw.rt.closure_delete", "void", "ptr")
def delete_closure(e: FunctionEmitter, block: Value) -> None:
    """The deleter of a closure."""
    closure = CLOSURE.at(e, block)
    wide = e.convert("zext", closure.load("captured"), "i64")
    with e.loop(_ZERO) as loop:
        (index,) = loop.values
        with e.guarded(e.compare("sge", index, wide)):
            loop.leave()
        bw_object_clear.call(e, captured_value(e, block, index))
        loop.again(e.binary("add", index, 1))
    module = closure.load("module")
    e.call("void", "free", block)
    with e.guarded(e.compare("ne", module, NULL)):
        release(e, module)


@routine("bw.rt.closure_call", "i32", "ptr", "ptr", "i32", "ptr")
def call_closure(
    e: FunctionEmitter, block: Value, args: Value, count: Value, result: Value
) -> Value:
    """Call the entry of a closure with the arguments, followed by the captured values."""
    closure = CLOSURE.at(e, block)
    params, captured = closure.load("params"), closure.load("captured")
    with e.guarded(e.compare("ne", count, params), likely=False):
        text = "BW701: a closure takes %d arguments, got %d\nhelp: pass each parameter once"
        raise_formatted(e, "TypeError", text, params, count)
    own = e.binary("mul", e.convert("zext", count, "i64"), ffi.ANY.size)
    more = e.binary("mul", e.convert("zext", captured, "i64"), ffi.ANY.size)
    size = e.binary("add", e.binary("add", own, more), 1)
    values = e.call("ptr", "malloc", size)
    with e.guarded(e.compare("eq", values, NULL), likely=False):
        text = "BW720: no memory for the arguments of a closure\nhelp: free other memory"
        raise_formatted(e, "MemoryError", text)
    e.copy(values, args, own)
    e.copy(e.offset(values, own), e.offset(block, CLOSURE.size), more)
    total = e.binary("add", count, captured)
    status = e.call_pointer("i32", closure.load("entry"), NULL, values, total, result)
    e.call("void", "free", values)
    return status


@functools.lru_cache(maxsize=8)
def objects_ir(target: Target) -> str:
    """A module of the functions that host programs call for FFI values, one copy per library."""
    module = ModuleEmitter(target, external="")
    for function in (
        bw_object_clear, bw_object_copy, bw_object_call, bw_call_depth, bw_tensor_object,
        bw_object_load, bw_object_check, bw_closure_make,
    ):  # fmt: skip
        function.define(module)
    return module.render()

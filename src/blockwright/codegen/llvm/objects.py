"""Emit operations on FFI values of host programs; `rt.objects` has the functions they call.

A handle is the address of a slot. The first argument of `copy_object`, `call_object` and
`make_closure` is the slot of the result:

    object_slot()                              a new slot, emptied when the function returns
    copy_object(out, slot)
    call_object(out, function, depth, args…)   a name or a slot; depth: active calls, for recursion
    make_closure(out, "f", params, captured…)  `f`, called with `params` arguments before these
    load_object(tensor(b), slot, "name")       checks the tensor in the slot, copies its elements
    check_object(slot, "kind", "type", n, "name")   checks the value in the slot; see below
    clear_object(slot)

The kinds are those of `KINDS`. A tensor has elements of the
type, unless that is "", and n dimensions, unless that is -1; "count" is the integer n.

Packed arguments are numbers, strings, `object_value(slot)` and `tensor(buffer)`, a copy of a buffer
that the callee may keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blockwright.codegen.llvm import ffi, packed
from blockwright.codegen.llvm.ffi import SYMBOL_PREFIX
from blockwright.codegen.llvm.values import Value, int_const
from blockwright.ir import Call, Expr, StringImm
from blockwright.support import BuildError

if TYPE_CHECKING:
    from blockwright.codegen.llvm.expr import ExprEmitter

KINDS = {
    "tensor": ffi.TENSOR, "function": ffi.FUNCTION, "tuple": ffi.ARRAY, "shape": ffi.SHAPE,
    "int": ffi.INT, "float": ffi.FLOAT, "bool": ffi.BOOL, "count": ffi.INT,
}  # fmt: skip
"""Name of a kind of value → type index of its values."""


def object_slot(c: ExprEmitter, expr: Call) -> Value:
    """A new slot, which every exit of the function empties."""
    e, slot = c.e, empty_slot(c)
    c.context.cleanups.append(lambda: _clear(c, slot))
    return e.offset(slot, 0)


def empty_slot(c: ExprEmitter) -> Value:
    """A slot in the stack frame, which is empty."""
    slot = ffi.ANY.allocate(c.e)
    slot.store("type", int_const(ffi.NONE))
    slot.store("value", 0)
    return slot.address


def _clear(c: ExprEmitter, slot: Value) -> None:
    c.e.call("void", "bw_object_clear", slot)


def copy_object(c: ExprEmitter, expr: Call) -> Value:
    out, source = (c.value(a) for a in expr.args)
    status = c.e.call("i32", "bw_object_copy", out, source)
    c.context.check(status)
    return status


def clear_object(c: ExprEmitter, expr: Call) -> Value:
    _clear(c, c.value(expr.args[0]))
    return int_const(0, "i32")


def load_object(c: ExprEmitter, expr: Call) -> Value:
    tensor, slot, name = expr.args
    assert isinstance(tensor, Call)
    view, _ = packed.tensor_view(c, tensor.args[0])
    text = c.e.module.string(_text(name))
    status = c.e.call("i32", "bw_object_load", view, c.value(slot), text)
    c.context.check(status)
    return status


def check_object(c: ExprEmitter, expr: Call) -> Value:
    slot, kind, dtype, number, name = expr.args
    text, element = c.e.module.string(_text(name)), _text(dtype)
    word = int_const(ffi.dlpack_dtype(element) if element else 0, "i32")
    place, count = c.value(slot), c.value(number)
    wanted = int_const(KINDS[_text(kind)], "i32")
    counts = int_const(int(_text(kind) == "count"), "i32")
    status = c.e.call("i32", "bw_object_check", place, wanted, word, count, counts, text)
    c.context.check(status)
    return status


def call_object(c: ExprEmitter, expr: Call) -> Value:
    """Call a registered function or the function in a slot."""
    out, function, depth, *args = expr.args
    e, place = c.e, c.value(out)
    if isinstance(function, StringImm):
        callee = ffi.ANY.allocate(e)
        callee.store("type", int_const(ffi.FUNCTION))
        callee.store("value", packed.lookup(c, function.value))
        slot = callee.address
    else:
        slot = c.value(function)
    with _Packed(c, args) as values:
        count = int_const(len(args), "i32")
        status = e.call("i32", "bw_object_call", place, slot, values, count, c.value(depth))
    c.context.check(status)
    return status


def make_closure(c: ExprEmitter, expr: Call) -> Value:
    out, name, params, *captured = expr.args
    symbol = c.context.callees.get(_text(name))
    if symbol is None:
        raise BuildError(f"closure of unknown function {_text(name)!r}", code="BW616")
    entry = SYMBOL_PREFIX + symbol.removeprefix("bw.")
    if symbol != c.e.name:  # otherwise this module defines it
        c.e.module.declare(entry, "i32", "ptr, ptr, i32, ptr")
    place, address = c.value(out), Value("ptr", f"@{entry}")
    with _Packed(c, captured) as values:
        count = int_const(len(captured), "i32")
        number = c.value(params)
        status = c.e.call("i32", "bw_closure_make", place, address, number, values, count)
    c.context.check(status)
    return status


def _text(expr: Expr) -> str:
    if isinstance(expr, StringImm):
        return expr.value
    raise BuildError("a name must be a string", code="BW615", help='write "name"')


class _Packed:
    """Packed arguments of a call; copies of tensors are released after it."""

    def __init__(self, c: ExprEmitter, args: Sequence[Expr]) -> None:
        self.c = c
        self.places: list[Value] = []
        self.values = c.e.stack(ffi.ANY.size * max(len(args), 1), 16)
        for number, arg in enumerate(args):
            self._pack(c.e.offset(self.values, ffi.ANY.size * number), arg)

    def _pack(self, place: Value, arg: Expr) -> None:
        c, e = self.c, self.c.e
        if isinstance(arg, Call) and arg.op == "object_value":
            e.copy(place, c.value(arg.args[0]), ffi.ANY.size)
        elif isinstance(arg, Call) and arg.op == "tensor":
            view, _ = packed.tensor_view(c, arg.args[0])
            status = e.call("i32", "bw_tensor_object", place, view)
            with e.guarded(e.compare("ne", status, 0), likely=False):
                self._release()
                c.context.leave(status)
            self.places.append(place)
        else:
            packed.pack(c, place, arg, [], self._release)

    def _release(self) -> None:
        for place in self.places:
            _clear(self.c, place)

    def __enter__(self) -> Value:
        return self.values

    def __exit__(self, *_: object) -> None:
        self._release()

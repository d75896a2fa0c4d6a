"""Emit calls of C functions in shared libraries that the loader binds at run time.

The function is an address, which `runtime.shared_libraries` registers with the FFI when it opens
the library. It is looked up at the first call and cached: a later call is one load and a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blockwright.codegen.llvm import ffi, types
from blockwright.codegen.llvm.packed import tensor_view
from blockwright.codegen.llvm.structs import Global
from blockwright.codegen.llvm.values import NULL, Value, int_const
from blockwright.codegen.rt.ffi_calls import global_function, release
from blockwright.ir import Call, DType, Expr, Stmt, StringImm, collect
from blockwright.runtime.shared_libraries import address_name

if TYPE_CHECKING:
    from blockwright.codegen.llvm.expr import ExprEmitter


def call(c: ExprEmitter, library: str, symbol: str, args: Sequence[Expr], result: DType) -> Value:
    """Call a C function; texts become `const char *`, tensors `DLTensor *`."""
    function = _address(c, library, symbol)
    values = [_argument(c, arg) for arg in args]
    return c.e.call_pointer(types.value_type(result), function, *values)


def resolve(c: ExprEmitter, body: Stmt) -> None:
    """Look up the functions that a parallel loop calls, on the calling thread.

    The lookup may run Python code. A worker of the pool must not wait for Python's lock, which a
    caller may hold while it waits for the workers.
    """
    for node in collect(body, Call):
        name = node.args[0] if node.op == "call_extern" and node.args else None
        if isinstance(name, StringImm) and ":" in name.value:
            library, _, symbol = name.value.partition(":")
            _address(c, library, symbol)


def _argument(c: ExprEmitter, arg: Expr) -> Value:
    if isinstance(arg, StringImm):
        return c.e.module.string(arg.value)
    if isinstance(arg, Call) and arg.op == "tensor":
        return tensor_view(c, arg.args[0])[0]
    value = c.value(arg)
    return c.e.convert("zext", value, "i32") if arg.dtype.is_bool else value


def _address(c: ExprEmitter, library: str, symbol: str) -> Value:
    e = c.e
    slot = Global(f"bw.library.{library}.{symbol}", "ptr", initial="null")
    known = slot.load(e, order="acquire")

    def find() -> Value:
        answer = ffi.ANY.allocate(e)
        answer.store("type", int_const(ffi.NONE))
        answer.store("value", NULL)
        function = global_function(e, address_name(library, symbol))
        with e.guarded(e.compare("eq", function, NULL), likely=False):
            text = (
                f"BW724: the library {library} with the function {symbol} is not loaded\n"
                "help: load the artefact with bw.load, which opens the libraries that it calls"
            )
            e.call("i32", "bw_raise", e.module.string("RuntimeError"), e.module.string(text))
            c.context.leave(int_const(-1, "i32"))
        none = int_const(0, "i32")
        status = e.call("i32", "TVMFFIFunctionCall", function, NULL, none, answer.address)
        release(e, function)
        c.context.check(status)
        result = answer.load("value", type_="ptr")
        slot.store(e, result, order="release")
        return result

    return e.choose(e.compare("ne", known, NULL), lambda: known, find)

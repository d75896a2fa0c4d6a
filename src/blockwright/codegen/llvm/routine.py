"""Functions of support code, written in Python: a call adds the callee to the module once.

    @routine("bw.rt.nanoseconds", "i64", "i64", "i64")
    def nanoseconds(e: FunctionEmitter, seconds: Value, rest: Value) -> Value:
        return e.binary("add", e.binary("mul", seconds, 1_000_000_000), rest)

`nanoseconds.call(e, a, b)` emits a call in another function. Parameters have the names of the
Python function's parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.module_emitter import ModuleEmitter
from blockwright.codegen.llvm.values import VOID, Value, int_const


class Routine(msgspec.Struct, frozen=True):
    """A function of support code.

    Attributes:
        name: its symbol; result: LLVM type of its result, or "void".
        params: LLVM types of its parameters.
        body: emits the code and returns the result, unless all paths have returned already.
        linkage, attributes: as in LLVM text; linkage "" exports the function.
    """

    name: str
    result: str
    params: tuple[str, ...]
    body: Callable[..., Value | None]
    linkage: str
    attributes: str

    def define(self, module: ModuleEmitter) -> None:
        """Add the function to a module that does not have it yet."""
        if not module.reserve(self.name):
            return
        code: Any = self.body.__code__
        names = code.co_varnames[1 : code.co_argcount]
        params = list(zip(self.params, names, strict=True))
        e = FunctionEmitter(module, self.name, self.result, params, self.attributes, self.linkage)
        result = self.body(e, *e.params)
        e.ret(result or VOID)
        e.finish()

    def call(self, e: FunctionEmitter, *args: Value | int) -> Value:
        """Call the function; integers become constants of the parameter types."""
        self.define(e.module)
        typed = zip(args, self.params, strict=True)
        values = [int_const(a, t) if isinstance(a, int) else a for a, t in typed]
        return e.call_local(self.result, self.name, *values)

    def address(self, module: ModuleEmitter) -> Value:
        """A pointer to the function."""
        self.define(module)
        return Value("ptr", f'@"{self.name}"')


def routine(
    name: str, result: str, *params: str, linkage: str = "internal", attributes: str = ""
) -> Callable[[Callable[..., Value | None]], Routine]:
    """Turn a Python function that emits code into a `Routine`; its first parameter is the
    emitter."""

    def wrap(body: Callable[..., Value | None]) -> Routine:
        return Routine(name, result, params, body, linkage, attributes)

    return wrap

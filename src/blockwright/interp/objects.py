"""FFI values of host programs: slots hold Python values, closures are Python callables.

The operations are described in `codegen.llvm.objects`; here a handle is a `Slot`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from blockwright.interp.lanes import Env, Fn, RunState
from blockwright.ir import Call, Expr, StringImm, dtype_of
from blockwright.support import InterpretError
from blockwright.support.stack import in_room

if TYPE_CHECKING:
    from blockwright.interp.calls import CallCompiler

MAX_DEPTH = 1000

_ROOM = 10
"""Active calls from which they run on the larger stack."""


class Slot(msgspec.Struct, eq=False):
    """A place for a value; None if it is empty."""

    value: Any = None


class Closure(msgspec.Struct, frozen=True, eq=False):
    """A program of the module with the values of its last arguments."""

    state: RunState
    name: str
    params: int
    captured: tuple[Any, ...]

    def __call__(self, *args: Any) -> Any:
        return self.call(args, 0)

    def call(self, args: Sequence[Any], depth: int) -> Any:
        """Call it; `depth` is the number of active calls."""
        if len(args) != self.params:
            raise InterpretError(
                f"a closure takes {self.params} arguments, got {len(args)}", code="BW701"
            )
        return self.state.call_entry(self.state, self.name, [*args, *self.captured], depth)


def _item(items: Sequence[Any], index: int) -> Any:
    item = items[index]
    return cast("Any", item).copy() if isinstance(item, np.ndarray) else item


FFI_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ffi.Array": lambda *items: items,
    "ffi.Shape": lambda *sizes: sizes,
    "ffi.ArrayGetItem": _item,
    "ffi.ArraySize": len,
}
"""Functions of the FFI itself. Tensors in an array are copies."""


def compile_object(c: CallCompiler, expr: Call) -> Fn:
    """A closure that runs an operation on FFI values."""
    return _OPERATIONS[expr.op](c, expr)


def _slot(c: CallCompiler, expr: Call) -> Fn:
    return lambda env: Slot()


def _value(c: CallCompiler, expr: Call) -> Fn:
    slot = c.argument(expr.args[0])
    return lambda env: slot(env).value


def _copy(c: CallCompiler, expr: Call) -> Fn:
    out, source = (c.argument(a) for a in expr.args)

    def copy(env: Env) -> int:
        out(env).value = source(env).value
        return 0

    return copy


def _clear(c: CallCompiler, expr: Call) -> Fn:
    slot = c.argument(expr.args[0])

    def clear(env: Env) -> int:
        slot(env).value = None
        return 0

    return clear


def _load(c: CallCompiler, expr: Call) -> Fn:
    tensor, slot = (c.argument(a) for a in expr.args[:2])
    name = expr.args[2].value if isinstance(expr.args[2], StringImm) else ""

    def load(env: Env) -> int:
        found, memory = slot(env).value, tensor(env)
        problem = _problem(found, memory)
        if problem is not None:
            raise InterpretError(f"the value of {name} {problem[1]}", code=problem[0])
        memory[...] = found
        return 0

    return load


def _check(c: CallCompiler, expr: Call) -> Fn:
    slot, number = c.argument(expr.args[0]), c.argument(expr.args[3])
    kind, dtype, name = (expr.args[k] for k in (1, 2, 4))
    assert isinstance(kind, StringImm)
    assert isinstance(dtype, StringImm)
    assert isinstance(name, StringImm)

    def check(env: Env) -> int:
        problem = _wrong(slot(env).value, kind.value, dtype.value, int(number(env)))
        if problem is not None:
            raise InterpretError(f"the value of {name.value} {problem[1]}", code=problem[0])
        return 0

    return check


_KINDS: dict[str, Callable[[Any], bool]] = {
    "tensor": lambda v: isinstance(v, np.ndarray),
    "function": callable,
    "tuple": lambda v: isinstance(v, (tuple, list)),
    "shape": lambda v: isinstance(v, tuple),
    "int": lambda v: isinstance(v, (int, np.integer)) and not isinstance(v, bool),
    "float": lambda v: isinstance(v, (float, np.floating)),
    "bool": lambda v: isinstance(v, (bool, np.bool_)),
    "count": lambda v: isinstance(v, int),
}


def _wrong(found: Any, kind: str, dtype: str, number: int) -> tuple[str, str] | None:
    """Why a value is not of a kind, or a tensor not of a type or rank; see `check_object`."""
    if not _KINDS[kind](found):
        return "BW702", f"is a {type(found).__name__}, not a {kind}"
    if kind == "count" and found != number:
        return "BW702", f"has {found} fields, not {number}"
    if kind == "tensor" and dtype and found.dtype != dtype_of(dtype).numpy():
        return "BW703", f"has elements of {found.dtype}, not of {dtype}"
    if kind == "tensor" and number >= 0 and found.ndim != number:
        return "BW704", f"has {found.ndim} dimensions, not {number}"
    return None


def _problem(found: Any, memory: Any) -> tuple[str, str] | None:
    """Why a value cannot be copied to memory of a type and shape."""
    if not isinstance(found, np.ndarray):
        return "BW702", f"is a {type(found).__name__}, not a tensor"
    array = cast("np.ndarray[Any, Any]", found)
    if array.dtype != memory.dtype:
        return "BW703", f"has elements of {array.dtype}, not of {memory.dtype}"
    if array.shape != memory.shape:
        return "BW704", f"has the shape {array.shape}, not {memory.shape}"
    return None


def _call(c: CallCompiler, expr: Call) -> Fn:
    out, function, depth, *args = expr.args
    name = function.value if isinstance(function, StringImm) else ""
    place, values = c.argument(out), _packed(c, args)
    callee = None if name else c.argument(function)
    active = c.argument(depth)

    def call(env: Env) -> int:
        named = env[1].packed.get(name, FFI_FUNCTIONS.get(name))
        known = named if callee is None else callee(env).value
        level = int(active(env))
        if not callable(known):
            what = f"function {name!r}" if name else f"{type(known).__name__} that is called"
            raise InterpretError(f"there is no {what}", code="BW757" if name else "BW702")
        if level >= MAX_DEPTH:
            raise InterpretError(f"more than {MAX_DEPTH} calls are active", code="BW723")
        given = values(env)
        if level == _ROOM:
            place(env).value = in_room(_called, known, given, level)
        else:
            place(env).value = _called(known, given, level)
        return 0

    return call


def _called(function: Callable[..., Any], args: Sequence[Any], depth: int) -> Any:
    return function.call(args, depth) if isinstance(function, Closure) else function(*args)


def _closure(c: CallCompiler, expr: Call) -> Fn:
    out, name, params, *captured = expr.args
    assert isinstance(name, StringImm)
    place, count, values = c.argument(out), c.argument(params), _packed(c, captured)

    def make(env: Env) -> int:
        place(env).value = Closure(env[1], name.value, int(count(env)), tuple(values(env)))
        return 0

    return make


def _packed(c: CallCompiler, args: Sequence[Expr]) -> Callable[[Env], list[Any]]:
    """Arguments of a call; tensors are copies."""
    given = [c.packed_argument(a) for a in args]

    def values(env: Env) -> list[Any]:
        found = [a(env) for a in given]
        return [v.copy() if isinstance(v, np.ndarray) else v for v in found]

    return values


_OPERATIONS: dict[str, Callable[[CallCompiler, Call], Fn]] = {
    "object_slot": _slot, "object_value": _value, "copy_object": _copy, "clear_object": _clear,
    "load_object": _load, "check_object": _check, "call_object": _call, "make_closure": _closure,
}  # fmt: skip
OBJECT_OPERATIONS = frozenset(_OPERATIONS)

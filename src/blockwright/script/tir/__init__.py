"""The `T` dialect: tensor programs in TVMScript syntax.

    @T.prim_func
    def add_one(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
        for i in range(128):
            with T.block("B"):
                vi = T.axis.spatial(128, i)
                B[vi] = A[vi] + 1.0

A Python integer in an index position (a shape, a loop bound, …) has the type int32, or the type of
the option `@T.prim_func(index_dtype="int64")`.

In addition to the names below, there is one function per builtin operation (`T.exp`, `T.sqrt`, …)
and one name per data type (`T.float32`, `T.int8x16`, …), created on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from blockwright import ir
from blockwright.analysis.validate.well_formed import find_problems
from blockwright.ir import OPS, DType, PrimFunc, dtype_of
from blockwright.script.core import (
    Reporter,
    Script,
    caller_environment,
    decorated_function,
    in_module_class,
)
from blockwright.script.tir import blocks, classic, control, expressions, reducers, statements
from blockwright.script.tir.arguments import call_global
from blockwright.script.tir.blocks import *  # noqa: F403
from blockwright.script.tir.builder import FuncFrame
from blockwright.script.tir.classic import *  # noqa: F403
from blockwright.script.tir.classic import REPLACED, Range_, replaced
from blockwright.script.tir.control import *  # noqa: F403
from blockwright.script.tir.expressions import *  # noqa: F403
from blockwright.script.tir.expressions import (
    broadcast,
    builtin,
    fresh_var,
    named_var,
    ramp,
    shuffle,
)
from blockwright.script.tir.hardware import HARDWARE, hardware_call
from blockwright.script.tir.ldexp import ldexp
from blockwright.script.tir.macro import Macro, inline, macro
from blockwright.script.tir.parser import TirParser
from blockwright.script.tir.reducers import *  # noqa: F403
from blockwright.script.tir.statements import *  # noqa: F403
from blockwright.script.tir.statements import Buffer_ as Buffer
from blockwright.script.tir.values import DTypeFactory, index_type
from blockwright.support import IRError
from blockwright.support.stack import deep

__all__ = [
    "Broadcast", "Buffer", "Macro", "Ptr", "Ramp", "Range", "Shuffle", "SizeVar", "Var", "boolean",
    "buffer", "call_global", "inline", "ldexp", "macro", "prim_func", "ptr",
]  # fmt: skip
__all__ += blocks.__all__
__all__ += classic.__all__
__all__ += control.__all__
__all__ += expressions.__all__
__all__ += reducers.__all__
__all__ += statements.__all__

_made: dict[str, Callable[..., Any]] = {}

Ramp, Broadcast, Shuffle = ramp, broadcast, shuffle
Range, Var, SizeVar = Range_, named_var, named_var
boolean = DTypeFactory(ir.dtype_of("bool"), fresh_var)
Ptr = ptr = DTypeFactory(ir.dtype_of("handle"), fresh_var)
buffer = Buffer


class DeferredFunction:
    """A function inside a module class, to be parsed by the module's decorator."""

    def __init__(self, func: FunctionType) -> None:
        self.raw_function = func


def prim_func(
    func: Any = None,
    *,
    private: bool = False,
    check_well_formed: bool = True,
    index_dtype: str | DType = "int32",
    name: str | None = None,
) -> Any:
    """Decorator: parse a function into a `PrimFunc`.

    Names that the dialect does not define are looked up in the enclosing Python scope.

    Args:
        private: generate no entry point for callers outside the module.
        check_well_formed: check the program, for example that explicit block signatures cover all
            accesses of the block.
        index_dtype: "int32" or "int64", the type of Python integers in index positions that do not
            take their type from another expression: shapes, strides and offsets of buffers, loop
            bounds, domains and values of block iterators, and `T.ramp`. An index into a buffer has
            the type of the extent of its dimension. A macro has the index type of the function that
            it is expanded into.
        name: the name of the function, where it is no name in Python or has another meaning in a
            program, such as `T`. The parser reads it from the source.
    """
    configured = _Configured(private, check_well_formed, index_type(index_dtype))
    return configured if func is None else configured.parse(func)


class _Configured:
    """The form `@T.prim_func(private=True)`; in the IR builder, `with T.prim_func():`."""

    def __init__(self, private: bool, check: bool, index_dtype: DType) -> None:
        self.private, self.check, self.index_dtype = private, check, index_dtype
        self._frame: FuncFrame | None = None

    def __enter__(self) -> None:
        self._frame = FuncFrame("main", self.private, self.index_dtype, self.check)
        self._frame.__enter__()

    def __exit__(self, *error: Any) -> None:
        assert self._frame is not None
        self._frame.__exit__(*error)

    def __call__(self, func: FunctionType) -> Any:
        return self.parse(func)

    def parse(self, func: FunctionType) -> PrimFunc | DeferredFunction:
        frame, env = caller_environment(2)
        if in_module_class(func, frame):
            return DeferredFunction(func)
        return self._parsed(decorated_function(func, env))

    @deep
    def _parsed(self, script: Script) -> PrimFunc:
        reporter = Reporter(script)
        parser = TirParser(script, reporter)
        result = parser.function(script.function, self.private, self.index_dtype, self.check)
        if result is not None and self.check:
            reporter.found.extend(find_problems(result))
        if result is None or reporter.found:
            reporter.fail()
        return result


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    value: Callable[..., Any] | None = _made.get(name)
    if value is not None:
        return value
    if name in HARDWARE:
        value = hardware_call(name)
    elif name in OPS:
        value = builtin(name)
    elif name in REPLACED:
        raise replaced(name)
    else:
        try:
            value = DTypeFactory(dtype_of(name), fresh_var)
        except IRError:
            raise AttributeError(f"the T dialect has no {name!r}") from None
    _made[name] = value
    return value


def __dir__() -> list[str]:
    kinds = ("bool", "float16", "float32", "float64", "handle", "int8", "int32", "int64", "uint8")
    return sorted({*__all__, *OPS, *HARDWARE, *kinds})

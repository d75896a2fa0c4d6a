"""The `T` dialect: tensor programs in the classic spelling.

    @T.prim_func
    def add_one(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
        for i in range(128):
            with T.block("B"):
                vi = T.axis.spatial(128, i)
                B[vi] = A[vi] + 1.0

Besides the names below there are one function per builtin operation (`T.exp`, `T.sqrt`, …) and one
name per data type (`T.float32`, `T.int8x16`, …), made when first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from blockwright import ir
from blockwright.ir import OPS, PrimFunc, dtype_of
from blockwright.script.core import (
    Reporter,
    caller_environment,
    decorated_function,
    in_module_class,
)
from blockwright.script.tir import blocks, expressions, reducers, statements
from blockwright.script.tir.blocks import *  # noqa: F403
from blockwright.script.tir.expressions import *  # noqa: F403
from blockwright.script.tir.expressions import broadcast, builtin, fresh_var, ramp, shuffle
from blockwright.script.tir.parser import TirParser
from blockwright.script.tir.reducers import *  # noqa: F403
from blockwright.script.tir.statements import *  # noqa: F403
from blockwright.script.tir.statements import Buffer_ as Buffer
from blockwright.script.tir.values import DTypeFactory
from blockwright.support import IRError

__all__ = ["Broadcast", "Buffer", "Ramp", "Shuffle", "boolean", "prim_func"]
__all__ += blocks.__all__
__all__ += expressions.__all__
__all__ += reducers.__all__
__all__ += statements.__all__

_made: dict[str, Callable[..., Any]] = {}

Ramp, Broadcast, Shuffle = ramp, broadcast, shuffle
boolean = DTypeFactory(ir.dtype_of("bool"), fresh_var)


class DeferredFunction:
    """A function inside a module class: the module's decorator parses it."""

    def __init__(self, func: FunctionType) -> None:
        self.raw_function = func


def prim_func(func: Any = None, *, private: bool = False, check_well_formed: bool = True) -> Any:
    """Decorator: parse a function into a `PrimFunc`.

    `private` functions get no entry for callers outside the module. Names that the dialect does
    not define are looked up in the Python scope around the function.
    """
    if func is None:
        return _Configured(private)
    return _parse(func, private)


class _Configured:
    """`@T.prim_func(private=True)`."""

    def __init__(self, private: bool) -> None:
        self.private = private

    def __call__(self, func: FunctionType) -> Any:
        return _parse(func, self.private)


def _parse(func: FunctionType, private: bool) -> PrimFunc | DeferredFunction:
    frame, env = caller_environment(2)
    if in_module_class(func, frame):
        return DeferredFunction(func)
    script = decorated_function(func, env)
    reporter = Reporter(script)
    result = TirParser(script, reporter).function(script.function, private)
    if result is None:
        reporter.fail()
    return result


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    value: Callable[..., Any] | None = _made.get(name)
    if value is not None:
        return value
    if name in OPS:
        value = builtin(name)
    else:
        try:
            value = DTypeFactory(dtype_of(name), fresh_var)
        except IRError:
            raise AttributeError(f"the T dialect has no {name!r}") from None
    _made[name] = value
    return value


def __dir__() -> list[str]:
    kinds = ("bool", "float16", "float32", "float64", "handle", "int8", "int32", "int64", "uint8")
    return sorted({*__all__, *OPS, *kinds})

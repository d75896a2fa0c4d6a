"""The `I` dialect: modules that hold functions of both levels; and parsing of plain text.

@I.ir_module
class Module:
    @T.prim_func
    def f(...): ...

    @R.function
    def main(...): ...
"""

from __future__ import annotations

from typing import Any

from blockwright.ir import IRModule
from blockwright.script.core import caller_environment, decorated_class
from blockwright.script.ir.functions import constant, module_attrs
from blockwright.script.ir.parser import from_source, parse_module

__all__ = ["constant", "from_source", "ir_module", "module_attrs"]


def ir_module(cls: type | None = None, **_: Any) -> Any:
    """Decorator: parse a class whose functions are dialect functions into an `IRModule`."""
    if cls is None:
        return _ModuleDecorator()
    return _decorate(cls)


class _ModuleDecorator:
    """`@I.ir_module()`."""

    def __call__(self, cls: type) -> IRModule:
        return _decorate(cls)


def _decorate(cls: type) -> IRModule:
    frame, env = caller_environment(2)
    return parse_module(decorated_class(cls, frame, env))

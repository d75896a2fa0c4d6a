"""Evaluate expressions of the `T` dialect, and references to functions of the enclosing module."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from blockwright import ir
from blockwright.ir import Buffer, Expr
from blockwright.script.core import Evaluator, items_of
from blockwright.script.tir import classic, expressions, statements
from blockwright.script.tir.arguments import call_global
from blockwright.script.tir.values import (
    BufferSlice,
    DTypeFactory,
    check_rank,
    to_expr,
    vector_indices,
)
from blockwright.support import ScriptError

_SPLICED: dict[Any, Callable[..., Any]] = {
    builtins.min: expressions.min, builtins.max: expressions.max,
    builtins.abs: expressions.builtin("abs"),
}  # fmt: skip


def _install_methods() -> None:
    """Add `data`, `access_ptr`, `vload` and `vstore` to `Buffer`, also for Python helpers."""
    methods: dict[str, Any] = {
        "data": property(classic.origin),
        "access_ptr": classic.access_ptr,
        "vload": expressions.vload,
        "vstore": statements.vstore,
    }
    for name, method in methods.items():
        setattr(Buffer, name, method)


_install_methods()


class FunctionRef:
    """A function of the enclosing module: `cls.f`."""

    def __init__(self, name: str) -> None:
        self.name = name


class ModuleRef:
    """The enclosing module (`cls`, or its class name); `functions` None accepts any name."""

    def __init__(self, functions: Iterable[str] | None = None) -> None:
        self.__names = None if functions is None else frozenset(functions)

    def __getattr__(self, name: str) -> FunctionRef:
        if name.startswith("__") or (self.__names is not None and name not in self.__names):
            raise AttributeError(name)
        return FunctionRef(name)

    def __getitem__(self, name: Any) -> FunctionRef:
        """A function whose name is no name in Python: `cls["f.1"]`."""
        if not isinstance(name, str) or (self.__names is not None and name not in self.__names):
            known = ", ".join(dir(self)) or "none"
            raise ScriptError(
                f"no function {name!r} in the module", code="BW102", help=f"functions: {known}"
            )
        return FunctionRef(name)

    def __dir__(self) -> list[str]:
        return sorted(self.__names or ())


class TirEvaluator(Evaluator):
    """Evaluates `T` expressions: subscripts of buffers; Python's `min`, `max`, `abs` build IR."""

    def operand(self, value: Any) -> Any:
        if isinstance(value, (BufferSlice, Buffer, DTypeFactory)):
            return to_expr(value)
        return value

    def attribute(self, value: Any, name: str, node: ast.Attribute) -> Any:
        if isinstance(value, Buffer) and name in classic.FACTS:
            return classic.FACTS[name](value)
        if isinstance(value, Expr) and name == "astype":
            return partial(expressions.cast, value)
        return super().attribute(value, name, node)

    def subscript(self, value: Any, index: Any, node: ast.Subscript) -> Any:
        if not isinstance(value, Buffer):
            return value[index]
        items = items_of(index)
        if any(isinstance(item, slice) for item in items):
            check_rank(value, len(items))
            return BufferSlice(value, tuple(items))
        return ir.BufferLoad(value, vector_indices(value, items), span=self.span(node))

    def eval_IfExp(self, node: ast.IfExp) -> Any:
        condition = self.operand(self.eval(node.test))
        if not self.is_ir(condition):
            return self.eval(node.body if condition else node.orelse)
        a, b = self.eval(node.body), self.eval(node.orelse)
        return expressions.if_then_else(condition, a, b)

    def binary(self, op: ast.operator, a: Any, b: Any, node: ast.BinOp) -> Any:
        built = expressions.operator_of(op, a, b)
        return super().binary(op, a, b, node) if built is None else built

    def called(self, func: Any, args: list[Any], kwargs: dict[str, Any], node: ast.Call) -> Any:
        if isinstance(func, FunctionRef):
            return call_global(func.name, *args, **kwargs).replace(span=self.span(node))
        spliced = _SPLICED.get(func) if isinstance(func, type(builtins.min)) else None
        if spliced is not None and any(isinstance(a, (Expr, BufferSlice)) for a in args):
            func = spliced
        value = func(*args, **kwargs)
        if isinstance(value, (ir.Call, ir.Select, ir.Cast, ir.BinaryOp)) and value.span is None:
            return value.replace(span=self.span(node))
        return value

    def is_callable(self, value: Any) -> bool:
        return callable(value) or isinstance(value, FunctionRef)

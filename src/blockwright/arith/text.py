"""Short text of expressions for logs and errors, without the program printer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockwright.ir import (
    And,
    BinaryOp,
    Broadcast,
    BufferLoad,
    Call,
    Cast,
    CompareOp,
    Expr,
    FloatImm,
    IntImm,
    Let,
    Max,
    Min,
    Not,
    Or,
    Ramp,
    Select,
    Shuffle,
    StringImm,
    Var,
)


def expr_text(expr: Expr) -> str:
    """Infix text, with parentheses around nested operations."""
    rule = _RULES.get(type(expr))
    if rule is not None:
        return rule(expr)
    if isinstance(expr, (Min, Max)):
        return f"{expr.symbol}({expr_text(expr.a)}, {expr_text(expr.b)})"
    if isinstance(expr, (BinaryOp, CompareOp)):
        return f"{_nested(expr.a)} {expr.symbol} {_nested(expr.b)}"
    return f"<{type(expr).__name__}>"


def _nested(expr: Expr) -> str:
    text = expr_text(expr)
    infix = isinstance(expr, (BinaryOp, CompareOp, And, Or)) and not isinstance(expr, (Min, Max))
    return f"({text})" if infix else text


def _list(items: tuple[Expr, ...]) -> str:
    return ", ".join(expr_text(e) for e in items)


_SIGNS = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}


def _call(e: Call) -> str:
    if e.op in _SIGNS:
        return f"({_nested(e.args[0])} {_SIGNS[e.op]} {_nested(e.args[1])})"
    return f"{e.op}({_list(e.args)})"


_RULES: dict[type[Any], Callable[[Any], str]] = {
    Var: lambda e: e.name,
    IntImm: lambda e: str(bool(e.value)) if e.type.is_bool else str(e.value),
    FloatImm: lambda e: repr(e.value),
    StringImm: lambda e: repr(e.value),
    Cast: lambda e: f"{e.type}({expr_text(e.value)})",
    And: lambda e: f"{_nested(e.a)} and {_nested(e.b)}",
    Or: lambda e: f"{_nested(e.a)} or {_nested(e.b)}",
    Not: lambda e: f"not {_nested(e.a)}",
    Select: lambda e: f"select({_list((e.condition, e.true_value, e.false_value))})",
    Let: lambda e: f"let {e.var.name} = {expr_text(e.value)} in {expr_text(e.body)}",
    BufferLoad: lambda e: f"{e.buffer.name}[{_list(e.indices)}]",
    Ramp: lambda e: f"ramp({expr_text(e.base)}, {expr_text(e.stride)}, {e.lanes})",
    Broadcast: lambda e: f"broadcast({expr_text(e.value)}, {e.lanes})",
    Shuffle: lambda e: f"shuffle({_list(e.vectors)}; {', '.join(map(str, e.indices))})",
    Call: lambda e: _call(e),
}

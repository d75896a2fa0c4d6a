"""Python operators of `Expr`, and indexing of `Buffer`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from blockwright.ir import expr as E
from blockwright.ir.buffer import Buffer
from blockwright.ir.build import (
    add,
    binary,
    call,
    compare,
    floordiv,
    floormod,
    load,
    logical_and,
    logical_not,
    logical_or,
    mul,
    sub,
    truediv,
)
from blockwright.ir.convert import const, match_types
from blockwright.ir.expr import Expr, ExprLike, FloatImm

_Operator = Callable[[Any, Any], Expr]


def _comparing(cls: type[E.CompareOp]) -> _Operator:
    return lambda a, b: compare(cls, a, b)


def _calling(op: str) -> _Operator:
    return lambda a, b: call(op, *match_types(a, b))


def _bit_or_logical(op: str, logical: _Operator) -> _Operator:
    def apply(a: Any, b: Any) -> Expr:
        x, y = match_types(a, b)
        return logical(x, y) if x.dtype.is_bool else call(op, x, y)

    return apply


def _swapped(fn: _Operator) -> _Operator:
    return lambda a, b: fn(b, a)


def _negate(value: Expr) -> Expr:
    if isinstance(value, FloatImm):
        return FloatImm(-value.value, value.dtype)
    if value.dtype.is_float:
        return E.Mul(value, const(-1.0, value.dtype))
    return binary(E.Sub, const(0, value.dtype), value)


def _invert(value: Expr) -> Expr:
    return logical_not(value) if value.dtype.is_bool else call("bitwise_not", value)


def _element(self: Buffer, index: ExprLike | tuple[ExprLike, ...]) -> Expr:
    at = cast("tuple[ExprLike, ...]", index) if isinstance(index, tuple) else (index,)
    return load(self, *at)


def install_operators() -> None:
    """Define the operators of `Expr` and `Buffer`; `blockwright.ir` calls this once."""
    two_sided: dict[str, _Operator] = {
        "add": add, "sub": sub, "mul": mul, "floordiv": floordiv, "mod": floormod,
        "truediv": truediv, "and": _bit_or_logical("bitwise_and", logical_and),
        "or": _bit_or_logical("bitwise_or", logical_or), "xor": _calling("bitwise_xor"),
        "lshift": _calling("shift_left"), "rshift": _calling("shift_right"),
    }  # fmt: skip
    for name, fn in two_sided.items():
        setattr(Expr, f"__{name}__", fn)
        setattr(Expr, f"__r{name}__", _swapped(fn))
    for name, cls in {"lt": E.LT, "le": E.LE, "gt": E.GT, "ge": E.GE}.items():
        setattr(Expr, f"__{name}__", _comparing(cls))
    for name, one_sided in {"neg": _negate, "invert": _invert}.items():
        setattr(Expr, f"__{name}__", one_sided)
    Buffer.__getitem__ = _element

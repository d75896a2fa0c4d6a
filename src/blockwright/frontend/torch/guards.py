"""Guards of an exported program on sizes, checked at every call.

PyTorch writes its guards as Python, such as ``L['x'].size()[0] // 2 + (-1) == 1``. Where one fails,
the exported program may differ from the model: it was specialized for the sizes of the example.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blockwright import ir

_ARITHMETIC: dict[type[ast.operator], Callable[[ir.Expr, ir.Expr], ir.Expr]] = {
    ast.Add: ir.add,
    ast.Sub: ir.sub,
    ast.Mult: ir.mul,
    ast.FloorDiv: ir.floordiv,
    ast.Mod: ir.floormod,
}
_EXTREMES: dict[str, Callable[[ir.Expr, ir.Expr], ir.Expr]] = {
    "min": ir.minimum,
    "max": ir.maximum,
}
_SIZES = Mapping[str, Sequence[ir.Expr]]


class _Other(Exception):
    """A guard, or part of one, that is no arithmetic of sizes."""


def size_guards(program: Any, sizes: _SIZES) -> list[tuple[ir.Expr, ir.Expr]]:
    """Pairs of expressions of sizes that are equal where a guard of an exported program holds.

    ``a >= 2`` becomes ``(max(a, 2), a)``. Guards of other things than sizes are left out: types and
    ranks are checked anyway, and values of numbers are part of the program.

    Args:
        sizes: the dimensions of each input, by the name of its placeholder.
    """
    found: list[tuple[ir.Expr, ir.Expr]] = []
    for text in getattr(program, "_guards_code", ()):
        try:
            found += _equalities(ast.parse(text, mode="eval").body, sizes)
        except (_Other, SyntaxError):
            continue
    return found


def _equalities(node: ast.expr, sizes: _SIZES) -> list[tuple[ir.Expr, ir.Expr]]:
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return [pair for value in node.values for pair in _equalities(value, sizes)]
    if not isinstance(node, ast.Compare):
        raise _Other
    values = [_value(part, sizes) for part in (node.left, *node.comparators)]
    return [_equality(op, a, b) for op, a, b in zip(node.ops, values[:-1], values[1:], strict=True)]


def _equality(op: ast.cmpop, a: ir.Expr, b: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    one = ir.const(1, "int64")
    match op:
        case ast.Eq():
            return a, b
        case ast.GtE():
            return ir.maximum(a, b), a
        case ast.LtE():
            return ir.minimum(a, b), a
        case ast.Gt():
            return ir.maximum(a, ir.add(b, one)), a
        case ast.Lt():
            return ir.minimum(a, ir.sub(b, one)), a
        case ast.NotEq():
            apart = ir.maximum(ir.sub(a, b), ir.sub(b, a))
            return ir.maximum(apart, one), apart
        case _:
            raise _Other


def _value(node: ast.expr, sizes: _SIZES) -> ir.Expr:
    match node:
        case ast.Constant(value=int(number)):
            return ir.const(number, "int64")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return ir.sub(ir.const(0, "int64"), _value(operand, sizes))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](_value(left, sizes), _value(right, sizes))
        case ast.Call(func=ast.Name(id=name), args=[a, b]) if name in _EXTREMES:
            return _EXTREMES[name](_value(a, sizes), _value(b, sizes))
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=source, attr="size"), args=[]),
            slice=ast.Constant(value=int(axis)),
        ):
            dims = sizes.get(_placeholder(source), ())
            if axis < len(dims):
                return dims[axis]
        case _:
            pass
    raise _Other


def _placeholder(source: ast.expr) -> str:
    """The name of the placeholder of an input: `x_0` for ``L['x'][0]``."""
    match source:
        case ast.Name():
            return ""
        case ast.Subscript(value=value, slice=ast.Constant(value=key)):
            before = _placeholder(value)
            return f"{before}_{key}" if before else str(key)
        case ast.Attribute(value=value, attr=name):
            return f"{_placeholder(value)}_{name}"
        case _:
            raise _Other

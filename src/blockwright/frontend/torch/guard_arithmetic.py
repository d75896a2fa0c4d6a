"""Translate the Python arithmetic on sizes in guards of an exported program to expressions.

Values are int64, float64 or bool, with Python's semantics: `/` divides in floating point, `//` and
`%` round down, `round` rounds halves to even. Values do not overflow: a guard on a product of sizes
concerns a number of elements.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TypeAlias

from blockwright import ir
from blockwright.frontend.torch.size_arithmetic import (
    FLOAT,
    INT,
    absolute,
    alike,
    floored,
    nearest,
    raised,
)

_HIGHEST_POWER = 8

Size: TypeAlias = Callable[[ast.expr], ir.Expr]
"""Translates a size of an input; raises NotCovered for other expressions."""


class NotCovered(Exception):
    """An expression that is not arithmetic on sizes."""


_ARITHMETIC: dict[type[ast.operator], Callable[[ir.Expr, ir.Expr], ir.Expr]] = {
    ast.Add: ir.add,
    ast.Sub: ir.sub,
    ast.Mult: ir.mul,
}
_WHOLE: dict[type[ast.operator], Callable[[ir.Expr, ir.Expr], ir.Expr]] = {
    ast.FloorDiv: ir.floordiv,
    ast.Mod: ir.floormod,
}
_BITS: dict[type[ast.operator], str] = {
    ast.BitAnd: "bitwise_and",
    ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor",
}
_COMPARISONS: dict[type[ast.cmpop], type[ir.CompareOp]] = {
    ast.Eq: ir.EQ,
    ast.NotEq: ir.NE,
    ast.Lt: ir.LT,
    ast.LtE: ir.LE,
    ast.Gt: ir.GT,
    ast.GtE: ir.GE,
}


def truth(node: ast.expr, size: Size, divisors: list[ir.Expr]) -> ir.Expr:
    """Translate a condition.

    The conditions under which it can be evaluated, that divisors are not zero, are appended to
    `divisors`.
    """
    match node:
        case ast.Constant(value=bool(known)):
            return ir.const(known, "bool")
        case ast.BoolOp(op=op, values=[first, *others]):
            result = truth(first, size, divisors)
            for other in others:
                result = _joined(op, result, other, size, divisors)
            return result
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ir.logical_not(truth(operand, size, divisors))
        case ast.Compare(left=left, ops=ops, comparators=others):
            values = [number(v, size, divisors) for v in (left, *others)]
            return ir.all_of(
                _compare(op, a, b) for op, a, b in zip(ops, values, values[1:], strict=False)
            )
        case _:
            raise NotCovered


def all_in_turn(conditions: Sequence[ir.Expr]) -> ir.Expr:
    """Conjunction of all conditions; each is evaluated only if those before it hold."""
    result: ir.Expr = ir.const(True, "bool")
    for condition in reversed(conditions):
        false = ir.const(False, "bool")
        holds = ir.is_const_int(result, 1)
        result = condition if holds else ir.if_then_else(condition, result, false)
    return result


def _joined(
    op: ast.boolop, before: ir.Expr, node: ast.expr, size: Size, divisors: list[ir.Expr]
) -> ir.Expr:
    """`before and node`, or `before or node`, with short-circuit evaluation."""
    own: list[ir.Expr] = []
    holds = truth(node, size, own)
    both = isinstance(op, ast.And)
    if own:
        defined = all_in_turn(own)
        divisors.append(ir.logical_or(ir.logical_not(before) if both else before, defined))
        holds = all_in_turn([*own, holds])
    return ir.logical_and(before, holds) if both else ir.logical_or(before, holds)


def _compare(op: ast.cmpop, a: ir.Expr, b: ir.Expr) -> ir.Expr:
    if type(op) not in _COMPARISONS:
        raise NotCovered
    return ir.compare(_COMPARISONS[type(op)], *alike(a, b))


def number(node: ast.expr, size: Size, divisors: list[ir.Expr]) -> ir.Expr:
    """Translate a value, int64 or float64."""
    match node:
        case ast.Constant(value=bool()):
            raise NotCovered
        case ast.Constant(value=int(known)) if known.bit_length() < INT.bits:
            return ir.const(known, INT)
        case ast.Constant(value=float(known)):
            return ir.const(known, FLOAT)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = number(operand, size, divisors)
            return ir.sub(ir.const(0, value.dtype), value)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() | float() as power)):
            return _power(number(left, size, divisors), power)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = number(left, size, divisors), number(right, size, divisors)
            return _operation(op, a, b, divisors)
        case ast.IfExp(test=test, body=body, orelse=other):
            return _chosen(test, body, other, size, divisors)
        case ast.Call(func=func, args=args, keywords=[]):
            return _call(ast.unparse(func), [number(a, size, divisors) for a in args])
        case _:
            return size(node)


def _chosen(
    test: ast.expr, body: ast.expr, other: ast.expr, size: Size, divisors: list[ir.Expr]
) -> ir.Expr:
    """`body if test else other`; only one of them is evaluated."""
    condition = truth(test, size, divisors)
    of_body: list[ir.Expr] = []
    of_other: list[ir.Expr] = []
    sides = alike(number(body, size, of_body), number(other, size, of_other))
    if of_body:
        divisors.append(ir.logical_or(ir.logical_not(condition), all_in_turn(of_body)))
    if of_other:
        divisors.append(ir.logical_or(condition, all_in_turn(of_other)))
    return ir.if_then_else(condition, *sides)


def _operation(op: ast.operator, a: ir.Expr, b: ir.Expr, divisors: list[ir.Expr]) -> ir.Expr:
    kind, both_whole = type(op), a.dtype is b.dtype is INT
    if kind in _ARITHMETIC:
        return _ARITHMETIC[kind](*alike(a, b))
    if kind in _BITS and both_whole:
        return ir.call(_BITS[kind], a, b)
    if kind is ast.Div or (kind in _WHOLE and both_whole):
        if not isinstance(b, (ir.IntImm, ir.FloatImm)) or b.value == 0:
            divisors.append(ir.compare(ir.NE, b, ir.const(0, b.dtype)))
        if kind in _WHOLE:
            return _WHOLE[kind](a, b)
        return ir.truediv(ir.cast_to(a, FLOAT), ir.cast_to(b, FLOAT))
    raise NotCovered


def _power(base: ir.Expr, exponent: float) -> ir.Expr:
    """A small integral power, or a root; a float if either operand is, as in Python."""
    if exponent == 0.5:
        return _root(base)
    if exponent != int(exponent) or not 1 <= exponent <= _HIGHEST_POWER:
        raise NotCovered
    if isinstance(exponent, float):
        base = ir.cast_to(base, FLOAT)
    return reduce(ir.mul, [base] * int(exponent))


def _root(value: ir.Expr) -> ir.Expr:
    return ir.call("sqrt", ir.cast_to(value, FLOAT))


def _call(name: str, args: list[ir.Expr]) -> ir.Expr:
    match name, args:
        case (("min" | "torch.sym_min"), [_, *_]):
            return reduce(lambda a, b: ir.minimum(*alike(a, b)), args)
        case (("max" | "torch.sym_max"), [_, *_]):
            return reduce(lambda a, b: ir.maximum(*alike(a, b)), args)
        case "abs", [value]:
            return absolute(value)
        case (("torch.sym_float" | "float"), [value]):
            return ir.cast_to(value, FLOAT)
        case (("torch._sym_sqrt" | "math.sqrt"), [value]):
            return _root(value)
        case (("math.trunc" | "int" | "torch.sym_int"), [value]):
            return ir.cast_to(value, INT)
        case "math.floor", [value]:
            return floored(value)
        case "math.ceil", [value]:
            return raised(value)
        case "round", [value]:
            return nearest(value)
        case _:
            raise NotCovered

"""Arithmetic of Arm's BFDOT and BFMMLA (FPCR.EBF = 0): rounded to odd, subnormals flushed to zero.

Round to odd truncates and sets the last bit of an inexact result; results beyond the largest
float32 are infinite. Inputs and results below the smallest normal float32 are zeros of their sign.
The result is an expression of float64 and bit operations, so that interpreter and code generator
compute the same bits on any machine.
"""

from __future__ import annotations

from collections.abc import Callable

from blockwright import ir
from blockwright.ir import Expr

_DROPPED = (1 << 29) - 1
"""Bits of a float64 below the last bit of a float32."""


def product(x: Expr, y: Expr) -> Expr:
    """The product of two float32 that hold bfloat16 numbers; it is exact unless it is flushed."""
    return flushed(flushed(x) * flushed(y))


def flushed(x: Expr) -> Expr:
    """A float32, or a zero of its sign if it is subnormal."""

    def choose(x: Expr) -> Expr:
        small = ir.LT(ir.Call("abs", (x,), x.dtype), _number(2.0**-126, x))
        return ir.Select(small, ir.Call("copysign", (_number(0.0, x), x), x.dtype), x)

    return _named(x, choose)


def add(x: Expr, y: Expr) -> Expr:
    """The sum of two float32 without subnormals, rounded to odd and flushed.

    The float64 sum and its error (Knuth's TwoSum) are the exact sum together.
    """
    wide = ir.dtype_of("float64").with_lanes(x.dtype.lanes)

    def summed(a: Expr, b: Expr) -> Expr:
        return _named(a + b, lambda s: _named(s - a, lambda part: errors(a, b, s, part)))

    def errors(a: Expr, b: Expr, s: Expr, part: Expr) -> Expr:
        return _named((a - (s - part)) + (b - part), lambda error: _rounded(s, error))

    return _named(ir.Cast(wide, x), lambda a: _named(ir.Cast(wide, y), lambda b: summed(a, b)))


def _rounded(total: Expr, error: Expr) -> Expr:
    """The float32 of a float64 sum and its error."""
    lanes = total.dtype.lanes
    bits, short = (ir.dtype_of(name).with_lanes(lanes) for name in ("int64", "int32"))
    narrow = ir.dtype_of("float32").with_lanes(lanes)
    zero = _number(0.0, total)
    inexact = ir.NE(error, zero)
    away = ir.And(inexact, ir.NE(ir.LT(error, zero), ir.LT(total, zero)))
    truncated = ir.Call("reinterpret", (total,), bits) - ir.Cast(bits, away)

    def finished(word: Expr) -> Expr:
        rest = ir.Call("bitwise_and", (word, _integer(_DROPPED, word)), bits)
        odd = ir.Cast(short, ir.Or(inexact, ir.NE(rest, _integer(0, word))))
        kept = ir.Call("bitwise_and", (word, _integer(~_DROPPED, word)), bits)
        return _named(ir.Call("reinterpret", (kept,), total.dtype), lambda u: chosen(u, odd))

    def chosen(value: Expr, odd: Expr) -> Expr:
        word = ir.Call("reinterpret", (ir.Cast(narrow, value),), short)
        made = ir.Call("reinterpret", (ir.Call("bitwise_or", (word, odd), short),), narrow)
        fits = ir.LT(ir.Call("abs", (value,), value.dtype), _number(2.0**128, value))
        # Otherwise the sum is infinite, as a float32 or at all, or NaN.
        return ir.Select(fits, flushed(made), ir.Cast(narrow, total))

    return _named(truncated, finished)


def _named(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """An expression that uses a value several times and computes it once."""
    name = ir.Var("t", value.dtype)
    return ir.Let(name, value, body(name))


def _number(value: float, like: Expr) -> Expr:
    return _wide(ir.const(value, like.dtype.element), like)


def _integer(value: int, like: Expr) -> Expr:
    return _wide(ir.const(value, like.dtype.element), like)


def _wide(value: Expr, like: Expr) -> Expr:
    lanes = like.dtype.lanes
    return ir.Broadcast(value, lanes) if lanes > 1 else value

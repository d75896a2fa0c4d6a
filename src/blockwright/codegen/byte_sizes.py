"""Emit byte sizes of dynamically shaped buffers, with saturating arithmetic.

A product that overflows 63 bits saturates to a size that no machine can allocate, so the call fails
with BW720 instead of allocating too little memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockwright.codegen.llvm import scratch_plan
from blockwright.codegen.llvm.values import Value, int_const
from blockwright.ir import Buffer, Expr, IntImm
from blockwright.ir import expr as E

if TYPE_CHECKING:
    from blockwright.codegen.llvm.expr import ExprEmitter

_MOST = 1 << 62
_KEPT = {E.Max: "smax", E.Min: "smin"}


def byte_size(c: ExprEmitter, buffer: Buffer) -> Value:
    """Emit the size of a buffer in bytes, rounded up to the alignment."""
    return _size(c, scratch_plan.byte_count(buffer))


def _size(c: ExprEmitter, expr: Expr) -> Value:
    """Emit a size expression. Factors and addends are nonnegative, except under a maximum."""
    if expr.dtype.bits < 64:
        return c.index(expr)
    match expr:
        case IntImm():
            return int_const(min(expr.value, _MOST))
        case E.Mul():
            a, b = _size(c, expr.a), _size(c, expr.b)
            pair = c.e.intrinsic("smul.with.overflow.i64", "{ i64, i1 }", a, b)
            product, wrapped = c.e.member(pair, 0, "i64"), c.e.member(pair, 1, "i1")
            return c.e.select(wrapped, int_const(_MOST), product)
        case E.Max() | E.Min():
            name = _KEPT[type(expr)]
            return c.e.overloaded(name, _size(c, expr.a), _size(c, expr.b))
        case E.FloorDiv(b=IntImm(value=unit)) if unit > 0 and unit & (unit - 1) == 0:
            shift = int_const(unit.bit_length() - 1)
            return c.e.binary("ashr", _size(c, expr.a), shift)
        case E.Add():
            largest = int_const(_MOST)
            a, b = (c.e.overloaded("smin", _size(c, part), largest) for part in (expr.a, expr.b))
            return c.e.binary("add", a, b)
        case _:
            return c.value(expr)

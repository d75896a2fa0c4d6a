"""Convert index expressions to 64 bits.

Before::

    A[i * 4096 + j], A[(x + 1) % 7]                      # x was read from a buffer

After::

    A[int64(i) * 4096 + int64(j)], A[int64((x + 1) % 7)]
"""

from __future__ import annotations

from blockwright.ir import Expr, IntImm, Sorts, cast_to
from blockwright.ir import expr as E
from blockwright.ir.dtype import INT64
from blockwright.lower.rewrite import fold


def widen(index: Expr, sorts: Sorts) -> Expr:
    """Convert an index expression to 64 bits at its leaves, so that it stays affine.

    Index arithmetic does not overflow (docs/semantics.md), so the conversion may move inwards. A
    value wraps around at its own width and is converted as a whole.
    """
    if index.dtype.bits == 64:
        return index
    if not sorts.is_index(index):
        return _widen_value(index, sorts)
    match index:
        case E.Add() | E.Sub() | E.Mul() | E.FloorDiv() | E.FloorMod() | E.Min() | E.Max():
            a, b = widen(index.a, sorts), widen(index.b, sorts)
            return type(index)(a, b) if a.dtype.lanes > 1 else fold(type(index), a, b)
        case E.Ramp():
            base, stride = widen(index.base, sorts), widen(index.stride, sorts)
            return E.Ramp(base, stride, index.lanes)
        case E.Broadcast():
            return E.Broadcast(widen(index.value, sorts), index.lanes)
        case _:
            return cast_to(index, INT64.with_lanes(index.dtype.lanes))


def _widen_value(index: Expr, sorts: Sorts) -> Expr:
    """Convert a value used as a buffer index to 64 bits.

    A ramp stays a ramp, and a nonnegative constant stays a separate addend: if the sum wrapped
    around it would be negative, and a negative index is outside every buffer.
    """
    match index:
        case E.Ramp(stride=IntImm(value=step)) if step >= 0:
            return E.Ramp(widen(index.base, sorts), cast_to(index.stride, INT64), index.lanes)
        case E.Broadcast():
            return E.Broadcast(widen(index.value, sorts), index.lanes)
        case E.Add(b=IntImm(value=number)) if number >= 0:
            return fold(E.Add, cast_to(index.a, INT64), cast_to(index.b, INT64))
        case _:
            return cast_to(index, INT64.with_lanes(index.dtype.lanes))

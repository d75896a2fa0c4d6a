"""Bounds of float64 expressions over indices, such as sizes that an image is scaled to.

int(float(h) * 0.7), 4 <= h <= 40: the product is in [2.8, 28.0], the integer in [2, 28]

IEEE operations round monotonically, so the bounds of a result are those of rounded results at the
ends of the operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

from blockwright.arith.form import Bounds, Rewriter, is_index
from blockwright.ir import Add, BinaryOp, Call, Cast, Div, Expr, FloatImm, Mul, Sub
from blockwright.ir.dtype import dtype_of

Ends = tuple[float, float]
_LARGEST = 1 << 63
_FLOAT64 = dtype_of("float64")
_ARITHMETIC: dict[type[BinaryOp], Callable[[float, float], float]] = {
    Add: lambda a, b: a + b,
    Sub: lambda a, b: a - b,
    Mul: lambda a, b: a * b,
    Div: lambda a, b: a / b,
}
_ROUNDING: dict[str, Callable[[float], float]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "nearbyint": round,
}


def truncated_bounds(ctx: Rewriter, value: Expr) -> Bounds | None:
    """Bounds of a float64 expression converted to an integer; None if they are unknown."""
    ends = _ends(ctx, value)
    return None if ends is None else (math.trunc(ends[0]), math.trunc(ends[1]))


def _ends(ctx: Rewriter, value: Expr) -> Ends | None:
    """The finite numbers between which a float64 expression is; None if they are unknown."""
    if value.dtype is not _FLOAT64:
        return None
    match value:
        case FloatImm(value=number):
            return (number, number) if math.isfinite(number) else None
        case Cast(value=inner) if is_index(inner.dtype):
            low, high = ctx.bounds(ctx.exact(inner))
            if low is None or high is None or max(-low, high) >= _LARGEST:
                return None
            return float(low), float(high)
        case BinaryOp(a=a, b=b) if type(value) in _ARITHMETIC:
            return _joined(type(value), _ends(ctx, a), _ends(ctx, b))
        case Call(op=op, args=(a,)) if op in _ROUNDING and (ends := _ends(ctx, a)):
            return float(_ROUNDING[op](ends[0])), float(_ROUNDING[op](ends[1]))
        case _:
            return None


def _joined(kind: type[BinaryOp], a: Ends | None, b: Ends | None) -> Ends | None:
    if a is None or b is None or (kind is Div and b[0] <= 0.0 <= b[1]):
        return None
    corners = [_ARITHMETIC[kind](x, y) for x, y in product(a, b)]
    return (min(corners), max(corners)) if all(map(math.isfinite, corners)) else None

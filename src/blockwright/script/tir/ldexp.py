"""`T.ldexp(x, n)`: x · 2ⁿ, rounded once, expanded to operations that every target supports.

2ⁿ may overflow where x · 2ⁿ does not, so the product is computed in three steps, as in musl's
`scalbn`. A step down scales by p binary digits less than the exponent of the smallest normal number
allows, where p is the precision. If an intermediate product is subnormal, and therefore rounded,
the remaining scaling is at least p digits and the result is 0. All other products except the last
are exact, so there is no double rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockwright import ir
from blockwright.ir import Expr, Var
from blockwright.ir.dtype import FLOAT32, INT32
from blockwright.script.tir.values import to_expr
from blockwright.support import ScriptError

_DIGITS = {32: 24, 64: 53}  # bits → precision in binary digits, including the implicit one
_FARTHEST = 3000  # |n| beyond which the result is 0 or infinite for any x


def ldexp(x: Any, n: Any) -> Expr:
    """x · 2ⁿ for a float x and an integer n."""
    value, power = to_expr(x), to_expr(n)
    kind = value.dtype
    if kind.kind not in ("float", "bfloat") or not power.dtype.is_int:
        raise ScriptError(
            f"T.ldexp takes a float and an integer, not {kind} and {power.dtype}",
            code="BW107",
            help="convert them with T.Cast",
        )
    if kind.bits < 32:
        wide = ir.cast_to(value, FLOAT32.with_lanes(kind.lanes))
        return ir.cast_to(_scaled(wide, power), kind)
    return _scaled(value, power)


def _scaled(x: Expr, n: Expr) -> Expr:
    digits = _DIGITS[x.dtype.bits]
    largest = (1 << (x.dtype.bits - digits - 1)) - 1
    smallest, down = 1 - largest, 1 - largest + digits
    n = n if n.dtype.bits >= 32 else ir.cast_to(n, INT32.with_lanes(n.dtype.lanes))
    near = ir.cast_to(
        ir.maximum(ir.minimum(n, _FARTHEST), -_FARTHEST), INT32.with_lanes(n.dtype.lanes)
    )

    def step(rest: Expr) -> Expr:
        return ir.select(rest < smallest, down, ir.minimum(rest, largest))

    def factor(power: Expr) -> Expr:
        whole = ir.dtype_of(f"int{x.dtype.bits}").with_lanes(power.dtype.lanes)
        biased = ir.cast_to(power + largest, whole)
        bits = ir.call("shift_left", biased, digits - 1)
        return ir.call("reinterpret", bits, dtype=x.dtype.with_lanes(power.dtype.lanes))

    def product(rest: Expr) -> Expr:
        def after(first: Expr) -> Expr:
            return _named("rest", rest - first, lambda left: last(first, left))

        return _named("first", step(rest), after)

    def last(first: Expr, left: Expr) -> Expr:
        def whole(second: Expr) -> Expr:
            third = ir.maximum(ir.minimum(left - second, largest), smallest)
            return x * factor(first) * factor(second) * factor(third)

        return _named("second", step(left), whole)

    return _named("power", near, product)


def _named(name: str, value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    var = Var(name, value.dtype)
    return ir.Let(var, value, body(var))


__all__ = ["ldexp"]

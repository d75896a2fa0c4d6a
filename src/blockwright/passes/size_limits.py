"""The largest values of sizes with symbols that are bound at run time.

    0 <= u <= 4 * n        u * 3 + 1 <= 4 * n * 3 + 1        n - u <= n

A limit is an expression of the other symbols. There is none if a symbol without one matters, or if
the expression is not known to grow or fall with its operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockwright import ir
from blockwright.arith import Analyzer

Ends = tuple[ir.Expr | None, ir.Expr | None]
"""The smallest and the largest value of an expression, where known."""


class SizeLimits:
    """Ends of symbols, in terms of symbols without ends of their own."""

    def __init__(self, analyzer: Analyzer) -> None:
        self.analyzer = analyzer
        self._symbols: dict[ir.Var, Ends] = {}
        self._known: dict[ir.Expr, Ends] = {}

    def bind(self, symbol: ir.Var, bounds: tuple[int, int], stated: ir.Expr | None) -> None:
        """State the ends of a symbol: declared bounds, and a limit in symbols bound before."""
        low, high = bounds
        limit = None if stated is None else self.largest(stated)
        if high < symbol.dtype.max_value:
            most = ir.const(high, symbol.dtype)
            limit = most if limit is None else self.analyzer.simplify(ir.minimum(limit, most))
        self._symbols[symbol] = ir.const(low, symbol.dtype), limit

    def largest(self, size: ir.Expr) -> ir.Expr | None:
        """The largest value of a size in the other symbols; None if there is no limit."""
        return self._ends(size)[1]

    def _ends(self, expr: ir.Expr) -> Ends:
        if not any(v in self._symbols for v in ir.free_vars(expr)):
            return expr, expr
        if expr not in self._known:
            self._known[expr] = self._computed(expr)
        return self._known[expr]

    def _computed(self, expr: ir.Expr) -> Ends:
        if isinstance(expr, ir.Var):
            return self._symbols[expr]
        if isinstance(expr, ir.Cast):
            low, high = self._ends(expr.value)
            return _apply(_to(expr.dtype), low), _apply(_to(expr.dtype), high)
        if not isinstance(expr, ir.BinaryOp):
            return None, None
        (low_a, high_a), (low_b, high_b) = self._ends(expr.a), self._ends(expr.b)
        if isinstance(expr, ir.Add):
            return _apply(ir.add, low_a, low_b), _apply(ir.add, high_a, high_b)
        if isinstance(expr, ir.Sub):
            return _apply(ir.sub, low_a, high_b), _apply(ir.sub, high_a, low_b)
        if isinstance(expr, ir.Max):
            return _either(ir.maximum, low_a, low_b), _apply(ir.maximum, high_a, high_b)
        if isinstance(expr, ir.Min):
            return _apply(ir.minimum, low_a, low_b), _either(ir.minimum, high_a, high_b)
        if isinstance(expr, ir.Mul) and self._natural(low_a) and self._natural(low_b):
            return _apply(ir.mul, low_a, low_b), _apply(ir.mul, high_a, high_b)
        divisor = ir.const_int(expr.b)
        if isinstance(expr, ir.FloorDiv) and divisor is not None and divisor > 0:
            return _apply(ir.floordiv, low_a, expr.b), _apply(ir.floordiv, high_a, expr.b)
        return None, None

    def _natural(self, low: ir.Expr | None) -> bool:
        if low is None:
            return False
        return self.analyzer.prove(ir.compare(ir.GE, low, ir.const(0, low.dtype)))


def _apply(fn: Callable[..., ir.Expr], *values: ir.Expr | None) -> ir.Expr | None:
    """A function of values that are all known."""
    return None if any(v is None for v in values) else fn(*values)


def _either(fn: Callable[[Any, Any], ir.Expr], a: Any, b: Any) -> ir.Expr | None:
    """A function of two values, or the known one."""
    return (b if a is None else a) if a is None or b is None else fn(a, b)


def _to(dtype: ir.DType) -> Callable[[Any], ir.Expr]:
    return lambda value: ir.cast_to(value, dtype)

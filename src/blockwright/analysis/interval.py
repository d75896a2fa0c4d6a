"""Symbolic intervals of index expressions when some variables run over given bounds.

An interval is a pair of inclusive ends, expressions over the variables that stay free; None stands
for "nothing is known" (an index read from memory, for instance).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from blockwright import ir
from blockwright.arith import Analyzer

Interval: TypeAlias = "tuple[ir.Expr, ir.Expr]"
Domains: TypeAlias = "Mapping[ir.Var, Interval]"


def interval_of(expr: ir.Expr, domains: Domains, analyzer: Analyzer) -> Interval | None:
    """The values `expr` can take; a point stays the very expression."""
    if not _moves(expr, domains):
        return None if _reads_memory(expr) else (expr, expr)
    simple = analyzer.simplify(expr)
    if not _moves(simple, domains):
        return None if _reads_memory(simple) else (simple, simple)
    found = _Evaluator(domains, analyzer).eval(simple)
    if found is None:
        return None
    return analyzer.simplify(found[0]), analyzer.simplify(found[1])


def hull(a: Interval, b: Interval, analyzer: Analyzer) -> Interval:
    """The smallest interval around both."""
    return smaller(a[0], b[0], analyzer), larger(a[1], b[1], analyzer)


def smaller(a: ir.Expr, b: ir.Expr, analyzer: Analyzer) -> ir.Expr:
    """The lesser of two ends; a `min` only where neither is known to be it."""
    if a is b or analyzer.prove(ir.LE(*ir.match_types(a, b))):
        return a
    if analyzer.prove(ir.LE(*ir.match_types(b, a))):
        return b
    return analyzer.simplify(ir.minimum(a, b))


def larger(a: ir.Expr, b: ir.Expr, analyzer: Analyzer) -> ir.Expr:
    """The greater of two ends."""
    if a is b or analyzer.prove(ir.GE(*ir.match_types(a, b))):
        return a
    if analyzer.prove(ir.GE(*ir.match_types(b, a))):
        return b
    return analyzer.simplify(ir.maximum(a, b))


def _moves(expr: ir.Expr, domains: Domains) -> bool:
    return any(isinstance(n, ir.Var) and n in domains for n in ir.walk(expr))


def _reads_memory(expr: ir.Expr) -> bool:
    return any(isinstance(n, ir.BufferLoad) for n in ir.walk(expr))


class _Evaluator:
    """Interval arithmetic by node class."""

    def __init__(self, domains: Domains, analyzer: Analyzer) -> None:
        self.domains = domains
        self.analyzer = analyzer

    def eval(self, expr: ir.Expr) -> Interval | None:
        rule = _RULES.get(type(expr))
        if rule is not None:
            return rule(self, expr)
        if _moves(expr, self.domains) or _reads_memory(expr):
            return None
        return expr, expr

    def _var(self, expr: ir.Var) -> Interval:
        return self.domains.get(expr, (expr, expr))

    def _operands(self, expr: Any) -> tuple[Interval, Interval] | None:
        a, b = self.eval(expr.a), self.eval(expr.b)
        return None if a is None or b is None else (a, b)

    def _add(self, expr: ir.Add) -> Interval | None:
        both = self._operands(expr)
        return None if both is None else (both[0][0] + both[1][0], both[0][1] + both[1][1])

    def _sub(self, expr: ir.Sub) -> Interval | None:
        both = self._operands(expr)
        return None if both is None else (both[0][0] - both[1][1], both[0][1] - both[1][0])

    def _sign(self, expr: ir.Expr) -> int:
        zero = ir.const(0, expr.dtype)
        if self.analyzer.prove(ir.GE(expr, zero)):
            return 1
        return -1 if self.analyzer.prove(ir.LE(expr, zero)) else 0

    def _mul(self, expr: ir.Mul) -> Interval | None:
        both = self._operands(expr)
        if both is None:
            return None
        (a, b), (c, d) = both
        if a is b:
            (a, b), (c, d) = (c, d), (a, b)
        if c is not d:
            if self._sign(a) == 1 and self._sign(c) == 1:
                return a * c, b * d
            return None
        sign = self._sign(c)
        if sign == 0:
            return None
        return (a * c, b * c) if sign == 1 else (b * c, a * c)

    def _floordiv(self, expr: ir.FloorDiv) -> Interval | None:
        both = self._operands(expr)
        if both is None or both[1][0] is not both[1][1] or self._sign(both[1][0]) != 1:
            return None
        (a, b), (c, _) = both
        return a // c, b // c

    def _floormod(self, expr: ir.FloorMod) -> Interval | None:
        both = self._operands(expr)
        if both is None or both[1][0] is not both[1][1] or self._sign(both[1][0]) != 1:
            return None
        (a, b), (c, _) = both
        if a is b or self.analyzer.prove_equal(a // c, b // c):
            return a % c, b % c
        return ir.const(0, expr.dtype), c - 1

    def _min(self, expr: ir.Min) -> Interval | None:
        both = self._operands(expr)
        return None if both is None else (
            ir.minimum(both[0][0], both[1][0]), ir.minimum(both[0][1], both[1][1]))  # fmt: skip

    def _max(self, expr: ir.Max) -> Interval | None:
        both = self._operands(expr)
        return None if both is None else (
            ir.maximum(both[0][0], both[1][0]), ir.maximum(both[0][1], both[1][1]))  # fmt: skip

    def _cast(self, expr: ir.Cast) -> Interval | None:
        inner = self.eval(expr.value)
        wide = expr.type.kind == "int" and expr.value.dtype.kind == "int"
        if inner is None or not wide or expr.type.bits < expr.value.dtype.bits:
            return None
        return ir.cast_to(inner[0], expr.type), ir.cast_to(inner[1], expr.type)

    def _choice(self, expr: ir.Select | ir.Call) -> Interval | None:
        if isinstance(expr, ir.Call) and expr.op == "likely":
            return self.eval(expr.args[0])
        if isinstance(expr, ir.Call) and expr.op != "if_then_else":
            return None if _moves(expr, self.domains) or _reads_memory(expr) else (expr, expr)
        sides = expr.args[1:] if isinstance(expr, ir.Call) else (expr.true_value, expr.false_value)
        a, b = self.eval(sides[0]), self.eval(sides[1])
        return None if a is None or b is None else hull(a, b, self.analyzer)

    def _ramp(self, expr: ir.Ramp) -> Interval | None:
        base, stride = self.eval(expr.base), self.eval(expr.stride)
        if base is None or stride is None or stride[0] is not stride[1]:
            return None
        sign, span = self._sign(stride[0]), stride[0] * (expr.lanes - 1)
        if sign == 0:
            return None
        return (base[0], base[1] + span) if sign == 1 else (base[0] + span, base[1])

    def _broadcast(self, expr: ir.Broadcast) -> Interval | None:
        return self.eval(expr.value)


_RULES: dict[type[Any], Callable[[_Evaluator, Any], Interval | None]] = {
    ir.Var: _Evaluator._var,  # pyright: ignore[reportPrivateUsage]
    ir.Add: _Evaluator._add,  # pyright: ignore[reportPrivateUsage]
    ir.Sub: _Evaluator._sub,  # pyright: ignore[reportPrivateUsage]
    ir.Mul: _Evaluator._mul,  # pyright: ignore[reportPrivateUsage]
    ir.FloorDiv: _Evaluator._floordiv,  # pyright: ignore[reportPrivateUsage]
    ir.FloorMod: _Evaluator._floormod,  # pyright: ignore[reportPrivateUsage]
    ir.Min: _Evaluator._min,  # pyright: ignore[reportPrivateUsage]
    ir.Max: _Evaluator._max,  # pyright: ignore[reportPrivateUsage]
    ir.Cast: _Evaluator._cast,  # pyright: ignore[reportPrivateUsage]
    ir.Select: _Evaluator._choice,  # pyright: ignore[reportPrivateUsage]
    ir.Call: _Evaluator._choice,  # pyright: ignore[reportPrivateUsage]
    ir.Ramp: _Evaluator._ramp,  # pyright: ignore[reportPrivateUsage]
    ir.Broadcast: _Evaluator._broadcast,  # pyright: ignore[reportPrivateUsage]
}

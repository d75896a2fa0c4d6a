"""Interval analysis of the index expressions of a lowered function.

Bounds are plain integers, derived from loop ranges and declared bounds of sizes. The analysis is
non-relational: it knows nothing about dependences between variables.
"""

from __future__ import annotations

from blockwright.ir import (
    INDEX_CALLS,
    Call,
    Expr,
    For,
    IntImm,
    PrimFunc,
    Sorts,
    Var,
    value_variables,
)
from blockwright.ir import expr as E
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND
from blockwright.ir.dtype import INT32
from blockwright.lower.context import shape_vars

Bounds = tuple[int, int]


class Intervals:
    """Bounds of indices, which are mathematical integers.

    Attributes:
        known: bounds of variables; other variables have the full range of their type.
    """

    def __init__(self, func: PrimFunc) -> None:
        self.sorts = Sorts(value_variables(func))
        self.known: dict[Var, Bounds] = {}
        self._found: dict[Expr, Bounds] = {}
        lower: dict[str, int] = func.attrs.get(LOWER_BOUND, {})
        upper: dict[str, int] = func.attrs.get(UPPER_BOUND, {})
        for var in shape_vars(func):
            self.known[var] = lower.get(var.name, 0), upper.get(var.name, var.dtype.max_value)

    def enter(self, loop: For) -> Bounds:
        """Record the bounds of the loop's variable and return them."""
        low, count = self.of(loop.min), self.of(loop.extent)
        result = self.known[loop.loop_var] = low[0], low[1] + max(count[1], 1) - 1
        return result

    def of(self, expr: Expr) -> Bounds:
        result = self._found.get(expr)
        if result is None:
            result = self._found[expr] = self._bounds(expr)
        return result

    def _bounds(self, expr: Expr) -> Bounds:
        full = expr.dtype.element.min_value, expr.dtype.element.max_value
        if isinstance(expr, Var):
            return self.known.get(expr, full)
        if not self.sorts.is_index(expr):
            return full
        match expr:
            case IntImm():
                return expr.value, expr.value
            case E.Add() | E.Sub() | E.Mul() | E.FloorDiv() | E.FloorMod() | E.Min() | E.Max():
                return _combined(expr, self.of(expr.a), self.of(expr.b), full)
            case E.Cast() | E.Broadcast():
                return self.of(expr.value)
            case E.Ramp():
                low, high = self.of(expr.base)
                steps = [step * (expr.lanes - 1) for step in self.of(expr.stride)]
                return low + min(0, *steps), high + max(0, *steps)
            case E.Select():
                return _union(self.of(expr.true_value), self.of(expr.false_value))
            case Call(op="if_then_else"):
                return _union(self.of(expr.args[1]), self.of(expr.args[2]))
            case Call(op="likely"):
                return self.of(expr.args[0])
            case Call() if expr.op in INDEX_CALLS:
                a, b = map(self.of, expr.args)
                return _masked(a, b) if expr.op == "bitwise_and" else _shifted(expr, a, b)
            case E.Let():
                self.known.setdefault(expr.var, self.of(expr.value))
                return self.of(expr.body)
            case _:
                return full

    def leaves(self, expr: Expr) -> bool:
        """Whether a 32-bit index may have a value outside the range of its type."""
        element = expr.dtype.element
        if element is not INT32 or not self.sorts.is_index(expr):
            return False
        low, high = self.of(expr)
        return low < element.min_value or high > element.max_value


def _masked(a: Bounds, b: Bounds) -> Bounds:
    """Bounds of `x & y`, which is at most either of them, or not negative and at most the other."""
    signs = [low >= 0 for low, _ in (a, b)]
    if any(signs):
        return 0, min(max(high, 0) for (_, high), sign in zip((a, b), signs, strict=True) if sign)
    digits = max((-low - 1).bit_length() for low, _ in (a, b))
    return -(1 << digits), max(a[1], b[1])


def _shifted(expr: Call, a: Bounds, amount: Bounds) -> Bounds:
    """Bounds of a shift; an amount that is not less than the width gives an unspecified value."""
    widest = expr.dtype.bits - 1
    by = [min(max(n, 0), widest) for n in amount]
    ends = [x << n if expr.op == "shift_left" else x >> n for x in a for n in by]
    return min(ends), max(ends)


def _union(a: Bounds, b: Bounds) -> Bounds:
    return min(a[0], b[0]), max(a[1], b[1])


def _combined(expr: E.BinaryOp, a: Bounds, b: Bounds, full: Bounds) -> Bounds:
    match expr:
        case E.Add():
            return a[0] + b[0], a[1] + b[1]
        case E.Sub():
            return a[0] - b[1], a[1] - b[0]
        case E.Mul():
            ends = [x * y for x in a for y in b]
            return min(ends), max(ends)
        case E.Min():
            return min(a[0], b[0]), min(a[1], b[1])
        case E.Max():
            return max(a[0], b[0]), max(a[1], b[1])
        case E.FloorMod() if b[0] > 0:
            return (a[0], min(a[1], b[1] - 1)) if a[0] >= 0 and a[1] < b[0] else (0, b[1] - 1)
        case E.FloorDiv() if b[0] > 0:
            ends = [x // y for x in a for y in b]
            return min(ends), max(ends)
        case _:
            largest = max(abs(x) for x in a)
            return (max(-largest, full[0]), largest) if isinstance(expr, E.FloorDiv) else full

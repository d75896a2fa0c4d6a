"""Random integer expressions near the limits of their types, where arithmetic wraps around."""

from __future__ import annotations

import random
from collections.abc import Sequence

from blockwright import ir
from blockwright.ir.dtype import DType

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_COMPARE = (ir.LT, ir.LE, ir.GT, ir.GE, ir.EQ, ir.NE)
_DIVIDE = (ir.FloorDiv, ir.FloorMod, ir.Div, ir.Mod)


def ends(dtype: DType) -> list[int]:
    """Numbers near the limits of a type and around 0."""
    low, high = dtype.min_value, dtype.max_value
    near = (low, low + 1, low + 2, high - 2, high - 1, high, -3, -2, -1, 0, 1, 2, 3, 7)
    return sorted({n for n in near if low <= n <= high})


class Integers:
    """Draws expressions over given leaves.

    Divisors are nonzero constants or made odd; shift amounts are less than the width.

    Args:
        chance: source of all random choices.
        leaves: integer expressions; operands are cast to the requested type.
    """

    def __init__(self, chance: random.Random, leaves: Sequence[ir.Expr]) -> None:
        self.chance, self.leaves = chance, leaves
        self.types = sorted({e.dtype for e in leaves}, key=str)

    def value(self, dtype: DType, depth: int) -> ir.Expr:
        """An expression of a type with at most `depth` operators above each leaf."""
        if depth == 0:
            return self._leaf(dtype)
        makers = [
            self._ring,
            self._ring,
            self._ring,
            self._quotient,
            self._extremum,
            self._extremum,
            self._choice,
            self._bits,
            self._cast,
        ]
        return self.chance.choice(makers)(dtype, depth - 1)

    def condition(self, depth: int) -> ir.Expr:
        """A comparison, or two combined by a logical operator."""
        chance = self.chance
        if depth and chance.random() < 0.3:
            a, b = self.condition(depth - 1), self.condition(depth - 1)
            joined = (ir.logical_and(a, b), ir.logical_or(a, b), ir.logical_not(a))
            return chance.choice(joined)
        dtype = chance.choice(self.types)
        a, b = self.value(dtype, depth), self.value(dtype, min(depth, 1))
        return ir.compare(chance.choice(_COMPARE), a, b)

    def number(self, dtype: DType) -> ir.Expr:
        return ir.const(self.chance.choice(ends(dtype)), dtype)

    def _leaf(self, dtype: DType) -> ir.Expr:
        if self.chance.random() < 0.3:
            return self.number(dtype)
        return ir.cast_to(self.chance.choice(self.leaves), dtype)

    def _pair(self, dtype: DType, depth: int) -> tuple[ir.Expr, ir.Expr]:
        """Two operands; the second is often small, and sometimes a subexpression of the first."""
        a = self.value(dtype, depth)
        if self.chance.random() < 0.3:
            inside = [n for n in ir.walk(a) if isinstance(n, ir.Expr) and n.dtype is dtype]
            return a, self.chance.choice(inside)
        return a, self.value(dtype, self.chance.randint(0, depth))

    def _ring(self, dtype: DType, depth: int) -> ir.Expr:
        a, b = self._pair(dtype, depth)
        if self.chance.random() < 0.2:
            a, b = b, a
        a = self._wrapping(a, b)
        return ir.binary(self.chance.choice((ir.Add, ir.Sub, ir.Sub, ir.Mul)), a, b)

    def _wrapping(self, a: ir.Expr, *others: ir.Expr) -> ir.Expr:
        """`a`, or a random leaf if all operands are constant.

        Arithmetic on constants counts as index arithmetic, which must not overflow.
        """
        leaves = (ir.BufferLoad, ir.Var)
        if any(isinstance(n, leaves) for operand in (a, *others) for n in ir.walk(operand)):
            return a
        return ir.cast_to(self.chance.choice(self.leaves), a.dtype)

    def _quotient(self, dtype: DType, depth: int) -> ir.Expr:
        divisor = self.number(dtype)
        if ir.is_const_int(divisor, 0):
            divisor = ir.call("bitwise_or", self.value(dtype, 0), ir.const(1, dtype))
        dividend = self._wrapping(self.value(dtype, depth), divisor)
        return ir.binary(self.chance.choice(_DIVIDE), dividend, divisor)

    def _extremum(self, dtype: DType, depth: int) -> ir.Expr:
        return ir.binary(self.chance.choice((ir.Min, ir.Max)), *self._pair(dtype, depth))

    def _choice(self, dtype: DType, depth: int) -> ir.Expr:
        make = self.chance.choice((ir.select, ir.if_then_else))
        a, b = (
            (self.number(dtype) for _ in range(2))
            if self.chance.random() < 0.2
            else (self._pair(dtype, depth))
        )
        return make(self.condition(min(depth, 1)), a, b)

    def _bits(self, dtype: DType, depth: int) -> ir.Expr:
        a = self.value(dtype, depth)
        op = self.chance.choice(("shift_left", "shift_right", "bitwise_and", "bitwise_not", "abs"))
        if op.startswith("shift"):
            amount = self.chance.choice((0, 1, 2, dtype.bits - 2, dtype.bits - 1))
            return ir.call(op, self._wrapping(a), ir.const(amount, dtype))
        if op == "bitwise_and":
            return ir.call(op, a, self.number(dtype))
        return a if op == "abs" and dtype.kind == "uint" else ir.call(op, a)

    def _cast(self, dtype: DType, depth: int) -> ir.Expr:
        return ir.cast_to(self.value(self.chance.choice(self.types), depth), dtype)


def large_index(chance: random.Random, start: ir.Expr) -> ir.Expr:
    """A 32-bit index expression whose value may exceed 32 bits, but not 64."""
    result, largest = start, 1 << 10
    for _ in range(chance.randint(2, 5)):
        number = chance.choice((3, 7, 77, 65536, 70001, 99997, 1 << 20, (1 << 31) - 1))
        kind = chance.choice(
            (ir.Mul, ir.Mul, ir.Add, ir.Sub, ir.FloorDiv, ir.FloorMod, ir.Min, ir.Max)
        )
        if kind is ir.Mul and largest * number >= 1 << 62:
            kind = ir.Sub
        largest = largest * number if kind is ir.Mul else largest + number
        result = ir.binary(kind, result, ir.const(number, "int32"))
    return result

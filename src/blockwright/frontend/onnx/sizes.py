"""Integer arrays of which some elements are expressions of input sizes.

A model computes shapes with tensor operators: Shape, Gather, Mul, Concat, Reshape. Where these
arrive at a shape, they are evaluated here at import, element by element, so that the program keeps
symbolic sizes and static ranks. The elements of `Sizes` are ints and `ir.Expr`s of type int64.

Floats are no `Sizes`: a size above 2^24 is rounded in float32, and lists hold fractions beside
sizes. Index arithmetic expresses neither, so what a model computes from sizes in a float type is
left to run. The importer notes beside it what its elements are where float arithmetic is exact
(`Floats`); where they are cast back to integers, they are `Sizes` again (`size_floats`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import msgspec
import numpy as np

from blockwright import ir
from blockwright.arith import Analyzer, simplify

I64 = ir.dtype_of("int64")
Items = np.ndarray[Any, Any]


class Sizes(msgspec.Struct, frozen=True, eq=False):
    """An array of ints and size expressions; `dtype` is the element type in the model."""

    items: Items
    dtype: ir.DType

    def __post_init__(self) -> None:
        flat = self.items.reshape(-1).tolist()
        if not self.dtype.is_int or not all(isinstance(v, (int, ir.Expr)) for v in flat):
            raise TypeError(f"sizes are integers, not {flat} of {self.dtype}")


class Need(msgspec.Struct, frozen=True, eq=False):
    """Bounds of an expression within which arithmetic in a type is exact.

    Attributes: `even` is the largest `k` for which multiples of `2^k` are accepted up to `2^k`
    times these bounds; a float type still holds them exactly.
    """

    value: ir.Expr
    low: int
    high: int
    dtype: ir.DType
    even: int = 0

    @property
    def condition(self) -> ir.Expr:
        result = self._within(0)
        for power in range(1, self.even + 1):
            rest = ir.floormod(self.value, ir.const(1 << power, I64))
            whole = ir.compare(ir.EQ, rest, ir.const(0, I64))
            result = ir.logical_or(result, ir.logical_and(self._within(power), whole))
        return result

    def _within(self, power: int) -> ir.Expr:
        low, high = (ir.const(end << power, I64) for end in (self.low, self.high))
        return ir.logical_and(
            ir.compare(ir.GE, self.value, low), ir.compare(ir.LE, self.value, high)
        )


class SizeFloat(msgspec.Struct, frozen=True, eq=False):
    """A float that is `number · 2^exponent`, for sizes that meet all needs."""

    number: ir.Expr
    exponent: int
    needs: tuple[Need, ...]


class Floats(msgspec.Struct, frozen=True, eq=False):
    """An array of floats and `SizeFloat`s; `dtype` is the element type in the model."""

    items: Items
    dtype: ir.DType


def array_of(value: Any) -> Items | None:
    """The value if it is an array."""
    return cast("Items", value) if isinstance(value, np.ndarray) else None


def items_of(value: Any) -> Items:
    """The elements of an array, `Sizes` or `Floats`, as Python numbers and expressions."""
    if isinstance(value, (Sizes, Floats)):
        return value.items
    return np.asarray(value).astype(object)


def packed(items: Any, dtype: ir.DType) -> Any:
    """An array if all elements are numbers, else `Sizes` or `Floats`."""
    known = np.asarray(items, dtype=object)
    flat = [_number(v) for v in known.reshape(-1)]
    result = np.empty(len(flat), dtype=object)
    result[:] = flat
    result = result.reshape(known.shape)
    if any(isinstance(v, ir.Expr) for v in flat):
        return Sizes(result, dtype)
    if any(isinstance(v, SizeFloat) for v in flat):
        return Floats(result, dtype)
    return result.astype(dtype.numpy())


def _number(value: Any) -> Any:
    if not isinstance(value, ir.Expr):
        return value
    value = simplify(value)
    number = ir.const_int(value)
    return value if number is None else number


def expr(value: Any) -> ir.Expr:
    """An int or expression as an expression."""
    return ir.as_expr(value if isinstance(value, ir.Expr) else operator.index(value), I64)


class Arithmetic:
    """Operations on numbers and size expressions; None where the result is not known.

    Attributes: `required` are the conditions of exact float arithmetic that calls check already.
    """

    def __init__(self, analyzer: Analyzer) -> None:
        self.analyzer = analyzer
        self.required: list[ir.Expr] = []

    def binary(self, name: str, a: Any, b: Any) -> Any:
        """One element of the result of an operator named as in ONNX."""
        if isinstance(a, ir.Expr) or isinstance(b, ir.Expr):
            return self._symbolic(name, expr(a), expr(b))
        return None

    def _symbolic(self, name: str, a: ir.Expr, b: ir.Expr) -> Any:
        if name in _PLAIN:
            return _PLAIN[name](a, b)
        if name in ("Div", "Mod"):
            positive = ir.logical_and(
                ir.compare(ir.GE, a, ir.const(0, I64)), ir.compare(ir.GT, b, ir.const(0, I64))
            )
            if not self.analyzer.prove(positive):
                return None
            return ir.floordiv(a, b) if name == "Div" else ir.floormod(a, b)
        return self.truth(name, a, b)

    def truth(self, name: str, a: ir.Expr, b: ir.Expr) -> bool | None:
        """Whether a comparison holds for all sizes, or for none; None if it depends on them."""
        compared = _COMPARED.get(name)
        if compared is None:
            return None
        holds, fails = compared
        if self.analyzer.prove(ir.compare(holds, a, b)):
            return True
        return False if self.analyzer.prove(ir.compare(fails, a, b)) else None


_PLAIN: dict[str, Callable[[ir.Expr, ir.Expr], ir.Expr]] = {
    "Add": ir.add,
    "Sub": ir.sub,
    "Mul": ir.mul,
    "Max": ir.maximum,
    "Min": ir.minimum,
}
_COMPARED = {
    "Equal": (ir.EQ, ir.NE),
    "Less": (ir.LT, ir.GE),
    "LessOrEqual": (ir.LE, ir.GT),
    "Greater": (ir.GT, ir.LE),
    "GreaterOrEqual": (ir.GE, ir.LT),
}

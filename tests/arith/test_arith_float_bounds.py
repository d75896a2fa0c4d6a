"""Bounds of integers that float64 arithmetic makes of indices, such as scaled image sizes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from blockwright import ir
from blockwright.arith import Analyzer

INT64, FLOAT64 = ir.dtype_of("int64"), ir.dtype_of("float64")


def scaled(n: ir.Var, factor: float, offset: float = 0.0) -> ir.Expr:
    product = ir.mul(ir.cast_to(n, FLOAT64), ir.const(factor, FLOAT64))
    return ir.cast_to(ir.add(product, ir.const(offset, FLOAT64)), INT64)


@pytest.mark.parametrize("factor", [0.7, 1.7, -0.3, 0.1, 1 / 3, 2.5])
@pytest.mark.parametrize("offset", [0.0, 0.5, -7.25])
@pytest.mark.parametrize(("low", "high"), [(4, 40), (0, 1), (-9, 13), (1, 100_003)])
def test_bounds_hold_at_the_ends_and_are_reached(
    factor: float, offset: float, low: int, high: int
) -> None:
    """Rounding is monotone: the extremes are those of the ends."""
    n = ir.var("n", "int64")
    analyzer = Analyzer()
    analyzer.bind(n, ir.Range(ir.const(low, INT64), ir.const(high - low + 1, INT64)))
    found = analyzer.const_bounds(scaled(n, factor, offset))
    values = [math.trunc(float(v) * factor + offset) for v in range(low, min(high, low + 200) + 1)]
    values.append(math.trunc(float(high) * factor + offset))
    assert found == (min(values), max(values))


@pytest.mark.parametrize(
    "of",
    [
        lambda x: ir.truediv(ir.const(1.0, FLOAT64), x),
        lambda x: ir.mul(x, ir.const(math.inf, FLOAT64)),
        lambda x: ir.mul(x, ir.const(1e300, FLOAT64)),
    ],
    ids=["divided by zero", "infinite", "out of range"],
)
def test_no_bounds_beyond_those_of_the_type(of: Callable[[ir.Expr], ir.Expr]) -> None:
    n = ir.var("n", "int64")
    analyzer = Analyzer()
    analyzer.bind(n, ir.Range(ir.const(0, INT64), ir.const(10, INT64)))
    value = ir.cast_to(of(ir.cast_to(n, FLOAT64)), INT64)
    assert analyzer.const_bounds(value) in ((None, None), (INT64.min_value, INT64.max_value))

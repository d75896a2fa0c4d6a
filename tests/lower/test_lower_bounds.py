"""Bounds of what a buffer needs, from which memory is reserved."""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.ir import expr as E
from blockwright.lower.access import largest

X, Y = (ir.var(name, "int64") for name in "xy")


def integer(value: int) -> ir.Expr:
    return ir.const(value, "int64")


@pytest.mark.parametrize(
    ("value", "bound"),
    [
        (E.Sub(E.Min(X, integer(90)), X) + 6, 6),  # rows of a tile, the last of which is cut off
        (integer(6) + (E.Min(X, E.Sub(integer(90), Y)) - X), 6),
        (E.Min(X, integer(90)) - Y, 90),
        (E.Min(E.Min(X, Y), integer(7)) + 2, 9),
        (E.Min(X, Y) - X, 0),
        (X - E.Min(X, Y), None),
    ],
    ids=str,
)
def test_a_minimum_in_a_sum_is_looked_through(value: ir.Expr, bound: int | None) -> None:
    analyzer = Analyzer()
    for var in (X, Y):
        analyzer.bind(var, ir.Range(integer(0), ir.var("n", "int64")))
    assert largest(value, analyzer) == bound

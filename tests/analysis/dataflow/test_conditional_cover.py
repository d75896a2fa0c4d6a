"""Boxes that are there under conditions, and whether they cover a box together."""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.analysis.dataflow.conditional_cover import Made, covered_in_cases
from blockwright.arith import Analyzer

X = ir.Var("x", ir.dtype_of("int32"))


def number(value: int) -> ir.Expr:
    return ir.const(value, "int32")


def box(first: int, extent: int) -> tuple[ir.Range, ...]:
    return (ir.Range(number(first), number(extent)),)


def covered(made: list[Made]) -> bool:
    analyzer = Analyzer()
    analyzer.bind(X, ir.Range(number(0), number(10)))
    return covered_in_cases(made, box(0, 8), analyzer, analyzer.copy())


SMALL = ir.LT(X, number(3))
CLAMPED = ir.LT(ir.Min(X, number(6)), number(3))  # learnt or not, the analyzer cannot prove it


@pytest.mark.parametrize("condition", [SMALL, CLAMPED])
def test_a_box_counts_in_the_case_where_it_is_there(condition: ir.Expr) -> None:
    against = ir.logical_not(condition)
    halves: list[Made] = [(box(0, 4), [condition]), (box(4, 4), [condition])]
    other: list[Made] = [(box(0, 8), [against])]
    assert covered([*halves, *other])
    assert not covered(halves), "nothing is there where the condition fails"
    assert not covered([*halves[:1], *other]), "a half is missing where it holds"

"""Boxes and single elements that provably have nothing in common."""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.analysis.dataflow.overlap import (
    apart,
    apart_along_an_axis,
    interleaved,
    plainly_apart,
)
from blockwright.arith import Analyzer

N = ir.Var("n", ir.dtype_of("int32"))
I = ir.Var("i", ir.dtype_of("int32"))  # noqa: E741
BUFFER = ir.Buffer("A", (ir.const(64, "int32"),), ir.dtype_of("float32"))


def region(first: ir.Expr | int, extent: ir.Expr | int = 1) -> ir.BufferRegion:
    low, count = (ir.const(e, "int32") if isinstance(e, int) else e for e in (first, extent))
    return ir.BufferRegion(BUFFER, (ir.Range(low, count),))


@pytest.mark.parametrize(
    ("first", "second", "plainly", "proved"),
    [
        (region(0, 4), region(4, 4), True, True),
        (region(0, 5), region(4, 4), False, False),
        (region(N, 4), region(N + 4, 4), False, True),
        (region(N, 5), region(N + 4, 4), False, False),
        (region(0, N), region(N, 4), False, True),
    ],
)
def test_boxes_apart(
    first: ir.BufferRegion, second: ir.BufferRegion, plainly: bool, proved: bool
) -> None:
    for a, b in ((first, second), (second, first)):
        assert plainly_apart(a, b) is plainly
        assert apart(a, b, Analyzer()) is proved


def test_many_boxes_are_compared_along_one_axis() -> None:
    boxes = [region(8 * k, 8) for k in (3, 1, 0, 2)]
    assert apart_along_an_axis(boxes)
    assert not apart_along_an_axis([*boxes, region(15, 2)])
    assert not apart_along_an_axis([*boxes, region(N, 1)])


def test_elements_of_different_remainders() -> None:
    even, odd = region(ir.mul(I, 2)), region(ir.add(ir.mul(N, 4), 1))
    assert interleaved(even, odd, Analyzer())
    assert not interleaved(even, region(ir.mul(N, 3)), Analyzer())
    assert not interleaved(even, region(ir.add(ir.mul(N, 4), 1), 2), Analyzer())

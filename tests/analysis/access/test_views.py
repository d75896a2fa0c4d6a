"""Elements of views in the underlying buffer."""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis.access.views import box_behind_view, element_behind_view
from blockwright.arith import Analyzer

I = ir.Var("i", ir.dtype_of("int32"))  # noqa: E741


def number(value: int, dtype: str = "int32") -> ir.Expr:
    return ir.const(value, dtype)


SOURCE = ir.BufferRegion(
    ir.Buffer("A", (number(4), number(64)), ir.dtype_of("float32")),
    (ir.Range(I, number(1)), ir.Range(number(8), number(16))),
)


def same(a: ir.Expr, b: ir.Expr) -> bool:
    return Analyzer().prove_equal(*ir.match_types(a, b))


def test_an_element_of_a_region_view() -> None:
    row, column = element_behind_view(SOURCE, [I * 2])
    assert row is I
    assert same(column, I * 2 + 8)
    (_, lanes) = element_behind_view(SOURCE, [ir.Ramp(I, number(1), 4)])
    assert lanes.dtype.lanes == 4


def test_a_box_of_a_region_view_has_one_integer_type() -> None:
    inner = ir.Range(number(2, "int64"), number(3, "int64"))
    row, columns = box_behind_view(SOURCE, [inner])
    assert row is SOURCE.region[0]
    assert same(columns.min, number(10))
    assert columns.min.dtype is columns.extent.dtype

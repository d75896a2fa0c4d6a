"""Values of iterators that take all combinations."""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.analysis.dataflow.independent_values import independent
from blockwright.arith import Analyzer

I, J = (ir.Var(name, ir.dtype_of("int32")) for name in "ij")  # noqa: E741
DOMAINS = {v: ir.Range(ir.const(0, "int32"), ir.const(12, "int32")) for v in (I, J)}


@pytest.mark.parametrize(
    ("values", "proved"),
    [
        ([I, J], True),
        ([I // 4, I % 4], True),
        ([I, I * 2], False),
        ([I, I + J], True),  # a loop over j that starts at i
        ([I + J, I - J], False),
        ([(I + 3) // 5, (I + 3) % 5], True),
        ([I // 3, I % 4], False),
    ],
)
def test_values_of_two_iterators(values: list[ir.Expr], proved: bool) -> None:
    assert independent(values, DOMAINS, Analyzer()) is proved

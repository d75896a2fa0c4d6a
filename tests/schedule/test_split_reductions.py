"""Split-up reductions of every length and type."""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.script.compute import Program
from blockwright.testing import assert_same_meaning


@pytest.mark.parametrize("combiner", ["sum", "max", "prod"])
@pytest.mark.parametrize("length", [0, 1, 4, 9])
def test_split_up_reductions_over_few_terms_or_none(combiner: str, length: int) -> None:
    """A reduction over nothing has its initial value as result, in parts or whole."""
    n, s = ir.var("n", "int64"), ir.var("s", "int64")
    p = Program("total")
    x = p.param("X", (n, s), "float32")
    func = p.finish([p.reduce("Y", (n,), (s,), lambda i, k: x[i, k], combiner)])
    sch = Schedule(func, verify="full")
    whole = sch.get_block("Y")
    _, k = sch.get_loops(whole)
    _, lane = sch.split(k, [None, 4])
    parts = sch.rfactor(lane, -1)
    assert_same_meaning(func, sch.func, sizes={"n": 3, "s": length})
    _, chunk, lane = sch.get_loops(parts)
    sch.decompose_reduction(parts, chunk)
    sch.decompose_reduction(whole, sch.get_loops(whole)[0])
    assert_same_meaning(func, sch.func, sizes={"n": 3, "s": length})


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "float64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_partial_results_of_every_type(dtype: str, axis: int) -> None:
    n = ir.var("n", "int64")
    for combiner in ("any", "all") if dtype == "bool" else ("sum", "prod", "min", "max"):
        p = Program("total")
        x = p.param("X", (n, 3, 6), dtype)
        func = p.finish([p.reduce("Y", (n,), (3, 6), lambda i, j, k, x=x: x[i, j, k], combiner)])
        for position in (1, 2):
            sch = Schedule(func, verify="full")
            sch.rfactor(sch.get_loops(sch.get_block("Y"))[position], axis)
            assert_same_meaning(func, sch.func, sizes={"n": 4})

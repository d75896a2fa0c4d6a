"""Initial values that depend on the reduction iterators: they are those of the first step."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright.testing import assert_same_meaning

SUM = """
@T.prim_func
def main(A: T.Buffer((6, 9), "float32"), C: T.Buffer((6,), "float32")):
    for i in range(6):
        for k in range(1, 9):
            with T.block("C"):
                vi = T.axis.spatial(6, i)
                vk = T.axis.reduce((1, 9), k)
                with T.init():
                    C[vi] = A[vi, vk - 1] * T.Cast("float32", vk)
                C[vi] = C[vi] + A[vi, vk]
"""


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("factors", [[None, 1], [None, 2], [2, None]])
def test_a_new_block_around_part_of_the_sum(depth: int, factors: list[int | None]) -> None:
    func = bw.from_source(SUM)
    sch = bw.Schedule(func, verify="full")
    _, inner = sch.split(sch.get_loops("C")[depth], factors)
    outer = sch.blockize(inner)
    assert_same_meaning(func, sch.func, exact=True)
    sch.decompose_reduction(outer, sch.get_loops(outer)[-1])
    assert_same_meaning(func, sch.func, exact=True)


TRIANGLE = """
@T.prim_func
def main(A: T.Buffer((6, 6, 4), "float32"), C: T.Buffer((6, 6), "float32")):
    for i in range(6):
        for j in range({low}, {high}):
            for k in range(4):
                with T.block("C"):
                    vi = T.axis.spatial(6, i)
                    vj = T.axis.spatial(6, j)
                    vk = T.axis.reduce(4, k)
                    with T.init():
                        C[vi, vj] = T.float32(0)
                    C[vi, vj] = C[vi, vj] + A[vi, vj, vk]
"""


@pytest.mark.parametrize(("low", "high"), [("0", "i + 1"), ("i", "6"), ("T.min(i, 2)", "i + 1")])
@pytest.mark.parametrize("split", [False, True])
def test_sums_over_loops_whose_ranges_depend_on_others(low: str, high: str, split: bool) -> None:
    func = bw.from_source(TRIANGLE.format(low=low, high=high))
    sch = bw.Schedule(func, verify="full")
    i, j, k = sch.get_loops("C")
    outer, _ = sch.split(k, [2, None])
    sch.reorder(outer, i, j)
    if split:
        sch.split(i, [None, 4])
    sch.decompose_reduction("C", outer)
    assert_same_meaning(func, sch.func, exact=True)

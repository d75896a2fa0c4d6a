"""Steps that are refused or taken by a hair: the least program that makes the difference."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.ir.printer import script
from blockwright.schedule import Schedule, ScheduleError
from blockwright.testing.check import assert_same_meaning
from tests.schedule.refusals import Case, block, function, loop, require_refusal

ROWS_AND_CORNER = """
for i in range(32):
    for j in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(i + j < 60)
            B[vi, vj] = A[vi, vj]
    for j in range(32):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = 0.0
"""
OF_THE_LAST = """
C = T.alloc_buffer((32,), "float32")
D = T.alloc_buffer((32,), "float32")
for i in range(32):
    with T.block("C"):
        vi = T.axis.spatial(32, i)
        C[vi] = A[vi, 0]
    with T.block("D"):
        vi = T.axis.spatial(32, i)
        D[vi] = C[T.max(vi - 1, 0)]
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = D[vi] + 1.0
"""

CASES: dict[str, Case] = {
    "blockize: a corner of one block is cut off": (
        ROWS_AND_CORNER, lambda s: s.blockize([block(s, "B"), block(s, "D")]), "BW356",
        "a condition of the predicate is not a bound of a single iterator"),
    "compute_at: what the iteration before has made": (
        OF_THE_LAST, lambda s: s.compute_at(block(s, "D"), loop(s, "B", 0)), "BW316",
        "block C has not written all of C that block D reads\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_refused(name: str) -> None:
    require_refusal(name, CASES[name])


DECAY = """
for i, j, k in T.grid(32, {rows}, {columns}):
    with T.block("B"):
        vi, vj, vk = T.axis.remap("SRR", [i, j, k])
        with T.init():
            B[0, vi] = 0.0
        B[0, vi] = B[0, vi] * 0.5 + A[vi, vj * {columns} + vk]
"""


def exchanged(i: Any, j: Any, k: Any) -> tuple[Any, Any, Any]:
    return i, k, j


@pytest.mark.parametrize("sizes", [(1, 32), (32, 1)])
def test_reduction_iterators_change_places_where_the_order_of_terms_stays(
    sizes: tuple[int, int],
) -> None:
    """It stays where one of two iterators has a single value; with two values it does not."""
    func = function(DECAY.format(rows=sizes[0], columns=sizes[1]))
    sch = Schedule(func, verify="full")
    sch.transform_block_layout(block(sch, "B"), exchanged)
    assert_same_meaning(func, sch.func, exact=True)
    square = Schedule(function(DECAY.format(rows=2, columns=2)), verify="full")
    with pytest.raises(ScheduleError, match="steps of block B cannot be reordered") as caught:
        square.transform_block_layout(block(square, "B"), exchanged)
    assert caught.value.code == "BW330"


DIGITS = """
C = T.alloc_buffer((9, 2, 2), "float32")
for i, j, k in T.grid(9, 2, 2):
    with T.block("C"):
        vi, vj, vk = T.axis.remap("SSS", [i, j, k])
        C[vi, vj, vk] = A[vi, vj * 2 + vk]
for i, j in T.grid(6, 6):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[(vi * 6 + vj) // 4, (vi * 6 + vj) % 4 // 2, (vi * 6 + vj) % 4 % 2] + 1.0
"""


def test_the_place_of_an_element_is_told_from_as_few_digits_as_decide_it() -> None:
    """Two pairs of elements to a row of four, three pairs to a row of six: the row is that of the
    pair, whichever of its elements it is."""
    func = function(DIGITS)
    sch = Schedule(func, verify="full")
    sch.reverse_compute_inline(block(sch, "B"))
    stored = script(sch.func).splitlines()[-1].strip()
    row, column = "(vi * 2 + vj) // 3", "(vi * 2 + vj) % 3 * 2 + vk"
    assert stored == f"B[{row}, {column}] = A[vi, vj * 2 + vk] + T.float32(1.0)"
    assert_same_meaning(func, sch.func, exact=True)


HALVES = """
C = T.alloc_buffer((2, 8), "float32")
for j in range(8):
    with T.block("C"):
        vj = T.axis.spatial(8, j)
        T.where(j < 4)
        C[0, vj] = A[0, vj]
for j in range(8):
    with T.block("D"):
        vj = T.axis.spatial(8, j)
        T.where(j < 4)
        C[1, vj] = A[1, vj]
for i in range(8):
    with T.block("B"):
        vi = T.axis.spatial(8, i)
        B[0, vi] = C[vi // 4, vi % 4] + 1.0
"""
DIAGONAL = """
C = T.alloc_buffer((8, 8), "float32")
for j in range(4):
    with T.block("C"):
        vj = T.axis.spatial(4, j)
        C[vj + 4, vj] = A[0, vj]
for j in range(8):
    with T.block("D"):
        vj = T.axis.spatial(8, j)
        C[3, vj] = A[1, vj]
for i in range(8):
    with T.block("B"):
        vi = T.axis.spatial(8, i)
        B[0, vi] = C[3, vi] + 1.0
"""


def conditions(name: str) -> list[str]:
    """Those of the blocks that the consumer has gone into."""
    func = function(name)
    sch = Schedule(func, verify="full")
    sch.reverse_compute_inline(block(sch, "B"))
    assert_same_meaning(func, sch.func, exact=True)
    return [r.strip() for r in script(sch.func).splitlines() if "T.where" in r]


def test_producers_store_what_the_consumer_reads_and_nothing_else() -> None:
    """Each keeps its own condition, and has one more where it would make another element."""
    assert conditions(HALVES) == [
        "T.where(j < 4 and j // 4 == 0 and j % 4 == j)",
        "T.where(j < 4 and j + 4 < 8 and (j + 4) // 4 == 1 and (j + 4) % 4 == j)",
    ]
    assert conditions(DIAGONAL) == ["T.where(3 == j + 4)"]

"""Tiles that go one element too far: the least by which a condition may be missed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockwright.schedule import Schedule
from blockwright.testing.check import assert_same_meaning
from tests.schedule.refusals import block, function, loop

CHAIN = """
C = T.alloc_buffer((32, 32), "float32")
for i, j in T.grid(32, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj] * 2.0
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[vi, vj] + 1.0
"""


def rows(sch: Schedule, name: str) -> None:
    """Eleven tiles of three rows: one row too many."""
    sch.split(loop(sch, name, 0), [None, 3])


def compute_at(sch: Schedule) -> None:
    rows(sch, "B")
    sch.compute_at(block(sch, "C"), loop(sch, "B", 0))


def reverse_compute_at(sch: Schedule) -> None:
    rows(sch, "C")
    sch.reverse_compute_at(block(sch, "B"), loop(sch, "C", 0))


def cache_read(sch: Schedule) -> None:
    rows(sch, "B")
    copy = sch.cache_read(block(sch, "B"), 0, "local")
    sch.compute_at(copy, loop(sch, "B", 0))


@pytest.mark.parametrize("step", [compute_at, reverse_compute_at, cache_read])
def test_the_row_that_is_not_there_is_left_out(step: Callable[[Schedule], None]) -> None:
    func = function(CHAIN)
    sch = Schedule(func, verify="full")
    step(sch)
    assert_same_meaning(func, sch.func, exact=True)

"""Shared memory that is allocated inside of a loop over threads is one for all of them."""

from __future__ import annotations

import pytest

from blockwright.verify import verify
from tests.schedule.refusals import function

OUTSIDE = """
C = T.alloc_buffer((32, 32), "float32", scope="{scope}")
for i in T.thread_binding(32, thread="threadIdx.x"):
    for j in range(32):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] * 2.0
    for j in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[vi, vj] + 1.0
"""
INSIDE = """
for i in T.thread_binding(32, thread="threadIdx.x"):
    with T.block("store"):
        vi = T.axis.spatial(32, i)
        C = T.alloc_buffer((32,), "float32", scope="{scope}")
        for j in range(32):
            with T.block("C"):
                vj = T.axis.spatial(32, j)
                C[vj] = A[vi, vj] * 2.0
        for j in range(32):
            with T.block("B"):
                vj = T.axis.spatial(32, j)
                B[vi, vj] = C[vj] + 1.0
"""


@pytest.mark.parametrize(("scope", "proved"), [("local", True), ("shared", False)])
def test_threads_meet_in_memory_that_they_share(scope: str, proved: bool) -> None:
    before = function(OUTSIDE.format(scope=scope))
    after = function(INSIDE.format(scope=scope))
    assert (verify(before, after).verdict == "proved") == proved

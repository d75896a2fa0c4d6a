"""Steps leave the simplest form: what they know of their own loops is used.

Loops of one iteration leave constants behind, and conditions that always hold are not asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from blockwright import ir
from blockwright.ir.printer import script
from blockwright.schedule import Schedule
from tests.schedule.refusals import block, function, loop

ONE = """
for i, j in T.grid(1, 1):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj] * 2.0
"""
ONE_FUSED = """
for i_j_fused in range(1):
    with T.block("B"):
        vi = T.axis.spatial(1, 0)
        vj = T.axis.spatial(1, 0)
        B[vi, vj] = A[vi, vj] * 2.0
"""
ONE_SPLIT = """
for i_0, i_1, j in T.grid(1, 1, 1):
    with T.block("B"):
        vi = T.axis.spatial(1, 0)
        vj = T.axis.spatial(1, j)
        B[vi, vj] = A[vi, vj] * 2.0
"""
ROWS = """
for i, j in T.grid(4, 30):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj] * 2.0
"""
ROWS_TILED = """
for ax0, ax1, ax2 in T.grid(4, 4, 8):
    with T.block("B"):
        v0, v1, v2 = T.axis.remap("SSS", [ax0, ax1, ax2])
        T.where(ax1 * 8 + ax2 < 30)
        B[v0, v1 * 8 + v2] = A[v0, v1 * 8 + v2] * 2.0
"""
ROWS_READ = """
A_local = T.alloc_buffer((32, 32), "float32", scope="local")
for i in range(4):
    with T.block("A_local"):
        v0 = T.axis.spatial(4, i)
        T.reads(A[v0, 0:30])
        T.writes(A_local[v0, 0:30])
        T.block_attr({"auto_copy": 1})
        for ax0, ax1 in T.grid(1, 30):
            A_local[v0, ax1] = A[v0, ax1]
    for j in range(30):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A_local[vi, vj] * 2.0
"""
STAGES = """
C = T.alloc_buffer((2, 32), "float32")
for i in range(2):
    for j in range(32):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] * 2.0
    for j in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[vi, vj] + 1.0
"""
REPEATED = """
C = T.alloc_buffer((32,), "float32")
for i in range(32):
    for j in range(32):
        with T.block("C"):
            vj = T.axis.spatial(32, j)
            C[vj] = A[0, vj] * 2.0
    for j in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[vj] + A[vi, vj]
"""


def tiles_of_eight(i: Any, j: Any) -> tuple[Any, Any, Any]:
    return i, j // 8, j % 8


CASES: dict[str, tuple[str, Callable[[Schedule], object], str]] = {
    "fuse": (ONE, lambda s: s.fuse(*s.get_loops("B")), ONE_FUSED),
    "split": (ONE, lambda s: s.split(loop(s, "B", 0), [1, 1]), ONE_SPLIT),
    "transform_block_layout": (
        ROWS, lambda s: s.transform_block_layout(block(s, "B"), tiles_of_eight),
        ROWS_TILED),
    "read_at": (ROWS, lambda s: s.read_at(loop(s, "B", 0), block(s, "B"), 0, "local"), ROWS_READ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_program_is_as_simple_as_it_can_be(name: str) -> None:
    before, step, after = CASES[name]
    sch = Schedule(function(before))
    step(sch)
    ir.assert_structural_equal(sch.func, function(after))


def test_a_pipeline_that_is_full_for_one_iteration_has_constants_there() -> None:
    sch = Schedule(function(STAGES))
    sch.software_pipeline(loop(sch, "B", 0), [0, 1])
    text = script(sch.func)
    assert text.count("vi = T.axis.spatial(2, 0)") == 2
    assert text.count("vi = T.axis.spatial(2, 1)") == 2


def test_a_block_that_no_iteration_shows_in_gets_its_version_from_outside() -> None:
    sch = Schedule(function(REPEATED))
    sch.software_pipeline(loop(sch, "B", 0), [0, 1])
    versions = [
        it for b in ir.blocks(sch.func.body) for it in b.iter_vars if it.var.name == "version"
    ]
    assert versions
    assert {ir.const_int(it.dom.extent) for it in versions} == {2}

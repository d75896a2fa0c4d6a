"""Rows that begin within a line are stored past the caches all the same, line by line."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw

NEVER = np.float32(7.0)


def doubled(rows: int, columns: int, lanes: int, unrolled: int = 1) -> bw.Schedule:
    sch = bw.Schedule(
        bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer(({rows}, {columns}), "float32"), B: T.Buffer(({rows}, {columns}), "float32")):
    for i, j in T.grid({rows}, {columns}):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
""")
    )
    i, j = sch.get_loops("B")
    o, u, lane = sch.split(j, [None, unrolled, lanes])
    sch.unroll(u)
    sch.vectorize(lane)
    sch.annotate(o, "loop_partition", True)
    sch.parallel(i)
    sch.annotate(i, "streaming_stores", 0)
    return sch


def surrounded(behind: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Memory, and so many elements in its midst that begin some elements behind a line."""
    room = np.full(count + 96, NEVER, "float32")
    start = (64 - room.ctypes.data % 64) % 64 // 4 + 32 + behind
    return room, room[start : start + count]


@pytest.mark.parametrize("columns", [67, 129, 1000, 1001, 64, 50])
@pytest.mark.parametrize(("lanes", "unrolled"), [(16, 1), (64, 1), (16, 4)])
def test_each_element_arrives_and_no_other_changes(columns: int, lanes: int, unrolled: int) -> None:
    run = bw.build(doubled(9, columns, lanes, unrolled).func, "native")["main"]
    a = np.arange(9 * columns, dtype="float32").reshape(9, columns)
    for behind in (0, 1, 15):
        room, inside = surrounded(behind, a.size)
        b = inside.reshape(a.shape)
        run(a, b)
        np.testing.assert_array_equal(b, 2 * a)
        inside[:] = NEVER
        np.testing.assert_array_equal(room, NEVER)


def test_rows_off_lines_pass_the_caches_by_with_avx512() -> None:
    text = bw.build(doubled(9, 1001, 16).func, "x86-64-v4").source("asm")
    assert "vmovntps" in text
    assert "vperm" in text
    narrow = bw.build(doubled(9, 1001, 16).func, "x86-64-v3").source("asm")
    assert "vmovntps" not in narrow  # nothing moves elements between two vectors at once


def test_rows_at_lines_are_not_moved() -> None:
    text = bw.build(doubled(9, 1024, 16).func, "x86-64-v4").source("asm")
    assert "vmovntps" in text
    assert "vperm" not in text

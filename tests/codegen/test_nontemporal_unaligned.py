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
    sch.annotate(i, "nontemporal_stores", 0)
    return sch


def surrounded(behind: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Memory, and so many elements in its midst that begin some elements behind a line."""
    room = np.full(count + 96, NEVER, "float32")
    start = (64 - room.ctypes.data % 64) % 64 // 4 + 32 + behind
    return room, room[start : start + count]


@pytest.mark.parametrize("columns", [67, 129, 1000, 1001, 64, 50])
@pytest.mark.parametrize(("lanes", "unrolled"), [(8, 1), (16, 1), (64, 1), (16, 4)])
@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
def test_each_element_arrives_and_no_other_changes(
    target: str, columns: int, lanes: int, unrolled: int
) -> None:
    run = bw.build(doubled(9, columns, lanes, unrolled).func, target)["main"]
    a = np.arange(9 * columns, dtype="float32").reshape(9, columns)
    for behind in (0, 1, 7, 8, 15):
        room, inside = surrounded(behind, a.size)
        b = inside.reshape(a.shape)
        run(a, b)
        np.testing.assert_array_equal(b, 2 * a)
        inside[:] = NEVER
        np.testing.assert_array_equal(room, NEVER)


@pytest.mark.parametrize(
    ("target", "register"),
    [("x86-64-v4", "zmm"), ("x86-64-v3", "ymm")],
)
def test_rows_off_lines_pass_the_caches_by(target: str, register: str) -> None:
    lines = bw.build(doubled(9, 1001, 16).func, target).source("asm").splitlines()
    assert any("vmovntps" in line and register in line for line in lines)
    assert any("vperm" in line and register in line for line in lines)


def test_they_are_stored_as_they_are_where_nothing_moves_lanes() -> None:
    assert "movntps" not in bw.build(doubled(9, 1001, 4).func, "x86-64-v2").source("asm")


def test_rows_at_lines_are_not_moved() -> None:
    text = bw.build(doubled(9, 1024, 16).func, "x86-64-v4").source("asm")
    assert "vmovntps" in text
    assert "vperm" not in text


def test_rows_that_end_early_are_stored_as_they_are() -> None:
    """A jump leaves vectors out, and with them the lines that they would complete."""
    module = bw.build(
        bw.from_source("""
@T.prim_func
def main(A: T.Buffer((5, 161), "float32"), B: T.Buffer((5, 161), "float32")):
    for i in T.serial(5, annotations={"nontemporal_stores": 0}):
        with T.block("B"):
            vi = T.axis.spatial(5, i)
            T.reads(A[vi, 0:161])
            T.writes(B[vi, 0:161])
            for c in range(10):
                if A[vi, c * 16] < 0.0:
                    break
                for j in T.vectorized(16):
                    B[vi, c * 16 + j] = A[vi, c * 16 + j]
"""),
        "native",
    )
    a = np.ones((5, 161), "float32")
    a[2, 64] = a[3, 0] = -1
    expected = np.full_like(a, NEVER)
    expected[:, :160] = 1
    expected[2, 64:] = expected[3] = NEVER
    b = surrounded(0, a.size)[1].reshape(a.shape)
    module["main"](a, b)
    np.testing.assert_array_equal(b, expected)

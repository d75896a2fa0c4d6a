"""Blocks whose inner blocks write through views of regions, and reads that a condition guards."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw

TILES = """
@T.prim_func
def main(A: T.Buffer((8, 12), "float32"), C: T.Buffer((8, 12), "float32")):
    B = T.alloc_buffer((8, 12), "float32")
    for io, jo in T.grid(2, 3):
        with T.block("B"):
            vio, vjo = T.axis.remap("SS", [io, jo])
            T.reads(A[vio * 4:vio * 4 + 4, vjo * 4:vjo * 4 + 4])
            T.writes(B[vio * 4:vio * 4 + 4, vjo * 4:vjo * 4 + 4])
            At = T.match_buffer(A[vio * 4:vio * 4 + 4, vjo * 4:vjo * 4 + 4], (4, 4),
                                strides=["s", 1], offset_factor=1)
            Bt = T.match_buffer(B[vio * 4:vio * 4 + 4, vjo * 4:vjo * 4 + 4], (4, 4),
                                strides=["t", 1], offset_factor=1)
            for i, j in T.grid(ROWS, 4):
                with T.block("inner"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    Bt[vi, vj] = At[vj, vi] * T.float32(2)
    for i, j in T.grid(8, 12):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + T.float32(1)
"""
STEPS: list[Callable[[bw.Schedule], object]] = [
    lambda s: s.cache_write("B", 0, "local"),
    lambda s: s.compute_at("B", s.split(s.get_loops("C")[0], [None, 4])[0]),
    lambda s: s.reverse_compute_at("C", s.get_loops("B")[0]),
]


@pytest.mark.parametrize("step", STEPS)
def test_views_written_as_a_whole(step: Callable[[bw.Schedule], object]) -> None:
    func = bw.from_source(TILES.replace("ROWS", "4"))
    s = bw.Schedule(func)
    step(s)
    a = np.random.default_rng(1).standard_normal((8, 12)).astype("float32")
    c, d = np.zeros_like(a), np.zeros_like(a)
    bw.interpret(s.func, a, c)
    bw.build(s.func)["main"](a, d)
    wanted = a.reshape(2, 4, 3, 4).transpose(0, 3, 2, 1).reshape(8, 12) * 2 + 1
    np.testing.assert_array_equal(c, wanted)
    np.testing.assert_array_equal(d, wanted)


@pytest.mark.parametrize("step", STEPS)
def test_views_written_in_part(step: Callable[[bw.Schedule], object]) -> None:
    s = bw.Schedule(bw.from_source(TILES.replace("ROWS", "3")))
    with pytest.raises(bw.ScheduleError):
        step(s)


GUARDED = """
@T.prim_func
def main(x: T.handle, o: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n, 8), "float32")
    O = T.match_buffer(o, (n, 8), "float32")
    N = T.alloc_buffer((n, 8), "float32")
    for i, j in T.grid(n, T.int64(8)):
        with T.block("N"):
            vi, vj = T.axis.remap("SS", [i, j])
            N[vi, vj] = X[vi, vj] * T.float32(2)
    for i, j in T.grid(n, T.int64(8)):
        with T.block("O"):
            vi, vj = T.axis.remap("SS", [i, j])
            O[vi, vj] = READ
"""
HALVES = "T.if_then_else(vj < T.int64(4), -N[vi, vj + T.int64(4)], N[vi, vj - T.int64(4)])"


@pytest.mark.parametrize("factors", [[32, None], [None, 4]])
@pytest.mark.parametrize("n", [1, 2, 31, 33])
def test_guarded_reads_of_a_row(factors: list[int | None], n: int) -> None:
    """Each instance reads some element of its row, so it belongs to the iteration of the row."""
    s = bw.Schedule(bw.from_source(GUARDED.replace("READ", HALVES)))
    outer, _ = s.split(s.get_loops("N")[0], factors)
    s.reverse_compute_at("O", outer)
    x = np.random.default_rng(n).standard_normal((n, 8)).astype("float32")
    o, p = np.zeros_like(x), np.zeros_like(x)
    bw.interpret(s.func, x, o)
    bw.build(s.func)["main"](x, p)
    wanted = np.concatenate([-2 * x[:, 4:], 2 * x[:, :4]], 1)
    np.testing.assert_array_equal(o, wanted)
    np.testing.assert_array_equal(p, wanted)


@pytest.mark.parametrize(
    "read",
    [
        "T.if_then_else(vi >= T.int64(1), N[vi - T.int64(1), vj], T.float32(0))",
        "T.if_then_else(vj >= T.int64(1), N[vi, vj - T.int64(1)], T.float32(0))",
    ],
)
def test_instances_that_read_nothing_are_not_lost(read: str) -> None:
    s = bw.Schedule(bw.from_source(GUARDED.replace("READ", read)))
    outer, _ = s.split(s.get_loops("N")[0], [None, 4])
    with pytest.raises(bw.ScheduleError) as found:
        s.reverse_compute_at("O", outer)
    assert found.value.code == "BW358"

"""Reductions whose number of terms is loaded, as in sparse products: their loops can be split and
factored, because the first step runs wherever any step does, while the number stays the same. Their
results can be cached, because rows without terms are initialized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.support import ScheduleError

PROGRAM = """
@T.prim_func
def spmv(ip: T.handle, ix: T.handle, d: T.handle, x: T.handle, y: T.handle):
    m = T.int32()
    n = T.int32()
    nnz = T.int32()
    IP = T.match_buffer(ip, (m + 1,), "int32")
    IX = T.match_buffer(ix, (nnz,), "int32")
    D = T.match_buffer(d, (nnz,), "float32")
    X = T.match_buffer(x, (n,), "float32")
    Y = T.match_buffer(y, (m,), "float32")
    for i in range(m):
        with T.block("row"):
            vi = T.axis.spatial(m, i)
            T.reads(IP[vi:vi + 2], IX[0:nnz], D[0:nnz], X[0:n])
            T.writes(Y[vi])
            for k in range(IP[vi + 1] - IP[vi]):
                with T.block("sum"):
                    vk = T.axis.reduce(IP[vi + 1] - IP[vi], k)
                    with T.init():
                        Y[vi] = T.float32(0)
                    Y[vi] = Y[vi] + D[IP[vi] + vk] * X[IX[IP[vi] + vk]]
"""


def split(s: Any) -> None:
    s.split(s.get_loops("sum")[-1], [None, 4])


def unrolled(s: Any) -> None:
    s.unroll(s.split(s.get_loops("sum")[-1], [None, 4])[1])


def three_levels(s: Any) -> None:
    s.split(s.get_loops("sum")[-1], [None, 2, 4])


def factored(s: Any) -> None:
    s.rfactor(s.split(s.get_loops("sum")[-1], [None, 4])[1], 0)


def cached(s: Any) -> None:
    s.cache_write("sum", 0, "local")


def cached_and_split(s: Any) -> None:
    cached(s)
    split(s)


def matrices() -> list[list[np.ndarray]]:
    """Arguments for matrices with empty rows, with full ones, and without rows."""
    random = np.random.default_rng(0)
    result: list[list[np.ndarray]] = []
    for rows, columns, dense in ((0, 3, 0.5), (1, 4, 0.0), (3, 9, 1.0), (20, 30, 0.2)):
        matrix = random.integers(1, 5, (rows, columns)) * (random.random((rows, columns)) < dense)
        r, c = np.nonzero(matrix)
        starts = np.concatenate([[0], np.cumsum(np.bincount(r, minlength=rows))])[: rows + 1]
        x = random.integers(-4, 5, columns).astype(np.float32)
        y = (matrix @ x).astype(np.float32)
        data = matrix[r, c].astype(np.float32)
        result.append([starts.astype(np.int32), c.astype(np.int32), data, x, y])
    return result


@pytest.mark.parametrize(
    "step", [split, unrolled, three_levels, factored, cached, cached_and_split]
)
@pytest.mark.parametrize("compiled", [False, True])
def test_the_loop_of_the_terms(step: Callable[[Any], None], compiled: bool) -> None:
    s = bw.Schedule(bw.from_source(PROGRAM))
    step(s)
    for *given, wanted in matrices():
        y = np.full(wanted.shape, 7, np.float32)
        if compiled:
            bw.build(s.func)["spmv"](*given, y)
        else:
            bw.interpret(s.func, *given, y)
        assert y.tolist() == wanted.tolist()


CHANGE = "IP[vi + 1] = IP[vi + 1] - 1"


@pytest.mark.parametrize("step", [split, factored])
def test_a_number_of_terms_that_the_block_changes(step: Callable[[Any], None]) -> None:
    """The first step may then be skipped although a later one runs."""
    store = "Y[vi] = Y[vi] + D[IP[vi] + vk] * X[IX[IP[vi] + vk]]"
    program = PROGRAM.replace(store, f"{store}\n                    {CHANGE}")
    program = program.replace("T.writes(Y[vi])", "T.writes(Y[vi], IP[vi:vi + 2])")
    with pytest.raises(ScheduleError, match="BW350"):
        step(bw.Schedule(bw.from_source(program)))


@pytest.mark.parametrize("change", ["", CHANGE])
def test_reads_of_a_block_around_such_a_reduction(change: str) -> None:
    """Without a sure first step, the updates may read what was there before the block."""
    loop = f"""
            for a, b in T.grid((IP[vi + 1] - IP[vi] + 3) // 4, 4):
                with T.block("sum"):
                    vk = T.axis.reduce(IP[vi + 1] - IP[vi], a * 4 + b)
                    T.where(a * 4 + b < IP[vi + 1] - IP[vi])
                    with T.init():
                        Y[vi] = T.float32(0)
                    Y[vi] = Y[vi] + D[IP[vi] + vk]
                    {change or "pass"}
"""
    program = PROGRAM[: PROGRAM.index("            T.reads(")] + loop
    func = bw.from_source(program)
    (row,) = (b for b in ir.blocks(func.body) if b.name == "row")
    assert any(r.buffer.name == "Y" for r in row.reads) == bool(change)


def test_sums_that_nothing_initializes_are_not_cached() -> None:
    """A row without terms would get contents of the cache that were never written."""
    init = """                    with T.init():
                        Y[vi] = T.float32(0)
"""
    program = PROGRAM.replace(init, "").replace(
        "T.reads(IP[vi:vi + 2]", "T.reads(Y[vi], IP[vi:vi + 2]"
    )
    with pytest.raises(ScheduleError, match="BW323"):
        cached(bw.Schedule(bw.from_source(program)))

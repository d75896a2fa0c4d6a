"""Signatures that state a gather by the index that it loads: what is accepted, and what steps make
of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.support import ScheduleError

HEAD = """
@T.prim_func
def main(A: T.Buffer((16,), "float32"), I: T.Buffer((9,), "int32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            T.reads({reads})
            T.writes({writes})
"""
ROWS = """
@T.prim_func
def main(A: T.Buffer((16, 4), "float32"), I: T.Buffer((8,), "int64"),
         B: T.Buffer((8, 4), "float32")):
    for i, j in T.grid(8, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(I[vi], A[I[vi], {column}])
            T.writes(B[vi, vj])
            B[vi, vj] = A[I[vi], vj]
"""
SUM = """
for j in range(I[vi + 1] - I[vi]):
    with T.block("S"):
        vj = T.axis.reduce(I[vi + 1] - I[vi], j)
        T.reads(I[vi], A[I[vi] + vj])
        T.writes(B[vi])
        with T.init():
            B[vi] = T.float32(0)
        B[vi] = B[vi] + A[I[vi] + vj]
"""


def program(reads: str, body: str, writes: str = "B[vi]") -> ir.PrimFunc:
    lines = "\n".join(" " * 12 + line for line in body.strip().splitlines())
    return bw.from_source(HEAD.format(reads=reads, writes=writes) + lines + "\n")


def regions(func: ir.PrimFunc) -> dict[str, list[tuple[int | None, int | None]]]:
    block = ir.blocks(func.root.body)[0]
    return {
        r.buffer.name: [(ir.const_int(x.min), ir.const_int(x.extent)) for x in r.region]
        for r in (*block.reads, *block.writes)
    }


@pytest.mark.parametrize(
    ("reads", "body"),
    [
        ("I[vi], A[I[vi]]", "B[vi] = A[I[vi]]"),
        ("I[vi], A[I[vi]]", "at: T.int32 = I[vi]\nB[vi] = A[at]"),
        ("I[vi], A[I[vi] + 1]", "B[vi] = A[I[vi] + 1]"),
        ("I[vi:vi + 2], A[I[vi]], A[I[vi + 1]]", "B[vi] = A[I[vi]] + A[I[vi + 1]]"),
        ("I[vi:vi + 2], A[I[vi]:I[vi + 1]]", SUM),
    ],
)
def test_narrow_gathers_are_whole_dimensions(reads: str, body: str) -> None:
    func = program(reads, body)
    bw.validate(func)
    assert regions(func)["A"] == [(0, 16)]
    assert ir.structural_equal(func, bw.from_source(func.script()))


def test_scatters_too() -> None:
    func = program("I[vi], B[vi]", "A[I[vi]] = B[vi]", writes="A[I[vi]]")
    bw.validate(func)
    assert regions(func)["A"] == [(0, 16)]
    for step in ("parallel", "vectorize"):
        s = Schedule(func)
        with pytest.raises(ScheduleError):
            getattr(s, step)(s.get_loops("B")[0])


def test_atomic_updates_too() -> None:
    """They write their place; what chooses it they read alone."""
    body = "T.atomic_add(A[I[vi]], B[vi])"
    func = program("I[vi], A[I[vi]], B[vi]", body, writes="A[I[vi]]")
    bw.validate(func)
    assert regions(func)["A"] == [(0, 16)]
    with pytest.raises(bw.ValidationError, match="BW216"):
        bw.validate(program("I[vi], A[I[vi]]", "T.atomic_add(A[I[vi] + 1], A[0])", "A[I[vi]]"))


def test_other_dimensions_stay() -> None:
    func = bw.from_source(ROWS.format(column="vj"))
    bw.validate(func)
    assert regions(func)["A"] == [(0, 16), (None, 1)]
    with pytest.raises(bw.ValidationError, match="BW216"):
        bw.validate(bw.from_source(ROWS.format(column="0")))


@pytest.mark.parametrize(
    ("reads", "writes", "body"),
    [
        ("I[vi:vi + 2], A[I[vi + 1]]", "B[vi]", "B[vi] = A[I[vi]]"),
        ("I[vi], A[I[vi]]", "B[vi]", "B[vi] = A[I[vi] + 1]"),
        ("A[I[vi]]", "B[vi]", "B[vi] = A[I[vi]]"),
        ("I[vi:vi + 2], A[I[vi]]", "B[vi]", "B[vi] = A[I[vi]] + A[I[vi + 1]]"),
        ("I[vi], A[I[vi]]", "B[vi], I[vi]", "I[vi] = I[vi] + 1\nB[vi] = A[I[vi]]"),
        ("I[vi:vi + 2], A[I[vi]:I[vi + 1]]", "B[vi]", SUM.replace("+ vj]", "+ vj + 1]")),
        ("I[vi:vi + 2], A[I[vi]]", "B[vi]", SUM),
    ],
)  # fmt: skip
def test_untrue_gathers_are_refused(reads: str, writes: str, body: str) -> None:
    with pytest.raises(bw.ValidationError, match="BW216"):
        bw.validate(program(reads, body, writes))


PRODUCED = """
@T.prim_func
def main(X: T.Buffer((16,), "float32"), I: T.Buffer((8,), "int32"), B: T.Buffer((8,), "float32")):
    A = T.alloc_buffer((16,), "float32")
    for i in range(16):
        with T.block("A"):
            vi = T.axis.spatial(16, i)
            A[vi] = X[vi] * T.float32(3)
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            T.reads(I[vi], A[I[vi]])
            T.writes(B[vi])
            B[vi] = A[I[vi]] + T.float32(1)
"""
STEPS: dict[str, Callable[[Schedule], object]] = {
    "compute_at": lambda s: s.compute_at("A", s.get_loops("B")[0]),
    "compute_at outer": lambda s: s.compute_at("A", s.split(s.get_loops("B")[0], [2, 4])[0]),
    "cache_read": lambda s: s.cache_read("B", "A", "global"),
    "cache_read inside": lambda s: s.compute_at(
        s.cache_read("B", "A", "global"), s.get_loops("B")[0]
    ),
    "compute_inline": lambda s: s.compute_inline("A"),
    "parallel": lambda s: s.parallel(s.get_loops("B")[0]),
    "reorder": lambda s: s.reorder(*s.split(s.get_loops("B")[0], [2, 4])[::-1]),
    "vectorize": lambda s: s.vectorize(s.split(s.get_loops("B")[0], [2, 4])[1]),
}


@pytest.mark.parametrize("step", STEPS)
def test_steps_see_the_whole_dimension(step: str) -> None:
    func = bw.from_source(PRODUCED)
    s = Schedule(func, verify="full")
    STEPS[step](s)
    bw.validate(s.func)
    assert bw.verify(func, s.func).verdict != "refuted"
    x, at = np.arange(16, dtype="float32"), np.array([3, 15, 0, 7, 7, 1, 14, 8], "int32")
    for run in (lambda *a: bw.interpret(s.func, *a), bw.build(s.func)):
        found = np.zeros(8, "float32")
        run(x, at, found)
        np.testing.assert_array_equal(found, x[at] * 3 + 1)


def test_consumers_do_not_move_to_a_part_of_what_they_gather() -> None:
    s = Schedule(bw.from_source(PRODUCED))
    with pytest.raises(ScheduleError):
        s.reverse_compute_at("B", s.get_loops("A")[0])

"""What decides where a block runs is evaluated only where it was, and with the values that it had:
bounds and predicates that divide by 0 or load past a buffer where a guard fails, bounds that the
loop itself overwrites.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.support import ScheduleError
from blockwright.testing import assert_same_meaning

Step = Callable[[Schedule], object]

HEAD = """
@T.prim_func
def main(N: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32"), D: T.Buffer((8,), "int32")):
"""
LOADED_BOUND = """
for i in range(8):
    for j in range(N[i]):
        with T.block("U"):
            vi = T.axis.spatial(8, i)
            vj = T.axis.opaque(8, j)
            C[vi] = C[vi] + 1
"""
BOUND_BEHIND = """
for i in range(8):
    for j in range(i + 1):
        for k in range(N[j]):
            with T.block("U"):
                vi = T.axis.spatial(8, i)
                vk = T.axis.opaque(8, k)
                C[vi] = C[vi] + 1
"""
LOADED_CONDITION = """
for i in range(8):
    with T.block("U"):
        vi = T.axis.spatial(8, i)
        T.where(N[i] > 2)
        C[vi] = D[vi] + 1
"""
NAMED_CONDITION = "x = T.int32()" + LOADED_CONDITION.replace(
    "N[i] > 2", "T.Let(x + x > 4, where={x: N[i]})"
)
DIVIDED_BOUND = """
for i in range(7):
    for j in range(14 // (7 - i)):
        with T.block("U"):
            vi = T.axis.spatial(8, i)
            vj = T.axis.opaque(16, j)
            C[vi] = C[vi] + 1
"""
DIVIDED_CONDITION = """
for i in range(7):
    with T.block("U"):
        vi = T.axis.spatial(8, i)
        T.where(9 // (7 - i) > 1)
        C[vi] = D[vi] + 1
"""
REDUCTION = """
for i, k in T.grid(3, 7):
    with T.block("U"):
        vi, vk = T.axis.remap("SR", [i, k])
        T.where(N[k] > 2)
        with T.init():
            C[vi] = 0
        C[vi] = C[vi] + D[vk]
"""
TWO = """
for i in range(8):
    with T.block("U"):
        vi = T.axis.spatial(8, i)
        T.where(N[7 - i] > 2)
        C[vi] = 3
for i in range(8):
    for j in range(N[7 - i] % 3):
        with T.block("V"):
            vi = T.axis.spatial(8, i)
            vj = T.axis.opaque(8, j)
            D[vi] = D[vi] + 1
"""


def program(body: str, head: str = HEAD) -> ir.PrimFunc:
    return bw.from_source(head + "".join(f"    {line}\n" for line in body.splitlines() if line))


def split(at: int, *factors: int | None) -> Step:
    return lambda s: s.split(s.get_loops("U")[at], factors)


def lanes(s: Schedule) -> None:
    s.vectorize(s.split(s.get_loops("U")[0], [None, 4])[1])


GUARDED: dict[str, tuple[str, Step]] = {
    "loaded bound": (LOADED_BOUND, split(0, 3, None)),
    "loaded bound, inside": (LOADED_BOUND, split(0, None, 3)),
    "loaded bound of a loop": (BOUND_BEHIND, split(0, 3, None)),
    "loaded condition": (LOADED_CONDITION, split(0, 3, None)),
    "loaded condition in lanes": (LOADED_CONDITION, lanes),
    "named value": (NAMED_CONDITION, split(0, None, 3)),
    "divided bound": (DIVIDED_BOUND, split(0, None, 4)),
    "divided condition": (DIVIDED_CONDITION, split(0, 3, None)),
    "divided condition in lanes": (DIVIDED_CONDITION, lanes),
    "condition of a sum": (REDUCTION, split(1, None, 4)),
    "condition of a padding": (
        DIVIDED_CONDITION.replace("range(7)", "range(8)").replace("9 // (7 - i) > 1", "i < 7")
        .replace("D[vi] + 1", "T.if_then_else(9 // (7 - vi) > 1, D[vi], 0)"),
        lambda s: s.decompose_padding("U", s.get_loops("U")[0])),
    "loops side by side": (
        TWO, lambda s: s.horizontal_fuse(s.get_loops("U")[0], s.get_loops("V")[0])),
}  # fmt: skip


@pytest.mark.parametrize("name", GUARDED)
def test_a_guard_keeps_it_from_failing(name: str) -> None:
    body, step = GUARDED[name]
    func = program(body)
    sch = Schedule(func, verify="full")
    step(sch)
    numbers = np.array([1, 4, 0, 3, 2, 5, 3, 6], "int32")
    assert_same_meaning(func, sch.func, arrays=[numbers, numbers * 2, numbers * 3])


def test_a_condition_that_cannot_fail_stays_a_predicate() -> None:
    body = LOADED_CONDITION.replace("N[i] > 2", "i // 3 < 2")
    sch = Schedule(program(body))
    split(0, 3, None)(sch)
    assert not ir.collect(sch.func, ir.IfThenElse)


OVERWRITTEN = """
for i in range(N[0]):
    with T.block("U"):
        vi = T.axis.opaque(8, i)
        N[vi] = 2
        C[vi] = C[vi] + 1
for i in range(N[0]):
    with T.block("V"):
        vi = T.axis.opaque(8, i)
        D[vi] = 3
"""
LATE_START = OVERWRITTEN.replace("range(N[0])", "range(N[0], N[0] + 4)").replace(
    "(8, i)", "(12, i)"
)
WITHIN = """
for i in range(4):
    for j in range(N[0]):
        with T.block("U"):
            vi = T.axis.spatial(8, i)
            vj = T.axis.opaque(8, j)
            N[vi] = 2
"""
AGAIN: dict[str, tuple[str, Step]] = {
    "split": (OVERWRITTEN, split(0, None, 4)),
    "split outside": (OVERWRITTEN, split(0, 4, None)),
    "fuse": (WITHIN, lambda s: s.fuse(*s.get_loops("U"))),
    "loop_partition": (LATE_START, lambda s: s.loop_partition(s.get_loops("U")[0], [2, None])),
    "horizontal_fuse": (
        OVERWRITTEN, lambda s: s.horizontal_fuse(s.get_loops("U")[0], s.get_loops("V")[0])),
    "merge": (OVERWRITTEN, lambda s: s.merge(s.get_loops("U")[0], s.get_loops("V")[0])),
}  # fmt: skip


@pytest.mark.parametrize("name", AGAIN)
def test_bounds_that_change_are_not_evaluated_again(name: str) -> None:
    body, step = AGAIN[name]
    with pytest.raises(ScheduleError, match=r"BW350.*loaded from N"):
        step(Schedule(program(body)))


MAY_NOT_RUN = """
@T.prim_func
def main(a: T.handle, N: T.Buffer((8,), "int32"), C: T.Buffer((4, 8), "int32")):
    n = T.int32()
    A = T.match_buffer(a, (n,), "int32")
"""
NEST = """
for i in range(n):
    for j in range(BOUND):
        with T.block("U"):
            vi = T.axis.spatial(n, i)
            vj = T.axis.spatial(8, j)
            C[vi, vj] = A[vi] + 1
"""
EARLY: dict[str, Step] = {
    "fuse": lambda s: s.fuse(*s.get_loops("U")),
    "reorder": lambda s: s.reorder(*reversed(s.get_loops("U"))),
}


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("bound", ["6 // n", "N[0]"])
@pytest.mark.parametrize("name", EARLY)
def test_bounds_of_a_loop_that_may_not_run(name: str, bound: str, size: int) -> None:
    func = program(NEST.replace("BOUND", bound), MAY_NOT_RUN)
    sch = Schedule(func, verify="full")
    EARLY[name](sch)
    arrays = [np.arange(size, dtype="int32"), np.full(8, 5, "int32"), np.zeros((4, 8), "int32")]
    assert_same_meaning(func, sch.func, arrays=arrays)


@pytest.mark.parametrize("name", EARLY)
def test_bounds_that_only_a_loop_that_runs_can_load(name: str) -> None:
    func = program(NEST.replace("BOUND", "A[0]"), MAY_NOT_RUN)
    with pytest.raises(ScheduleError, match=r"BW350.*may fail elsewhere"):
        EARLY[name](Schedule(func))


def test_an_index_that_divides_is_not_copied_without_its_guard() -> None:
    body = LOADED_CONDITION.replace("N[i] > 2", "i < 7").replace("D[vi]", "D[7 // (7 - vi)]")
    with pytest.raises(ScheduleError, match=r"BW363.*divide by 0"):
        Schedule(program(body)).reindex("U", ("read", 0))

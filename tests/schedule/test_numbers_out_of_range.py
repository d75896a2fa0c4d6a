"""Numbers in arguments of steps that exceed the type of an index, or the loops that a program may
have, are rejected with a code of the schedule."""

from collections.abc import Callable
from typing import Any

import pytest

import blockwright as bw
from blockwright.schedule import Schedule, ScheduleError

PROGRAM = """
@T.prim_func
def main(A: T.Buffer((8, 6), "float32"), B: T.Buffer((8, 6), "float32")):
    V = T.alloc_buffer((8, 6), "float32")
    for i, j in T.grid(8, 6):
        with T.block("V"):
            vi, vj = T.axis.remap("SS", [i, j])
            V[vi, vj] = A[vi, vj]
    for i, j in T.grid(8, 6):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = V[7 - vi, vj]
"""
FAR = 1 << 40
LONG = (1 << 31) - 1


def far(i: Any, j: Any) -> Any:
    return (i, j + FAR)


def loop(sch: Schedule) -> Any:
    return sch.get_loops("V")[0]


STEPS: dict[str, tuple[Callable[[Schedule], Any], str]] = {
    "block map": (lambda s: s.transform_block_layout("V", far), "BW304"),
    "layout": (lambda s: s.transform_layout("V", ("write", 0), far), "BW304"),
    "copy in": (lambda s: s.reindex_cache_read("B", 0, "global", far), "BW304"),
    "copy out": (lambda s: s.reindex_cache_write("B", 0, "global", far), "BW304"),
    "factors": (lambda s: s.split(loop(s), [None, LONG, LONG, LONG]), "BW318"),
    "perfect tile": (lambda s: s.sample_perfect_tile(loop(s), LONG, 16), "BW304"),
    "imperfect tile": (lambda s: s.sample_imperfect_tile(loop(s), LONG, 16), "BW304"),
    "partitioned tile": (lambda s: s.sample_partitioned_tile(loop(s), LONG, 0, 1), "BW304"),
}


@pytest.mark.parametrize("name", STEPS)
def test_numbers_out_of_range_are_rejected(name: str) -> None:
    step, code = STEPS[name]
    sch = Schedule(bw.from_source(PROGRAM))
    before = sch.func
    with pytest.raises(ScheduleError) as caught:
        step(sch)
    assert caught.value.code == code
    assert sch.func is before

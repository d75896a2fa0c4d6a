"""Predicates and iterator values with effects are evaluated once for each visit of their block."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw
from blockwright.schedule import LoopRV, Schedule
from blockwright.support import ScheduleError

COUNTED = """
@T.prim_func
def main(B: T.Buffer((16,), "int32"), C: T.Buffer((1,), "int32")):
    for i in range(16):
        with T.block("b"):
            v = T.axis.spatial(16, i)
            T.where(T.atomic_add(C[0], 1) >= 4)
            B[v] = 1
"""
Step = Callable[[Schedule], object]
OTHERWISE: dict[str, Step] = {
    "with another condition": lambda s: s.split(_loop(s), [None, 5]),
    "for another block": lambda s: s.blockize(_loop(s)),
    "in two places": lambda s: s.loop_partition(_loop(s), [4, None]),
}
AS_OFTEN: dict[str, Step] = {
    "in tiles": lambda s: s.split(_loop(s), [None, 4]),
    "without a loop": lambda s: s.unroll(_loop(s)),
}


def _loop(sch: Schedule) -> LoopRV:
    return sch.get_loops(sch.get_block("b"))[0]


@pytest.mark.parametrize("where", OTHERWISE)
def test_a_step_that_evaluates_it_otherwise_is_refused(where: str) -> None:
    sch = Schedule(bw.from_source(COUNTED))
    with pytest.raises(ScheduleError, match=r"BW314.*predicate.*block b has an effect"):
        OTHERWISE[where](sch)


@pytest.mark.parametrize("where", AS_OFTEN)
def test_a_step_that_keeps_it_is_not(where: str) -> None:
    sch = Schedule(bw.from_source(COUNTED))
    AS_OFTEN[where](sch)
    b, c = np.zeros(16, "int32"), np.zeros(1, "int32")
    bw.interpret(sch.func, b, c)
    assert c[0] == 16
    assert b.tolist() == [0] * 4 + [1] * 12

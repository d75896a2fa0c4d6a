"""Recurrences and scatters: which loops may change places, and run concurrently."""

from __future__ import annotations

import itertools
import random

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import Schedule, ScheduleError
from blockwright.testing import assert_same_meaning

TWO = """
@T.prim_func
def main(A: T.Buffer((12, 10), "float32"), I: T.Buffer((12,), "int64"),
         H: T.Buffer((12, 10), "float32"), G: T.Buffer((12, 10), "float32")):
    for t, d in T.grid({rows}, {columns}):
        with T.block("H"):
            vt = T.axis.opaque({rows}, t)
            vd = T.axis.spatial({columns}, d)
            {body}
"""
BEFORE = "T.if_then_else(vt > 0, H[vt - 1, {}], T.float32(0))"
ROW = "T.min(T.max(I[vt], 0), 11)"
FREE = {
    "recurrence": (12, 10, f"H[vt, vd] = A[vt, vd] + {BEFORE.format('vd')}"),
    "every other element": (12, 5, f"H[vt, vd * 2] = A[vt, vd] + {BEFORE.format('vd * 2')}"),
    "scatter": (12, 10, f"H[{ROW}, vd] = H[{ROW}, vd] + A[vt, vd]"),
    "two buffers": (11, 10, "H[vt + 1, vd] = A[vt, vd] * H[vt, vd]\n"
                    "            G[vt, vd] = H[vt + 1, vd] + G[vt + 1, vd]"),
    "rows from rows that nothing writes": (6, 10, "H[vt + 6, vd] = A[vt, vd] + H[vt, 9 - vd]"),
}  # fmt: skip
BOUND = {
    "rows with one in common": (6, 10, "H[vt + 5, vd] = A[vt, vd] + H[vt, 9 - vd]"),
    "diagonal": (12, 9, f"H[vt, vd] = A[vt, vd] + {BEFORE.format('vd + 1')}"),
    "shared elements": (12, 10, f"H[vt, vd // 2] = A[vt, vd] + {BEFORE.format('vd // 2')}"),
    "one of two buffers": (11, 10, "H[vt + 1, vd] = A[vt, vd] * H[vt, vd]\n"
                           "            G[vt, vd] = H[vt, vd] + G[vt + 1, 9 - vd]"),
}  # fmt: skip


def schedule(case: tuple[int, int, str]) -> Schedule:
    rows, columns, body = case
    func = bw.from_source(TWO.format(rows=rows, columns=columns, body=body))
    assert isinstance(func, ir.PrimFunc)
    return Schedule(func, verify="full")


@pytest.mark.parametrize("name", FREE)
def test_free_loops_move_outwards_and_run_concurrently(name: str) -> None:
    sch = schedule(FREE[name])
    before = sch.func
    t, d = sch.get_loops("H")
    outer, inner = sch.split(d, [None, 4])
    first, then = sch.split(t, [None, 5])
    sch.reorder(outer, first, then, inner)
    sch.vectorize(inner)
    sch.parallel(outer)
    assert_same_meaning(before, sch.func)


@pytest.mark.parametrize("name", BOUND)
def test_loops_that_carry_dependences_stay(name: str) -> None:
    sch = schedule(BOUND[name])
    with pytest.raises(ScheduleError) as caught:
        sch.reorder(*reversed(sch.get_loops("H")))
    assert caught.value.code == "BW314"


def test_the_order_of_ordered_loops_is_kept() -> None:
    sch = schedule(FREE["recurrence"])
    t, d = sch.get_loops("H")
    first, then = sch.split(t, [None, 5])
    sch.reorder(d, first, then)
    with pytest.raises(ScheduleError) as caught:
        sch.reorder(then, first)
    assert caught.value.code == "BW314"
    with pytest.raises(ScheduleError) as caught:
        sch.parallel(first)
    assert caught.value.code == "BW314"


def test_random_recurrences() -> None:
    """Whatever is accepted computes the same; some of it is accepted, and some is not."""
    chance = random.Random(7)
    outcomes = {True: 0, False: 0}
    forms = ("v{}", "T.max(v{} - 1, 0)", "T.min(v{} + 1, 2)", "2 - v{}", "v{} // 2")
    for _ in range(40):
        usual = chance.randrange(3)
        store = [f"v{axis}" for axis in "ijk"]
        load = [chance.choice(forms).format(axis) for axis in "ijk"]
        load[usual] = store[usual]
        if chance.random() < 0.3:
            chance.shuffle(load)
        kind = chance.choice(["spatial", "opaque"])
        func = bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer((3, 3, 3), "float32"), H: T.Buffer((3, 3, 3), "float32")):
    for i, j, k in T.grid(3, 3, 3):
        with T.block("H"):
            vi = T.axis.{kind}(3, i)
            vj = T.axis.{kind}(3, j)
            vk = T.axis.{kind}(3, k)
            H[{", ".join(store)}] = A[vi, vj, vk] + H[{", ".join(load)}] * T.float32(0.5)
""")
        assert isinstance(func, ir.PrimFunc)
        for order in chance.sample(list(itertools.permutations(range(3)))[1:], 2):
            sch = Schedule(func)
            loops = sch.get_loops("H")
            try:
                sch.reorder(*(loops[p] for p in order))
            except ScheduleError:
                outcomes[False] += 1
                continue
            outcomes[True] += 1
            assert_same_meaning(func, sch.func)
    assert min(outcomes.values()) >= 10, outcomes

"""Iterations that keep to slices of their own may run at once, whatever happens in a slice."""

from __future__ import annotations

import re
from random import Random

import numpy as np
import pytest

from blockwright import ir
from blockwright.interp import interpret
from blockwright.schedule import Schedule, ScheduleError
from blockwright.script.ir import from_source

HEAD = """
@T.prim_func
def main(X: T.Buffer((12, 12), "float32"), Y: T.Buffer((12, 12), "float32")):
    for r in range(5):
"""


def nest(name: str, store: str) -> str:
    """A block over the row `r` and a column `t` of its own, in which it stores something."""
    store = re.sub(r"\bt\b", "vt", re.sub(r"\br\b", "vr", store))
    return (
        "        for t in range(4):\n"
        f'            with T.block("{name}"):\n'
        "                vr = T.axis.spatial(5, r)\n"
        "                vt = T.axis.spatial(4, t)\n"
        f"                {store}\n"
    )


def program(*stores: str) -> Schedule:
    text = HEAD + "".join(nest(f"b{k}", store) for k, store in enumerate(stores))
    func = from_source(text)
    assert isinstance(func, ir.PrimFunc)
    return Schedule(func, verify="full")


def require_same(sch: Schedule, first: ir.PrimFunc) -> None:
    """No race, and bit for bit what the program computed before."""
    arrays = [np.random.default_rng(3).standard_normal((12, 12)).astype("float32") for _ in "XY"]
    copies = [a.copy() for a in arrays]
    interpret(first, *arrays)
    interpret(sch.func, *copies)
    for expected, got in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(got, expected)


SCAN = "Y[r, t + 1] = Y[r, t] * 0.5 + X[r, t]"
RIGHT = {
    "a scan along each row": [SCAN],
    "rows in the other direction": ["Y[11 - r, t + 1] = Y[11 - r, t] * 0.5"],
    "every second row": ["Y[r * 2 + 1, t + 1] = Y[r * 2 + 1, t] * 0.5"],
    "two scans, one over the other's result": [SCAN, "Y[r, t + 2] = Y[r, t + 1] + Y[r, 3 - t]"],
    "a block that reads ahead of the next": ["X[r, t] = Y[r, t + 1]", "Y[r, t] = X[r, 3 - t]"],
    "rows from rows that nothing writes": ["Y[r + 5, t] = Y[4 - r, 3 - t] + X[r, t]"],
    "odd rows from even rows": ["Y[r * 2 + 1, t] = Y[8 - r * 2, t] * 0.5"],
    "two blocks, one with a row of its own": [
        "Y[r + 5, t + 1] = Y[r + 5, t] * 0.5",
        "X[r, t] = Y[4 - r, t] + Y[2, 3 - t]",
    ],
}


@pytest.mark.parametrize("stores", RIGHT.values(), ids=RIGHT.keys())
@pytest.mark.parametrize("step", ["parallel", "vectorize"])
def test_rows_that_do_not_meet_run_at_once(stores: list[str], step: str) -> None:
    sch = program(*stores)
    first = sch.func
    getattr(sch, step)(sch.get_loops("b0")[0])
    require_same(sch, first)


WRONG = {
    "the scan itself": (["Y[r + 1, t] = Y[r, t]"], 0),
    "the column of a scan": ([SCAN], 1),
    "a row that two iterations share": (["Y[r // 2, t + 1] = Y[r // 2, t] * 0.5"], 0),
    "a row that the column moves too": (["Y[r + t, t + 1] = Y[r + t, t] * 0.5"], 0),
    "one row for all": (["Y[2, t + 1] = Y[2, t] * 0.5"], 0),
    "a row read in which another writes": ([SCAN, "Y[r, t] = Y[r + 1, t]"], 0),
    "read and written rows with one in common": (["Y[r + 4, t] = Y[4 - r, t] * 0.5"], 0),
    "rows of one parity": (["Y[r * 2 + 2, t] = Y[8 - r * 2, t] * 0.5"], 0),
    "rows that another block writes": (["Y[r + 6, t] = Y[r + 1, t]", "Y[r, t] = X[r, t]"], 0),
}


@pytest.mark.parametrize(("stores", "which"), WRONG.values(), ids=WRONG.keys())
def test_iterations_that_meet_are_refused(stores: list[str], which: int) -> None:
    sch = program(*stores)
    with pytest.raises(ScheduleError) as caught:
        sch.parallel(sch.get_loops("b0")[which])
    assert caught.value.code in ("BW314", "BW316", "BW317")


INDICES = ["r", "t", "r + t", "r + 1", "t + 1", "2", "r * 2", "11 - r", "r // 2", "r % 3", "r + 6"]


def random_access(random: Random, name: str) -> str:
    row = random.choice(["r", "r", "r", "r * 2", "11 - r", random.choice(INDICES)])
    column = random.choice(["t", "t + 1", "3 - t", random.choice(INDICES)])
    return f"{name}[{row}, {column}]"


@pytest.mark.parametrize("seed", range(6))
def test_what_is_accepted_has_no_race(seed: int) -> None:
    random, taken = Random(seed), 0
    for _ in range(30):
        stores = [
            f"{random_access(random, random.choice('XYY'))} = "
            f"{random_access(random, 'Y')} * 0.5 + {random_access(random, 'X')}"
            for _ in range(random.choice([1, 1, 2]))
        ]
        sch = program(*stores)
        first = sch.func
        try:
            getattr(sch, random.choice(["parallel", "vectorize"]))(
                sch.get_loops("b0")[random.choice([0, 0, 0, 1])]
            )
        except ScheduleError:
            continue
        require_same(sch, first)
        taken += 1
    assert taken

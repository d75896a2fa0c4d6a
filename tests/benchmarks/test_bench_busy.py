"""The comparison beside a busy program: the program is there, and what the table concludes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from benchmarks import busy, cases
from benchmarks.cases import Case
from benchmarks.comparison import Column, Result
from benchmarks.harness import Timing


def column(engine: str, median: float, mean: float) -> Column:
    return Column(engine, timing=Timing((median,), 1, 0.0, (mean,)))


def result(*columns: Column) -> Result:
    case = Case("softmax", "operators.softmax", ())
    return Result(case, columns, 1e6, 1000, 1e9, 1e9, drift=0.1, others=1.0)


def endless() -> list[int]:
    """Processes that run the endless loop, by number."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if b"while True: pass" in text and folder.name != str(os.getpid()):
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize("place", busy.PLACES)
def test_the_neighbour_is_busy_where_it_should_be_and_ends(place: str) -> None:
    before = set(endless())
    with busy.neighbour(place):
        (process,) = set(endless()) - before
        time.sleep(0.1)
        allowed = os.sched_getaffinity(process)
        assert allowed == (
            {max(os.sched_getaffinity(0))} if place == "pinned" else os.sched_getaffinity(0)
        )
    assert not set(endless()) - before


def test_medians_decide_and_means_stand_beside_them() -> None:
    found = result(column("blockwright", 1e-3, 4e-3), column("torch", 2e-3, 2e-3))
    assert not busy.missed("pinned", found)
    assert busy.row("pinned", found, 8).split()[6:8] == ["0.50", "2.00"]
    slower = result(column("blockwright", 3e-3, 3e-3), column("torch", 2e-3, 2e-3))
    assert busy.missed("free", slower) == ["softmax, other program free: 1.50 of torch"]


def test_its_cases_exist() -> None:
    for family, names in busy.CASES.items():
        for name in names:
            assert cases.find(family, name).name == name

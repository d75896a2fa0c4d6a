"""Neighbours of cases are the same operators, one extent apart; the run over them judges speeds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode

from benchmarks import cliffs, operators, record
from benchmarks.extents import STEPS, neighbours
from benchmarks.modules import build

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.cases import Case


@pytest.mark.parametrize("case", operators.CASES, ids=lambda case: case.name)
def test_a_neighbour_is_a_case_with_one_extent_moved(case: Case) -> None:
    found = list(neighbours(case))
    assert len({one.case.name for one in found}) == len(found)
    assert {one.step for one in found} == set(STEPS)
    for one in found:
        assert one.case.build == case.build
        assert one.case.moved != case.moved
        shapes = [each.shape for each in one.case.inputs]
        assert [len(shape) for shape in shapes] == [len(each.shape) for each in case.inputs]
        changed = shapes != [each.shape for each in case.inputs]
        assert changed or one.case.settings != case.settings


@pytest.mark.parametrize("name", ["GRP", "DEP 14", "T2D 4", "C1D", "BMM", "GMM 1024 constant"])
def test_the_work_of_a_neighbour_is_what_pytorch_counts(name: str) -> None:
    case = next(case for case in operators.CASES if case.name.startswith(name))
    for one in neighbours(case):
        inputs = [torch.empty(each.shape, device="meta") for each in one.case.inputs]
        with torch.device("meta"):
            module = build(one.case)
        with FlopCounterMode(display=False) as counter:
            module(*inputs)
        assert one.case.flops == counter.get_total_flops()


def test_extents_of_one_stay_and_groups_stay_whole() -> None:
    table = {case.name: case for case in operators.CASES}
    assert {one.extent for one in neighbours(table["GEMV 4096"])} == {"inner", "columns"}
    assert {one.extent for one in neighbours(table["DEP 14x512 k3"])} == {
        "height", "width", "groups",
    }  # fmt: skip
    for one in neighbours(table["GRP 56x64-128 g4k3"]):
        inner, outer = one.case.settings["channels"]
        groups = one.case.settings["groups"]
        assert inner % groups == outer % groups == 0


def test_the_run_writes_every_neighbour_and_product(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = operators.product("small", 8, 24, 40, constant=True)
    monkeypatch.setattr(operators, "CASES", (small,))
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(cliffs, "LEAST", 20)
    monkeypatch.setattr(cliffs, "MOST", 40)
    cliffs.main(cliffs.Plan(threads=1, rounds=1, products=2))
    left = json.loads((tmp_path / "cliffs-1-threads.json").read_text())
    assert len(left["neighbours"]) == 9
    kept = [one["kept"] for one in left["neighbours"]]
    assert kept == sorted(kept)
    assert all(one["share"] > 0 for one in left["neighbours"] + left["products"])
    assert len(left["products"]) == 2


def test_a_miss_counts_when_it_comes_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One neighbour is slow for once, another one always, a third one only when nobody asks."""
    small = operators.product("small", 8, 24, 40, constant=True)
    kept = {"a": [0.5, 0.9], "b": [0.5, 0.6], "c": [0.9, 0.5]}
    seen: list[int] = []

    def timed(runner: object, case: Case) -> list[cliffs.Speed]:
        seen.append(len(seen))
        return [
            cliffs.Speed(case.name, moved, 1, 1e9, kept=each[seen[-1]])
            for moved, each in kept.items()
        ]

    monkeypatch.setattr(operators, "CASES", (small,))
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(cliffs, "_beside", timed)
    assert not cliffs.main(cliffs.Plan(threads=1, rounds=1, products=0))
    left = json.loads((tmp_path / "cliffs-1-threads.json").read_text())
    assert [one["kept"] for one in left["neighbours"]] == [0.6, 0.9, 0.9]
    assert left["missed"] == ["small, b: keeps 60%"]


def test_what_is_missed_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    sample = [cliffs.Speed(f"p{k}", "", 1, 1e9, share) for k, share in enumerate((0.9, 0.9, 0.5))]
    missed = cliffs.judge(sample, 1)
    assert [("worst" in line, "10th" in line) for line in missed] == [(False, True), (True, False)]
    assert "median 90.0%" in capsys.readouterr().out


def test_what_was_timed_beside_a_busy_cache_is_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter([10.0, 5.0, 9.0, 4.0, 6.0, 5.0])
    once = lambda *_: cliffs.Turns([], [], next(speeds))  # noqa: E731
    monkeypatch.setattr(cliffs._Runner, "_once", once)
    runner = cliffs._Runner(cliffs.Plan())
    assert [runner.turns([], 2).cache for _ in range(3)] == [10.0, 9.0, 6.0]

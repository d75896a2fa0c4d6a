"""Random operators: every kind can be drawn, compiled and judged."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from benchmarks import record, sweep
from benchmarks.modules import drawn
from benchmarks.sweep import Found

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize("kind", sorted(set(drawn.KINDS), key=lambda kind: kind.__name__))
def test_what_is_drawn_is_a_module_of_its_inputs(
    kind: Callable[[random.Random], drawn.Drawn],
) -> None:
    names: set[str] = set()
    for seed in range(8):
        one = kind(random.Random(seed))
        names.add(one.name)
        with torch.inference_mode():
            assert one.module(*one.inputs).is_floating_point()
    assert len(names) > 1


def test_a_seed_draws_the_same_again() -> None:
    chances = random.Random(3), random.Random(3)
    assert [drawn.draw(chances[0]).name for _ in range(20)] == [
        drawn.draw(chances[1]).name for _ in range(20)
    ]


@pytest.mark.parametrize(("ours", "torch_s", "missed"), [
    (1e-3, 1e-4, True),
    (4e-4, 1e-4, False),  # four times as long is allowed
    (15e-6, 1e-6, False),  # a call alone takes some microseconds
])  # fmt: skip
def test_what_takes_several_times_as_long_is_missed(
    ours: float, torch_s: float, missed: bool
) -> None:
    assert bool(Found("softmax", ours, torch_s).missed) is missed


def test_what_cannot_be_done_is_missed_too() -> None:
    missed = sweep.summary([Found("softmax", 1e-6, 2e-6), Found("flip", status="not covered")])
    assert missed == ["flip: not covered"]


@pytest.mark.parametrize("any_size", [False, True])
def test_a_small_sweep_compares_and_times_every_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, any_size: bool
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    sweep.main(sweep.Plan(cases=3, threads=1, seed=1, any_size=any_size))
    (file,) = tmp_path.iterdir()
    found = json.loads(file.read_text(encoding="utf-8"))["operators"]
    assert [one["status"] for one in found] == [""] * 3
    assert all(one["ours"] > 0 and one["torch"] > 0 for one in found)

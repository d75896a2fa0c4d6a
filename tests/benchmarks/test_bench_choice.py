"""The study of choices: its grid computes the product, its correlation is Spearman's."""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import asdict
from pathlib import Path

import pytest

import blockwright as bw
from benchmarks import choice, record
from benchmarks.choice import Candidate, Line, Operands, Plan, built, correlation
from benchmarks.choice_grid import (
    Point,
    Shape,
    neighbours,
    possible,
    random_point,
    random_shape,
    tiles,
)
from blockwright import ir

TARGET = bw.Target("native", num_threads=2)


@pytest.mark.parametrize(
    "point",
    [
        Point(4, 1, 1, 4, 0, False, True),
        Point(3, 2, 2, 4, 128, True, True),
        Point(5, 1, 3, 0, 0, True, False),
        Point(1, 1, 1, 0, 0, False, True),
        None,  # the rule's
    ],
)
def test_points_of_the_grid_compute_the_product(point: Point | None) -> None:
    shape = Shape(37, 6 * 16, 48)
    candidate = Candidate(pickle.loads(pickle.dumps(built(shape, point, TARGET))))
    candidate.prepare(Operands(shape))
    assert candidate.predicted > 0


def test_drawn_points_can_be_written() -> None:
    draw = random.Random(0)
    for _ in range(50):
        shape = random_shape(draw)
        point = random_point(draw, shape, TARGET)
        assert min(shape.m, shape.n, shape.k) >= 256
        assert shape.k % 24 == 0
        for near in (point, *neighbours(point, shape, TARGET)):
            assert possible(near, shape, TARGET)
            assert (near.rows, near.vectors) in tiles(TARGET.vector_registers)


def test_only_the_rows_of_a_register_tile_are_written_out() -> None:
    func = choice.scheduled(Shape(64, 6 * 64, 48), Point(1, 1, 1, 0, 0, False, True), TARGET)
    unrolled = [f for f in ir.collect(func.body, ir.For) if f.kind is ir.ForKind.UNROLLED]
    assert unrolled
    assert all(ir.is_const_int(f.extent, 1) for f in unrolled)


def test_an_interrupted_study_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(
        "256x256x264",
        0.97,
        1e-3,
        "4x1",
        100.0,
        0.5,
        ("4x1", "2x1"),
        ("a", "b"),
        (1e-3, 2e-3),
        (1e-3, 3e-3),
    )
    begun: list[int] = []

    def studies(plan: Plan, first: int) -> list[Line]:
        begun.append(first)
        return [line] * (plan.shapes - first)

    monkeypatch.setattr(record, "RESULTS", tmp_path)
    left = tmp_path / "choice-2-threads.json"
    monkeypatch.setattr(choice, "studies", studies)
    choice.main(Plan(shapes=3))
    whole = json.loads(left.read_text())
    left.write_text(json.dumps({**whole, "lines": [asdict(line)]}))
    assert choice.main(Plan(shapes=3), resume=True)
    assert begun == [0, 1]
    assert json.loads(left.read_text())["lines"] == whole["lines"]
    with pytest.raises(SystemExit, match="another plan"):
        choice.main(Plan(shapes=3, seed=1), resume=True)


def test_ranks_count_and_not_values() -> None:
    assert correlation([1, 2, 3, 4], [1, 10, 100, 1000]) == pytest.approx(1)
    assert correlation([1, 2, 3, 4], [9, 4, 3, 1]) == pytest.approx(-1)
    assert correlation([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1)
    assert correlation([1, 1, 1], [1, 2, 3]) == 0

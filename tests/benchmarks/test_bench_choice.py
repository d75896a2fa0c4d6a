"""The study of choices: its grid computes the product, its correlation is Spearman's."""

from __future__ import annotations

import random

import pytest

import blockwright as bw
from benchmarks.choice import Candidate, Operands, correlation
from benchmarks.choice_grid import (
    Point,
    Shape,
    neighbours,
    possible,
    random_point,
    random_shape,
    scheduled,
    tiles,
)

TARGET = bw.Target("native", num_threads=2)


@pytest.mark.parametrize(
    "point",
    [
        Point(4, 1, 1, 4, 0, False, True),
        Point(3, 2, 2, 4, 128, True, True),
        Point(5, 1, 3, 0, 0, True, False),
    ],
)
def test_points_of_the_grid_compute_the_product(point: Point) -> None:
    shape = Shape(37, 6 * 16, 48)
    candidate = Candidate(str(point), scheduled(shape, point, TARGET), TARGET)
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


def test_ranks_count_and_not_values() -> None:
    assert correlation([1, 2, 3, 4], [1, 10, 100, 1000]) == pytest.approx(1)
    assert correlation([1, 2, 3, 4], [9, 4, 3, 1]) == pytest.approx(-1)
    assert correlation([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1)
    assert correlation([1, 1, 1], [1, 2, 3]) == 0

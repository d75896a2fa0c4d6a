"""Winograd's transforms: exact, shared sums, small errors."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, get_args

import pytest

from blockwright.ops.winograd import TAPS, TileSize
from blockwright.ops.winograd_transforms import Matrix, Sums, operations, transforms


@pytest.mark.parametrize("m", get_args(TileSize))
def test_the_transforms_together_are_the_correlation(m: int) -> None:
    """Σ over points of output · filter · input picks input k + j for result k and tap j."""
    found, edge = transforms(m, TAPS), m + TAPS - 1
    for k in range(m):
        for j in range(TAPS):
            for position in range(edge):
                total = sum(
                    found.output[k][i] * found.filter[i][j] * found.input[i][position]
                    for i in range(edge)
                )
                assert total == (position == k + j)


def test_there_are_transforms_only_where_points_are_known() -> None:
    with pytest.raises(ValueError, match=r"no points for F\(3, 3\)"):
        transforms(3, 3)


@pytest.mark.parametrize("m", get_args(TileSize))
@pytest.mark.parametrize("which", ["input", "filter", "output"])
def test_sums_are_the_product_with_the_matrix(m: int, which: str) -> None:
    matrix: Matrix = getattr(transforms(m, TAPS), which)
    vector = [Fraction(k * k + 1, k + 2) for k in range(len(matrix[0]))]
    named: list[Any] = []

    def name(value: Any) -> Any:
        named.append(value)
        return value

    exact = [sum(c * v for c, v in zip(row, vector, strict=True)) for row in matrix]
    assert Sums(matrix, lambda c: c, name)(vector) == exact
    assert named  # pairs of points share sums


def test_pairs_of_points_share_sums() -> None:
    """What 16 additions make row by row takes 12."""
    matrix = transforms(4, TAPS).input
    assert sum(sum(c != 0 for c in row) - 1 for row in matrix) == 16
    assert operations(matrix) == 12

"""Which lane holds which elements: the formulas of the PTX manual, written out one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockwright.interp.gpu import fragments
from blockwright.interp.gpu.warp import Absent, WarpLanes
from blockwright.interp.report import bank_conflict_cycles

Array = np.ndarray[Any, Any]
Formula = Callable[[int, int, int], tuple[int, int]]  # group, member, element → row, column

LEFT: dict[tuple[int, int], Formula] = {
    (8, 16): lambda g, t, i: (g if i < 2 else g + 8, t * 2 + i % 2),
    (16, 16): lambda g, t, i: (g if i in (0, 1, 4, 5) else g + 8, t * 2 + i % 2 + 8 * (i >= 4)),
    (4, 32): lambda g, t, i: (g if i == 0 else g + 8, t),
    (8, 32): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4),
    (16, 8): lambda g, t, i: (g if i < 4 else g + 8, t * 4 + i % 4),
    (32, 8): lambda g, t, i: (g if i < 4 or 8 <= i < 12 else g + 8,
                              t * 4 + i % 4 + 16 * (i >= 8)),
}  # fmt: skip
RIGHT: dict[tuple[int, int], Formula] = {
    (8, 16): lambda g, t, i: (t * 2 + i, g),
    (16, 16): lambda g, t, i: (t * 2 + i % 2 + 8 * (i >= 2), g),
    (4, 32): lambda g, t, i: (t, g),
    (8, 32): lambda g, t, i: (t + 4 * i, g),
    (16, 8): lambda g, t, i: (t * 4 + i, g),
    (32, 8): lambda g, t, i: (t * 4 + i % 4 + 16 * (i >= 4), g),
}


def agrees(layout: fragments.FragmentLayout, formula: Formula, rows: int, columns: int) -> None:
    seen: set[tuple[int, int]] = set()
    for lane in range(32):
        for element in range(layout.rows.shape[1]):
            place = formula(lane // 4, lane % 4, element)
            found = int(layout.rows[lane, element]), int(layout.columns[lane, element])
            assert found == place
            seen.add(place)
    assert seen == {(r, c) for r in range(rows) for c in range(columns)}


@pytest.mark.parametrize(("depth", "bits"), LEFT)
def test_operands_of_products(depth: int, bits: int) -> None:
    agrees(fragments.left(depth, bits), LEFT[depth, bits], 16, depth)
    agrees(fragments.right(depth, bits), RIGHT[depth, bits], depth, 8)


def test_results_of_products() -> None:
    agrees(fragments.result(), lambda g, t, i: (g if i < 2 else g + 8, t * 2 + i % 2), 16, 8)
    agrees(
        fragments.square(),
        lambda g, t, i: (g + 8 * (i // 2 % 2), t * 2 + i % 2 + 8 * (i // 4)),
        16,
        16,
    )


def test_what_ldmatrix_gives_is_what_mma_takes() -> None:
    """Four matrices of 8 × 8 make up a left operand of 16 × 16, transposed ones a right one."""
    matrix = np.arange(256).reshape(16, 16)
    quarters = np.stack([matrix[r : r + 8, c : c + 8] for c in (0, 8) for r in (0, 8)])
    held = fragments.loaded(quarters, transposed=False).transpose(1, 0, 2).reshape(32, -1)
    layout = fragments.left(16, 16)
    assert np.array_equal(held, matrix[layout.rows, layout.columns])
    halves = np.stack([matrix[r : r + 8, :8] for r in (0, 8)])
    held = fragments.loaded(halves, transposed=True).transpose(1, 0, 2).reshape(32, -1)
    layout = fragments.right(16, 16)
    assert np.array_equal(held, matrix[:, :8][layout.rows, layout.columns])


def test_short_floats_of_products_lose_thirteen_bits() -> None:
    value = np.array([1 + 2.0**-10, 1 + 2.0**-11, -3.5], np.float32)
    assert fragments.shortened(value).tolist() == [1 + 2.0**-10, 1.0, -3.5]


# ------------------------------------------------------------------------------------- shuffles
def lanes_of(*here: int) -> WarpLanes:
    lane = np.array(here)
    return WarpLanes(np.zeros(len(here), int), lane, np.array([0xFFFFFFFF]))


@pytest.mark.parametrize("width", [4, 8, 16, 32])
@pytest.mark.parametrize("by", [0, 1, 3, 5, 17])
def test_shuffles_lane_by_lane(width: int, by: int) -> None:
    """As the manual defines them, with the segment of a lane and its ends written out."""
    lanes, value = lanes_of(*range(32)), np.arange(100, 132)
    for lane in range(32):
        first, last = lane // width * width, lane // width * width + width - 1
        wanted = {
            "index": first + by % width,
            "up": lane - by if lane - by >= first else lane,
            "down": lane + by if lane + by <= last else lane,
            "across": lane ^ by if lane ^ by <= last else lane,
        }
        for how, source in wanted.items():
            assert lanes.shuffle(how, value, by, width)[lane] == 100 + source, how


def test_values_of_absent_lanes_are_refused_only_when_taken() -> None:
    lanes = lanes_of(0, 1, 2, 3)
    assert lanes.shuffle("across", np.arange(4), 1, 32).tolist() == [1, 0, 3, 2]
    with pytest.raises(Absent, match="lane 4"):
        lanes.shuffle("down", np.arange(4), 1, 32)
    assert lanes.shuffle("down", np.arange(4), 1, 4).tolist() == [1, 2, 3, 3]


# ------------------------------------------------------------------------------------- banks
@pytest.mark.parametrize(("stride", "turns"), [(1, 1), (2, 2), (3, 1), (8, 8), (32, 32), (0, 1)])
def test_turns_of_banks_by_stride(stride: int, turns: int) -> None:
    """Words apart by a stride meet in as many banks as it has factors with their number."""
    first = np.arange(32) * stride * 4
    assert bank_conflict_cycles(np.arange(32), first, 4) == (1, turns)


def test_several_accesses_of_a_thread_are_made_one_after_the_other() -> None:
    threads = np.repeat(np.arange(32), 2)
    first = np.tile([0, 4], 32)
    assert bank_conflict_cycles(threads, first, 4) == (2, 2)

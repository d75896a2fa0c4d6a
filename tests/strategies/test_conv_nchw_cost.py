"""The loop nest of a channels-first convolution, and what the cost model chooses by it."""

from __future__ import annotations

import math

import pytest

from blockwright.strategies import apply_strategies
from blockwright.strategies.cpu.conv_nchw import STRATEGY
from blockwright.strategies.cpu.conv_nchw_cost import conv_choice, ranked_blocks
from blockwright.strategies.cpu.conv_nchw_nest import ConvBlocks, conv_estimate, gemm_estimate
from blockwright.strategies.cpu.conv_nchw_shape import ConvShape, conv_shape
from blockwright.strategies.cpu.register_tiling import RegisterTile
from blockwright.strategies.cpu.split_k import Pieces
from blockwright.strategies.match.blocks import contraction_of, leaf_blocks
from blockwright.strategies.match.planes import planes_of
from blockwright.target import Cache, Target
from tests.strategies.convolution_programs import convolution, operator

AVX2 = Target("x86-64-v3", num_threads=1)
TILE = RegisterTile(rows=6, columns=16, lanes=8)


def shape_of(*sizes: int, **options: int) -> ConvShape:
    """Sizes are height, width, channels and filters."""
    func = convolution(*sizes, **{"batch": 1, **options})
    block = next(b for b in leaf_blocks(func) if contraction_of(b))
    roles = planes_of(block)
    assert not isinstance(roles, str)
    return conv_shape(block, roles, Pieces())


# ------------------------------------------------------------------------------------------- shapes
@pytest.mark.parametrize(
    ("options", "read"),
    [
        ({}, (5, 6, 18)),  # four lines of 16 pixels, and two more of each
        ({"pad": 1}, (5, 6, 18)),
        ({"dilation": 3}, (5, 10, 22)),
        ({"kernel": 5}, (5, 8, 20)),
    ],
)
def test_the_part_of_the_data_that_lines_read(
    options: dict[str, int], read: tuple[int, ...]
) -> None:
    """Channels, lines and columns."""
    assert shape_of(24, 40, 5, 6, **options).box(lines=4, pixels=16)[2:] == read


def test_a_task_packs_the_elements_of_each_tap_where_pixels_are_apart() -> None:
    shape = shape_of(21, 41, 5, 6, stride=2)
    assert (shape.slides, shape.steps(columns=16)) == (False, 2)  # 20 pixels of a line
    assert shape.copied(columns=16, steps=2) == 2 * 16 * 5 * 9


# -------------------------------------------------------------------------------------------- nests
def product_cycles(width: int, filters: int, blocks: ConvBlocks) -> float:
    """Of register tiles alone: 16 lines, 8 channels, 3×3 taps."""
    estimate = conv_estimate(AVX2, shape_of(18, width + 2, 8, filters), blocks)
    seconds = [part.causes["compute"] for part in estimate.parts]
    stored = [part for part in seconds[1:] if part > 0.3 * max(seconds[1:])]
    return sum(stored) * AVX2.core.frequency_hz


def test_whole_tiles_take_the_time_of_their_multiplications() -> None:
    """Six rows of two vectors, two multiplications a cycle: six cycles for each of 72 terms."""
    expected = 16 * 3 * 2 * 72 * 6
    assert product_cycles(48, 12, ConvBlocks(TILE, 16, 2)) == pytest.approx(expected, rel=0.02)


def test_rows_of_a_tile_beyond_the_filters_are_computed() -> None:
    full, one = (product_cycles(48, filters, ConvBlocks(TILE, 16, 2)) for filters in (12, 7))
    assert one == pytest.approx(full, rel=0.02)


def test_the_last_tile_of_a_line_has_only_the_vectors_that_it_needs() -> None:
    """Its six sums wait a little for each other, but take less time than twelve."""
    two, more, three = (product_cycles(n, 12, ConvBlocks(TILE, 16, 2)) for n in (32, 40, 48))
    assert two < more < three


def test_every_group_of_filters_copies_the_data_again() -> None:
    shape = shape_of(34, 66, 32, 48)
    copies = [
        conv_estimate(AVX2, shape, ConvBlocks(TILE, 8, filters)).parts[0].seconds
        for filters in (8, 4, 1)
    ]
    assert copies[1] == pytest.approx(2 * copies[0], rel=0.1)
    assert copies[2] == pytest.approx(8 * copies[0], rel=0.1)


def test_lines_that_tasks_share_are_copied_by_both() -> None:
    """Three lines for one, and ten for eight."""
    shape = shape_of(34, 66, 32, 48)
    one, eight = (conv_estimate(AVX2, shape, ConvBlocks(TILE, n, 8)).parts[0] for n in (1, 8))
    assert one.causes["compute"] == pytest.approx(eight.causes["compute"] * 3 / (10 / 8), rel=0.1)


def test_threads_share_the_tasks() -> None:
    shape, blocks = shape_of(34, 66, 32, 48), ConvBlocks(TILE, 8, 8)
    one, two, three = (
        conv_estimate(Target(AVX2, num_threads=n), shape, blocks).waits("compute")
        for n in (1, 2, 3)
    )
    assert one == pytest.approx(2 * two)  # four tasks
    assert two == pytest.approx(three)


# ------------------------------------------------------------------------------------------ choices
def test_the_choice_takes_about_as_little_time_as_any_plan() -> None:
    """Within what the search does not tell apart: 3 percent."""
    for shape in (shape_of(30, 30, 24, 40), shape_of(29, 29, 16, 20, stride=2)):
        best = conv_choice(AVX2, shape)
        seconds = [conv_estimate(AVX2, shape, one).seconds for one in ranked_blocks(AVX2, shape)]
        assert best.seconds == seconds[0]
        assert best.seconds * 0.97 <= min(seconds)


def test_copies_stay_in_the_second_level_cache() -> None:
    shape = shape_of(66, 66, 64, 32)
    for kib in (128, 512):
        small = Target(AVX2, caches=(Cache(32 << 10), Cache(kib << 10), Cache(8 << 20)))
        for blocks in ranked_blocks(small, shape):
            copied = shape.copied(blocks.tile.columns, blocks.steps) * 4
            assert copied <= kib << 9 or blocks.steps == 1


def test_no_thread_is_idle() -> None:
    shape = shape_of(34, 34, 16, 24)
    for threads in (1, 2, 7, 16):
        blocks = conv_choice(Target(AVX2, num_threads=threads), shape).blocks
        groups = -(-shape.panels(blocks.tile.rows) // blocks.filters)
        assert shape.tasks(blocks.tile.columns, blocks.steps) * groups >= threads


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_tasks_that_pack_tiles_have_equal_numbers_of_them(target: str) -> None:
    """Others cannot be scheduled: the last task would pack fewer tiles than it has loops for."""
    func = operator("nn.conv2d", (1, 32, 112, 112), (16, 32, 1, 1))
    for threads in (1, 2):
        machine = Target(target, num_threads=threads)
        for plan in STRATEGY.plans(func, machine):
            assert math.ceil(112 * 112 / plan.tile.columns) % plan.steps == 0
        chosen = apply_strategies(func, machine)
        assert (chosen.strategy, chosen.note) == ("conv_nchw", "")


def test_eight_images_take_about_eight_times_as_long_as_one() -> None:
    """With either strategy; caches keep the data of one between calls."""
    one, eight = (shape_of(30, 30, 16, 24, batch=n) for n in (1, 8))
    assert 7 < conv_choice(AVX2, eight).seconds / conv_choice(AVX2, one).seconds < 12
    assert 7 < gemm_estimate(AVX2, eight).seconds / gemm_estimate(AVX2, one).seconds < 12

"""The choice of register tiles: they fit the machine and waste little of what they cover."""

from __future__ import annotations

import itertools

import pytest

from blockwright.strategies.cpu.register_tiling import (
    RegisterTile,
    choose_register_tile,
    min_width,
    predicted_share,
    reduction_unroll_factor,
    whole_row,
)
from blockwright.target import Target

AVX2, AVX512 = Target("x86-64-v3"), Target("x86-64-v4")
EXTENTS = [1, 7, 14, 16, 31, 49, 63, 64, 65, 67, 196, 255, 257, 1023, 1025, None]


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=str)
def test_a_tile_fits_the_registers(target: Target) -> None:
    for rows, columns in itertools.product(EXTENTS, EXTENTS):
        tile = choose_register_tile(target, rows, columns)
        assert tile.rows * tile.vectors + tile.vectors + 1 <= target.vector_registers
        assert tile.columns % min_width(target, tile.columns, 32) == 0


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=str)
@pytest.mark.parametrize("extent", [63, 64, 65, 67, 127, 129, 255, 257, 1023, 1025, 1027])
def test_one_column_or_row_more_costs_little(target: Target, extent: int) -> None:
    for rows, columns in ((1024, extent), (extent, 1024)):
        tile = choose_register_tile(target, rows, columns)
        assert predicted_share(target, tile, rows, columns) >= 0.85


def test_half_vectors_are_for_vectors_of_512_bits() -> None:
    assert choose_register_tile(AVX512, 1024, 65).columns == 72
    assert choose_register_tile(AVX2, 1024, 65).columns % 8 == 0
    assert min_width(AVX512, 65, 32) == 8
    assert min_width(AVX2, 33, 32) == 8
    assert min_width(AVX512, 200, 32) == 16  # too long for one row of accumulators


def test_rows_that_share_sets_of_the_first_cache_are_few() -> None:
    cache = AVX512.cache(1)
    span = cache.size // cache.ways
    far = choose_register_tile(AVX512, 13 * 80, 24, row_bytes=4 * span)
    near = choose_register_tile(AVX512, 13 * 80, 24, row_bytes=4 * span + cache.line)
    assert far.rows <= cache.ways - 2 < near.rows


def test_a_row_of_accumulators_is_one_vector_where_it_is_short() -> None:
    assert [whole_row(AVX512, n) for n in (63, 64, 65, 96, 97, None)] == [64, 64, 72, 96, 16, 16]


@pytest.mark.parametrize(("machine", "rows", "columns", "several"), [
    ("x86-64-v3", 6, 16, True),  # 23 instructions in six cycles
    ("x86-64-v4", 14, 32, False),  # 47 in 28
])  # fmt: skip
def test_steps_are_written_out_where_a_loop_takes_places_of_updates(
    machine: str, rows: int, columns: int, several: bool
) -> None:
    target = Target(machine)
    tile = RegisterTile(rows, columns, target.lanes("float32"))
    assert (reduction_unroll_factor(target, tile) > 1) is several

"""Choose register tiles and tasks of channels-first convolutions, by the cost model.

Tiles have filters as rows and pixels as columns: they store whole vectors of pixels, but tasks copy
the data first. The GEMM strategy has pixels as rows and filters as columns: it reads the data in
place, but stores the results of a vector of filters one by one, because they are on different
planes. Both are described as loop nests for the cost model; no schedule is built.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

import msgspec

from blockwright.strategies.cpu.conv_nchw_nest import ConvBlocks, conv_estimate, gemm_estimate
from blockwright.strategies.cpu.conv_nchw_shape import ConvShape
from blockwright.strategies.cpu.register_tiling import RegisterTile, register_tiles
from blockwright.target import Target

_TILES = 8  # register tiles that are compared
_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128)
"""Numbers of parts into which plans divide an axis; the number of threads is another."""
_BETTER = 0.97
"""Another tile is preferred if it needs less than this share of the time; less is model error."""


class ConvChoice(msgspec.Struct, frozen=True):
    """A register tile and task size, with the predicted time."""

    blocks: ConvBlocks
    seconds: float


@lru_cache(maxsize=256)
def conv_choice(target: Target, shape: ConvShape) -> ConvChoice:
    """The register tile and the task size that the search finds to be the fastest.

    It changes one decision at a time (tile, steps per task, tiles of filters per task) while the
    predicted time falls.
    """
    seconds: dict[ConvBlocks, float] = {}

    def time(blocks: ConvBlocks) -> float:
        if blocks not in seconds:
            seconds[blocks] = conv_estimate(target, shape, blocks).seconds
        return seconds[blocks]

    tiles = _tiles(target, shape)
    best = _first_of_alike(time, [_start(target, shape, tile) for tile in tiles])
    while True:
        before = best
        best = min((best, *_other_steps(target, shape, best)), key=time)
        best = min((best, *_other_groups(target, shape, best)), key=time)
        if best == before:
            break
        same = (_with_tile(target, shape, best, tile) for tile in tiles)
        best = _first_of_alike(time, same)
    return ConvChoice(best, time(best))


def ranked_blocks(target: Target, shape: ConvShape) -> Iterator[ConvBlocks]:
    """Register tiles and task sizes: what is chosen, then others by their predicted time."""
    best = conv_choice(target, shape).blocks
    yield best
    seconds: dict[ConvBlocks, float] = {}
    for tile in _tiles(target, shape):
        sizes = itertools.product(_steps(target, shape, tile), _groups(target, shape, tile))
        for blocks in (ConvBlocks(tile, steps, filters) for steps, filters in sizes):
            seconds[blocks] = conv_estimate(target, shape, blocks).seconds
    yield from (b for b in sorted(seconds, key=lambda blocks: seconds[blocks]) if b != best)


def beats_gemm(target: Target, shape: ConvShape) -> bool:
    """Whether tiles of filters and pixels are expected to be faster than the GEMM strategy."""
    return conv_choice(target, shape).seconds < gemm_estimate(target, shape).seconds


def _first_of_alike(
    time: Callable[[ConvBlocks], float], choices: Iterable[ConvBlocks]
) -> ConvBlocks:
    """The first choice that takes about as little time as any."""
    found = list(choices)
    least = min(map(time, found))
    return next(one for one in found if _BETTER * time(one) <= least)


def _tiles(target: Target, shape: ConvShape) -> list[RegisterTile]:
    """Register tiles, that of the highest throughput first."""
    return register_tiles(target, shape.filters.count, shape.pixels.count, shape.bits)[:_TILES]


def _start(target: Target, shape: ConvShape, tile: RegisterTile) -> ConvBlocks:
    """The largest tasks with all filters that leave none of the threads idle."""
    sizes = _steps(target, shape, tile)
    busy = [n for n in sizes if shape.tasks(tile.columns, n) >= target.num_threads]
    return ConvBlocks(tile, (busy or sizes[-1:])[0], shape.panels(tile.rows))


def _other_steps(target: Target, shape: ConvShape, blocks: ConvBlocks) -> Iterator[ConvBlocks]:
    for steps in _steps(target, shape, blocks.tile):
        yield ConvBlocks(blocks.tile, steps, blocks.filters)


def _other_groups(target: Target, shape: ConvShape, blocks: ConvBlocks) -> Iterator[ConvBlocks]:
    for filters in _groups(target, shape, blocks.tile):
        yield ConvBlocks(blocks.tile, blocks.steps, filters)


def _with_tile(
    target: Target, shape: ConvShape, blocks: ConvBlocks, tile: RegisterTile
) -> ConvBlocks:
    """Another tile, with a task of about the same size."""
    each = 1 if shape.lines is not None else tile.columns / blocks.tile.columns
    rows = tile.rows / blocks.tile.rows
    steps = _nearest(_steps(target, shape, tile), blocks.steps / each)
    return ConvBlocks(tile, steps, _nearest(_groups(target, shape, tile), blocks.filters / rows))


def _nearest(sizes: Iterable[int], size: float) -> int:
    return min(sizes, key=lambda n: abs(n - size))


def _steps(target: Target, shape: ConvShape, tile: RegisterTile) -> list[int]:
    """Steps per task, most first: their copy takes at most half of the second-level cache.

    Copies of tiles that do not slide have equal numbers of these.
    """
    count = shape.steps(tile.columns)
    sizes = _sizes(target, count)
    if shape.lines is None:
        sizes = [n for n in sizes if count % n == 0]
    room = target.cache(2).size // 2
    return [n for n in sizes if shape.copied(tile.columns, n) * shape.size <= room] or sizes[-1:]


def _groups(target: Target, shape: ConvShape, tile: RegisterTile) -> list[int]:
    """Tiles of filters per task, most first.

    Tasks for fewer than all filters copy the data again. They pay if the threads need more tasks,
    or if the weights of all filters do not stay in the second-level cache beside the copy.
    """
    panels = shape.panels(tile.rows)
    each = tile.rows * shape.depth * shape.size
    room = target.cache(2).size // 2
    if shape.tasks(tile.columns) >= target.num_threads and panels * each <= room:
        return [panels]
    sizes = _sizes(target, panels)
    return [n for n in sizes if n == panels or n * each <= room] or sizes[-1:]


def _sizes(target: Target, extent: int) -> list[int]:
    """Sizes of nearly equal parts of an axis, largest first."""
    parts = {*_PARTS, target.num_threads, extent}
    return sorted({math.ceil(extent / n) for n in parts if n <= extent}, reverse=True)


__all__ = ["ConvChoice", "beats_gemm", "conv_choice", "ranked_blocks"]

"""Choose register tiles and tasks for sliding windows, by the cost model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from functools import lru_cache

from blockwright.cost import Estimate
from blockwright.strategies.cpu.depthwise_pool_nest import window_estimate, window_seconds
from blockwright.strategies.cpu.depthwise_pool_shape import (
    WindowBlocks,
    WindowShape,
    WindowTile,
    groups_of,
    reads_ahead,
    window_tiles,
)
from blockwright.target import Target

Choice = tuple[WindowTile, WindowBlocks]

_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128)
"""Numbers of parts into which the search divides an axis; the number of threads is another."""

_STARTS = 10  # time of a task's first misses, relative to that of handing it out
_PAIR = 32  # floats in a pair of cache lines

_ALIKE = 1.02
"""Largest ratio of times that predictions do not tell apart."""


@lru_cache(maxsize=256)
def window_plan(target: Target, shape: WindowShape, bits: int) -> Choice:
    """The register tile and the task size that the search finds to be the fastest.

    It changes one decision at a time (tile, rows per task, groups per task, copy) while the
    predicted time falls.
    """
    estimates: dict[Choice, Estimate] = {}

    def time(choice: Choice) -> float:
        if choice not in estimates:
            estimates[choice] = window_estimate(target, shape, *choice, bits)
        return estimates[choice].seconds

    tiles = window_tiles(target, shape, bits)
    best = min(_starts(target, shape, tiles), key=time)
    while True:
        before = best
        for others in (_other_rows, _other_groups, _other_copies):
            best = min((best, *others(target, shape, best)), key=time)
        best = min((best, *_other_tiles(target, shape, best, tiles)), key=time)
        if best == before:
            break
    alike = [c for c, estimate in estimates.items() if estimate.seconds <= _ALIKE * time(best)]
    return min(alike, key=lambda c: (_has_tail(shape, c), _exposed(target, shape, c, estimates[c])))


def _has_tail(shape: WindowShape, choice: Choice) -> bool:
    """Whether the last tile of a row is partial; the cost model does not see its own code."""
    return shape.known_columns % choice[0].columns != 0


def _exposed(target: Target, shape: WindowShape, choice: Choice, estimate: Estimate) -> float:
    """Tie-breaker between equal times: the sum over all resources, and the starts of tasks."""
    tile, blocks = choice
    waits = sum(seconds for part in estimate.parts for seconds in part.causes.values())
    tasks = shape.known_rows / blocks.rows * groups_of(shape, tile) / blocks.groups
    start = _STARTS * target.core.task_dispatch_cycles / target.core.frequency_hz
    return waits + math.ceil(tasks * (shape.tasks or 1) / target.num_threads) * start


def ranked_windows(target: Target, shape: WindowShape, bits: int) -> list[Choice]:
    """All register tiles and task sizes: the one that is chosen, then by predicted time."""
    best = window_plan(target, shape, bits)
    choices = (c for t in window_tiles(target, shape, bits) for c in _blocks(target, shape, t))
    seconds = {c: window_seconds(target, shape, *c, bits) for c in choices if c != best}
    return [best, *sorted(seconds, key=lambda choice: seconds[choice])]


def _starts(target: Target, shape: WindowShape, tiles: Iterable[WindowTile]) -> Iterator[Choice]:
    """Every tile with tasks of all rows, and of all groups, of some, and of one."""
    for tile in tiles:
        sizes = _group_sizes(shape, tile)
        for groups in {sizes[0], sizes[len(sizes) // 2], sizes[-1]}:
            for copied in _copies(shape, tile):
                yield _choice(target, shape, tile, shape.known_rows, groups, copied)


def _other_rows(target: Target, shape: WindowShape, choice: Choice) -> Iterator[Choice]:
    tile, blocks = choice
    for rows in _sizes(shape.known_rows, (*_PARTS, target.num_threads)):
        yield _choice(target, shape, tile, rows, blocks.groups, blocks.copied)


def _other_groups(target: Target, shape: WindowShape, choice: Choice) -> Iterator[Choice]:
    tile, blocks = choice
    for groups in _group_sizes(shape, tile):
        yield _choice(target, shape, tile, blocks.rows, groups, blocks.copied)


def _other_copies(target: Target, shape: WindowShape, choice: Choice) -> Iterator[Choice]:
    tile, blocks = choice
    for copied in _copies(shape, tile):
        yield _choice(target, shape, tile, blocks.rows, blocks.groups, copied)


def _other_tiles(
    target: Target, shape: WindowShape, choice: Choice, tiles: Iterable[WindowTile]
) -> Iterator[Choice]:
    """Other tiles, with tasks of about the same size."""
    tile, blocks = choice
    elements = blocks.groups * tile.vectors * tile.lanes
    for other in tiles:
        if blocks.copied not in _copies(shape, other):
            continue
        each = other.vectors * other.lanes
        groups = min(_group_sizes(shape, other), key=lambda g: abs(g * each - elements))
        yield _choice(target, shape, other, blocks.rows, groups, blocks.copied)


def _choice(
    target: Target, shape: WindowShape, tile: WindowTile, rows: int, groups: int, copied: bool
) -> Choice:
    ahead = not copied and reads_ahead(target, shape, tile)
    if shape.one_axis:  # a task has whole tiles
        rows = min(math.ceil(rows / tile.columns) * tile.columns, shape.known_rows)
    return tile, WindowBlocks(rows, groups, copied, ahead)


def _blocks(target: Target, shape: WindowShape, tile: WindowTile) -> Iterator[Choice]:
    """All task sizes for a tile."""
    rows = _sizes(shape.known_rows, range(1, shape.known_rows + 1))
    for copied, r, g in itertools.product(_copies(shape, tile), rows, _group_sizes(shape, tile)):
        yield _choice(target, shape, tile, r, g, copied)


def _copies(shape: WindowShape, tile: WindowTile) -> tuple[bool, ...]:
    """Whether tasks may copy the data that they read."""
    if shape.source != "border":
        return (shape.source == "made",)
    # A border that is not copied needs masks. Where the window moves along the vector axis,
    # only unrolled tiles with a known vector axis support them.
    masks = not shape.groups_move or (tile.written_out and shape.vector is not None)
    return (False, True) if masks else (True,)


def _group_sizes(shape: WindowShape, tile: WindowTile) -> list[int]:
    """Groups per task: parts of equal size; all of them if the window moves along the groups.

    A part is at least a pair of lines. Cores fetch lines in pairs, so threads that write adjacent
    lines would take them from each other.
    """
    groups = groups_of(shape, tile)
    if shape.groups_move:
        return [groups]
    least = _PAIR // (tile.vectors * tile.lanes)
    return [g for g in range(groups, 0, -1) if groups % g == 0 and (g >= least or g == groups)]


def _sizes(extent: int, parts: Iterable[int]) -> list[int]:
    """Sizes of these numbers of nearly equal parts of an axis, largest first."""
    return sorted({math.ceil(extent / p) for p in parts if p <= extent}, reverse=True)


__all__ = ["Choice", "ranked_windows", "window_plan"]

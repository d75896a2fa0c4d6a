"""Choose register tiles and tasks for sliding windows, by an analytic model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Literal

import msgspec

from blockwright.strategies.cpu.register_tiling import min_width
from blockwright.target import Core, Target

_SUMS = 8  # most sums of a tile of one column or one vector: they hide the latency of updates
_LOADED = 4  # registers for weights and data in a tile of all vectors
WRITTEN_OUT = 200  # largest number of updates per tile that are unrolled
_LONG = 32  # updates per sum from which several sums at once pay
_EMPTY = 1.15  # largest ratio of padded lanes with whole vectors to those with half vectors
_SHORT_COPY = 2  # time of a copy in loops over few vectors, with a border, relative to long rows
_ROWS, _GROUPS, _WIDTH = 64, 16, 64  # sizes assumed for unknown rows, groups and width


class WindowShape(msgspec.Struct, frozen=True):
    """The sizes of a sliding window; None where they are unknown.

    Attributes:
        vector: length of the axis that vectors run along.
        columns: length of the axis that a register tile runs along.
        step, gap: elements by which the data moves per column, and per tap along it.
        along, taps: number of taps along that axis, and of all taps.
        weighted: whether taps have weights.
        rows, row_step, row_reach: length of the outermost axis that moves the window, rows of the
            data that it moves per step, and rows of the data that a window covers.
        width: elements of a row of the data, per element of the vector axis.
        pitch: bytes from one column of the data to the next.
        one_axis: whether the outermost axis that moves the window is the tile's.
        tasks: product of the axes that do not move the window, without `vector`.
        groups_move: whether the vector axis moves the window too, so that tasks cover all of it.
        source: "plain" data; data with a "border", which masks can replace; or data "made" by a
            producer, which tasks compute once, into a copy of their own.
    """

    vector: int | None
    columns: int | None = 1
    step: int = 1
    gap: int = 1
    along: int = 1
    taps: int | None = 1
    weighted: bool = False
    rows: int | None = 1
    row_step: int = 1
    row_reach: int = 1
    width: int | None = 1
    pitch: int = 0
    one_axis: bool = True
    tasks: int | None = 1
    groups_move: bool = False
    source: Literal["plain", "border", "made"] = "plain"

    def large(self, size: int, unknown: bool = True) -> bool:
        """Whether the data is larger than `size` bytes; `unknown` if that is not known."""
        if None in (self.tasks, self.rows, self.width):
            return unknown
        data = (self.tasks or 1) * (self.rows or 1) * self.row_step * (self.width or 1)
        return data * self.pitch > size


class WindowTile(msgspec.Struct, frozen=True):
    """A tile of `columns` × `vectors` accumulators of `lanes` elements.

    `written_out` is whether all taps are unrolled.
    """

    columns: int
    vectors: int
    lanes: int
    written_out: bool


class WindowBlocks(msgspec.Struct, frozen=True):
    """Size of a task.

    Attributes:
        rows, groups: rows and groups of vectors per task.
        copied: whether a task copies the data that it reads.
        ahead: whether it prefetches the next rows from memory.
    """

    rows: int
    groups: int
    copied: bool
    ahead: bool = False


def window_plan(target: Target, shape: WindowShape, bits: int) -> tuple[WindowTile, WindowBlocks]:
    """The register tile and the task size with the shortest estimated time."""
    return min(
        _choices(target, shape, bits), key=lambda choice: window_time(target, shape, *choice)
    )


def ranked_windows(
    target: Target, shape: WindowShape, bits: int
) -> list[tuple[WindowTile, WindowBlocks]]:
    """All register tiles and task sizes, the one with the shortest estimated time first."""
    choices = dict.fromkeys(_choices(target, shape, bits))
    return sorted(choices, key=lambda choice: window_time(target, shape, *choice))


def _choices(
    target: Target, shape: WindowShape, bits: int
) -> Iterator[tuple[WindowTile, WindowBlocks]]:
    """The register tiles and task sizes to compare."""
    copies = {"plain": (False,), "border": (False, True), "made": (True,)}[shape.source]
    for tile in _tiles(target, shape, bits):
        groups = _groups(shape, tile)
        each = [g for g in _sizes(groups) if groups % g == 0 and not shape.groups_move]
        rows = reversed(_sizes(shape.rows or _ROWS))
        # A border that is not copied needs masks. Where the window moves along the vector axis,
        # only unrolled tiles with a known vector axis support them.
        masks = not shape.groups_move or (tile.written_out and shape.vector is not None)
        for copied, r, g in itertools.product(copies, rows, reversed(each or [groups])):
            if copied or shape.source != "border" or masks:
                yield (
                    tile,
                    WindowBlocks(r, g, copied, not copied and _ahead(target, shape, tile)),
                )


def window_cycles(target: Target, shape: WindowShape, bits: int) -> float:
    """Estimated cycles of one thread for all tasks, without starting them."""
    tile, blocks = window_plan(target, shape, bits)
    return _tasks(shape, tile, blocks) * _cycles_of_task(target, shape, tile, blocks)


def _tiles(target: Target, shape: WindowShape, bits: int) -> list[WindowTile]:
    """Tiles that fit the register file, widest first."""
    lanes = _lanes(target, shape, bits)
    result: list[WindowTile] = []
    for columns in range(1, 1 + min(shape.columns or _SUMS, _SUMS)):
        if columns > 1 and (
            _registers(shape, columns) > target.vector_registers
            or columns * (shape.taps or 1) > WRITTEN_OUT
        ):
            break
        vectors = 1
        if shape.taps is None or shape.taps >= _LONG:
            groups = _SUMS if shape.vector is None else math.ceil(shape.vector / lanes)
            vectors = min(max(1, _SUMS // columns), groups)
        updates = None if shape.taps is None else shape.taps * columns * vectors
        written_out = updates is not None and updates <= WRITTEN_OUT
        result.append(WindowTile(columns, vectors, lanes, written_out))
    if shape.taps is not None and shape.taps >= _LONG:
        result += _long_tiles(target, shape, lanes)
    return result[::-1] + _whole_tiles(target, shape, lanes)


def _long_tiles(target: Target, shape: WindowShape, lanes: int) -> list[WindowTile]:
    """Tiles whose taps along the tile's axis are unrolled, with loops over the other taps.

    Adjacent results use a row of the data one after another; weights are loaded for each tap.
    """
    groups = _SUMS if shape.vector is None else math.ceil(shape.vector / lanes)
    result: list[WindowTile] = []
    for columns in range(2, 1 + min(shape.columns or _SUMS, _SUMS)):
        vectors = min(_SUMS // columns, groups)
        sums = columns * vectors
        if 2 * sums - vectors + 2 <= target.vector_registers and (
            sums * shape.along <= WRITTEN_OUT < sums * (shape.taps or 0)
        ):
            result.append(WindowTile(columns, vectors, lanes, False))
    return result


def _whole_tiles(target: Target, shape: WindowShape, lanes: int) -> list[WindowTile]:
    """Tiles of all vectors of some columns, for data from memory.

    Its lines are read in order, each in one piece.
    """
    if shape.vector is None or not _from_memory(target, shape):
        return []
    vectors, taps = math.ceil(shape.vector / lanes), shape.taps or 1
    result: list[WindowTile] = []
    for columns in range(2, 1 + (shape.columns or 1)):  # with one column, no element is used twice
        sums = columns * vectors
        if sums + _LOADED > target.vector_registers or taps * sums > WRITTEN_OUT:
            break
        result.append(WindowTile(columns, vectors, lanes, True))
    return result[::-1] if vectors > 1 else []


def _from_memory(target: Target, shape: WindowShape) -> bool:
    """Whether the data certainly comes from memory, row by row, so that rows can be prefetched."""
    rows = not shape.one_axis and not shape.groups_move and shape.source != "made"
    return rows and shape.large(_last_level(target), unknown=False)


def _ahead(target: Target, shape: WindowShape, tile: WindowTile) -> bool:
    """Whether a tile can prefetch its part of the data that is read next.

    That is the next row where rows are read in order, or the next rows where vectors run along
    them.
    """
    if shape.groups_move:
        return shape.source != "made" and shape.large(_last_level(target), unknown=False)
    return _from_memory(target, shape) and _groups(shape, tile) == 1


def _lanes(target: Target, shape: WindowShape, bits: int) -> int:
    """Lanes of a vector: the target's, or half of them where that leaves far fewer unused."""
    lanes = max(1, target.vector_bits // bits)
    if shape.vector is None:
        return lanes
    if shape.vector <= lanes:
        return shape.vector
    half = min_width(target, lanes, bits)
    whole, halves = (math.ceil(shape.vector / n) * n for n in (lanes, half))
    return half if whole > _EMPTY * halves else lanes


def _places(shape: WindowShape, columns: int) -> int:
    """Elements of the data that a tile reads for one value of the other taps."""
    return len({c * shape.step + k * shape.gap for c in range(columns) for k in range(shape.along)})


def _registers(shape: WindowShape, columns: int) -> int:
    """Registers of a tile: accumulators, the weights along the tile, and the elements in flight."""
    alive = min(shape.along, _places(shape, columns))
    return columns + (shape.along if shape.weighted else 0) + alive


def _cycles(core: Core, shape: WindowShape, columns: int) -> float:
    """Cycles of a tile of one vector with all data in the first-level cache."""
    others = (shape.taps or 9) / shape.along
    updates = columns * shape.along
    loads = _places(shape, columns) + (shape.along if shape.weighted else 0)
    step = max(updates / core.window_arithmetic, loads / core.loads, (updates + loads) / core.issue)
    return others * step + 1


def _groups(shape: WindowShape, tile: WindowTile) -> int:
    if shape.vector is None:
        return _GROUPS
    return math.ceil(shape.vector / (tile.lanes * tile.vectors))


def _sizes(extent: int) -> list[int]:
    """Block sizes that divide an axis into nearly equal parts."""
    return sorted({math.ceil(extent / parts) for parts in range(1, extent + 1)})


def window_time(
    target: Target, shape: WindowShape, tile: WindowTile, blocks: WindowBlocks
) -> float:
    """Estimated cycles of the busiest thread."""
    rounds = math.ceil(_tasks(shape, tile, blocks) / target.num_threads)
    return rounds * (_cycles_of_task(target, shape, tile, blocks) + target.core.task_start_cycles)


def _tasks(shape: WindowShape, tile: WindowTile, blocks: WindowBlocks) -> int:
    """Number of tasks. If the number of images is unknown, one image must keep all threads busy."""
    tasks = math.ceil((shape.rows or _ROWS) / blocks.rows)
    return tasks * math.ceil(_groups(shape, tile) / blocks.groups) * (shape.tasks or 1)


def _cycles_of_task(
    target: Target, shape: WindowShape, tile: WindowTile, blocks: WindowBlocks
) -> float:
    tiles = math.ceil((shape.columns or _WIDTH) / tile.columns) * blocks.groups
    if shape.one_axis:
        tiles = math.ceil(blocks.rows / tile.columns) * blocks.groups
    else:
        tiles *= blocks.rows
    time = tiles * (
        _cycles(target.core, shape, tile.columns) * tile.vectors
        + _misses(target, shape, tile, blocks)
    )
    if blocks.copied:
        copied = _SHORT_COPY * target.core.copy_cycles
        read = (blocks.rows - 1) * shape.row_step + shape.row_reach
        time += read * (shape.width or _WIDTH) * blocks.groups * tile.vectors * copied
    return time


def _misses(target: Target, shape: WindowShape, tile: WindowTile, blocks: WindowBlocks) -> float:
    """Cycles that a tile waits for lines that are not in the first-level cache.

    Rows are reused by the following result rows. With many channels the lines of a row are far
    apart: when their distance shares a large power of two with the number of sets, few sets hold
    them all, and a tile may even evict its own lines. Data from memory arrives in time when it is
    read in order, which wide tiles and single channels do not do.
    """
    cache, core = target.cache(1), target.core
    sets = max(1, cache.size // (cache.ways * cache.line))
    taps = shape.taps or 9
    places = _places(shape, tile.columns)
    lines = places * taps / shape.along * tile.vectors
    weights = taps * tile.vectors if shape.weighted and not shape.groups_move else 0
    wide = blocks.groups * tile.vectors
    alive = shape.row_reach * (shape.width or _WIDTH) * wide
    shared = 1 if blocks.copied else math.gcd(max(1, shape.pitch // cache.line), sets)
    whole = blocks.groups >= _groups(shape, tile) and lines <= cache.ways * sets // shared
    near = whole or blocks.copied
    shared = 1 if near else shared
    room = cache.ways * sets // shared * min(wide, shared)
    lost = lines * max(0.0, 1 - room / alive)
    lost *= core.next_line_cycles if near else core.strided_line_cycles(cache.line)
    together = blocks.groups * (lines + weights + tile.columns * tile.vectors)
    if together > cache.size // cache.line:
        lost += weights * core.next_line_cycles
    if shape.groups_move or not shape.large(_last_level(target)):
        return lost
    fresh = tile.columns * shape.step * shape.row_step * tile.vectors
    if blocks.groups < _groups(shape, tile):
        return lost + fresh * core.unordered_line_cycles / wide
    if blocks.ahead:
        return lost
    if _groups(shape, tile) > 1:
        lost += fresh * core.unordered_line_cycles
    spread = 0 if blocks.copied or blocks.groups == 1 else places * shape.pitch
    return lost + fresh * max(0, spread - core.prefetch_span) / core.prefetch_lag


def _last_level(target: Target) -> int:
    """Bytes of the last-level cache that a thread has for data, besides as many for results."""
    cache = target.caches[-1]
    return cache.size // cache.shared_by // 2


__all__ = [
    "WindowBlocks",
    "WindowShape",
    "WindowTile",
    "ranked_windows",
    "window_cycles",
    "window_plan",
    "window_time",
]

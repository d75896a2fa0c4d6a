"""Sizes of a sliding window, and the register tiles and tasks that fit them."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from blockwright.strategies.cpu.register_tiling import min_width
from blockwright.target import Target

_SUMS = 8  # most sums of a tile of one column or one vector: they hide the latency of updates
_LOADED = 4  # registers for weights and data in a tile of all vectors
WRITTEN_OUT = 200  # largest number of updates per tile that are unrolled
_LONG = 32  # updates per sum from which several sums at once pay
_EMPTY = 1.15  # largest ratio of padded lanes with whole vectors to those with half vectors
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

    @property
    def known_rows(self) -> int:
        """The number of rows; typical if it is unknown."""
        return self.rows or _ROWS

    @property
    def known_columns(self) -> int:
        """The number of columns; typical if it is unknown."""
        return self.columns or _WIDTH

    @property
    def known_width(self) -> int:
        """The width; typical if it is unknown."""
        return self.width or _WIDTH

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


def window_tiles(target: Target, shape: WindowShape, bits: int) -> list[WindowTile]:
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


def reads_ahead(target: Target, shape: WindowShape, tile: WindowTile) -> bool:
    """Whether a tile can prefetch its part of the data that is read next.

    That is the next row where rows are read in order, or the next rows where vectors run along
    them.
    """
    if shape.groups_move:
        return shape.source != "made" and shape.large(_last_level(target), unknown=False)
    return _from_memory(target, shape) and groups_of(shape, tile) == 1


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


def places_of(shape: WindowShape, columns: int) -> int:
    """Elements of the data that a tile reads for one value of the other taps."""
    return len({c * shape.step + k * shape.gap for c in range(columns) for k in range(shape.along)})


def _registers(shape: WindowShape, columns: int) -> int:
    """Registers of a tile: accumulators, the weights along the tile, and the elements in flight."""
    alive = min(shape.along, places_of(shape, columns))
    return columns + (shape.along if shape.weighted else 0) + alive


def groups_of(shape: WindowShape, tile: WindowTile) -> int:
    if shape.vector is None:
        return _GROUPS
    return math.ceil(shape.vector / (tile.lanes * tile.vectors))


def _last_level(target: Target) -> int:
    """Bytes of the last-level cache that a thread has for data, besides as many for results."""
    cache = target.caches[-1]
    return cache.size // cache.shared_by // 2

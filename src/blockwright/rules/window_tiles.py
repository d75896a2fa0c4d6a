"""Analytic choice of register tiles and tasks for sliding windows."""

from __future__ import annotations

import itertools
import math

import msgspec

from blockwright.target import Target

_OPS_PER_CYCLE = 2
_LOADS_PER_CYCLE = 2
_ISSUE_PER_CYCLE = 4
_CHAINS = 8  # updates in flight that hide their latency
_WRITTEN_OUT = 96  # updates per tile that are written out
_TASK = 2000  # cycles that starting a task costs
_COPY = 2.0  # cycles for a vector of the border's buffer: load, store, bookkeeping
_ROWS = 64  # rows taken for an unknown number
_TASKS = 2  # tasks per thread that even out slow ones


class WindowShape(msgspec.Struct, frozen=True):
    """The sizes that decide; None where they are unknown.

    Attributes:
        vector: length of the axis that vectors run along.
        columns: length of the axis that a register tile runs along.
        step, gap: how far the data moves with the next column, and with the next tap along it.
        along, taps: taps along that axis, and all taps.
        weighted: whether taps have weights.
        rows, row_step, row_taps: length of the outermost moved axis, and how it moves the window.
        width: elements of the data that belong to one row and one vector element.
        tasks: product of the axes that no window moves along, without `vector`.
        buffered: whether tasks copy what they read.
    """

    vector: int | None
    columns: int | None
    step: int
    gap: int
    along: int
    taps: int | None
    weighted: bool
    rows: int | None
    row_step: int
    row_reach: int
    width: int | None
    tasks: int | None
    buffered: bool
    lanes_cut: bool


class WindowTile(msgspec.Struct, frozen=True):
    """`columns` × `vectors` accumulators of `lanes` elements."""

    columns: int
    vectors: int
    lanes: int


class WindowBlocks(msgspec.Struct, frozen=True):
    """Rows and groups of vectors that one task takes."""

    rows: int
    groups: int


def window_tile(target: Target, shape: WindowShape, bits: int) -> WindowTile:
    """The tile with the fewest cycles per result that fits the register file."""
    lanes = max(1, target.vector_bits // bits)
    if shape.vector is not None:
        lanes = min(lanes, shape.vector)
    best: tuple[float, int] | None = None
    for columns in range(1, 1 + min(shape.columns or 16, 16)):
        cost = _cycles(shape, columns)
        if columns > 1 and (_registers(shape, columns) > target.vector_registers
                            or columns * (shape.taps or 1) > _WRITTEN_OUT):  # fmt: skip
            break
        if shape.columns is not None:
            cost *= math.ceil(shape.columns / columns) * columns / shape.columns
        if best is None or cost < best[0] - 1e-9:
            best = cost, columns
    assert best is not None
    columns, vectors = best[1], 1
    if shape.taps is None or shape.taps * columns > _WRITTEN_OUT:
        groups = math.inf if shape.vector is None else math.ceil(shape.vector / lanes)
        vectors = int(min(max(1, _CHAINS // columns), groups))
    return WindowTile(columns, vectors, lanes)


def _places(shape: WindowShape, columns: int) -> int:
    """Elements of the data that a tile reads for one value of the other taps."""
    return len({c * shape.step + k * shape.gap for c in range(columns) for k in range(shape.along)})


def _registers(shape: WindowShape, columns: int) -> int:
    """Accumulators, the weights along the tile, and the elements on their way through it."""
    alive = min(shape.along, _places(shape, columns))
    return columns + (shape.along if shape.weighted else 0) + alive


def _cycles(shape: WindowShape, columns: int) -> float:
    """Cycles per column and tap of the inner loop."""
    updates = columns * shape.along
    loads = _places(shape, columns) + (shape.along if shape.weighted else 0)
    cycles = max(updates / _OPS_PER_CYCLE, loads / _LOADS_PER_CYCLE,
                 (updates + loads) / _ISSUE_PER_CYCLE)  # fmt: skip
    return (cycles + 1 / (shape.taps or 9)) / updates


def window_blocks(target: Target, shape: WindowShape, tile: WindowTile, bits: int) -> WindowBlocks:
    """The task with the least estimated time: even shares, little copied twice, in cache."""
    groups = 64 if shape.vector is None else math.ceil(shape.vector / (tile.lanes * tile.vectors))
    rows = shape.rows or _ROWS
    best: tuple[float, int, int] | None = None
    for r, g in itertools.product(_sizes(rows), _sizes(groups) if shape.lanes_cut else (groups,)):
        cost = _task_cost(target, shape, tile, bits, (rows, r), (groups, g))
        if best is None or cost < best[0]:
            best = cost, r, g
    assert best is not None
    return WindowBlocks(best[1], best[2])


def _sizes(extent: int) -> list[int]:
    """Block sizes that cut an axis into nearly equal parts."""
    return sorted({math.ceil(extent / parts) for parts in range(1, extent + 1)})


def _task_cost(
    target: Target, shape: WindowShape, tile: WindowTile, bits: int, rows: tuple[int, int],
    groups: tuple[int, int],
) -> float:  # fmt: skip
    """Cycles of one thread per row and group."""
    (all_rows, r), (all_groups, g) = rows, groups
    tasks = (shape.tasks or 1) * math.ceil(all_rows / r) * math.ceil(all_groups / g)
    shares = math.ceil(tasks / target.num_threads)
    vectors = tile.vectors * g
    width = shape.width or 64
    read = (r - 1) * shape.row_step + shape.row_reach
    columns = width / shape.step
    kernel = r * columns * vectors * (shape.taps or 9) * _cycles(shape, tile.columns) * tile.columns
    kernel /= tile.columns
    copied = read * width * vectors * _COPY if shape.buffered else 0.0
    used = read * width * vectors * tile.lanes * bits // 8
    if used > target.cache(2).size // 2:
        copied *= 3
    elif used > target.cache(1).size // 2:
        copied *= 1.25
    time = shares * (kernel + copied + _TASK)
    return time * (1 + 0.02 * (tasks < _TASKS * target.num_threads)) / (
        (shape.tasks or 1) * all_rows * all_groups)  # fmt: skip

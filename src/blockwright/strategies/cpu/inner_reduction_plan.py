"""Plans of the strategy for row reductions: rows, lanes, tasks, and accesses to memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from blockwright import ir
from blockwright.strategies.cpu.lanes_plan import LanesPlan, lanes_plan, other_lanes
from blockwright.strategies.cpu.software_pipelined_rows import PipelinePlan, rows_of_task
from blockwright.strategies.strategy import Plan
from blockwright.target import Target

_SHORT = 256  # elements of a row up to which adjacent rows are processed together
_TOGETHER = 8  # rows processed together, if that leaves several tasks per thread
_PIECES = 4  # fewest tasks per thread: a thread that starts late runs fewer


class RowShape(msgspec.Struct, frozen=True):
    """Sizes of a program of row reductions; None where symbolic.

    Attributes:
        rows: extents of the row axes.
        lengths: extents of the axes inside a row, in the last block.
        reductions: number of reductions.
        bits: of an element of the result.
    """

    rows: Sequence[int | None]
    lengths: Sequence[int | None]
    reductions: int
    bits: int

    @property
    def count(self) -> int | None:
        """Number of rows."""
        return None if None in self.rows else math.prod(n or 0 for n in self.rows)


class RowPlan(Plan, frozen=True):
    """The decisions for a program of row reductions.

    Attributes:
        lanes: vectors and partial results within a row.
        rows_together: rows that are processed together, one pass over all of them after another.
        reduction_tasks: tasks that share a long reduction to one value; 1: it is not shared.
        passes: overlap of rows, and accesses to data that is larger than the caches.
    """

    lanes: LanesPlan
    rows_together: int
    reduction_tasks: int
    passes: PipelinePlan


def best_plan(func: ir.PrimFunc, last: ir.Block, shape: RowShape, target: Target) -> RowPlan:
    """The plan that the cost model prefers.

    Args:
        last: the last block of the prepared program `func`.
    """
    together = _rows_together(shape, target)
    count = None if shape.count is None else math.ceil(shape.count / together)
    passes = PipelinePlan(
        rows_of_task(func, last, count, target) if shape.rows else 0,
        target.cache(len(target.caches)).size,
        target.cache(2).size // 2,
    )
    tasks = _PIECES * target.num_threads if target.num_threads > 1 else 1
    return RowPlan(lanes_plan(target), together, tasks, passes)


def other_plans(best: RowPlan) -> Iterator[RowPlan]:
    """Plans that differ from the best one in one decision."""
    change = msgspec.structs.replace
    for lanes in other_lanes(best.lanes):
        yield change(best, lanes=lanes)
    for count in (1, 2, 4, 8):
        yield change(best, rows_together=count)
    for tasks in (1, best.reduction_tasks * 2, best.reduction_tasks * 4):
        yield change(best, reduction_tasks=tasks)
    for fields in ({"rows": 0}, {"far_bytes": None}, {"far_bytes": 1}, {"prefetch_bytes": 0}):
        yield change(best, passes=change(best.passes, **fields))


def _rows_together(shape: RowShape, target: Target) -> int:
    """Rows that are processed together, one pass over all of them after another.

    Each reduction of a row ends with combining its lanes, and the next pass waits for the result.
    In short rows that is much of the time; the processor fills it with work on the other rows. Rows
    that come from memory are overlapped by `overlap_rows` instead.
    """
    rows = shape.count
    if not shape.rows or not shape.lengths or shape.reductions < 2:
        return 1
    if rows is None or None in shape.lengths:
        return 1
    elements = math.prod(length or 1 for length in shape.lengths)
    near = rows * elements * shape.bits // 8 < target.caches[-1].size
    largest = rows // (_PIECES * target.num_threads)
    together = max(1, min(_TOGETHER, largest)) if near and elements <= _SHORT else 1
    while len(shape.rows) > 1 and (shape.rows[-1] or 1) % together:
        together -= 1  # rows of one axis: rows of several axes have no iterator map
    return together

"""Decisions on the tasks and vectors of an element-wise block, shared by several strategies."""

from __future__ import annotations

import msgspec

from blockwright.lower.cpu.register_transpose import LARGEST
from blockwright.strategies.strategy import Plan
from blockwright.target import Target

_MIN_TASK = 2048  # elements below which dispatching a task costs more than it saves
_ENOUGH = 8  # tasks per thread from which some loops alone keep all threads busy


class SpreadPlan(Plan, frozen=True):
    """How element-wise blocks are split into tasks and vectors.

    Attributes:
        vector_bits: width of a vector.
        task_elements: elements per task, approximately.
        transpose_tile: most rows and columns of a tile that is transposed in registers; up to 2:
            no tiles.
        busy_tasks: tasks that keep all threads busy even if the last ones have less work.
        far_bytes: size from which results are written with non-temporal stores, because they stay
            in no cache; None: never.
    """

    vector_bits: int
    task_elements: int = _MIN_TASK
    transpose_tile: int = LARGEST
    busy_tasks: int = _ENOUGH
    far_bytes: int | None = None


def spread_plan(target: Target) -> SpreadPlan:
    """The usual choice for a target."""
    return SpreadPlan(
        target.vector_bits,
        busy_tasks=_ENOUGH * target.num_threads,
        far_bytes=target.cache(len(target.caches)).size,
    )


def other_spreads(best: SpreadPlan) -> list[SpreadPlan]:
    """Plans that differ from the best one in one decision."""
    change = msgspec.structs.replace
    counts = (best.task_elements // 4, best.task_elements * 4, best.task_elements * 16)
    return [
        *(change(best, task_elements=count) for count in counts),
        *(change(best, transpose_tile=size) for size in (0, 4, 8)),
        *([change(best, vector_bits=best.vector_bits // 2)] if best.vector_bits > 128 else []),
        change(best, far_bytes=None),
        change(best, far_bytes=1),
        change(best, busy_tasks=1),
    ]

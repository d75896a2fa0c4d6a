"""Plans of sliding windows: register tile, task size, copies and partial sums of each window."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from blockwright.strategies.cpu.depthwise_pool_cost import ranked_windows, window_plan
from blockwright.strategies.cpu.depthwise_pool_shape import (
    WRITTEN_OUT,
    WindowBlocks,
    WindowShape,
    WindowTile,
)
from blockwright.strategies.strategy import Plan
from blockwright.target import Target

_PIECE = 16  # fewest steps per piece of a long sum
_PIECES = 64  # most pieces of a long sum


class WindowPlan(msgspec.Struct, frozen=True):
    """The decisions for one window.

    Attributes:
        tile: the register tile.
        blocks: size of a task, its copy of the data, and prefetches.
        vector_bits: width of the vectors in which a task copies data and stores split sums.
        terms: steps per partial sum of a long reduction; None to add all terms in order.
        unrolled: largest number of updates that are unrolled, if they are not all of the tile's.
    """

    tile: WindowTile
    blocks: WindowBlocks
    vector_bits: int
    terms: int | None = None
    unrolled: int = WRITTEN_OUT


class DepthwisePoolPlan(Plan, frozen=True):
    """One plan for each window of a program, in program order."""

    windows: tuple[WindowPlan, ...]


class WindowFacts(msgspec.Struct, frozen=True):
    """What plans of one window depend on.

    Attributes:
        shape: its sizes.
        bits: of an accumulator.
        steps: length of the reduction loop that is split if the sum is long, 0 if unknown; None if
            the sum is not split.
    """

    shape: WindowShape
    bits: int
    steps: int | None


def best_window(target: Target, facts: WindowFacts) -> WindowPlan:
    """The plan with the shortest estimated time."""
    return _plan_of(target, facts, *window_plan(target, facts.shape, facts.bits))


def ranked_window_plans(target: Target, facts: WindowFacts) -> Iterator[WindowPlan]:
    """All plans, the one with the shortest estimated time first."""
    for tile, blocks in ranked_windows(target, facts.shape, facts.bits):
        yield _plan_of(target, facts, tile, blocks)


def _plan_of(
    target: Target, facts: WindowFacts, tile: WindowTile, blocks: WindowBlocks
) -> WindowPlan:
    split = facts.steps is not None and not tile.written_out
    terms = max(_PIECE, (facts.steps or 0) // _PIECES) if split else None
    return WindowPlan(tile, blocks, target.vector_bits, terms)

"""Reductions vectorized along a spatial loop: all results are kept while terms are added."""

from __future__ import annotations

from blockwright import ir
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.blocked_sums import PartialSum, next_level, sums_floats
from blockwright.strategies.cpu.inline import block_of, extent, reduces
from blockwright.strategies.cpu.lanes_plan import LanesPlan
from blockwright.strategies.cpu.vector_loops import (
    inner_loops,
    lanes_in,
    spatial_loops,
    vectorize_by,
)

_BY_FEW = 64  # terms of a sum from which the terms of one step are first added to one another


def accumulate(
    sch: Schedule,
    handle: BlockRV,
    row: LoopRV | None,
    plan: LanesPlan,
    ragged: bool = False,
) -> None:
    """Schedule a reduction with vectors along a spatial loop, adding several steps at a time.

    Results stay in cache between steps; each is loaded and stored once per several steps. With
    `ragged`, some vectors of the loop may be out of bounds. A long sum is split into blocks; one of
    unknown length if the plan says so.
    """
    block = block_of(sch, handle)
    loops = inner_loops(sch, handle, row)
    rows = [loop for loop in loops if reduces(sch, block, loop)]
    *others, columns = spatial_loops(sch, handle, loops)
    if not rows:  # sums of one term each
        vectorize_by(sch, handle, columns, plan.vector_bits)
        return
    sch.reorder(*others, *rows, columns)
    steps, long = plan.steps, plan.split_unknown
    # otherwise the terms of one step are added in order
    apart = len(rows) == 1 and not _calls(block)
    level = next_level(
        sch, handle, rows, step=steps, lanes=steps, long=long, in_block=steps if apart else 1
    )
    if level is not None:
        _accumulate_level(sch, level, plan, ragged)
        accumulate(sch, level.partial, level.loop, plan, ragged)
        return
    apart = apart and sums_floats(block) and (extent(sch, rows[0]) or 0) > _BY_FEW
    lanes = min(lanes_in(block, plan.vector_bits), extent(sch, columns) or plan.vector_bits)
    vectors, lane = sch.split(columns, [None, lanes])
    k0, k1 = sch.split(rows[-1], [None, min(steps, extent(sch, rows[-1]) or steps)])
    sch.reorder(*others, *rows[:-1], k0, vectors, k1, lane)
    if apart:
        k0, vectors, lane = _sum_steps_apart(sch, handle, k0)
    else:
        sch.unroll(k1)
    init = sch.decompose_reduction(handle, rows[0] if len(rows) > 1 else k0)
    sch.vectorize(lane)
    sch.vectorize(sch.get_loops(init)[-1])
    sch.annotate(k0, LOOP_PARTITION, True)
    if ragged:
        sch.annotate(vectors, LOOP_PARTITION, True)
        sch.annotate(sch.get_loops(init)[-2], LOOP_PARTITION, True)


def _calls(block: ir.Block) -> bool:
    """Whether a term calls functions, which need the registers themselves."""
    return any(call.op != "if_then_else" for call in ir.collect(block.body, ir.Call))


def _sum_steps_apart(
    sch: Schedule, handle: BlockRV, steps: LoopRV
) -> tuple[LoopRV, LoopRV, LoopRV]:
    """Add the terms of one step to one another in a register before they are added to the sum.

    Returns the loops of the sum: over steps, vectors and lanes.
    """
    partial = sch.rfactor(steps, 0)
    steps, vectors, lanes = sch.get_loops(handle)[-3:]
    sch.compute_at(partial, vectors)
    sch.set_scope(partial, 0, "local")
    block = block_of(sch, partial)
    own = inner_loops(sch, partial, vectors)
    (k1,) = [loop for loop in own if reduces(sch, block, loop)]
    (lane,) = spatial_loops(sch, partial, own)
    sch.reorder(k1, lane)
    first = sch.decompose_reduction(partial, k1)
    sch.vectorize(lane)
    sch.unroll(k1)
    sch.vectorize(sch.get_loops(first)[-1])
    return steps, vectors, lanes


def _accumulate_level(sch: Schedule, level: PartialSum, plan: LanesPlan, ragged: bool) -> None:
    """Add the partial sums to the totals, for all columns after each block of terms."""
    own = inner_loops(sch, level.total, level.loop)
    (columns,) = spatial_loops(sch, level.total, own)
    sch.compute_at(level.partial, level.loop)
    lanes = lanes_in(block_of(sch, level.total), plan.vector_bits)
    lanes = min(lanes, extent(sch, columns) or 1 << 10)
    sch.split(columns, [None, lanes])
    init = sch.decompose_reduction(level.total, level.loop)
    for part in (level.total, init):
        *_, vectors, lane = sch.get_loops(part)
        sch.vectorize(lane)
        if ragged:
            sch.annotate(vectors, LOOP_PARTITION, True)
    sch.annotate(level.loop, LOOP_PARTITION, True)

"""Recurrences and scatters: blocks that run in order along some axes, independently along others.

    h[t, d] = a[t, d] * h[t - 1, d] + x[t, d]        in order along t, independent along d
    y[index[i], d] += x[i, d]                        in order along i, independent along d

An axis is independent if every access to the written buffers has its iterator as the index of one
dimension. Independent axes become parallel tasks outside of the ordered axes. If the results of one
are contiguous, a task takes some vectors of it, and steps through the ordered axes for all of them.
"""

from __future__ import annotations

import math

from blockwright import ir
from blockwright.analysis import NoReduction, find_reduction
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.elementwise import spread
from blockwright.strategies.cpu.inline import block_of, extent
from blockwright.strategies.cpu.vector_loops import lanes_for
from blockwright.strategies.match.blocks import is_spatial, leaf_blocks
from blockwright.strategies.strategy import NoDecision, Strategy, facts_unless
from blockwright.support import ScheduleError
from blockwright.target import Target

_VECTORS = 8  # per task and step: independent chains of updates that hide each other's latency


def why_not(func: ir.PrimFunc, target: Target) -> str:
    blocks = leaf_blocks(func)
    ordered = [b for b in blocks if _is_ordered(b)]
    if not ordered:
        return "no block depends on its earlier iterations"
    if not all(_independent(b) for b in ordered):
        return "a block depends on its earlier iterations along every axis"
    if not all(is_spatial(b) or _is_ordered(b) for b in blocks):
        return "another block reduces"
    return ""


def apply(sch: Schedule, target: Target, plan: NoDecision) -> None:
    for handle in sch.get_child_blocks(sch.get_block("root")):
        if _is_ordered(block_of(sch, handle)):
            _run_in_order(sch, handle, target)
        else:
            spread(sch, [handle], target)


def _accesses(block: ir.Block) -> list[tuple[ir.Expr, ...]]:
    """Indices of all accesses to the buffers that a block writes."""
    stores = ir.collect(block.body, ir.BufferStore)
    written = {store.buffer for store in stores}
    loads = [n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer in written]
    return [tuple(n.indices) for n in (*stores, *loads)]


def _is_ordered(block: ir.Block) -> bool:
    """Whether iterations read what others write, and the block is not a known reduction."""
    if block.init is not None or not isinstance(find_reduction(block), NoReduction):
        return False
    first, *others = _accesses(block) or [()]
    gathered = any(isinstance(n, ir.BufferLoad) for index in first for n in ir.walk(index))
    reads = {r.buffer for r in block.reads} & {w.buffer for w in block.writes}
    same = all(len(o) == len(first) and all(map(ir.structural_equal, o, first)) for o in others)
    return bool(reads) and (gathered or not same)


def _independent(block: ir.Block) -> list[int]:
    """Positions of the iterators that are an index of every access to the written buffers."""
    accesses = _accesses(block)
    return [
        position
        for position, it in enumerate(block.iter_vars)
        if it.iter_type is ir.IterType.SPATIAL
        and any(
            all(len(a) > dim and a[dim] is it.var for a in accesses)
            for dim in range(len(accesses[0]))
        )
    ]


def _run_in_order(sch: Schedule, handle: BlockRV, target: Target) -> None:
    block, loops = block_of(sch, handle), sch.get_loops(handle)
    if len(loops) != len(block.iter_vars):
        raise ScheduleError("the loops do not map one to one to the iterators", code="BW340")
    free = _independent(block)
    ordered = [loop for position, loop in enumerate(loops) if position not in free]
    last = _accesses(block)[0][-1]
    along = [p for p in free if block.iter_vars[p].var is last]
    tasks = [loops[p] for p in free if p not in along]
    if along:
        column = loops[along[0]]
        tasks.append(_in_vectors(sch, handle, column, tasks, ordered, target))
    else:
        sch.reorder(*tasks, *ordered)
    task = sch.fuse(*tasks) if len(tasks) > 1 else tasks[0]
    if along:
        sch.annotate(task, LOOP_PARTITION, True)  # masks in the last task only
    sch.parallel(task)


def _in_vectors(
    sch: Schedule,
    handle: BlockRV,
    column: LoopRV,
    tasks: list[LoopRV],
    ordered: list[LoopRV],
    target: Target,
) -> LoopRV:
    """Step through the ordered loops for some vectors at once; return the loop over tasks."""
    lanes, size = lanes_for(block_of(sch, handle), target), extent(sch, column)
    vectors = _VECTORS
    if size is not None:
        others = math.prod(extent(sch, loop) or 1 for loop in tasks)
        share = math.ceil(size * others / (lanes * target.num_threads))  # vectors per thread
        vectors = max(1, min(_VECTORS, share, math.ceil(size / lanes)))
        lanes = min(lanes, size)
    outer, middle, inner = sch.split(column, [None, vectors, lanes])
    sch.reorder(*tasks, outer, *ordered, middle, inner)
    sch.unroll(middle)
    sch.vectorize(inner)
    return outer


STRATEGY = Strategy("recurrence", facts_unless(why_not), apply)

"""Recurrences and scatters: blocks that run in order along some axes, independently along others.

    h[t, d] = a[t, d] * h[t - 1, d] + x[t, d]        in order along t, independent along d
    y[index[i], d] += x[i, d]                        in order along i, independent along d

An axis is independent if every access to the written buffers has its iterator as the index of one
dimension. Independent axes become parallel tasks outside of the ordered axes. If the results of one
are contiguous, a task takes some vectors of it, and steps through the ordered axes for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from blockwright import ir
from blockwright.analysis import NoReduction, find_reduction
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.schedule import BlockRV, Schedule
from blockwright.strategies.cpu.elementwise import spread_by
from blockwright.strategies.cpu.inline import block_of, extent
from blockwright.strategies.cpu.spread_plan import SpreadPlan, other_spreads, spread_plan
from blockwright.strategies.cpu.vector_loops import lanes_in
from blockwright.strategies.match.blocks import is_spatial, leaf_blocks
from blockwright.strategies.ranking import misfit, ranked, refuse_below_one
from blockwright.strategies.strategy import Plan, Strategy, facts_unless
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


class RecurrencePlan(Plan, frozen=True):
    """The decisions for a program with recurrences or scatters.

    Attributes:
        vectors: of results per task and step, one number for each ordered block.
        vector_bits: width of a vector.
        others: tasks and vectors of the blocks without an order.
    """

    vectors: tuple[int, ...]
    vector_bits: int
    others: SpreadPlan


def plans(func: ir.PrimFunc, target: Target) -> Iterator[RecurrencePlan]:
    """The plan with independent updates enough to hide latency, then others by predicted time."""
    vectors = tuple(_vectors(b, target) for b in leaf_blocks(func) if _is_ordered(b))
    best = RecurrencePlan(vectors, target.vector_bits, spread_plan(target))
    change = msgspec.structs.replace
    others = [
        change(best, vectors=(*vectors[:k], number, *vectors[k + 1 :]))
        for k in range(len(vectors))
        for number in (1, 2, 4, 8, 16)
    ]
    if best.vector_bits > 128:
        others.append(change(best, vector_bits=best.vector_bits // 2))
    others += [change(best, others=spread) for spread in other_spreads(best.others)]
    return ranked(func, target, apply, best, others)


def apply(sch: Schedule, target: Target, plan: RecurrencePlan) -> None:
    """Schedule a program by a plan."""
    refuse_below_one(plan, "vector_bits")
    handles = sch.get_child_blocks(sch.get_block("root"))
    ordered = [h for h in handles if _is_ordered(block_of(sch, h))]
    if len(ordered) != len(plan.vectors) or min(plan.vectors) < 1:
        raise misfit(
            f"vectors={plan.vectors} for {len(ordered)} ordered blocks",
            "give a number of at least 1 for each",
        )
    for handle in handles:
        if handle in ordered:
            vectors = plan.vectors[ordered.index(handle)]
            _run_in_order(sch, handle, vectors, plan.vector_bits)
        else:
            spread_by(sch, [handle], plan.others)


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


def _contiguous(block: ir.Block) -> list[int]:
    """Positions of the independent iterators along which results are contiguous."""
    last = _accesses(block)[0][-1]
    return [p for p in _independent(block) if block.iter_vars[p].var is last]


def _vectors(block: ir.Block, target: Target) -> int:
    """Vectors per task and step that hide latency and leave work for all threads."""
    along = _contiguous(block)
    size = ir.const_int(block.iter_vars[along[0]].dom.extent) if along else None
    if size is None:
        return _VECTORS
    tasks = [block.iter_vars[p].dom.extent for p in _independent(block) if p not in along]
    lanes = lanes_in(block, target.vector_bits)
    rows = math.prod(ir.const_int(extent) or 1 for extent in tasks)
    share = math.ceil(size * rows / (lanes * target.num_threads))  # vectors per thread
    return max(1, min(_VECTORS, share, math.ceil(size / lanes)))


def _run_in_order(sch: Schedule, handle: BlockRV, vectors: int, vector_bits: int) -> None:
    block, loops = block_of(sch, handle), sch.get_loops(handle)
    if len(loops) != len(block.iter_vars):
        raise ScheduleError("the loops do not map one to one to the iterators", code="BW340")
    free = _independent(block)
    ordered = [loop for position, loop in enumerate(loops) if position not in free]
    along = _contiguous(block)
    tasks = [loops[p] for p in free if p not in along]
    if along:
        column, lanes = loops[along[0]], lanes_in(block, vector_bits)
        lanes = min(lanes, extent(sch, column) or lanes)
        outer, middle, inner = sch.split(column, [None, vectors, lanes])
        sch.reorder(*tasks, outer, *ordered, middle, inner)
        sch.unroll(middle)
        sch.vectorize(inner)
        tasks.append(outer)
    else:
        sch.reorder(*tasks, *ordered)
    task = sch.fuse(*tasks) if len(tasks) > 1 else tasks[0]
    if along:
        sch.annotate(task, LOOP_PARTITION, True)  # masks in the last task only
    sch.parallel(task)


STRATEGY = Strategy("recurrence", facts_unless(why_not), apply, RecurrencePlan, plans)

"""Element-wise programs: parallel outer loops, vectors along the last axis.

Consumers of a concatenation are inlined into the producer of each part. Parts that are adjacent
along the last axis are written in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from blockwright import ir
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.inline import (
    block_of,
    bound_iterators,
    extent,
    inline_where,
    push_into_parts,
)
from blockwright.strategies.cpu.nontemporal import stream
from blockwright.strategies.cpu.spread_plan import SpreadPlan, other_spreads, spread_plan
from blockwright.strategies.cpu.transpose import stored_order, turn
from blockwright.strategies.match.blocks import address_of, is_spatial, leaf_blocks, stride
from blockwright.strategies.ranking import ranked, refuse_below_one
from blockwright.strategies.strategy import Strategy, facts_unless
from blockwright.support import ScheduleError
from blockwright.target import Target

_TYPICAL = 256  # elements assumed for an axis of unknown length


def why_not(func: ir.PrimFunc, target: Target) -> str:
    result = leaf_blocks(func)
    if not result:
        return "no blocks directly under the root"
    if not all(is_spatial(b) for b in result):
        return "a block reduces"
    if _written_again(result):
        return "a block writes computed elements of another block's buffer"
    return ""


def _written_again(blocks: Sequence[ir.Block]) -> bool:
    """Whether a block, such as a scatter, writes ranges of a buffer that another one writes."""
    writes = [(r.buffer, k) for k, block in enumerate(blocks) for r in block.writes]
    shared = {b for b, k in writes if any(b is c and k != j for c, j in writes)}
    return any(
        r.buffer in shared and any(not ir.is_const_int(d.extent, 1) for d in r.region)
        for block in blocks
        for r in block.writes
    )


def plans(func: ir.PrimFunc, target: Target) -> Iterator[SpreadPlan]:
    """The usual plan for the target, then others in the order of predicted time."""
    best = spread_plan(target)
    return ranked(func, target, apply, best, other_spreads(best))


def apply(sch: Schedule, target: Target, plan: SpreadPlan) -> None:
    """Schedule a program by a plan."""
    refuse_below_one(plan, "vector_bits", "task_elements", "busy_tasks")
    handles = inline_where(sch, sch.get_child_blocks(sch.get_block("root")))
    handles = push_into_parts(sch, handles)
    for handle in handles:
        _in_store_order(sch, handle)
    for group in _side_by_side(sch, handles):
        for part in _merged(sch, group):
            spread_by(sch, part, plan)


def _merged(sch: Schedule, group: list[BlockRV]) -> list[list[BlockRV]]:
    """Merge the outer loops of blocks; blocks that use each other's results stay separate."""
    if len(group) < 2:
        return [group]
    try:
        sch.merge(*(sch.get_loops(handle)[-2] for handle in group))
    except ScheduleError:
        return [[handle] for handle in group]
    return [group]


def _in_store_order(sch: Schedule, handle: BlockRV) -> None:
    """Order the loops like the stored buffer's axes, so that vectors are stored as computed."""
    bound, order = bound_iterators(sch, handle), stored_order(block_of(sch, handle))
    if bound is not None and order is not None and bound != order:
        loops = sch.get_loops(handle)
        sch.reorder(*(loops[bound.index(k)] for k in order))


def _side_by_side(sch: Schedule, handles: list[BlockRV]) -> list[list[BlockRV]]:
    """Group the blocks that write adjacent parts of one buffer along the last axis.

    One pass computes all parts of a group: their common inputs are read once.
    """
    groups: list[list[BlockRV]] = []
    for handle in handles:
        if groups and _beside(sch, groups[-1][-1], handle):
            groups[-1].append(handle)
        else:
            groups.append([handle])
    return groups


def _beside(sch: Schedule, a: BlockRV, b: BlockRV) -> bool:
    written = [{r.buffer for r in block_of(sch, h).writes} for h in (a, b)]
    loops = [[sch.get(loop) for loop in sch.get_loops(h)] for h in (a, b)]
    if written[0] != written[1] or len(loops[0]) < 2 or len(loops[0]) != len(loops[1]):
        return False
    if any(extent(sch, sch.get_loops(h)[-1]) == 1 for h in (a, b)):
        return False
    return all(
        isinstance(x, ir.For) and isinstance(y, ir.For) and ir.structural_equal(x.extent, y.extent)
        for x, y in zip(*(part[:-1] for part in loops), strict=True)
    )


def spread(sch: Schedule, handles: list[BlockRV], target: Target) -> None:
    """`spread_by` the usual plan of the target."""
    spread_by(sch, handles, spread_plan(target))


def spread_by(sch: Schedule, handles: list[BlockRV], plan: SpreadPlan) -> None:
    """Parallelize over the outer loops in tasks of some thousand elements; vectorize the last loop.

    Several blocks share all loops but their last.
    """
    inner: int | None = 0
    outer: list[LoopRV] = []
    ends = False
    turned = turn(sch, handles[0], plan) if len(handles) == 1 else None
    if turned is not None:
        outer, inner, ends = turned
    else:
        for handle in handles:
            outer, last = _vectors(sch, handle, plan)
            inner = None if inner is None or last is None else inner + last
        if len(handles) == 1 and len(sch.get_loops(handles[0])) == 2:
            ends = _ragged(sch, handles[0])
    if not outer:
        return
    loop = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    loop = _parallel(sch, loop, inner or _TYPICAL, plan)
    if ends:
        sch.annotate(loop, LOOP_PARTITION, True)  # masks in the last task only
    stream(sch, loop, handles[0], plan.far_bytes)


def _ragged(sch: Schedule, handle: BlockRV) -> bool:
    """Whether the loops of a block may run beyond its iterators' extents."""
    block = block_of(sch, handle)
    needed = [ir.const_int(it.dom.extent) for it in block.iter_vars]
    run = [extent(sch, loop) for loop in sch.get_loops(handle)]
    if any(size is None for size in (*needed, *run)):
        return True
    return math.prod(n or 0 for n in run) != math.prod(n or 0 for n in needed)


def _vectors(sch: Schedule, handle: BlockRV, plan: SpreadPlan) -> tuple[list[LoopRV], int | None]:
    """Vectorize the last loop; return the loops left for tasks, and the elements below them."""
    block = block_of(sch, handle)
    loops = _as_one(sch, handle)
    if not loops:
        return [], None
    bits = max(r.buffer.dtype.bits for r in (*block.reads, *block.writes) or block.writes)
    lanes = max(1, plan.vector_bits // max(bits, 8))
    while len(loops) > 1 and extent(sch, loops[-1]) == 1:
        loops.pop()  # trailing axes of one element: vectors run along the last longer axis
    last = extent(sch, loops[-1])
    if last is not None and 2 <= last < lanes and _leaps(block_of(sch, handle)):
        sch.unroll(loops[-1])
    elif last is None or last >= 2:
        outer, lane = sch.split(loops[-1], [None, lanes if last is None else min(lanes, last)])
        sch.vectorize(lane)
        loops[-1] = outer
        if len(loops) > 1 and (last is None or (last > lanes and last % lanes)):
            sch.annotate(outer, LOOP_PARTITION, True)  # masks in the last vector only
    return (loops[:-1], last) if len(loops) > 1 else (loops, lanes)


def _leaps(block: ir.Block) -> bool:
    """Whether a block reads with a stride along the result's last axis.

    A vector of a few strided elements is inserted lane by lane, and extracted again where it is
    stored.
    """
    last = block.iter_vars[-1]
    loads = [load for load in ir.collect(block.body, ir.BufferLoad) if load.indices]
    return any(stride(address_of(load, block), last) > 1 for load in loads)


def _as_one(sch: Schedule, handle: BlockRV) -> list[LoopRV]:
    """The loops of a block, fused into one if all its accesses are contiguous in loop order.

    Vectors then continue from one row to the next, and are aligned to cache lines in all rows.
    """
    block, loops = block_of(sch, handle), sch.get_loops(handle)
    if len(loops) < 2 or len(loops) != len(block.iter_vars):
        return loops
    return [sch.fuse(*loops)] if _lies_as_it_runs(block) else loops


def _lies_as_it_runs(block: ir.Block) -> bool:
    """Whether every access uses all iterators in order, on buffers with exactly their extents."""
    accesses = [*ir.collect(block.body, ir.BufferLoad), *ir.collect(block.body, ir.BufferStore)]
    return all(
        len(access.indices) == len(block.iter_vars)
        and not access.buffer.strides
        and all(
            index is it.var and ir.structural_equal(size, it.dom.extent)
            for index, it, size in zip(
                access.indices, block.iter_vars, access.buffer.shape, strict=True
            )
        )
        for access in accesses
    )


def _parallel(sch: Schedule, loop: LoopRV, inner: int, plan: SpreadPlan) -> LoopRV:
    """Group iterations of `inner` elements into tasks that are worth dispatching.

    A loop of unknown length has small groups: large ones could leave other threads without work.
    """
    group = max(1, plan.task_elements // max(1, inner))
    size = extent(sch, loop)
    if size is not None and size <= group:
        return loop
    group = group if size is not None else min(group, 8)
    if group > 1:
        loop, _ = sch.split(loop, [None, group])
    sch.parallel(loop)
    return loop


STRATEGY = Strategy("elementwise", facts_unless(why_not), apply, SpreadPlan, plans)

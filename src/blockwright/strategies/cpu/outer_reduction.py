"""Column reductions: reductions over outer axes that keep the contiguous axis.

Column sums, softmax over a leading axis, statistics per column: a task processes a strip of columns
completely. Vectors run along the columns, so no lanes are combined. Some reduction steps at a time
are added to sums in cache, so that memory is read in long contiguous pieces of a few rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from blockwright import ir
from blockwright.analysis import NoReduction, find_reduction
from blockwright.arith import IndexMap
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.schedule import BlockRV, Schedule
from blockwright.strategies.cpu.accumulate import accumulate
from blockwright.strategies.cpu.blocked_sums import LONGEST, long_sums
from blockwright.strategies.cpu.inline import block_of, extent, inline_where
from blockwright.strategies.cpu.lanes_plan import LanesPlan, lanes_plan, other_lanes
from blockwright.strategies.cpu.register_tiling import column_stretch
from blockwright.strategies.cpu.vector_loops import inner_loops, spatial_loops, vectorize_by
from blockwright.strategies.match.blocks import (
    extent_of,
    fusing_map,
    is_spatial,
    leaf_blocks,
    windowed,
)
from blockwright.strategies.ranking import misfit, ranked, refuse_below_one
from blockwright.strategies.strategy import Plan, Strategy, facts_unless
from blockwright.target import Target


def _column(block: ir.Block) -> int | None:
    """Position of the iterator that is the last index of a block's store."""
    store = block.body
    if not isinstance(store, ir.BufferStore) or not store.indices:
        return None
    places = [p for p, it in enumerate(block.iter_vars) if it.var is store.indices[-1]]
    return places[0] if places else None


def _along_columns(block: ir.Block) -> bool:
    """Whether all accesses of a block have the column as last index, or do not depend on it."""
    position = _column(block)
    if position is None or ir.is_const_int(block.iter_vars[position].dom.extent, 1):
        return False
    column = block.iter_vars[position]
    return all(
        load.indices[-1] is column.var
        for load in ir.collect(block.body, ir.BufferLoad)
        if load.indices and any(ir.uses_var(i, column.var) for i in load.indices)
    )


def why_not(func: ir.PrimFunc, target: Target) -> str:
    result = leaf_blocks(func)
    reducing = [b for b in result if not is_spatial(b)]
    if not reducing:
        return "no block reduces"
    for block in reducing:
        reduction = find_reduction(block)
        if isinstance(reduction, NoReduction):
            return "a block is not a recognized reduction"
        if len(reduction.elements) > 1:
            return "a reduction has several results"
    written = [region.buffer for b in result for region in b.writes]
    if len(set(written)) < len(written):
        return "several blocks write one buffer"
    if not all(_along_columns(b) for b in result):
        return "a block does not keep the last axis"
    if any(windowed(b) for b in result):
        return "a window slides over an operand"
    if _column(result[-1]) not in _kept(result):
        return "the last block does not use the result of a reduction"
    return ""


def _kept(found: list[ir.Block]) -> list[int]:
    """Positions of the last block's iterators that no reduction runs over."""
    last = found[-1]
    if not is_spatial(last):
        spatial = ir.IterType.SPATIAL
        return [p for p, it in enumerate(last.iter_vars) if it.iter_type is spatial]
    statistics: set[ir.Buffer] = set()
    for block in found[:-1]:
        if not is_spatial(block) or statistics.issuperset(r.buffer for r in block.reads):
            statistics.update(r.buffer for r in block.writes)
    loads = [n for n in ir.collect(last.body, ir.BufferLoad) if n.buffer in statistics]
    used = {v for load in loads for i in load.indices for v in ir.free_vars(i)}
    return [p for p, it in enumerate(last.iter_vars) if it.var in used]


class ColumnPlan(Plan, frozen=True):
    """The decisions for a program of column reductions.

    Attributes:
        axes: trailing axes that are fused into one axis of columns.
        columns: per task.
        lanes: vectors, and reduction steps that are added at a time.
    """

    axes: int
    columns: int
    lanes: LanesPlan


def _prepare(sch: Schedule) -> list[BlockRV]:
    return inline_where(sch, sch.get_child_blocks(sch.get_block("root")), copies_only=True)


def _best_plan(func: ir.PrimFunc, target: Target) -> ColumnPlan:
    sch = Schedule(func)
    blocks = [block_of(sch, handle) for handle in _prepare(sch)]
    last = blocks[-1]
    column = _column(last)
    assert column is not None  # `why_not` checked it
    axes = _same_axes(blocks, _kept(blocks))
    while axes > 1 and not is_spatial(last) and _uneven(blocks, axes, target):
        axes -= 1  # tasks would write parts of rows, which the checker cannot tell apart
    size = _columns(last, axes) if axes > 1 else extent_of(last, [column])
    return ColumnPlan(axes, _stretch(blocks, size, target), lanes_plan(target))


def plans(func: ir.PrimFunc, target: Target) -> Iterator[ColumnPlan]:
    """The plan that the cost model prefers, then others in the order of predicted time."""
    best = _best_plan(func, target)
    change = msgspec.structs.replace
    widths = (best.columns // 4, best.columns // 2, best.columns * 2, best.columns * 4)
    others = [change(best, columns=width) for width in widths if width]
    others += [change(best, axes=axes) for axes in range(1, best.axes)]
    others += [change(best, lanes=lanes) for lanes in other_lanes(best.lanes)]
    return ranked(func, target, apply, best, others)


def apply(sch: Schedule, target: Target, plan: ColumnPlan) -> None:
    """Schedule a program by a plan."""
    refuse_below_one(plan, "axes", "columns")
    refuse_below_one(plan.lanes, "vector_bits", "steps")
    handles = _prepare(sch)
    blocks = [block_of(sch, handle) for handle in handles]
    last = handles[-1]
    kept, column, axes = _kept(blocks), _column(blocks[-1]), plan.axes
    assert column is not None  # `why_not` checked it
    if axes > (most := _same_axes(blocks, kept)):
        raise misfit(f"axes={axes}, but only {most} are the same in all accesses", f"use {most}")
    if axes > 1:
        first = column - axes + 1
        _merge_axes(sch, handles, axes)
        kept, column = [*(p for p in kept if p < first), first], first
    blocks = [block_of(sch, handle) for handle in handles]
    loops = sch.get_loops(last)
    outer = [loops[p] for p in kept if p != column]
    inner = [loop for p, loop in enumerate(loops) if p not in kept]
    size = extent(sch, loops[column])
    width = plan.columns
    task, columns = sch.split(loops[column], [None, width])
    sch.reorder(*outer, task, *inner, columns)
    for handle in reversed(handles[:-1]):
        sch.compute_at(handle, task)
    ragged = size is None or size % width > 0  # the last task may have few of its vectors
    for handle in handles:
        if not is_spatial(block_of(sch, handle)):
            accumulate(sch, handle, task, plan.lanes, ragged)
            continue
        *_, lane = spatial_loops(sch, handle, inner_loops(sch, handle, task))
        vectorize_by(sch, handle, lane, plan.lanes.vector_bits)
        chunks = inner_loops(sch, handle, task)[-2:-1]
        if ragged and chunks:
            sch.annotate(chunks[0], LOOP_PARTITION, True)
    task = sch.fuse(*outer, task) if outer else task
    sch.annotate(task, LOOP_PARTITION, True)
    sch.parallel(task)


def _same_axes(blocks: list[ir.Block], kept: list[int]) -> int:
    """Number of trailing axes that are equal in all accesses, and so can be fused into one."""
    column = _column(blocks[-1])
    assert column is not None
    if column != len(blocks[-1].iter_vars) - 1 and is_spatial(blocks[-1]):
        return 1
    largest = 0
    while column - largest in kept:
        largest += 1
    return next(
        (n for n in range(largest, 1, -1) if all(_has_axes(b, n, blocks[-1]) for b in blocks)), 1
    )


def _uneven(blocks: list[ir.Block], axes: int, target: Target) -> bool:
    """Whether the last task of the fused trailing axes has fewer columns than the others."""
    columns = _columns(blocks[-1], axes)
    return columns % _stretch(blocks, columns, target) > 0


def _columns(last: ir.Block, axes: int) -> int:
    """Columns of some fused trailing axes of the result, whose sizes are known."""
    store = last.body
    assert isinstance(store, ir.BufferStore)
    return math.prod(ir.const_int(size) or 0 for size in store.buffer.shape[-axes:])


def _has_axes(block: ir.Block, axes: int, last: ir.Block) -> bool:
    """Whether all accesses of a block end in the same axes, adjacent in its buffers."""
    store, other = block.body, last.body
    if not isinstance(store, ir.BufferStore) or not isinstance(other, ir.BufferStore):
        return False
    sizes = [ir.const_int(size) for size in other.buffer.shape[-axes:]]
    own = [
        p
        for index in store.indices[-axes:]
        for p, it in enumerate(block.iter_vars)
        if it.var is index
    ]
    if None in sizes or own != list(range(own[0], own[0] + axes) if own else ()):
        return False
    variables = [block.iter_vars[p].var for p in own]
    accesses = [ir.BufferLoad(store.buffer, store.indices), *ir.collect(store, ir.BufferLoad)]
    return len(own) == axes and all(
        [ir.const_int(size) for size in load.buffer.shape[-axes:]] == sizes
        and all(a is b for a, b in zip(load.indices[-axes:], variables, strict=True))
        for load in accesses
        if any(ir.uses_var(index, set(variables)) for index in load.indices)
    )


def _merge_axes(sch: Schedule, handles: list[BlockRV], axes: int) -> None:
    """Fuse the trailing axes in every block and in the buffers between blocks."""
    for handle in handles:
        block = block_of(sch, handle)
        store = block.body
        assert isinstance(store, ir.BufferStore)
        first = next(p for p, it in enumerate(block.iter_vars) if it.var is store.indices[-axes])
        sch.transform_block_layout(
            handle, _last_as_one([it.dom.extent for it in block.iter_vars], first, axes)
        )
        if handle is not handles[-1]:
            shape = store.buffer.shape
            sch.transform_layout(handle, ("write", 0), _last_as_one(shape, len(shape) - axes, axes))


def _last_as_one(extents: Sequence[ir.Expr], first: int, axes: int) -> IndexMap:
    merged = tuple(range(first, first + axes))
    alone = [(p,) for p in range(len(extents))]
    return fusing_map(extents, [*alone[:first], merged, *alone[first + axes :]])


def _stretch(blocks: list[ir.Block], columns: int | None, target: Target) -> int:
    """Columns per task: data that is read several times should stay in cache."""
    depth: int | None = 0
    if len(blocks) > 1:
        depth = max((_size(b, ir.IterType.REDUCE) for b in blocks), key=lambda n: n or 1 << 30)
    passed = 1 + sum(is_spatial(b) for b in blocks[:-1])
    # A bool takes a byte.
    bits = 8 * max(r.buffer.dtype.nbytes for b in blocks for r in (*b.reads, *b.writes))
    return column_stretch(target, columns, None if depth is None else depth * passed, bits)


def _size(block: ir.Block, kind: ir.IterType) -> int | None:
    return extent_of(block, [p for p, it in enumerate(block.iter_vars) if it.iter_type is kind])


def variants(func: ir.PrimFunc, target: Target) -> list[tuple[ir.Expr, ColumnPlan]]:
    """Long sums split into blocks, for a symbolic reduction length."""
    long = long_sums(func, 2 * LONGEST)
    if long is None:
        return []
    best = _best_plan(func, target)
    lanes = msgspec.structs.replace(best.lanes, split_unknown=True)
    return [(long, msgspec.structs.replace(best, lanes=lanes))]


STRATEGY = Strategy(
    "outer_reduction", facts_unless(why_not), apply, ColumnPlan, plans, variants=variants
)

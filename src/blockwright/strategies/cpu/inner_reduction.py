"""Row reductions: reductions over trailing axes, with element-wise work around them.

Softmax, layer normalization, means, norms: every block iterates over the same leading axes
("rows"), and reductions run over the axes after them. One parallel loop over rows contains
everything. Within a row, reductions keep one partial result per vector lane (`rfactor`), and
intermediate values stay in the first-level cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from blockwright import ir
from blockwright.analysis import NoReduction, Reduction, find_reduction
from blockwright.arith import IndexMap
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.accumulate import accumulate
from blockwright.strategies.cpu.blocked_sums import LONGEST, PartialSum, long_sums, next_level
from blockwright.strategies.cpu.inline import block_of, extent, inline_where, longest, reduces
from blockwright.strategies.cpu.inner_reduction_plan import (
    RowPlan,
    RowShape,
    best_plan,
    other_plans,
)
from blockwright.strategies.cpu.lanes_plan import LanesPlan
from blockwright.strategies.cpu.nontemporal import read_next_row, stream
from blockwright.strategies.cpu.software_pipelined_rows import overlap_rows
from blockwright.strategies.cpu.vector_loops import cut_tail, inner_loops, lanes_in, vectorize_by
from blockwright.strategies.match.blocks import (
    address_of,
    extent_of,
    fusing_map,
    is_spatial,
    leaf_blocks,
    linear_groups,
    stride,
    windowed,
)
from blockwright.strategies.ranking import misfit, ranked, refuse_below_one
from blockwright.strategies.strategy import Strategy, facts_unless
from blockwright.target import Target

_FEW_LANES = 5  # fewest lanes for which a partial vector beats one that crosses axes
# steps unrolled if combining takes several operations: much of each step is constant then
_FEW = 16
_SHARED = 1 << 16  # elements of a full reduction from which it is split among the threads
_STEPS_PER_VECTOR = 8  # steps of a reduction per vector of partial results from which it pays


def _spatial_rank(block: ir.Block) -> int:
    return sum(it.iter_type is ir.IterType.SPATIAL for it in block.iter_vars)


def why_not(func: ir.PrimFunc, target: Target) -> str:
    result = leaf_blocks(func)
    reducing = [b for b in result if not is_spatial(b)]
    if not reducing:
        return "no block reduces"
    if any(isinstance(find_reduction(b), NoReduction) for b in reducing):
        return "a block is not a recognized reduction"
    written = [region.buffer for b in result for region in b.writes]
    created = set(written)
    if len(created) < len(written):
        return "several blocks write one buffer"
    if any(created & (windowed(b) - {r.buffer for r in b.writes}) for b in reducing):
        return "a window slides over the result of another block"
    if is_spatial(result[-1]) and _spatial_rank(result[-1]) < max(map(_spatial_rank, reducing)):
        return "the last block has fewer axes than a reduction has rows"
    return ""


class _Prepared(msgspec.Struct, frozen=True):
    """A program whose blocks run over rows, with copies inlined.

    Attributes:
        handles: the blocks that remain.
        reducing: those that reduce.
        rank: number of row axes.
    """

    handles: list[BlockRV]
    reducing: list[BlockRV]
    rank: int


def _prepare(sch: Schedule) -> _Prepared:
    handles = inline_where(sch, sch.get_child_blocks(sch.get_block("root")), copies_only=True)
    reducing = [h for h in handles if not is_spatial(block_of(sch, h))]
    rank = min(_spatial_rank(block_of(sch, h)) for h in reducing)
    _rows_of_statistics(sch, handles, rank)
    for handle in handles:
        _merge_neighbours(sch, handle, rank)
    return _Prepared(handles, reducing, rank)


def _best_plan(func: ir.PrimFunc, target: Target) -> RowPlan:
    sch = Schedule(func)
    program = _prepare(sch)
    block = block_of(sch, program.handles[-1])
    extents = [extent(sch, loop) for loop in sch.get_loops(program.handles[-1])]
    shape = RowShape(
        extents[: program.rank],
        extents[program.rank :],
        len(program.reducing),
        block.writes[0].buffer.dtype.bits,
    )
    return best_plan(sch.func, block, shape, target)


def plans(func: ir.PrimFunc, target: Target) -> Iterator[RowPlan]:
    """The plan that the cost model prefers, then others in the order of predicted time."""
    best = _best_plan(func, target)
    return ranked(func, target, apply, best, other_plans(best))


def apply(sch: Schedule, target: Target, plan: RowPlan) -> None:
    """Schedule a program by a plan."""
    refuse_below_one(plan, "rows_together", "reduction_tasks")
    refuse_below_one(plan.lanes, "vector_bits", "vectors", "fused_vectors", "steps")
    program = _prepare(sch)
    handles, rank, last = program.handles, program.rank, program.handles[-1]
    loops = sch.get_loops(last)
    if rank == 0:
        for handle in program.reducing:
            _share(sch, handle, plan)
            reduce_lanes(sch, handle, None, plan.lanes)
        return
    inner, together = extent(sch, loops[rank - 1]), plan.rows_together
    if rank > 1 and (inner or 1) % together:
        raise misfit(
            f"rows_together={together} rows of several axes, the last of {inner}",
            "let it divide the last row axis",
        )
    row = sch.fuse(*loops[:rank]) if rank > 1 else loops[0]
    if together > 1:
        row, _ = sch.split(row, [None, together])
        sch.annotate(row, LOOP_PARTITION, True)
    for handle in reversed(handles[:-1]):
        sch.compute_at(handle, row)
    feeding = [_feeds(sch, *pair) for pair in pairwise(handles)]
    for maker, fed, feeds, handle in zip(
        [None, *handles], [False, *feeding], [*feeding, False], handles, strict=False
    ):
        if not feeds:
            several = plan.passes.rows > 0 and handle is last
            below = inner_loops(sch, handle, row)  # there is none if one value serves all rows
            inside = below[0] if together > 1 and below else row
            if fed and maker is not None and together > 1:
                inside = sch.merge(inner_loops(sch, maker, row)[0], inside)
            schedule_inner(sch, handle, inside, plan.lanes, maker if fed else None, several)
    if extent(sch, row) != 1 and not overlap_rows(sch, row, plan.passes):
        sch.parallel(row)
        stream(sch, row, last, plan.passes.far_bytes)
        read_next_row(sch, handles, row, plan.passes.far_bytes, plan.passes.prefetch_bytes)


def _rows_of_statistics(sch: Schedule, handles: list[BlockRV], rank: int) -> None:
    """Reorder the last block's axes so that the axes that statistics depend on are outermost.

    The axes may be at any position, and may be groups of an axis: a row is the domain of a
    statistic.
    """
    blocks = [block_of(sch, handle) for handle in handles]
    statistics = {r.buffer for b in blocks if _spatial_rank(b) == rank for r in b.writes}
    last = blocks[-1]
    if _spatial_rank(last) == rank or not is_spatial(last):
        return
    result = {
        tuple(_axis_of(index, block) for index in load.indices)
        for block in blocks
        if is_spatial(block) and len(block.iter_vars) == len(last.iter_vars)
        for load in ir.collect(block.body, ir.BufferLoad)
        if load.buffer in statistics
    }
    if len(result) != 1:
        return
    rows = [entry for entry in next(iter(result)) if entry is not None]
    at = [p for p, _ in rows]
    if (
        len(rows) != rank
        or len(set(at)) < rank
        or all(entry == (p, 1) for p, entry in enumerate(rows))
    ):
        return
    if any((extent_of(last, [p]) or 1) % size for p, size in rows):
        return
    axes = tuple(it.var for it in last.iter_vars)
    outer = [axes[p] if size == 1 else ir.floordiv(axes[p], size) for p, size in rows]
    sizes = dict(rows)
    inner = [
        axes[p] if p not in sizes else ir.floormod(axes[p], sizes[p])
        for p in range(len(axes))
        if sizes.get(p, 0) != 1
    ]
    sch.transform_block_layout(handles[-1], IndexMap(axes, (*outer, *inner)))


def _axis_of(index: ir.Expr, block: ir.Block) -> tuple[int, int] | None:
    """Position of the iterator in an index, with its group size; None for any other index.

    The group size is n if the index is the iterator divided by n.
    """
    size = 1
    if isinstance(index, ir.FloorDiv):
        index, size = index.a, ir.const_int(index.b) or 0
    places = [p for p, it in enumerate(block.iter_vars) if it.var is index]
    return (places[0], size) if places and size else None


def _merge_neighbours(sch: Schedule, handle: BlockRV, rank: int) -> None:
    """Fuse the axes inside a row along which all accesses of a block are contiguous.

    Vectors may then cross from one row of an axis into the next. Reduction axes are ordered as they
    are in memory.
    """
    block = block_of(sch, handle)
    store = block.body
    if not isinstance(store, ir.BufferStore):
        return
    own = ir.BufferLoad(store.buffer, store.indices)
    addresses = [
        address_of(n, block) for n in (*ir.collect(store, ir.BufferLoad), own) if n.indices
    ]
    every = range(len(block.iter_vars))
    inner = list(every[rank:])
    kinds = {block.iter_vars[p].iter_type for p in inner}
    if len(kinds) != 1 or extent_of(block, inner) is None:
        return
    if kinds == {ir.IterType.REDUCE}:
        inner.sort(key=lambda p: -_step(addresses, block.iter_vars[p]))
    groups = [*((p,) for p in every[:rank]), *linear_groups(block, addresses, inner)]
    if groups != [(p,) for p in range(len(block.iter_vars))]:
        extents = [it.dom.extent for it in block.iter_vars]
        sch.transform_block_layout(handle, fusing_map(extents, groups))


def _step(addresses: list[ir.Expr], it: ir.IterVar) -> float:
    """Smallest nonzero stride of an iterator; unit axes come first."""
    return min((s for s in (stride(a, it) for a in addresses) if s), default=0.0)


def _share(sch: Schedule, handle: BlockRV, plan: RowPlan) -> None:
    """Split a long reduction to one value into tasks, and combine their results."""
    result = find_reduction(block_of(sch, handle))
    assert isinstance(result, Reduction)
    loops = sch.get_loops(handle)
    sizes = [extent(sch, loop) for loop in loops]
    total = math.prod(size or _SHARED for size in sizes)
    if plan.reduction_tasks < 2 or not result.may_restart or total < _SHARED:
        return
    outer = sch.fuse(*loops[:-1]) if len(loops) > 2 else loops[0]
    piece, _ = sch.split(outer, [plan.reduction_tasks, None])
    partial = sch.rfactor(piece, 0)
    reduce_lanes(sch, partial, sch.get_loops(partial)[0], plan.lanes)
    sch.parallel(sch.get_loops(partial)[0])


def schedule_inner(
    sch: Schedule,
    handle: BlockRV,
    row: LoopRV | None,
    plan: LanesPlan,
    maker: BlockRV | None = None,
    several: bool = False,
) -> None:
    """Vectorize a block inside a row: a spatial one along its last loop, a reduction by lanes.

    A reduction is fused with its producer `maker` in one pass. With `several`, spatial blocks too
    use several vectors per step, as many as reductions do.
    """
    if not is_spatial(block_of(sch, handle)):
        if not reduce_lanes(sch, handle, row, plan, maker) and maker is not None:
            schedule_inner(sch, maker, row, plan)
        return
    loops = inner_loops(sch, handle, row)
    if loops:
        size = extent(sch, loops[-1])
        lanes = lanes_in(block_of(sch, handle), plan.vector_bits)
        count = _vectors_at_once(size, lanes, plan.vectors) if several else 1
        lanes = vectorize_by(sch, handle, loops[-1], plan.vector_bits, count)
        cut_tail(sch, inner_loops(sch, handle, row)[len(loops) - 1], size, lanes)


def _feeds(sch: Schedule, maker: BlockRV, handle: BlockRV) -> bool:
    """Whether a reduction reads, element by element, the values that the block before it writes."""
    result, taker = block_of(sch, maker), block_of(sch, handle)
    store, update = result.body, taker.body
    if not is_spatial(result) or is_spatial(taker):
        return False
    if not isinstance(store, ir.BufferStore) or not isinstance(update, ir.BufferStore):
        return False
    *outer, last = taker.iter_vars
    if last.iter_type is not ir.IterType.REDUCE or any(
        it.iter_type is last.iter_type for it in outer
    ):
        return False
    loads = [load for load in ir.collect(update, ir.BufferLoad) if load.buffer is store.buffer]
    return bool(loads) and all(
        len(indices) == len(block.iter_vars)
        and all(index is it.var for index, it in zip(indices, block.iter_vars, strict=True))
        for indices, block in ((store.indices, result), *((load.indices, taker) for load in loads))
    )


def _partial_results(
    sch: Schedule, reducing: list[LoopRV], lanes: int, vectors: int
) -> tuple[list[LoopRV], LoopRV, int]:
    """Choose how reduction loops become vectors.

    Returns the loops that stay outside, the loop to split (some loops fused), and the number of
    partial results: up to some `vectors`; fewer than two if the loops are too short.
    """
    inner = extent(sch, reducing[-1])
    outer: list[LoopRV] = []
    if len(reducing) > 1 and (inner is None or inner >= _FEW_LANES):
        *outer, fused = reducing  # vectors stay within the last axis
        lanes = min(lanes, inner or lanes)
    elif len(reducing) > 2 and inner is not None and math.gcd(inner, lanes) < 2:
        outer, fused = reducing[:-2], sch.fuse(*reducing[-2:])
    else:
        fused = sch.fuse(*reducing) if len(reducing) > 1 else reducing[0]
    size, largest = extent(sch, fused), longest(sch, fused)
    smallest = 1 if outer else 2  # fewest chunks of partial results
    lanes *= _vectors_at_once(None if outer else largest, lanes, vectors)
    if len(reducing) - len(outer) > 2:  # chunks that cross axes have no iterator map
        lanes = math.gcd(inner or 1, lanes)
    while largest is not None and largest < smallest * lanes > 8:
        lanes //= 2
    if size is not None and inner and 1 < inner < lanes and lanes % inner == 0:
        lanes = inner  # the rest of several axes is not contiguous
    return outer, fused, 0 if largest is not None and largest < smallest * lanes else lanes


def _one_pass(
    sch: Schedule,
    maker: BlockRV,
    chunk: LoopRV,
    lanes: int,
    row: LoopRV | None,
    vectors: bool = True,
) -> LoopRV:
    """Compute a reduction's input one vector, or one block, at a time, just before its use."""
    result, lane = sch.split(inner_loops(sch, maker, row)[-1], [None, lanes])
    if vectors:
        sch.vectorize(lane)
    return sch.merge(result, chunk)


def reduce_lanes(
    sch: Schedule,
    handle: BlockRV,
    row: LoopRV | None,
    plan: LanesPlan,
    maker: BlockRV | None = None,
) -> bool:
    """Vectorize a reduction: along its last spatial loop if it has one, else with partial results.

    A spatial loop inside the row (column sums) is the vector axis, unless elements adjacent in
    memory are reduced (dot products). Otherwise the last reduction loop, or several short ones
    fused, is split into vectors, and `rfactor` keeps a partial result per lane. At the end the
    lanes are combined, in one vector operation or by halves. A long sum is split into blocks; one
    of unknown length if the plan says so.

    Returns whether the reduction is fused with its producer `maker`.
    """
    block, long = block_of(sch, handle), plan.split_unknown
    loops = inner_loops(sch, handle, row)
    if not loops:
        return False
    reducing = [loop for loop in loops if reduces(sch, block, loop)]
    spatial = [loop for loop in loops if all(loop != r for r in reducing)]
    if not reducing:  # sums of one term each
        vectorize_by(sch, handle, spatial[-1], plan.vector_bits)
        return False
    result = find_reduction(block)
    assert isinstance(result, Reduction)
    along = not spatial or extent(sch, spatial[-1]) == 1 or _neighbours_are_reduced(block)
    if not along and len(result.elements) == 1:
        accumulate(sch, handle, row, plan)
        return False
    if not along:
        others = [loop for loop in loops if loop != spatial[-1]]
        sch.reorder(*others, spatial[-1])
        vectorize_by(sch, handle, spatial[-1], plan.vector_bits)
        return False
    if not result.may_restart:
        return False  # the initial value counts once; it cannot start every partial result
    vectors = plan.vectors if maker is None else plan.fused_vectors
    lanes = lanes_in(block, plan.vector_bits)
    outer, fused, lanes = _partial_results(sch, reducing, lanes, vectors)
    if lanes < 2:
        level = next_level(sch, handle, [*outer, fused], step=1, lanes=1, long=long)
        if level is not None:
            _reduce_level(sch, level, row, plan, None)
        return False
    level = next_level(sch, handle, [*outer, fused], step=lanes, lanes=lanes, long=long)
    if level is not None:
        return _reduce_level(sch, level, row, plan, maker)
    size = extent(sch, fused)
    chunk, lane = sch.split(fused, [None, lanes])
    partial = sch.rfactor(lane, -1)
    *others, chunk, lane = inner_loops(sch, partial, row)
    if maker is not None:
        chunk = _one_pass(sch, maker, chunk, lanes, row)
    init = sch.decompose_reduction(partial, *others[len(others) - len(outer) :][:1] or [chunk])
    sch.vectorize(lane)
    if not result.lanes and size is not None and size <= _FEW * lanes:
        sch.unroll(chunk)
    else:
        cut_tail(sch, chunk, size, lanes)
    sch.vectorize(inner_loops(sch, init, row)[-1])
    if row is not None:
        for component in range(len(result.elements)):
            sch.set_scope(init, component, "local")
    combine = inner_loops(sch, handle, row)[-1]
    sch.decompose_reduction(handle, combine)
    sch.vectorize(combine)
    return maker is not None


def _reduce_level(
    sch: Schedule,
    level: PartialSum,
    row: LoopRV | None,
    plan: LanesPlan,
    maker: BlockRV | None,
) -> bool:
    """Sum the blocks of a long row lane by lane, one after another, and add them to the total."""
    sch.compute_at(level.partial, level.loop)
    sch.set_scope(level.partial, 0, "local")
    loop = level.loop
    if maker is not None:
        length = math.prod(extent(sch, k) or 1 for k in inner_loops(sch, level.partial, loop))
        loop = _one_pass(sch, maker, loop, length, row, vectors=False)
    fed = reduce_lanes(sch, level.partial, loop, plan, maker)
    sch.decompose_reduction(level.total, loop)
    sch.annotate(loop, LOOP_PARTITION, True)
    return fed


def _neighbours_are_reduced(block: ir.Block) -> bool:
    """Whether elements adjacent in memory belong to one result, as in dot products."""
    near: set[ir.IterType] = set()
    own = {region.buffer for region in block.writes}
    for load in ir.collect(block.body, ir.BufferLoad):
        if load.buffer not in own and load.indices:
            address = address_of(load, block)
            near |= {it.iter_type for it in block.iter_vars if stride(address, it) == 1}
    return near == {ir.IterType.REDUCE}


def _vectors_at_once(most: int | None, lanes: int, vectors: int) -> int:
    """Vectors of partial results for up to `most` terms: `vectors`, or half as many, and so on.

    Each combination waits for the one before; more vectors mean more lanes to combine at the end.
    """
    while most is not None and vectors > 1 and most // lanes < vectors * _STEPS_PER_VECTOR:
        vectors //= 2
    return vectors


def variants(func: ir.PrimFunc, target: Target) -> list[tuple[ir.Expr, RowPlan]]:
    """Long sums split into blocks, for a symbolic reduction length."""
    bits = max(b.dtype.bits for b in func.buffers)
    long = long_sums(func, LONGEST * 4 * max(1, target.vector_bits // bits))
    if long is None:
        return []
    best = _best_plan(func, target)
    lanes = msgspec.structs.replace(best.lanes, split_unknown=True)
    return [(long, msgspec.structs.replace(best, lanes=lanes))]


STRATEGY = Strategy(
    "inner_reduction", facts_unless(why_not), apply, RowPlan, plans, variants=variants
)

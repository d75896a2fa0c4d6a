"""Fallback strategy: schedules any program, one loop nest per block.

Nothing is fused and nothing is packed. A program that no other strategy matches is compiled
correctly, uses vectors, registers and threads where its own accesses allow, and the note says that
the fallback was used.

- Spatial blocks: parallel tasks over the outer loops, vectors along the last.
- Reductions: vectors along the axis with the most contiguous accesses. A spatial axis becomes a
  register tile with the rows that read the same vectors. Along a reduction axis each lane keeps a
  partial result (`rfactor`), for a tile of rows of both operands at once.
- All other blocks keep their loops; the outermost is parallelized where the checker allows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from blockwright import ir
from blockwright.analysis import Reduction, find_reduction
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.elementwise import spread_by
from blockwright.strategies.cpu.gemm_canonical import fuse_copy, regroup
from blockwright.strategies.cpu.inline import block_of, extent, reduces
from blockwright.strategies.cpu.inner_reduction import reduce_lanes
from blockwright.strategies.cpu.lanes_plan import LanesPlan, lanes_plan, other_lanes
from blockwright.strategies.cpu.register_tiling import RegisterTile, dot_tile
from blockwright.strategies.cpu.spread_plan import SpreadPlan, other_spreads, spread_plan
from blockwright.strategies.cpu.vector_loops import inner_loops, vectorize_by
from blockwright.strategies.match.blocks import address_of, is_spatial, leaf_blocks, stride
from blockwright.strategies.match.vector_axes import VectorAxis, axes_of, neighbours
from blockwright.strategies.ranking import misfit, ranked, refuse_below_one
from blockwright.strategies.strategy import Plan, Strategy, facts_unless
from blockwright.support import ScheduleError
from blockwright.target import Target

_DOT_ROWS = 4  # rows of the operand held in registers, per dot-product tile


def why_not(func: ir.PrimFunc, target: Target) -> str:
    return "" if leaf_blocks(func) else "no blocks directly under the root"


WayName = Literal["spread", "tile", "dots", "lanes", "threads", "none"]
"""How a block is scheduled; the functions of the same names below say more."""


class FallbackPlan(Plan, frozen=True):
    """The decisions for any program, whose sizes may be unknown.

    Attributes:
        ways: for each block, the ways to try in turn until the checker accepts one.
        registers: vector registers for a register tile and what it is computed from.
        tile_rows: most rows of a register tile.
        dot_rows: rows of a tile of dot products.
        dot_columns: its columns, for each block.
        few_tasks: tasks below which tasks are shared out differently, to keep all threads busy.
        far_stride: bytes from one reduction step to the next from which vectors are copied before
            they are used repeatedly; None: never.
        spread, lanes: tasks and vectors of spatial blocks, and of reductions.
    """

    ways: tuple[tuple[WayName, ...], ...]
    registers: int
    tile_rows: int
    dot_rows: int
    dot_columns: tuple[int, ...]
    few_tasks: int
    far_stride: int | None
    spread: SpreadPlan
    lanes: LanesPlan


def plans(func: ir.PrimFunc, target: Target) -> Iterator[FallbackPlan]:
    """The usual plan, then others in the order of predicted time."""
    blocks = leaf_blocks(func)
    best = FallbackPlan(
        ways=tuple(_ways(block, target) for block in blocks),
        registers=target.vector_registers,
        tile_rows=_tile_rows(target),
        dot_rows=_DOT_ROWS,
        dot_columns=tuple(_dot_columns(block, target) for block in blocks),
        few_tasks=_TASKS * target.num_threads,
        far_stride=target.core.page_bytes,  # such vectors share few cache sets and no page
        spread=spread_plan(target),
        lanes=lanes_plan(target),
    )
    return ranked(func, target, apply, best, _others(best))


def _others(best: FallbackPlan) -> Iterator[FallbackPlan]:
    """Plans that differ from the best one in one decision."""
    change = msgspec.structs.replace
    for k, ways in enumerate(best.ways):
        for at in range(1, len(ways)):
            other = (ways[at], *ways[:at], *ways[at + 1 :])
            yield change(best, ways=(*best.ways[:k], other, *best.ways[k + 1 :]))
    for rows in (1, 2, 4, 8):
        yield change(best, tile_rows=rows)
        yield change(best, dot_rows=rows)
    yield change(best, registers=best.registers // 2)
    yield change(best, few_tasks=1)
    yield change(best, far_stride=None)
    for spread in other_spreads(best.spread):
        yield change(best, spread=spread)
    for lanes in other_lanes(best.lanes):
        yield change(best, lanes=lanes)


def apply(sch: Schedule, target: Target, plan: FallbackPlan) -> None:
    """Schedule a program by a plan."""
    refuse_below_one(plan, "registers", "tile_rows", "dot_rows")
    handles = sch.get_child_blocks(sch.get_block("root"))
    if not len(handles) == len(plan.ways) == len(plan.dot_columns):
        raise misfit(
            f"it has ways for {len(plan.ways)} blocks; the program has {len(handles)}",
            "use one of the strategy's plans for this program",
        )
    for handle, ways, columns in zip(handles, plan.ways, plan.dot_columns, strict=True):
        for way in (*ways, "none"):
            stages = len(sch.history)
            try:
                _WAYS[way](sch, handle, _Block(plan, columns))
                break
            except ScheduleError:  # the checker rejects a step: try a simpler schedule
                if len(sch.history) > stages:
                    sch.undo(len(sch.history) - stages)


def _ways(block: ir.Block, target: Target) -> tuple[WayName, ...]:
    """Ways to schedule a block, best first; the last one always succeeds."""
    if is_spatial(block):
        return ("spread", "threads", "none")
    result = find_reduction(block)
    if not isinstance(result, Reduction) or not block.iter_vars:
        return ("threads", "none")
    if len(result.elements) > 1:
        return ("lanes", "threads", "none")
    axes = axes_of(block, target.lanes(block.writes[0].buffer.dtype))
    if axes and axes[0].spatial:
        return ("tile", "dots", "lanes", "threads", "none")
    return ("dots", "lanes", "tile", "threads", "none")


def _dot_columns(block: ir.Block, target: Target) -> int:
    """Columns of a tile of dot products, along the last spatial axis."""
    spatial = [it.dom.extent for it in block.iter_vars if it.iter_type is ir.IterType.SPATIAL]
    many = ir.const_int(spatial[-1]) if spatial else None
    bits = block.writes[0].buffer.dtype.bits if block.writes else 32
    return dot_tile(target, _DOT_ROWS, many, bits)


class _Block(msgspec.Struct, frozen=True):
    """A plan, and its decisions for one block."""

    plan: FallbackPlan
    dot_columns: int

    def lanes_of(self, block: ir.Block) -> int:
        """Lanes of a vector of results."""
        return max(1, self.plan.lanes.vector_bits // block.writes[0].buffer.dtype.bits)


def _nothing(sch: Schedule, handle: BlockRV, of: _Block) -> None:
    """Keep the loops as they are."""


def _spread(sch: Schedule, handle: BlockRV, of: _Block) -> None:
    """Parallelize over outer loops, and vectorize the last one."""
    spread_by(sch, [handle], of.plan.spread)


def _threads(sch: Schedule, handle: BlockRV, of: _Block) -> None:
    """Parallelize the outermost loop."""
    sch.parallel(sch.get_loops(handle)[0])


def _nest(sch: Schedule, handle: BlockRV) -> tuple[list[LoopRV], list[LoopRV], list[LoopRV]]:
    """All loops of a block, one per iterator, then its spatial and its reduction loops."""
    block, loops = block_of(sch, handle), sch.get_loops(handle)
    if len(loops) != len(block.iter_vars):
        raise ScheduleError("the loops do not map one to one to the iterators", code="BW340")
    reducing = [loop for loop in loops if reduces(sch, block, loop)]
    return loops, [loop for loop in loops if loop not in reducing], reducing


def _tile(sch: Schedule, handle: BlockRV, of: _Block) -> None:
    """Vectorize along a spatial axis; a register tile stays in registers across the reduction."""
    out = _sums_and_copy(sch, handle)
    block = block_of(sch, handle)
    loops, spatial, reducing = _nest(sch, handle)
    lanes = of.lanes_of(block)
    axis = next((a for a in axes_of(block, lanes) if a.spatial), None)
    if axis is None or not reducing:
        raise ScheduleError("no axis to vectorize along", code="BW340")
    along = loops[axis.position]
    rows = _sharing(sch, block, axis, loops, [s for s in spatial if s != along])
    count = 1 if rows is None else extent(sch, rows)
    tile = _register_tile(of.plan, count, extent(sch, along), lanes)
    others = [s for s in spatial if s not in (along, rows)]
    chunk, vectors, lane = sch.split(along, [None, tile.vectors, tile.lanes])
    inner = [vectors, lane]
    if rows is not None:
        rows, row = sch.split(rows, [None, tile.rows])
        inner = [row, *inner]
    tasks, serial = [*others, chunk], [] if rows is None else [rows]
    many = rows is not None and (extent(sch, rows) or _MANY) >= _MANY
    far = _far_vectors(block, axis, of.plan.far_stride) if many else []
    if rows is not None and not far and _few(sch, tasks, of.plan):
        tasks, serial = [*others, rows], [chunk]
    sch.reorder(*tasks, *serial, *reducing, *inner)
    for buffer in far:
        copy = sch.cache_read(handle, buffer.name, "global")
        sch.compute_at(copy, chunk)
        vectorize_by(sch, copy, sch.get_loops(copy)[-1], of.plan.lanes.vector_bits)
    sch.set_scope(handle, 0, "local")
    sch.reverse_compute_at(out, [*tasks, *serial][-1])
    init = sch.decompose_reduction(handle, reducing[0])
    for part in (handle, init, out):
        own = sch.get_loops(part)
        if part is out:
            sch.split(own[-1], [None, tile.lanes])
            own = sch.get_loops(part)
        sch.vectorize(own[-1])
        for loop in own[-len(inner) : -1]:
            sch.unroll(loop)
    for loop in (_share(sch, tasks), *serial):
        sch.annotate(loop, LOOP_PARTITION, True)  # mask the last tile only


_TASKS = 4  # tasks per thread from which on they are shared evenly


def _few(sch: Schedule, loops: list[LoopRV], plan: FallbackPlan) -> bool:
    """Whether loops over tiles yield too few tasks for all threads."""
    extents = [extent(sch, loop) for loop in loops]
    return all(extents) and math.prod(e or 1 for e in extents) < plan.few_tasks


_MANY = 4  # tiles that read the same vectors, from which copying these vectors pays


def _far_vectors(block: ir.Block, axis: VectorAxis, far: int | None) -> list[ir.Buffer]:
    """Buffers read in vectors whose reduction stride is at least `far` bytes; None: none."""
    if far is None:
        return []
    result: dict[ir.Buffer, None] = {}
    for load in ir.collect(block.body, ir.BufferLoad):
        if load.buffer is block.writes[0].buffer or not load.indices:
            continue
        address, size = address_of(load, block), load.buffer.dtype.nbytes
        steps = [
            stride(address, it) * size
            for it in block.iter_vars
            if it.iter_type is ir.IterType.REDUCE
        ]
        if stride(address, axis.it) == 1 and any(far <= s < math.inf for s in steps):
            result[load.buffer] = None
    return list(result)


def _sums_and_copy(sch: Schedule, handle: BlockRV) -> BlockRV:
    """Let a block write its sums in iterator order, with adjacent axes fused.

    Returns the block that copies the sums to the result.
    """
    block = block_of(sch, handle)
    groups = neighbours(block)
    kept = {position for group in groups for position in group}
    others = [(p,) for p in range(len(block.iter_vars)) if p not in kept]
    extents = [it.dom.extent for it in block.iter_vars]
    out = sch.reindex(handle, ("write", 0))
    regroup(sch, handle, extents, [*groups, *others])
    fuse_copy(sch, handle, out, extents, groups)
    return out


_TALL = 6  # most rows of a tile; more gain little where nothing is packed
_SPARE = 2  # ways of a cache set that are left to other data than the rows of a tile


def _tile_rows(target: Target) -> int:
    """Most rows of a register tile: lines that one set of the first-level cache holds."""
    return max(1, min(_TALL, target.cache(1).ways - _SPARE))


def _register_tile(
    plan: FallbackPlan, rows: int | None, columns: int | None, lanes: int
) -> RegisterTile:
    """A low, wide register tile that divides rows and columns evenly.

    Nothing is packed: rows may be a power of two apart, and then they compete for few cache sets.
    """
    tall = plan.tile_rows
    height = tall if rows is None else math.ceil(rows / math.ceil(rows / tall))
    largest = max(1, (plan.registers - 1) // (height + 1))
    if columns is None:
        return RegisterTile(height, min(largest, 2) * lanes, lanes)
    vectors = math.ceil(columns / lanes)
    width = math.ceil(vectors / math.ceil(vectors / largest))
    return RegisterTile(height, width * lanes, lanes)


def _sharing(
    sch: Schedule, block: ir.Block, axis: VectorAxis, loops: list[LoopRV], others: list[LoopRV]
) -> LoopRV | None:
    """The innermost other axis that some vector load of the tile does not depend on."""
    loads = [
        n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is not block.writes[0].buffer
    ]
    vectors = [n for n in loads if any(ir.uses_var(i, axis.it.var) for i in n.indices)]
    for position in reversed(range(len(loops))):
        it = block.iter_vars[position]
        if loops[position] not in others or ir.is_const_int(it.dom.extent, 1):
            continue
        if any(not any(ir.uses_var(i, it.var) for i in n.indices) for n in vectors):
            return loops[position]
    return None


def _dots(sch: Schedule, handle: BlockRV, of: _Block) -> None:
    """Vectorize along the reduction, for a tile of two spatial axes at once."""
    block = block_of(sch, handle)
    loops, spatial, _ = _nest(sch, handle)
    result = find_reduction(block)
    lanes, height = of.lanes_of(block), of.plan.dot_rows
    axis = next((a for a in axes_of(block, lanes) if not a.spatial), None)
    if axis is None or len(spatial) < 2 or not isinstance(result, Reduction):
        raise ScheduleError("fewer than two spatial axes", code="BW340")
    if not result.may_restart or (ir.const_int(axis.it.dom.extent) or 2 * lanes) < 2 * lanes:
        raise ScheduleError("no partial results", code="BW340")
    _, lane = sch.split(loops[axis.position], [None, lanes])
    *others, rows, columns = spatial
    sch.reorder(lane, *others, rows, columns)
    partial = sch.rfactor(lane, -1)
    lane, *outer = sch.get_loops(handle)
    *others, rows, columns = outer
    m0, m1 = sch.split(rows, [None, min(height, extent(sch, rows) or height)])
    n0, n1 = sch.split(columns, [None, of.dot_columns])
    sch.reorder(*others, m0, n0, m1, n1, lane)
    sch.compute_at(partial, n0, preserve_unit_loops=True)
    sch.set_scope(partial, 0, "local")
    own = inner_loops(sch, partial, n0)
    steps = [loop for loop in own if reduces(sch, block_of(sch, partial), loop)]
    first, *tiled = [loop for loop in own if loop not in steps]  # rfactor puts the lane axis first
    tile = [*tiled, first]
    sch.reorder(*steps, *tile)
    init = sch.decompose_reduction(partial, steps[0])
    for part in (partial, init):
        *unrolled, last = inner_loops(sch, part, n0)[-len(tile) :]
        sch.vectorize(last)
        for loop in unrolled:
            sch.unroll(loop)
    sch.decompose_reduction(handle, lane)
    sch.vectorize(lane)
    for loop in (m1, n1):
        sch.unroll(loop)
    _share(sch, [*others, m0, n0])


def _lanes(sch: Schedule, handle: BlockRV, of: _Block) -> None:
    """Compute one result after another, with a partial result per lane."""
    _, spatial, reducing = _nest(sch, handle)
    if not spatial:
        reduce_lanes(sch, handle, None, of.plan.lanes)
        return
    sch.reorder(*spatial, *reducing)
    row = sch.fuse(*spatial) if len(spatial) > 1 else spatial[0]
    reduce_lanes(sch, handle, row, of.plan.lanes)
    if extent(sch, row) != 1:
        sch.parallel(row)


def _share(sch: Schedule, loops: list[LoopRV]) -> LoopRV:
    """Fuse all loops over tiles and parallelize the result; return the fused loop."""
    task = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    sch.parallel(task)
    return task


_WAYS: dict[WayName, Callable[[Schedule, BlockRV, _Block], None]] = {
    "spread": _spread,
    "tile": _tile,
    "dots": _dots,
    "lanes": _lanes,
    "threads": _threads,
    "none": _nothing,
}


STRATEGY = Strategy(
    "fallback",
    facts_unless(why_not),
    apply,
    FallbackPlan,
    plans,
    note="no strategy matches its pattern; the fallback was used",
)

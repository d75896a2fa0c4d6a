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
from collections.abc import Callable

from blockwright import ir
from blockwright.analysis import Reduction, find_reduction
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.elementwise import spread
from blockwright.strategies.cpu.gemm_canonical import fuse_copy, regroup
from blockwright.strategies.cpu.inline import block_of, extent, reduces
from blockwright.strategies.cpu.inner_reduction import reduce_lanes
from blockwright.strategies.cpu.register_tiling import RegisterTile, dot_tile
from blockwright.strategies.cpu.vector_loops import inner_loops, vectorize_last
from blockwright.strategies.match.blocks import address_of, is_spatial, leaf_blocks, stride
from blockwright.strategies.match.vector_axes import VectorAxis, axes_of, neighbours
from blockwright.strategies.strategy import NoDecision, Strategy, facts_unless
from blockwright.support import ScheduleError
from blockwright.target import Target

_DOT_ROWS = 4  # rows of the operand held in registers, per dot-product tile


def why_not(func: ir.PrimFunc, target: Target) -> str:
    return "" if leaf_blocks(func) else "no blocks directly under the root"


def apply(sch: Schedule, target: Target, plan: NoDecision) -> None:
    for handle in sch.get_child_blocks(sch.get_block("root")):
        for way in _ways(sch, handle, target):
            stages = len(sch.history)
            try:
                way(sch, handle, target)
                break
            except ScheduleError:  # the checker rejects a step: try a simpler schedule
                if len(sch.history) > stages:
                    sch.undo(len(sch.history) - stages)


Way = Callable[[Schedule, BlockRV, Target], None]


def _ways(sch: Schedule, handle: BlockRV, target: Target) -> list[Way]:
    """Candidate schedules of a block, best first; the last one always succeeds."""
    block = block_of(sch, handle)
    if is_spatial(block):
        return [lambda s, h, t: spread(s, [h], t), _threads, _nothing]
    result = find_reduction(block)
    if not isinstance(result, Reduction) or not sch.get_loops(handle):
        return [_threads, _nothing]
    if len(result.elements) > 1:
        return [_lanes, _threads, _nothing]
    axes = axes_of(block, target.lanes(block.writes[0].buffer.dtype))
    if axes and axes[0].spatial:
        return [_tile, _dots, _lanes, _threads, _nothing]
    return [_dots, _lanes, _tile, _threads, _nothing]


def _nothing(sch: Schedule, handle: BlockRV, target: Target) -> None:
    """Keep the loops as they are."""


def _threads(sch: Schedule, handle: BlockRV, target: Target) -> None:
    """Parallelize the outermost loop."""
    sch.parallel(sch.get_loops(handle)[0])


def _nest(sch: Schedule, handle: BlockRV) -> tuple[list[LoopRV], list[LoopRV], list[LoopRV]]:
    """All loops of a block, one per iterator, then its spatial and its reduction loops."""
    block, loops = block_of(sch, handle), sch.get_loops(handle)
    if len(loops) != len(block.iter_vars):
        raise ScheduleError("the loops do not map one to one to the iterators", code="BW340")
    reducing = [loop for loop in loops if reduces(sch, block, loop)]
    return loops, [loop for loop in loops if loop not in reducing], reducing


def _tile(sch: Schedule, handle: BlockRV, target: Target) -> None:
    """Vectorize along a spatial axis; a register tile stays in registers across the reduction."""
    out = _sums_and_copy(sch, handle)
    block = block_of(sch, handle)
    loops, spatial, reducing = _nest(sch, handle)
    lanes = target.lanes(block.writes[0].buffer.dtype)
    axis = next((a for a in axes_of(block, lanes) if a.spatial), None)
    if axis is None or not reducing:
        raise ScheduleError("no axis to vectorize along", code="BW340")
    along = loops[axis.position]
    rows = _sharing(sch, block, axis, loops, [s for s in spatial if s != along])
    bits = block.writes[0].buffer.dtype.bits
    count = 1 if rows is None else extent(sch, rows)
    tile = _register_tile(target, count, extent(sch, along), bits)
    others = [s for s in spatial if s not in (along, rows)]
    chunk, vectors, lane = sch.split(along, [None, tile.vectors, tile.lanes])
    inner = [vectors, lane]
    if rows is not None:
        rows, row = sch.split(rows, [None, tile.rows])
        inner = [row, *inner]
    tasks, serial = [*others, chunk], [] if rows is None else [rows]
    many = rows is not None and (extent(sch, rows) or _MANY) >= _MANY
    far = _far_vectors(block, axis) if many else []
    if rows is not None and not far and _few(sch, tasks, target):
        tasks, serial = [*others, rows], [chunk]
    sch.reorder(*tasks, *serial, *reducing, *inner)
    for buffer in far:
        copy = sch.cache_read(handle, buffer.name, "global")
        sch.compute_at(copy, chunk)
        vectorize_last(sch, copy, sch.get_loops(copy)[-1], target)
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


def _few(sch: Schedule, loops: list[LoopRV], target: Target) -> bool:
    """Whether loops over tiles yield too few tasks for all threads."""
    extents = [extent(sch, loop) for loop in loops]
    return all(extents) and math.prod(e or 1 for e in extents) < _TASKS * target.num_threads


_MANY = 4  # tiles that read the same vectors, from which copying these vectors pays
# Bytes of a page. Strides of this size map to few cache sets, and each touches another page.
_PAGE = 4096


def _far_vectors(block: ir.Block, axis: VectorAxis) -> list[ir.Buffer]:
    """Buffers read in vectors whose reduction stride is a page or more."""
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
        if stride(address, axis.it) == 1 and any(_PAGE <= s < math.inf for s in steps):
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


_TALL = 6  # rows of a tile: lines of one cache set that any cache holds, with ways to spare


def _register_tile(
    target: Target, rows: int | None, columns: int | None, bits: int
) -> RegisterTile:
    """A low, wide register tile that divides rows and columns evenly.

    Nothing is packed: rows may be a power of two apart, and then they compete for few cache sets.
    """
    lanes = max(1, target.vector_bits // bits)
    height = _TALL if rows is None else math.ceil(rows / math.ceil(rows / _TALL))
    largest = max(1, (target.vector_registers - 1) // (height + 1))
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


def _dots(sch: Schedule, handle: BlockRV, target: Target) -> None:
    """Vectorize along the reduction, for a tile of two spatial axes at once."""
    block = block_of(sch, handle)
    loops, spatial, _ = _nest(sch, handle)
    result = find_reduction(block)
    lanes = target.lanes(block.writes[0].buffer.dtype)
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
    bits = block.writes[0].buffer.dtype.bits
    width = dot_tile(target, _DOT_ROWS, extent(sch, columns), bits)
    m0, m1 = sch.split(rows, [None, min(_DOT_ROWS, extent(sch, rows) or _DOT_ROWS)])
    n0, n1 = sch.split(columns, [None, width])
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


def _lanes(sch: Schedule, handle: BlockRV, target: Target) -> None:
    """Compute one result after another, with a partial result per lane."""
    _, spatial, reducing = _nest(sch, handle)
    if not spatial:
        reduce_lanes(sch, handle, None, target)
        return
    sch.reorder(*spatial, *reducing)
    row = sch.fuse(*spatial) if len(spatial) > 1 else spatial[0]
    reduce_lanes(sch, handle, row, target)
    if extent(sch, row) != 1:
        sch.parallel(row)


def _share(sch: Schedule, loops: list[LoopRV]) -> LoopRV:
    """Fuse all loops over tiles and parallelize the result; return the fused loop."""
    task = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    sch.parallel(task)
    return task


STRATEGY = Strategy(
    "fallback",
    facts_unless(why_not),
    apply,
    note="no strategy matches its pattern; the fallback was used",
)

"""NCHW convolution, vectorized along output width.

    out[n, f, i, j] = epilogue(sum over c, kh, kw of X[n, c, i + kh, j + kw] * W[f, c, kh, kw], …)

Elements adjacent along j are adjacent in memory, in X and in the result. The GEMM strategy would
load X element by element and scatter its results; here vectors run along j, and the broadcast
elements are those of W.

1. Adjacent axes that are contiguous in X and in the result are fused (the pixels of a 1×1
   convolution).
2. The register tile has filters as rows and pixels as columns. Both are padded with zeros: filters
   to whole tiles, the pixels of a line to half a vector.
3. W is packed into panels [f / rows][c…][rows], at compile time when it is a constant.
4. A task covers some lines (or tiles) of pixels. It copies the part of X that it reads, with its
   border, into a buffer that stays in the second-level cache; filters run over the copy. Where
   adjacent results read elements of X that are two to four apart, the copy gathers the vectors, one
   copy of X per tap.
5. Accumulators stay in registers; the epilogue is fused per tile. The last tile of a line is
   specialized: it has no vectors beyond the end.

A cost model decides between this strategy and the GEMM strategy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from blockwright import ir
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu import gemm
from blockwright.strategies.cpu.conv_nchw_plan import (
    ConvNchwPlan,
    pays,
    ranked_plans,
)
from blockwright.strategies.cpu.conv_nchw_shape import lines_of
from blockwright.strategies.cpu.elementwise import spread
from blockwright.strategies.cpu.gemm_canonical import (
    align,
    clear_total,
    fuse_copy,
    node,
    panels,
    regroup,
    vector_rows,
)
from blockwright.strategies.cpu.register_tiling import RegisterTile
from blockwright.strategies.cpu.split_k import sum_pieces
from blockwright.strategies.cpu.vector_loops import inner_loops, vectorize_by
from blockwright.strategies.match.blocks import contraction_of, leaf_blocks, position_of
from blockwright.strategies.match.planes import Planes, planes_of
from blockwright.strategies.strategy import Strategy, facts_unless
from blockwright.support import ScheduleError
from blockwright.target import Target


def why_not(func: ir.PrimFunc, target: Target) -> str:
    reason = gemm.why_not(func, target)
    if reason:
        return reason
    products = [b for b in leaf_blocks(func) if contraction_of(b) is not None]
    if len(products) != 1:
        return f"{len(products)} contractions instead of one"
    (block,) = products
    if len({r.buffer.dtype for r in (*block.reads, *block.writes)}) > 1:
        return "operands and result do not share one type"
    roles = planes_of(block)
    if isinstance(roles, str):
        return roles
    return "" if pays(target, block, roles) else "the GEMM strategy is expected to take less time"


class _Prepared(msgspec.Struct, frozen=True):
    """The contraction with its producers inlined.

    Attributes:
        block, roles: the contraction.
        made: the producer of its data that is computed by tasks, if any.
        kept: producers that are computed before.
        tail: its consumer, if any.
    """

    block: BlockRV
    roles: Planes
    made: BlockRV | None
    kept: list[BlockRV]
    tail: BlockRV | None


def _prepare(sch: Schedule) -> _Prepared:
    before, (block,), behind = gemm.parts(sch)
    kept = gemm.inline_producers(sch, before, [block])
    for handle in behind[:-1]:
        sch.compute_inline(handle)
    roles = planes_of(node(sch, block))
    if isinstance(roles, str):
        raise ScheduleError(roles, code="BW340")
    makes = [h for h in kept if roles.slides and node(sch, h).writes[0].buffer is roles.data]
    made = makes[0] if makes else None
    return _Prepared(
        block,
        roles,
        made,
        [h for h in kept if h != made],
        behind[-1] if behind else None,
    )


def plans(func: ir.PrimFunc, target: Target) -> Iterator[ConvNchwPlan]:
    """All plans, the best one first."""
    sch = Schedule(func)
    program = _prepare(sch)
    return ranked_plans(target, node(sch, program.block), program.roles)


def apply(sch: Schedule, target: Target, plan: ConvNchwPlan) -> None:
    """Schedule a program by a plan."""
    program = _prepare(sch)
    lines = lines_of(node(sch, program.block), program.roles) is not None
    _schedule(sch, _arrange(sch, program, plan.tile), program.roles, plan, lines)
    for handle in program.kept:
        spread(sch, [handle], target)


class _Parts(msgspec.Struct, frozen=True):
    """The product, the blocks that copy its operands, and its consumer."""

    block: BlockRV
    data: BlockRV
    weights: BlockRV
    tail: BlockRV


def _arrange(sch: Schedule, program: _Prepared, tile: RegisterTile) -> _Parts:
    """Steps 1 to 3: order the iterators, pad to whole tiles, pack panels."""
    block, roles = program.block, program.roles
    extents = [it.dom.extent for it in node(sch, block).iter_vars]
    weights = sch.reindex(block, ("read", position_of(roles.weights, node(sch, block).reads)))
    at = position_of(roles.data, node(sch, block).reads)
    if not roles.slides:
        data = sch.reindex(block, ("read", at))
    else:
        data = program.made or sch.cache_read(block, at, "global")
    result = sch.reindex(block, ("write", 0))
    tail = program.tail or result
    if program.tail is not None:
        sch.compute_inline(result)
        align(sch, block, tail)
    regroup(sch, block, extents, roles.order)
    fuse_copy(sch, weights, weights, extents, roles.part(roles.outer, roles.pixels))
    if not roles.slides:
        fuse_copy(sch, data, data, extents, roles.part(roles.filters))
    fuse_copy(sch, block, tail, extents, roles.part(roles.depth))
    outer = len(roles.batch) + len(roles.outer)
    padding = [1] * outer + [tile.rows, tile.columns] + [1] * len(roles.depth)
    sources = {node(sch, h).writes[0].buffer: h for h in (data, weights)}
    for created in sch.pad_einsum(block, padding, mode="zero") or []:
        plain = sources.get(node(sch, created).reads[0].buffer)
        sch.compute_inline(created if plain is None else plain)
        data, weights = (created if h == plain else h for h in (data, weights))
    panels(sch, weights, len(roles.batch), tile.rows)
    if not roles.slides:
        panels(sch, data, outer, tile.columns)
    return _Parts(block, data, weights, tail)


def _schedule(sch: Schedule, parts: _Parts, roles: Planes, plan: ConvNchwPlan, lines: bool) -> None:
    """Steps 4 and 5: tasks with their copies, register tiles, epilogue.

    `lines`: whether a task covers lines of pixels.
    """
    tile = plan.tile
    outer = len(roles.batch) + len(roles.outer)
    first, (f, v), depth = _cut(sch.get_loops(parts.block), outer, outer + 2)
    f0, f1 = sch.split(f, [None, tile.rows])
    v0, v1 = sch.split(v, [None, tile.columns])
    ft, f0 = sch.split(f0, [None, plan.filters])
    if lines:
        task, line = sch.split(first.pop(), [None, plan.steps])
        inner = [line, v0, f0]
    else:
        task, v0 = sch.split(v0, [None, plan.steps])
        inner = [v0, f0]
    sch.reorder(*first, task, ft, *inner, *depth, f1, v1)
    task = sch.fuse(*first, task, ft)
    sch.reverse_compute_at(parts.tail, f0)
    sch.set_scope(parts.block, 0, "local")
    _sums(sch, parts.block, depth, (f1, v1), plan)
    sch.annotate(v0, LOOP_PARTITION, True)  # the last tile has only the vectors that it needs
    vector_rows(sch, parts.tail, tile.columns)
    _copy(sch, parts.data, task, roles, plan)
    sch.parallel(task)
    _pack(sch, parts.weights, len(roles.batch), tile)


def _sums(
    sch: Schedule,
    block: BlockRV,
    depth: list[LoopRV],
    inside: tuple[LoopRV, LoopRV],
    plan: ConvNchwPlan,
) -> None:
    """Schedule a register tile; its long sums are split into pieces."""
    (f1, v1), columns = inside, plan.tile.columns
    cut = sum_pieces(sch, block, depth, plan.sums, ragged=True)
    partial = block
    if cut is not None:
        partial, (*depth, f1, v1), loop = cut
        clear_total(sch, block, loop, columns)
        sch.set_scope(partial, 0, "local")
    init = sch.decompose_reduction(partial, depth[0])
    sch.unroll(f1)
    sch.vectorize(v1)
    vector_rows(sch, init, columns)


def _cut(loops: list[LoopRV], *at: int) -> tuple[list[LoopRV], list[LoopRV], list[LoopRV]]:
    first, second = at
    return loops[:first], loops[first:second], loops[second:]


def _copy(sch: Schedule, data: BlockRV, task: LoopRV, roles: Planes, plan: ConvNchwPlan) -> None:
    """Copy the data that a task reads into its own buffer."""
    sch.compute_at(data, task)
    if roles.slides:
        vectorize_by(sch, data, sch.get_loops(data)[-1], plan.vector_bits)
        return
    loops = inner_loops(sch, data, task)
    pixels, *depth = loops[len(loops) - 1 - len(roles.depth) :]
    tile = plan.tile
    lanes = math.gcd(tile.columns, tile.lanes)
    panel, chunk, lane = sch.split(pixels, [None, tile.columns // lanes, lanes])
    sch.reorder(panel, *depth, chunk, lane)
    sch.vectorize(lane)


def _pack(sch: Schedule, weights: BlockRV, batch: int, tile: RegisterTile) -> None:
    """Pack the weights, one panel per task."""
    loops = sch.get_loops(weights)
    filters, *depth = loops[batch:]
    panel, row = sch.split(filters, [None, tile.rows])
    sch.reorder(panel, *depth, row)
    sch.parallel(sch.fuse(*loops[:batch], panel) if batch else panel)


STRATEGY = Strategy("conv_nchw", facts_unless(why_not), apply, ConvNchwPlan, plans)

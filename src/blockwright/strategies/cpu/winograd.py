"""Winograd convolution: transforms of tiles around one batched product.

    V = transform(tiles of x);  M[t, p, co] = V[t, p, ci] * U[t, ci, co];  out = transform(M)

The strategy matches a contraction whose operands come from blocks that store several elements per
iteration, and whose result is read by such a block. Transforms run on vectors of channels: both
passes of a tile stay in registers.
"""

from __future__ import annotations

import math

import msgspec

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.elementwise import spread
from blockwright.strategies.cpu.gemm_canonical import canonicalize, tile_pieces, vector_rows
from blockwright.strategies.cpu.gemm_contract import contract, operands_of, pack
from blockwright.strategies.cpu.gemm_plan import ContractionPlan, best_plan
from blockwright.strategies.cpu.gemm_shape import shape_of
from blockwright.strategies.cpu.inline import block_of, extent, inline_where
from blockwright.strategies.cpu.micro_kernel import named_kernel
from blockwright.strategies.cpu.split_k import Pieces
from blockwright.strategies.cpu.vector_loops import cut_tail, inner_loops, vectorize_last
from blockwright.strategies.cpu.winograd_cost import Convolution, plan
from blockwright.strategies.match.blocks import contraction_of, extent_of, is_cold, leaf_blocks
from blockwright.strategies.strategy import NoDecision, Strategy, facts_unless
from blockwright.support import ScheduleError
from blockwright.target import Target

# Output transforms magnify the errors of sums over channels; short pieces keep these small.
_PIECES = (
    Pieces(most=128, least=64, longest=192),
    Pieces(most=16, least=8, longest=32),
)
_BY_PIXEL = "read them in a block over images, rows, columns and channels, as nn.conv2d does"


class WinogradBlocks(msgspec.Struct, frozen=True):
    """The blocks of the algorithm, by role.

    Attributes:
        before: produce the input of the transforms.
        inputs, filters, results: the two passes of each transform, in order.
        product: the contraction.
        tail: reads the results by pixel.
        after: blocks after the tail that are not part of the algorithm.
    """

    before: list[BlockRV]
    inputs: list[BlockRV]
    filters: list[BlockRV]
    product: BlockRV
    results: list[BlockRV]
    tail: BlockRV
    after: list[BlockRV]


def makes_several(block: ir.Block) -> bool:
    """Whether a spatial block stores several elements per iteration."""
    spatial = all(it.iter_type is ir.IterType.SPATIAL for it in block.iter_vars)
    return spatial and block.init is None and len(ir.collect(block.body, ir.BufferStore)) > 1


def why_not(func: ir.PrimFunc, target: Target) -> str:
    result = leaf_blocks(func)
    products = [b for b in result if contraction_of(b) is not None]
    if len(products) != 1:
        return f"{len(products)} contractions instead of one"
    facts = contraction_of(products[0])
    assert facts is not None
    created = {r.buffer for b in result if makes_several(b) for r in b.writes}
    read = {r.buffer for b in result if makes_several(b) for r in b.reads}
    if facts.a not in created or facts.b not in created or products[0].writes[0].buffer not in read:
        return "the contraction is not between transforms"
    return ""


def apply(sch: Schedule, target: Target, plan: NoDecision) -> None:
    parts = _parts(sch)
    filters = _tiles_in(sch, parts.filters, target)
    sch.parallel(filters)
    group = _group(sch, parts, target)
    before = parts.before
    if group is None:
        sch.parallel(_tiles_in(sch, parts.inputs, target))
        sch.parallel(_tiles_out(sch, parts, target))
        contract(sch, parts.product, None, target, _product_plan(sch, parts, target))
    else:
        before = _in_groups(sch, parts, target, group)
    for handle in before:
        _lines(sch, handle, target)
    for handle in parts.after:
        spread(sch, [handle], target)


def _product_plan(sch: Schedule, parts: WinogradBlocks, target: Target) -> ContractionPlan:
    block, facts = block_of(sch, parts.product), operands_of(sch, parts.product)
    dtype = block.writes[0].buffer.dtype
    kernel = named_kernel(target, facts.a.dtype, facts.b.dtype, dtype, "")
    return best_plan(target, shape_of(sch.func, block, facts, kernel), kernel, _PIECES)


def _in_groups(sch: Schedule, parts: WinogradBlocks, target: Target, group: int) -> list[BlockRV]:
    """Run all steps for one group of tiles at a time.

    The transforms of a group stay in the second-level cache. Returns blocks that remain at the
    root.
    """
    product = parts.product
    iters = [it.var for it in block_of(sch, product).iter_vars]
    facts = contraction_of(block_of(sch, product))
    assert facts is not None
    (p,) = facts.m
    split = (ir.floordiv(iters[p], group), ir.floormod(iters[p], group))
    final = (*iters[:p], *split, *iters[p + 1 :])
    sch.transform_block_layout(product, IndexMap(tuple(iters), final))
    form = canonicalize(sch, product, None, target, apart=1, pieces=_PIECES)
    (store,) = sch.get_consumers(product)
    task = _pixel_tasks(sch, parts, target, group)
    sch.compute_at(store, task)
    sch.storage_align(store, 0, -2, form.tile.lanes, 0)
    *batch, rows, columns = inner_loops(sch, store, task)
    filters = extent(sch, columns)
    r0, r1 = sch.split(rows, [None, form.tile.rows])
    n0, n1 = sch.split(columns, [None, form.tile.columns])
    sch.reorder(*batch, n0, r0, r1, n1)
    sch.compute_at(parts.product, r0)
    r1, n1, depth = inner_loops(sch, parts.product, r0)[-3:]
    sch.reorder(depth, r1, n1)
    tile_pieces(sch, form, r1, [depth], *_PIECES)
    vector_rows(sch, store, form.tile.columns)
    if not target.cheap_predication:
        cut_tail(sch, n0, filters, form.tile.columns)
    sch.compute_at(parts.inputs[1], task)
    _tiles_in(sch, parts.inputs, target, task)
    moved = [h for h in parts.before[-1:] if _at_task(sch, h, task, target)]
    sch.parallel(task)
    pack(sch, form, len(facts.batch))
    return [h for h in parts.before if h not in moved]


def _at_task(sch: Schedule, handle: BlockRV, task: LoopRV, target: Target) -> bool:
    """Compute a group's input inside its task, if the whole would not stay in cache.

    Adjacent groups share a border, which each of them computes; a separate pass over the whole
    input costs more only when it goes through memory.
    """
    result = block_of(sch, handle).writes[0].buffer
    sizes = [ir.const_int(d) for d in result.shape]
    elements = math.prod(size for size in sizes if size is not None)
    if None in sizes or elements * result.dtype.nbytes <= target.cache(2).size * target.num_threads:
        return False
    try:
        sch.compute_at(handle, task)
    except ScheduleError:
        return False  # a group's input region is not a box: it is computed before
    vectorize_last(sch, handle, sch.get_loops(handle)[-1], target)
    return True


# ---------------------------------------------------------------------------------- finding blocks
def _parts(sch: Schedule) -> WinogradBlocks:
    handles = sch.get_child_blocks(sch.get_block("root"))
    at = next(k for k, h in enumerate(handles) if contraction_of(block_of(sch, h)) is not None)
    facts = contraction_of(block_of(sch, handles[at]))
    assert facts is not None
    inputs = _passes_before(sch, handles[:at], facts.a)
    filters = _passes_before(sch, handles[:at], facts.b)
    before = [h for h in handles[:at] if h not in (*inputs, *filters)]
    behind = handles[at + 1 :]
    results = [h for h in behind if makes_several(block_of(sch, h))]
    tail, *after = (h for h in behind if h not in results)
    while after and _follows(block_of(sch, tail), block_of(sch, after[0])):
        sch.compute_inline(tail)
        tail, *after = after
    return WinogradBlocks(
        _inlined(sch, before), inputs, filters, handles[at], results, tail, _inlined(sch, after)
    )


def _inlined(sch: Schedule, handles: list[BlockRV]) -> list[BlockRV]:
    """Inline all blocks but the last where possible."""
    return [*inline_where(sch, handles[:-1]), *handles[-1:]]


def _passes_before(sch: Schedule, handles: list[BlockRV], buffer: ir.Buffer) -> list[BlockRV]:
    """The chain of blocks that store several elements, up to the producer of `buffer`."""
    result: list[BlockRV] = []
    for handle in reversed(handles):
        block = block_of(sch, handle)
        if makes_several(block) and block.writes[0].buffer is buffer:
            result.insert(0, handle)
            buffer = block.reads[0].buffer
    return result


def _follows(block: ir.Block, after: ir.Block) -> bool:
    """Whether `after` is an element-wise consumer of `block`."""
    store = after.body
    if not isinstance(store, ir.BufferStore):
        return False
    result = block.writes[0].buffer
    loads = [n for n in ir.collect(store, ir.BufferLoad) if n.buffer is result]
    return len(loads) > 0 and all(
        len(access.indices) == len(after.iter_vars)
        and all(
            index is it.var or (ir.is_const_int(index, 0) and ir.is_const_int(it.dom.extent, 1))
            for index, it in zip(access.indices, after.iter_vars, strict=True)
        )
        for access in (store, *loads)
    )


def _group(sch: Schedule, parts: WinogradBlocks, target: Target) -> int | None:
    """Tiles per group, chosen by the cost model; None to run one step after another on all tiles.

    For a batch of unknown size, groups are parts of one image.
    """
    product = block_of(sch, parts.product)
    facts = contraction_of(product)
    assert facts is not None
    n, h, w, _, m = _pixel_loops(sch, parts)
    batch, height, width = (extent(sch, loop) for loop in (n, h, w))
    channels, filters = (extent_of(product, axes) for axes in (facts.k, facts.n))
    if height is None or width is None or channels is None or filters is None:
        return None
    bits = product.writes[0].buffer.dtype.bits
    cold = is_cold(sch.func, block_of(sch, parts.filters[0]).reads[0].buffer)
    conv = Convolution(batch, height, width, channels, filters, bits, cold)
    return plan(target, conv, m).group


# -------------------------------------------------------------------------------------- transforms
def _lanes(sch: Schedule, handle: BlockRV, target: Target) -> int:
    return target.lanes(block_of(sch, handle).writes[0].buffer.dtype)


def _tiles_in(
    sch: Schedule, passes: list[BlockRV], target: Target, below: LoopRV | None = None
) -> LoopRV:
    """Schedule both passes of a transform, one vector of channels after another.

    Returns the loop over tiles and vectors, or over vectors only, if inside `below`.
    """
    first, last = passes
    *outer, line, channels = _lines_inside(sch, first, last, below)
    size, lanes = extent(sch, channels), _lanes(sch, last, target)
    c0, c1 = sch.split(channels, [None, lanes])
    sch.reorder(*outer, c0, line, c1)
    _in_registers(sch, first, c0)
    sch.unroll(line)
    sch.vectorize(c1)
    if below is not None and not target.cheap_predication:  # masks in the last vector only
        cut_tail(sch, c0, size, lanes)
        return c0
    return sch.fuse(*outer, c0)


def _lines_inside(
    sch: Schedule, first: BlockRV, last: BlockRV, below: LoopRV | None
) -> list[LoopRV]:
    """Loops of the second pass, with the loop over lines last but one.

    A line is the set of elements that one iteration of the first pass stores.
    """
    result = block_of(sch, first).writes[0]
    across = next(k for k, r in enumerate(result.region) if not ir.is_const_int(r.extent, 1))
    block = block_of(sch, last)
    load = next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is result.buffer)
    line = next(k for k, it in enumerate(block.iter_vars) if load.indices[across] is it.var)
    loops = inner_loops(sch, last, below)
    others = [loop for k, loop in enumerate(loops) if k != line]
    return [*others[:-1], loops[line], others[-1]]


def _in_registers(sch: Schedule, handle: BlockRV, loop: LoopRV) -> None:
    """Compute a pass at its consumer, in registers, unrolled."""
    sch.set_scope(handle, 0, "local")
    sch.compute_at(handle, loop)
    *lines, lanes = inner_loops(sch, handle, loop)
    sch.vectorize(lanes)
    for line in lines:
        sch.unroll(line)


def _tiles_out(sch: Schedule, parts: WinogradBlocks, target: Target) -> LoopRV:
    """Schedule the output transform at the tail, by tiles of pixels and vectors of channels.

    Returns the loop over tiles and vectors.
    """
    n, h0, w0, c, inner = _pixel_tiles(sch, parts)
    c0, c1 = sch.split(c, [None, _lanes(sch, parts.tail, target)])
    sch.reorder(n, h0, w0, c0, *inner, c1)
    _tile_of_results(sch, parts, c0, [*inner, c1])
    return sch.fuse(n, h0, w0, c0)


def _pixel_tasks(sch: Schedule, parts: WinogradBlocks, target: Target, group: int) -> LoopRV:
    """Schedule the output transform by groups of tiles; returns the loop over groups."""
    n, h0, w0, c, inner = _pixel_tiles(sch, parts)
    vectors = extent(sch, c), _lanes(sch, parts.tail, target)
    c0, c1 = sch.split(c, [None, _lanes(sch, parts.tail, target)])
    sch.reorder(n, h0, w0, c0, *inner, c1)
    task, _ = sch.split(sch.fuse(n, h0, w0), [None, group])
    cut_tail(sch, c0, *vectors)
    _tile_of_results(sch, parts, c0, [*inner, c1])
    return task


def _pixel_tiles(
    sch: Schedule, parts: WinogradBlocks
) -> tuple[LoopRV, LoopRV, LoopRV, LoopRV, list[LoopRV]]:
    n, h, w, c, m = _pixel_loops(sch, parts)
    h0, h1 = sch.split(h, [None, m])
    w0, w1 = sch.split(w, [None, m])
    return n, h0, w0, c, [h1, w1]


def _tile_of_results(sch: Schedule, parts: WinogradBlocks, at: LoopRV, inner: list[LoopRV]) -> None:
    for handle in reversed(parts.results):
        _in_registers(sch, handle, at)
    *pixels, lanes = inner
    for loop in pixels:
        sch.unroll(loop)
    sch.vectorize(lanes)


def _lines(sch: Schedule, handle: BlockRV, target: Target) -> None:
    """Schedule a block over images: lines of pixels as tasks, vectors along the last axis."""
    loops = sch.get_loops(handle)
    if len(loops) < 3:
        spread(sch, [handle], target)
        return
    size = extent(sch, loops[-1])
    lanes = vectorize_last(sch, handle, loops[-1], target)
    if not target.cheap_predication:
        cut_tail(sch, sch.get_loops(handle)[len(loops) - 1], size, lanes)
    sch.parallel(sch.fuse(*loops[:-2]) if len(loops) > 3 else loops[0])


def _pixel_loops(
    sch: Schedule, parts: WinogradBlocks
) -> tuple[LoopRV, LoopRV, LoopRV, LoopRV, int]:
    """The tail's loops over images, rows, columns and channels, and the edge of a tile."""
    results = block_of(sch, parts.results[-1]).writes[0].buffer
    block = block_of(sch, parts.tail)
    load = next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is results)
    loops = sch.get_loops(parts.tail)
    m = ir.const_int(results.shape[1])
    if len(loops) != 4 or m is None:
        raise ScheduleError("the results are not read by pixel", code="BW340", help=_BY_PIXEL)
    axes = [_axis_in(index, block) for index in load.indices[1:]]
    free = [k for k in range(4) if k not in axes]
    # An axis of one element occurs in no index; any such axis will do.
    unit = [k for k in free if ir.is_const_int(block.iter_vars[k].dom.extent, 1)]
    if len(unit) < axes.count(None) or len(free) != 1 + axes.count(None):
        raise ScheduleError("the results are not read by pixel", code="BW340", help=_BY_PIXEL)
    at = [unit.pop() if axis is None else axis for axis in axes]
    (n,) = (loops[k] for k in range(4) if k not in at)
    h, w, c = (loops[k] for k in at)
    return n, h, w, c, m


def _axis_in(index: ir.Expr, block: ir.Block) -> int | None:
    """Position of the iterator that an index uses."""
    return next((k for k, it in enumerate(block.iter_vars) if ir.uses_var(index, it.var)), None)


STRATEGY = Strategy("winograd", facts_unless(why_not), apply)

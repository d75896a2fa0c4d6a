"""Winograd convolution: transforms of tiles around one batched product.

    V = transform(tiles of x);  M[t, p, co] = V[t, p, ci] * U[t, ci, co];  out = transform(M)

The strategy matches a contraction whose operands come from blocks that store several elements per
iteration, and whose result is read by such a block. Transforms run on vectors of channels: both
passes of a tile stay in registers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.elementwise import spread
from blockwright.strategies.cpu.gemm_canonical import canonicalize, tile_partial_sums, vector_rows
from blockwright.strategies.cpu.gemm_contract import contract, operands_of, pack
from blockwright.strategies.cpu.gemm_plan import ContractionPlan
from blockwright.strategies.cpu.gemm_shape import shape_of
from blockwright.strategies.cpu.inline import block_of, extent, inline_where
from blockwright.strategies.cpu.micro_kernel import named_kernel
from blockwright.strategies.cpu.transpose import turn_lines
from blockwright.strategies.cpu.vector_loops import cut_tail, inner_loops, vectorize_by
from blockwright.strategies.cpu.winograd_cost import Convolution
from blockwright.strategies.cpu.winograd_plan import WinogradFacts, WinogradPlan, ranked_plans
from blockwright.strategies.match.blocks import contraction_of, extent_of, is_uncached, leaf_blocks
from blockwright.strategies.strategy import Strategy, facts_unless
from blockwright.support import ScheduleError
from blockwright.target import Target

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


def plans(func: ir.PrimFunc, target: Target) -> Iterator[WinogradPlan]:
    """The best plan, then others in the order of their predicted time."""
    sch = Schedule(func)
    parts = _parts(sch)
    block, facts = block_of(sch, parts.product), operands_of(sch, parts.product)
    kernel = named_kernel(target, facts.a.dtype, facts.b.dtype, block.writes[0].buffer.dtype, "")
    made = block_of(sch, parts.before[-1]).writes[0].buffer if parts.before else None
    sizes = [] if made is None else [ir.const_int(d) for d in made.shape]
    size = None
    if made is not None and None not in sizes:
        size = math.prod(n or 0 for n in sizes) * made.dtype.nbytes
    product = shape_of(sch.func, block, facts, kernel)
    conv, edge = _convolution(sch, parts)
    return ranked_plans(target, WinogradFacts(conv, edge, product, size), kernel)


def apply(sch: Schedule, target: Target, plan: WinogradPlan) -> None:
    """Schedule a program by a plan."""
    parts = _parts(sch)
    filters = _tiles_in(sch, parts.filters, plan)
    sch.parallel(filters)
    before = parts.before
    if (plan.group is None) == (plan.blocking is None):
        raise ScheduleError(
            f"the plan has group={plan.group} and blocking={plan.blocking}; one of them is None",
            code="BW342",
            help="give a group of tiles, or a blocking of the product of all tiles",
        )
    if plan.blocking is not None:
        sch.parallel(_tiles_in(sch, parts.inputs, plan))
        sch.parallel(_tiles_out(sch, parts, plan))
        product = ContractionPlan("", plan.tile, plan.blocking, plan.sums)
        contract(sch, parts.product, None, target, product)
    elif plan.group is not None:
        before = _in_groups(sch, parts, target, plan, plan.group)
    for handle in before:
        _lines(sch, handle, plan, target)
    for handle in parts.after:
        spread(sch, [handle], target)


def _in_groups(
    sch: Schedule, parts: WinogradBlocks, target: Target, plan: WinogradPlan, group: int
) -> list[BlockRV]:
    """Run all steps for one group of tiles at a time.

    The transforms of a group stay in the second-level cache. Returns blocks that remain at the
    root.
    """
    product = parts.product
    iters = [it.var for it in block_of(sch, product).iter_vars]
    facts = contraction_of(block_of(sch, product))
    assert facts is not None
    (p,) = facts.m
    count = extent_of(block_of(sch, product), [p])
    if count is not None and count % group:
        raise ScheduleError(
            f"the plan has group={group}, which does not divide the {count} tiles",
            code="BW342",
            help="give a divisor",
        )
    split = (ir.floordiv(iters[p], group), ir.floormod(iters[p], group))
    final = (*iters[:p], *split, *iters[p + 1 :])
    sch.transform_block_layout(product, IndexMap(tuple(iters), final))
    form = canonicalize(sch, product, None, target, apart=1, tile=plan.tile, pieces=plan.sums)
    (store,) = sch.get_consumers(product)
    task = _pixel_tasks(sch, parts, plan, group)
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
    tile_partial_sums(sch, form, r1, [depth], *plan.sums)
    vector_rows(sch, store, form.tile.columns)
    if plan.cut_tails:
        cut_tail(sch, n0, filters, form.tile.columns)
    sch.compute_at(parts.inputs[1], task)
    _tiles_in(sch, parts.inputs, plan, task)
    remaining = list(parts.before)
    if plan.input_in_task and remaining:
        made = remaining.pop()
        sch.compute_at(made, task)
        *_, w, c = sch.get_loops(made)
        if not turn_lines(sch, made, w, c):
            vectorize_by(sch, made, c, plan.vector_bits)
    sch.parallel(task)
    pack(sch, form, len(facts.batch))
    return remaining


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


def _convolution(sch: Schedule, parts: WinogradBlocks) -> tuple[Convolution | None, int]:
    """The extents of the convolution, None if not all are known, and the edge of a tile."""
    product = block_of(sch, parts.product)
    facts = contraction_of(product)
    assert facts is not None
    n, h, w, _, m = _pixel_loops(sch, parts)
    batch, height, width = (extent(sch, loop) for loop in (n, h, w))
    channels, filters = (extent_of(product, axes) for axes in (facts.k, facts.n))
    if height is None or width is None or channels is None or filters is None:
        return None, m
    bits = product.writes[0].buffer.dtype.bits
    uncached = is_uncached(sch.func, block_of(sch, parts.filters[0]).reads[0].buffer)
    return Convolution(batch, height, width, channels, filters, bits, uncached), m


# -------------------------------------------------------------------------------------- transforms
def _lanes(sch: Schedule, handle: BlockRV, plan: WinogradPlan) -> int:
    return max(1, plan.vector_bits // (block_of(sch, handle).writes[0].buffer.dtype.nbytes * 8))


def _tiles_in(
    sch: Schedule, passes: list[BlockRV], plan: WinogradPlan, below: LoopRV | None = None
) -> LoopRV:
    """Schedule both passes of a transform, one vector of channels after another.

    Returns the loop over tiles and vectors, or over vectors only, if inside `below`.
    """
    first, last = passes
    *outer, line, channels = _lines_inside(sch, first, last, below)
    size, lanes = extent(sch, channels), _lanes(sch, last, plan)
    c0, c1 = sch.split(channels, [None, lanes])
    sch.reorder(*outer, c0, line, c1)
    _in_registers(sch, first, c0)
    sch.unroll(line)
    sch.vectorize(c1)
    if below is not None and plan.cut_tails:  # masks in the last vector only
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


def _tiles_out(sch: Schedule, parts: WinogradBlocks, plan: WinogradPlan) -> LoopRV:
    """Schedule the output transform at the tail, by tiles of pixels and vectors of channels.

    Returns the loop over tiles and vectors.
    """
    n, h0, w0, c, inner = _pixel_tiles(sch, parts)
    c0, c1 = sch.split(c, [None, _lanes(sch, parts.tail, plan)])
    sch.reorder(n, h0, w0, c0, *inner, c1)
    _tile_of_results(sch, parts, c0, [*inner, c1])
    return sch.fuse(n, h0, w0, c0)


def _pixel_tasks(sch: Schedule, parts: WinogradBlocks, plan: WinogradPlan, group: int) -> LoopRV:
    """Schedule the output transform by groups of tiles; returns the loop over groups."""
    n, h0, w0, c, inner = _pixel_tiles(sch, parts)
    vectors = extent(sch, c), _lanes(sch, parts.tail, plan)
    c0, c1 = sch.split(c, [None, _lanes(sch, parts.tail, plan)])
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


def _lines(sch: Schedule, handle: BlockRV, plan: WinogradPlan, target: Target) -> None:
    """Schedule a block over images: lines of pixels as tasks, vectors along the last axis."""
    loops = sch.get_loops(handle)
    if len(loops) < 3:
        spread(sch, [handle], target)
        return
    size = extent(sch, loops[-1])
    if turn_lines(sch, handle, *loops[-2:]):
        sch.parallel(sch.fuse(*loops[:-2]) if len(loops) > 3 else loops[0])
        return
    lanes = vectorize_by(sch, handle, loops[-1], plan.vector_bits)
    if plan.cut_tails:
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


STRATEGY = Strategy("winograd", facts_unless(why_not), apply, WinogradPlan, plans)

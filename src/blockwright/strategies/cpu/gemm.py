"""GEMM and convolution: a contraction fused with its element-wise epilogue.

    out[b, m, n] = epilogue(sum over k of A[b, m, k] * W[b, n, k], bias[n], residual[m, n], …)

Handles any number of batch, m, n and k axes, symbolic extents included; see `gemm_canonical` for
the steps. A may be accessed at any index: a convolution reads X[h * s + kh, w * s + kw, c] where a
matrix product reads A[m, k], so it is an implicit GEMM. Groups are batch axes. A producer of A that
is more than a copy (padding, an activation) is computed once, before. A producer of W (dequantized
numbers of few bits, gathered rows) is computed while panels are packed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import msgspec

from blockwright import ir
from blockwright.analysis.facts import symbol_facts
from blockwright.arith import IndexMap
from blockwright.ir.annotations import (
    LOOP_PARTITION,
    PREFETCH_READ,
    PREFETCH_SHARED,
    TAIL_SPECIALIZATION,
)
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.blocked_sums import long_sums
from blockwright.strategies.cpu.elementwise import spread
from blockwright.strategies.cpu.gemm_canonical import (
    Canonical,
    canonicalize,
    node,
    pack_panels,
    tile_pieces,
    vector_rows,
    write_out_steps,
)
from blockwright.strategies.cpu.gemm_plan import (
    GemmPlan,
    GemmShape,
    gemm_plan,
    gemm_tile,
    unknown_rows,
)
from blockwright.strategies.cpu.inline import extent, inline_where, is_copy
from blockwright.strategies.cpu.micro_kernel import MicroKernel, micro_kernel
from blockwright.strategies.cpu.register_tiling import RegisterTile, RowTile, steps_written_out
from blockwright.strategies.cpu.split_k import WHOLE, Pieces, cuts_evenly, reduction_outside
from blockwright.strategies.cpu.vector_loops import inner_loops, vectorize_last
from blockwright.strategies.match.blocks import (
    Contraction,
    address_of,
    contraction_of,
    extent_of,
    is_away,
    is_cold,
    is_constant,
    is_spatial,
    leaf_blocks,
    stride,
    windowed,
)
from blockwright.strategies.strategy import Strategy, Variant
from blockwright.support import ScheduleError
from blockwright.target import Target

_SHORT = 16  # a k-split is no shorter than this fraction (1/16) of the allowed length
_WRITTEN_OUT = 128  # updates up to which the last of several short reduction loops is unrolled
_AT_ONCE = 8  # largest unroll factor of the reduction
_PIECES = (Pieces(),)
_LONG_PIECES = (Pieces(most=128, unknown=True),)  # the last k-split is zero-padded
# Shortest reduction beside which a masked store takes less than a twentieth of the time.
_SHALLOW = 512


def refuses(func: ir.PrimFunc, target: Target) -> str:
    matches = leaf_blocks(func)
    contractions = [b for b in matches if _product_of(b) is not None]
    if not contractions:
        return "no contraction"
    if not all(is_spatial(b) for b in matches if b not in contractions):
        return "other blocks reduce too"
    created = {w.buffer for b in contractions for w in b.writes}
    for block in contractions:
        facts = _product_of(block)
        assert facts is not None
        if created & {facts.a, facts.b}:
            return "one contraction reads the result of another"
        if any(extent_of(block, axes) == 1 for axes in (facts.n, facts.k)):
            return "an operand is a vector"
        if _kernel(target, block, facts) is None:
            types = [x.dtype.name for x in (facts.a, facts.b, block.writes[0].buffer)]
            return "no micro-kernel for {} x {} -> {}".format(*types)
    return ""


def _product_of(block: ir.Block) -> Contraction | None:
    return contraction_of(block, integers=True)


def _kernel(target: Target, block: ir.Block, facts: Contraction) -> MicroKernel | None:
    return micro_kernel(target, facts.a.dtype, facts.b.dtype, block.writes[0].buffer.dtype)


def apply(
    sch: Schedule,
    target: Target,
    tile: RegisterTile | None = None,
    pieces: Sequence[Pieces] = _PIECES,
) -> None:
    before, products, behind = parts(sch)
    kept = inline_producers(sch, before, products)
    packed = {block: _packed_with(sch, kept, products, block) for block in products}
    for handle in kept:
        if handle not in packed.values():
            _as_its_source(sch, handle, products, target)
    if len(products) == 1 and behind:  # one epilogue, at the register tile
        for handle in behind[:-1]:
            sch.compute_inline(handle)
        contract(sch, products[0], behind[-1], target, tile, packed[products[0]], pieces)
    else:
        kept += inline_where(sch, behind)
        for block in products:
            contract(sch, block, None, target, tile, packed[block], pieces)
    for handle in kept:
        if handle not in packed.values():
            spread(sch, [handle], target)


def _as_its_source(sch: Schedule, handle: BlockRV, products: list[BlockRV], target: Target) -> None:
    """Store a producer's result in its source's memory order if it has fewer channels than lanes.

    Elements of the left operand are loaded one by one, from anywhere, but should be stored as
    vectors.
    """
    block = node(sch, handle)
    result, loads = block.writes[0].buffer, ir.collect(block.body, ir.BufferLoad)
    if len(loads) != 1 or any(result is own for own in sch.func.buffers):
        return
    for product in products:
        facts = _product_of(node(sch, product))
        if facts is None or facts.a is not result or extent_of(node(sch, product), facts.m) == 1:
            return
    address = address_of(loads[0], block)
    steps = [stride(address, it) for it in block.iter_vars]
    channels = ir.const_int(block.iter_vars[-1].dom.extent)
    if steps[-1] == 1 or 1 not in steps or 0 in steps or channels is None:
        return
    if channels * result.dtype.bits >= target.vector_bits:
        return
    axes = tuple(it.var for it in block.iter_vars)
    order = tuple(axes[k] for k in sorted(range(len(axes)), key=lambda k: -steps[k]))
    sch.transform_layout(handle, ("write", 0), IndexMap(axes, order))
    sch.transform_block_layout(handle, IndexMap(axes, order))
    for product in products:
        _without_unit_axes(sch, product)


def _without_unit_axes(sch: Schedule, handle: BlockRV) -> None:
    """Drop unit axes: in the new layout, elements are indexed without them."""
    block = node(sch, handle)
    axes = tuple(it.var for it in block.iter_vars)
    longer = tuple(it.var for it in block.iter_vars if not ir.is_const_int(it.dom.extent, 1))
    if len(longer) < len(axes):
        sch.transform_block_layout(handle, IndexMap(axes, longer))


def variants(func: ir.PrimFunc, target: Target) -> list[Variant]:
    """Variants for symbolic extents.

    For a symbolic m: other register tiles, used where they waste less of the last tile, all on the
    same panels. For a symbolic k: long sums split into pieces.
    """
    long = long_sums(func, _PIECES[0].longest)
    result: list[Variant] = []
    if long is not None:
        result.append(Variant(long, functools.partial(apply, pieces=_LONG_PIECES)))
    products = [(b, f) for b in leaf_blocks(func) if (f := _product_of(b)) is not None]
    block, facts = products[0]
    kernel = _kernel(target, block, facts)
    product = None if kernel is None else _product(func, block, facts, kernel)
    if len(products) > 1 or product is None or product.rows is not None:
        return result
    rows: ir.Expr = ir.const(1, "int64")
    for position in facts.m:
        rows = rows * block.iter_vars[position].dom.extent
    first, *others = unknown_rows(target, product)
    for k, one in enumerate(others):
        here = _passed(rows, one)
        better: ir.Expr = ir.LT(here, _passed(rows, first))
        for other in others[k + 1 :]:
            better = ir.And(better, ir.LE(here, _passed(rows, other)))
        result.append(Variant(better, functools.partial(apply, tile=one.tile)))
    return result


def _passed(rows: ir.Expr, one: RowTile) -> ir.Expr:
    """Cost of `rows` rows in tiles of one height, as an expression; see `RowTile.of`."""
    height = one.tile.rows
    tiles = ir.floordiv(rows + (height - 1), height)
    if one.short:
        whole = ir.floordiv(rows + (height - one.short - 1), height)
        passed = whole * (one.cost - one.short_cost) + tiles * one.short_cost
    else:
        passed = tiles * one.cost
    lowest = one.short_cost if one.short else one.cost
    return ir.Max(passed, ir.const(one.least, passed.dtype)) if one.least > lowest else passed


def parts(sch: Schedule) -> tuple[list[BlockRV], list[BlockRV], list[BlockRV]]:
    """The blocks before the first contraction, the contractions, and the blocks after."""
    handles = sch.get_child_blocks(sch.get_block("root"))
    at = [k for k, h in enumerate(handles) if _product_of(node(sch, h)) is not None]
    others = [h for k, h in enumerate(handles) if k > at[0] and k not in at]
    return handles[: at[0]], [handles[k] for k in at], others


def inline_producers(
    sch: Schedule, before: list[BlockRV], products: list[BlockRV]
) -> list[BlockRV]:
    """Inline the producers that only move data, and everything before other producers.

    Returns the blocks that stay: each computes an operand whose elements the contraction reads many
    times.
    """
    kept: list[BlockRV] = []
    for handle in before:
        written = node(sch, handle).writes[0].buffer
        read = any(r.buffer is written for p in products for r in node(sch, p).reads)
        if read and not is_copy(node(sch, handle)):
            kept.append(handle)
        else:
            sch.compute_inline(handle)
    return kept


def _packed_with(
    sch: Schedule, kept: list[BlockRV], products: list[BlockRV], block: BlockRV
) -> BlockRV | None:
    """The producer of the operand that is packed into panels, if it serves one product alone.

    Packing reads each element once, so the producer can be inlined there.
    """
    facts = _product_of(node(sch, block))
    if facts is None or facts.b in windowed(node(sch, block)):
        return None
    if sum(r.buffer is facts.b for p in products for r in node(sch, p).reads) > 1:
        return None
    return next((h for h in kept if node(sch, h).writes[0].buffer is facts.b), None)


def contract(
    sch: Schedule,
    block: BlockRV,
    tail: BlockRV | None,
    target: Target,
    tile: RegisterTile | None = None,
    packed: BlockRV | None = None,
    in_pieces: Sequence[Pieces] = _PIECES,
) -> None:
    """Schedule one contraction at the root, with its consumer and producer.

    `tail` is the consumer, `packed` the producer of the packed operand; both are optional.
    """
    facts, kernel = _operands(sch, block, target)
    if kernel.exact:
        in_pieces = (WHOLE,)
    product = _product(sch.func, node(sch, block), facts, kernel)
    width = extent_of(node(sch, block), facts.m[-1:])
    tile = tile or gemm_tile(target, product)
    form = canonicalize(sch, block, tail, target, tile=tile, pieces=in_pieces, kernel=kernel)
    if packed is not None:
        sch.compute_inline(packed)
    if tail is None:
        (tail,) = sch.get_consumers(block)
    batch = len(facts.batch)
    plan = gemm_plan(target, product, form.tile)
    sums = _cut_depth(sch, form, batch, plan.depth, in_pieces)
    pieces, loops = _pieces_and_loops(sch, block, sums)
    m0, m1 = sch.split(loops[batch], [None, form.tile.rows])
    n0, n1 = sch.split(loops[batch + 1], [None, form.tile.columns])
    k, inside = form.reduction_loops(loops[batch + 2 :])
    sch.reorder(*loops[:batch], m0, n0, *k, m1, n1, *inside)
    if sums is None:
        k = tile_pieces(sch, form, m1, k, *in_pieces)
    else:
        k = _sum_of_piece(sch, form, sums, n0, in_pieces)
    # From here on tasks can be cut anywhere: a condition covers whole tiles.
    mo, mi = sch.split(m0, [None, plan.row_tiles])
    no, ni = sch.split(n0, [None, plan.panels])
    _shorten_last_tile(sch, target, product, form.tile, mi)
    outer, inner = ((no, mo), (ni, mi)) if plan.rows_inside else ((mo, no), (mi, ni))
    sch.reorder(*loops[:batch], *outer, *pieces, *inner)
    # The loop around one panel of one product is the loop over tasks; it moves to other rows if
    # rows fall into several tasks.
    same_rows = plan.panels > 1 or (not batch and extent(sch, mo) == 1)
    if sums is None:
        sch.reverse_compute_at(tail, inner[1])
        vector_rows(sch, tail, form.tile.columns)
        if _needs_cut(target, product, form.tile):
            sch.annotate(ni, LOOP_PARTITION, True)
    else:
        _total_per_task(sch, form, tail, outer[1], pieces[0])
        vectorize_last(sch, tail, sch.get_loops(tail)[-1], target)
    tasks = (no,) if plan.bands else outer
    task = sch.fuse(*loops[:batch], *tasks) if batch or len(tasks) > 1 else no
    sch.parallel(task)
    if plan.packs:
        _pack_within(sch, form, pieces[0] if pieces else task, plan.panels)
    else:
        pack(sch, form, batch)
    # Must be last: next to steps that do not divide a sum, a panel would be as long as all of them.
    steps = _write_out(sch, target, product, form.tile, plan, k, width)
    if plan.rows_inside:
        _fetch_next_panel(sch, plan, mi, steps if same_rows else [])


def _operands(sch: Schedule, block: BlockRV, target: Target) -> tuple[Contraction, MicroKernel]:
    """The operands of a contraction and its micro-kernel."""
    facts = _product_of(node(sch, block))
    if facts is None:
        raise ScheduleError(
            "with producers inlined, both operands are the same buffer",
            code="BW340",
            help="keep a copy of one operand: cache_read of it before the strategy, or "
            "schedule the program by the fallback strategy",
        )
    kernel = _kernel(target, node(sch, block), facts)
    if kernel is None:
        raise ScheduleError(
            f"{target.name} has no micro-kernel for the types of block {node(sch, block).name}",
            code="BW340",
            help="cast the operands to one floating-point type before",
        )
    return facts, kernel


def _total_per_task(
    sch: Schedule, form: Canonical, tail: BlockRV, task: LoopRV, pieces: LoopRV
) -> None:
    """Add the partial sums of k-splits to totals of a task, and run the epilogue on these."""
    sch.reverse_compute_at(tail, task)
    clear = sch.decompose_reduction(form.block, pieces)
    for handle in (clear, form.block):
        vector_rows(sch, handle, form.tile.columns)


def _pack_within(sch: Schedule, form: Canonical, at: LoopRV, panels: int) -> None:
    """Pack panels where they are used."""
    sch.compute_at(form.b, at)
    pack_panels(sch, form, inner_loops(sch, form.b, at), panels)


def _shorten_last_tile(
    sch: Schedule, target: Target, product: GemmShape, tile: RegisterTile, tiles: LoopRV
) -> None:
    """For a symbolic m, specialize the tail if the tile was chosen with code for few last rows."""
    if product.rows is not None:
        return
    for one in unknown_rows(target, product):
        if one.tile == tile and one.short:
            sch.annotate(tiles, TAIL_SPECIALIZATION, tile.rows - one.short)


def _write_out(
    sch: Schedule,
    target: Target,
    product: GemmShape,
    tile: RegisterTile,
    plan: GemmPlan,
    k: list[LoopRV],
    width: int | None,
) -> list[LoopRV]:
    """Unroll some reduction steps, or all taps if they are the last of several reduction loops.

    A branch for a few updates costs as much as some of them. Returns the loops that remain.

    Taps are not unrolled where tiles lie within image rows of `width` pixels and fill the
    registers: LLVM would keep each pixel for the neighboring tap that reads it too, and spill the
    sums.
    """
    steps = [loop for loop in k if extent(sch, loop) != 1]
    length = extent(sch, k[-1])
    if len(k) > 1 and length is not None and length * tile.rows * tile.vectors <= _WRITTEN_OUT:
        spare = target.vector_registers - (tile.rows + 1) * tile.vectors - 1
        if spare >= tile.rows or width is None or width % tile.rows:
            sch.unroll(k[-1])
    elif steps:
        shared = plan.rows_inside and plan.row_tiles > 1 and len(steps) == 1
        together = _line_steps(target, tile, product.bits, plan) if shared else 1
        together = max(together, steps_written_out(target, tile))
        steps[-1] = write_out_steps(sch, steps[-1], together)
    return steps


def _fetch_next_panel(sch: Schedule, plan: GemmPlan, tiles: LoopRV, steps: list[LoopRV]) -> None:
    """Prefetch the next panel while this one is used.

    With several row tiles, each tile prefetches a share; with a single one, the panel is prefetched
    along the reduction.

    A redundant prefetch of a line that is in flight may occupy another of the core's few miss
    buffers. So steps that fetch the same line are unrolled, and prefetch it once.
    """
    if plan.row_tiles > 1:
        sch.annotate(tiles, PREFETCH_SHARED, 1)
    elif steps:
        sch.annotate(steps[0], PREFETCH_READ, 1)
    if plan.bands:  # one share per tile: the loop is partitioned accordingly
        sch.annotate(tiles, LOOP_PARTITION, True)


def _line_steps(target: Target, tile: RegisterTile, bits: int, plan: GemmPlan) -> int:
    """Reduction steps in which a row tile prefetches its share of a line of the next panel.

    Fewer when these are too many to unroll.
    """
    lines = math.ceil(tile.columns * bits / 8 / target.caches[0].line)
    return max(1, min(_AT_ONCE, plan.row_tiles // lines))


def _needs_cut(target: Target, product: GemmShape, tile: RegisterTile) -> bool:
    """Whether to peel the last panel, so that the others are stored without masks.

    It pays where masks cost something and few products are summed between two stores.
    """
    columns, depth = product.columns, product.depth
    fits = columns is not None and columns % tile.columns == 0
    return not (fits or target.cheap_predication) and (depth is None or depth < _SHALLOW)


def _product(
    func: ir.PrimFunc, block: ir.Block, facts: Contraction, kernel: MicroKernel
) -> GemmShape:
    """Extents, and the strides of the left operand along the last m and k axes.

    One step of the reduction is a group of the micro-kernel.
    """
    bits = kernel.accumulator.bits
    load = next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is facts.a)
    address = address_of(load, block)
    steps: list[int] = []
    for axes, count in ((facts.m, 1), (facts.k, kernel.group)):
        result = (stride(address, block.iter_vars[p]) for p in axes)
        step = min(result, default=math.inf)
        steps.append(0 if math.isinf(step) else int(step) * count * facts.a.dtype.nbytes)
    batch, rows, columns, depth = (
        extent_of(block, axes) for axes in (facts.batch, facts.m, facts.n, facts.k)
    )
    lengths = [block.iter_vars[p].dom.extent for p in facts.m]
    smallest = math.prod(max(1, symbol_facts(func).const_bounds(n)[0] or 1) for n in lengths)
    return GemmShape(
        batch,
        rows,
        columns,
        None if depth is None else -(-depth // kernel.group),
        *steps,
        bits=bits,
        cold=is_cold(func, facts.b),
        away=is_away(func, facts.b),
        packed=not is_constant(func, facts.b),
        least=smallest,
        each=math.prod(map(_multiple, lengths)),
    )


def _multiple(length: ir.Expr) -> int:
    """A known divisor of a length."""
    if isinstance(length, ir.Mul):
        return _multiple(length.a) * _multiple(length.b)
    return max(1, ir.const_int(length) or 1)


def _cut_depth(
    sch: Schedule, form: Canonical, batch: int, most: int | None, in_pieces: Sequence[Pieces]
) -> BlockRV | None:
    """Split a long reduction so that the panels of each k-split stay in cache.

    Returns the block of the partial sums, in its own nest with the splits outermost; the
    contraction becomes their sum. None when the reduction is short, of unknown length, or divides
    into short splits only, where adding the sums would cost more than fetching whole panels.
    """
    if most is None:
        return None
    loops = sch.get_loops(form.block)
    around, (outer, _) = loops[: batch + 2], form.reduction_loops(loops[batch + 2 :])
    inner, sizes = 1, list[int]()
    while outer:
        length = extent(sch, outer[-1])
        if length is None:
            return None
        if inner * length > most:
            break
        inner *= length
        sizes.insert(0, length)
        outer.pop()
    if not outer:
        return None
    length = extent(sch, outer[-1]) or 1
    result = [d for d in range(1, max(1, most // inner) + 1) if length % d == 0]
    piece = max([d for d in result if cuts_evenly([d, *sizes], in_pieces[-1])] or result)
    if piece * inner * _SHORT < min(most, length * inner):
        return None
    if piece > 1:
        outer[-1], _ = sch.split(outer[-1], [None, piece])
    pieces = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    sch.reorder(pieces, *around)
    return sch.rfactor(pieces, 0)


def _pieces_and_loops(
    sch: Schedule, block: BlockRV, sums: BlockRV | None
) -> tuple[list[LoopRV], list[LoopRV]]:
    """The loop over k-splits, if any, and the other loops of the block."""
    loops = sch.get_loops(block)
    return ([], loops) if sums is None else (loops[:1], loops[1:])


def _sum_of_piece(
    sch: Schedule, form: Canonical, sums: BlockRV, tile_loop: LoopRV, in_pieces: Sequence[Pieces]
) -> list[LoopRV]:
    """Compute a register tile's partial sum where it is added to the result.

    Returns the reduction loops.
    """
    sch.compute_at(sums, tile_loop, preserve_unit_loops=True)
    k, (m, *_) = reduction_outside(sch, sums, tile_loop, form.in_tile)
    return tile_pieces(sch, msgspec.structs.replace(form, block=sums), m, k, *in_pieces)


def pack(sch: Schedule, form: Canonical, batch: int) -> None:
    """Pack panels in parallel; the last panel, which repeats columns, is peeled."""
    own = sch.get_loops(form.b)
    panel = pack_panels(sch, form, own[batch:])
    panel = sch.fuse(*own[:batch], panel) if batch else panel
    sch.annotate(panel, LOOP_PARTITION, True)
    sch.parallel(panel)


STRATEGY = Strategy("gemm", refuses, apply, variants=variants)

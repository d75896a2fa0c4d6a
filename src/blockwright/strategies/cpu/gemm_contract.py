"""Schedule one contraction by a plan: tasks, k-splits, panels, register tiles, epilogue."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from blockwright import ir
from blockwright.ir.annotations import (
    LOOP_PARTITION,
    PREFETCH_READ,
    PREFETCH_SHARED,
    TAIL_SPECIALIZATION,
)
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.gemm_blocking import unknown_rows
from blockwright.strategies.cpu.gemm_canonical import (
    Canonical,
    canonicalize,
    node,
    pack_panels,
    tile_partial_sums,
    unroll_reduction,
    vector_rows,
)
from blockwright.strategies.cpu.gemm_cost import GemmBlocking, GemmShape
from blockwright.strategies.cpu.gemm_plan import ContractionPlan
from blockwright.strategies.cpu.gemm_shape import shape_of
from blockwright.strategies.cpu.inline import extent
from blockwright.strategies.cpu.micro_kernel import named_kernel
from blockwright.strategies.cpu.register_tiling import RegisterTile, reduction_unroll_factor
from blockwright.strategies.cpu.split_k import Pieces, cuts_evenly, reduction_outside
from blockwright.strategies.cpu.vector_loops import inner_loops, vectorize_last
from blockwright.strategies.match.blocks import (
    Contraction,
    extent_of,
    numeric_contraction_of,
    position_of,
)
from blockwright.support import ScheduleError
from blockwright.target import Target

_SHORT = 16  # a k-split is no shorter than this fraction (1/16) of the allowed length
_UNROLLED_UPDATES = 128  # updates up to which the last of several short reduction loops is unrolled
_AT_ONCE = 8  # largest unroll factor of the reduction
_LONG_STEP = 24  # updates of a step that is not unrolled for the sake of prefetches
# Shortest reduction beside which a masked store takes less than a twentieth of the time.
_SHALLOW = 512


def contract(
    sch: Schedule,
    block: BlockRV,
    tail: BlockRV | None,
    target: Target,
    plan: ContractionPlan,
    packed: BlockRV | None = None,
) -> None:
    """Schedule one contraction at the root, with its consumer and producer.

    `tail` is the consumer, `packed` the producer of the packed operand; both are optional.
    """
    facts = operands_of(sch, block)
    sums_type = node(sch, block).writes[0].buffer.dtype
    kernel = named_kernel(target, facts.a.dtype, facts.b.dtype, sums_type, plan.dot)
    product = shape_of(sch.func, node(sch, block), facts, kernel)
    width = extent_of(node(sch, block), facts.m[-1:])
    form = canonicalize(sch, block, tail, target, tile=plan.tile, pieces=plan.sums, kernel=kernel)
    if packed is not None:
        sch.compute_inline(packed)
    if tail is None:
        (tail,) = sch.get_consumers(block)
    batch, blocking = len(facts.batch), plan.blocking
    wide = _widened_panels(sch, form) if blocking.widens else None
    sums = _split_k(sch, form, batch, blocking.depth, plan.sums)
    pieces, loops = _split_and_other_loops(sch, block, sums)
    m0, m1 = sch.split(loops[batch], [None, form.tile.rows])
    n0, n1 = sch.split(loops[batch + 1], [None, form.tile.columns])
    k, inside = form.reduction_loops(loops[batch + 2 :])
    sch.reorder(*loops[:batch], m0, n0, *k, m1, n1, *inside)
    whole = _steps(sch, k)
    k = (
        tile_partial_sums(sch, form, m1, k, *plan.sums)
        if sums is None
        else _partial_sum_at(sch, form, sums, n0, plan.sums)
    )
    ahead = _pieces_ahead(target, product, form.tile, whole, _steps(sch, k))
    # From here on tasks can be cut anywhere: a condition covers whole tiles.
    mo, mi = sch.split(m0, [None, blocking.row_tiles])
    no, ni = sch.split(n0, [None, blocking.panels])
    _shorten_last_tile(sch, target, product, form.tile, mi)
    outer, inner = ((no, mo), (ni, mi)) if blocking.rows_inside else ((mo, no), (mi, ni))
    sch.reorder(*loops[:batch], *outer, *pieces, *inner)
    # The loop around one panel of one product is the loop over tasks; it moves to other rows if
    # rows fall into several tasks.
    same_rows = blocking.panels > 1 or (not batch and extent(sch, mo) == 1)
    if sums is None:
        sch.reverse_compute_at(tail, inner[1])
        vector_rows(sch, tail, form.tile.columns)
        if _needs_cut(target, product, form.tile):
            sch.annotate(ni, LOOP_PARTITION, True)
    else:
        _total_per_task(sch, form, tail, outer[1], pieces[0])
        vectorize_last(sch, tail, sch.get_loops(tail)[-1], target)
    tasks = (no,) if blocking.bands else outer
    task = sch.fuse(*loops[:batch], *tasks) if batch or len(tasks) > 1 else no
    sch.parallel(task)
    if blocking.packs:
        _pack_within(sch, form, pieces[0] if pieces else task, blocking.panels)
    else:
        pack(sch, form, batch)
    _widen_within(sch, form, inner[0], wide)
    # Unroll last: once a non-dividing split has a partial last iteration, the packed panel would
    # be sized for the whole reduction.
    steps = _unroll_steps(sch, target, product, form.tile, blocking, k, width)
    if form.ragged and steps:
        _partition_last_group(sch, steps[-1])
    if blocking.rows_inside and not blocking.widens:
        _fetch_next_panel(sch, blocking, mi, steps if same_rows else [], ahead)


def operands_of(sch: Schedule, block: BlockRV) -> Contraction:
    """The operands of a contraction whose producers are inlined."""
    facts = numeric_contraction_of(node(sch, block))
    if facts is None:
        raise ScheduleError(
            "with producers inlined, both operands are the same buffer",
            code="BW340",
            help="keep a copy of one operand: cache_read of it before the strategy, or "
            "schedule the program by the fallback strategy",
        )
    return facts


def _widened_panels(sch: Schedule, form: Canonical) -> BlockRV:
    """Let the contraction read a copy of the panels in the type of the sums; returns the copy."""
    panel = node(sch, form.b).writes[0].buffer
    copy = sch.cache_read(form.block, position_of(panel, node(sch, form.block).reads), "global")
    sch.widen_dtype(copy, 0, form.kernel.accumulator.name)
    form.kernel = msgspec.structs.replace(form.kernel, b=form.kernel.accumulator)
    return copy


def _widen_within(sch: Schedule, form: Canonical, panel: LoopRV, wide: BlockRV | None) -> None:
    """Widen a panel where it is used, if the plan says so."""
    if wide is not None:
        sch.compute_at(wide, panel)
        vector_rows(sch, wide, form.tile.columns, count=1)


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
    if product.m is not None:
        return
    for one in unknown_rows(target, product):
        if one.tile == tile and one.short:
            sch.annotate(tiles, TAIL_SPECIALIZATION, tile.rows - one.short)


def _unroll_steps(
    sch: Schedule,
    target: Target,
    product: GemmShape,
    tile: RegisterTile,
    plan: GemmBlocking,
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
    if len(k) > 1 and length is not None and length * tile.rows * tile.vectors <= _UNROLLED_UPDATES:
        spare = target.vector_registers - (tile.rows + 1) * tile.vectors - 1
        if spare >= tile.rows or width is None or width % tile.rows:
            sch.unroll(k[-1])
    elif steps:
        shared = plan.rows_inside and not plan.widens and plan.row_tiles > 1 and len(steps) == 1
        together = _line_steps(target, tile, product.bits, plan) if shared else 1
        together = max(together, reduction_unroll_factor(target, tile))
        steps[-1] = unroll_reduction(sch, steps[-1], together)
    return steps


def _partition_last_group(sch: Schedule, steps: LoopRV) -> None:
    """Peel the last steps of the reduction: only they read a partial group, under a mask."""
    loop = sch.get(steps)
    if loop.kind is ir.ForKind.SERIAL and LOOP_PARTITION not in loop.annotations:
        sch.annotate(steps, LOOP_PARTITION, True)


def _pieces_ahead(
    target: Target, product: GemmShape, tile: RegisterTile, panel: int | None, piece: int | None
) -> int:
    """Pieces of a panel, summed one after another, by which a single row tile prefetches.

    `panel` and `piece` are their reduction steps. The next panel begins as many pieces later as a
    panel has. Of a long panel, at most a quarter of the second-level cache is prefetched at a time:
    more would be evicted before it is used.
    """
    if not panel or not piece:
        return 1
    piece_bytes = piece * tile.columns * product.b_bits // 8
    near = target.cache(2).size // 4 // piece_bytes
    return max(1, min(math.ceil(panel / piece), near))


def _fetch_next_panel(
    sch: Schedule, plan: GemmBlocking, tiles: LoopRV, steps: list[LoopRV], ahead: int
) -> None:
    """Prefetch the next panel while this one is used.

    With several row tiles, each tile prefetches a share; with a single one, the panel is prefetched
    along the reduction, `ahead` iterations of the loop around the steps in advance.

    A redundant prefetch of a line that is in flight may occupy another of the core's few miss
    buffers. So steps that fetch the same line are unrolled, and prefetch it once.
    """
    if plan.row_tiles > 1:
        sch.annotate(tiles, PREFETCH_SHARED, 1)
    elif steps:
        sch.annotate(steps[0], PREFETCH_READ, ahead)
    if plan.bands:  # one share per tile: the loop is partitioned accordingly
        sch.annotate(tiles, LOOP_PARTITION, True)


def _line_steps(target: Target, tile: RegisterTile, bits: int, plan: GemmBlocking) -> int:
    """Reduction steps in which a row tile prefetches its share of a line of the next panel.

    Fewer when these are too many to unroll. Beside a long step a repeated prefetch costs little,
    while LLVM may keep all accumulators of two unrolled ones in memory.
    """
    if tile.rows * tile.vectors > _LONG_STEP:
        return 1
    lines = math.ceil(tile.columns * bits / 8 / target.caches[0].line)
    return max(1, min(_AT_ONCE, plan.row_tiles // lines))


def _needs_cut(target: Target, product: GemmShape, tile: RegisterTile) -> bool:
    """Whether to peel the last panel, so that the others are stored without masks.

    It pays where masks cost something and few products are summed between two stores.
    """
    columns, depth = product.n, product.k
    fits = columns is not None and columns % tile.columns == 0
    return not (fits or target.cheap_predication) and (depth is None or depth < _SHALLOW)


def _split_k(
    sch: Schedule, form: Canonical, batch: int, limit: int | None, in_pieces: Sequence[Pieces]
) -> BlockRV | None:
    """Split a long reduction so that the panels of each k-split stay in cache.

    Returns the block of the partial sums, in its own nest with the splits outermost; the
    contraction becomes their sum. None when the reduction is short, of unknown length, or divides
    into short splits only, where adding the sums would cost more than fetching whole panels.
    """
    if limit is None:
        return None
    loops = sch.get_loops(form.block)
    around, (outer, _) = loops[: batch + 2], form.reduction_loops(loops[batch + 2 :])
    inner, sizes = 1, list[int]()
    while outer:
        length = extent(sch, outer[-1])
        if length is None:
            return None
        if inner * length > limit:
            break
        inner *= length
        sizes.insert(0, length)
        outer.pop()
    if not outer:
        return None
    length = extent(sch, outer[-1]) or 1
    result = [d for d in range(1, max(1, limit // inner) + 1) if length % d == 0]
    piece = max([d for d in result if cuts_evenly([d, *sizes], in_pieces[-1])] or result)
    if piece * inner * _SHORT < min(limit, length * inner):
        return None
    if piece > 1:
        outer[-1], _ = sch.split(outer[-1], [None, piece])
    pieces = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    sch.reorder(pieces, *around)
    return sch.rfactor(pieces, 0)


def _split_and_other_loops(
    sch: Schedule, block: BlockRV, sums: BlockRV | None
) -> tuple[list[LoopRV], list[LoopRV]]:
    """The loop over k-splits, if any, and the other loops of the block."""
    loops = sch.get_loops(block)
    return ([], loops) if sums is None else (loops[:1], loops[1:])


def _partial_sum_at(
    sch: Schedule, form: Canonical, sums: BlockRV, tile_loop: LoopRV, in_pieces: Sequence[Pieces]
) -> list[LoopRV]:
    """Compute a register tile's partial sum where it is added to the result.

    Returns the reduction loops.
    """
    sch.compute_at(sums, tile_loop, preserve_unit_loops=True)
    k, (m, *_) = reduction_outside(sch, sums, tile_loop, form.in_tile)
    return tile_partial_sums(sch, msgspec.structs.replace(form, block=sums), m, k, *in_pieces)


def _steps(sch: Schedule, loops: Sequence[LoopRV]) -> int | None:
    """Iterations of a loop nest; None if they are not all known."""
    sizes = [extent(sch, loop) for loop in loops]
    return None if None in sizes else math.prod(size or 0 for size in sizes)


def pack(sch: Schedule, form: Canonical, batch: int) -> None:
    """Pack panels in parallel; the last panel, which repeats columns, is peeled."""
    own = sch.get_loops(form.b)
    panel = pack_panels(sch, form, own[batch:])
    panel = sch.fuse(*own[:batch], panel) if batch else panel
    sch.annotate(panel, LOOP_PARTITION, True)
    sch.parallel(panel)

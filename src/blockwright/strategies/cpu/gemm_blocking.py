"""GEMM blocking and loop order, chosen by the cost model: tasks, panels, k-splits.

A plan is described as a loop nest whose time the cost model estimates; no schedule is built for
that. The search starts from plans that are usually good and changes one decision at a time, so that
it evaluates a few dozen plans instead of thousands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import msgspec

from blockwright.cost import (
    AccessNode,
    BufferNode,
    LoopNode,
    StatementNode,
    around,
    estimate_nest,
    share_out,
)
from blockwright.strategies.cpu.register_tiling import (
    RegisterTile,
    RowTile,
    max_depth,
    panel_chunk,
    register_tiles,
    row_tiles,
)
from blockwright.target import Target

_UNKNOWN = 512  # extent assumed for a symbolic axis
_ROW_TILES = 16  # row tiles per task: enough to hide its start, few enough to balance the load
_TILES = 8  # register tiles that are compared
_SHORTEST = 128  # fewest reduction steps of a k-split
_EVEN = 0.9  # minimum utilization of the threads for parallelizing over panels alone
_TASKS = 8  # tasks per thread when a thread owns its panels
# Upper limit on the ratio of panels in tasks, including padding, to panels that exist.
_FULL = 1.02
# Multiples of the smallest m on which plans are scored when m is symbolic.
_UNKNOWN_ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
# Factor on the seconds of the best balanced plan; within it, longer tasks are preferred.
_AS_EVEN = 1.01
# Share of the first-level cache for rows of A; the streamed operand uses the rest.
_SHARE_OF_ROWS = 0.75
_RUN = 128  # bytes of a row of B, two lines, from which packing a part of it pays
# Size of A, in second-level caches, from which A is expected in the last level or in DRAM.
_FAR = 4
# A plan is preferred if it needs less than this share of the time; less is model error.
_BETTER = 0.97


class GemmShape(msgspec.Struct, frozen=True):
    """Extents of `C[b, m, n] += A[b, m, k] * B[b, n, k]`; None for symbolic ones.

    Attributes:
        batch, m, n, k: extents, each the product over its axes. A step of k is a group of the
            micro-kernel.
        m_stride, k_stride: strides of A along m and k, in bytes.
        bits: of an accumulator, and of the group of elements that one lane multiplies per step.
        uncached: whether B is in no cache at entry.
        outside_private_cache: whether B is in no private cache (L1, L2) at entry.
        packed: whether B is packed into panels at every call; otherwise it is packed already.
        min_m, m_multiple: smallest value and a divisor of a symbolic m.
    """

    batch: int | None
    m: int | None
    n: int | None
    k: int | None
    m_stride: int
    k_stride: int
    bits: int = 32
    uncached: bool = False
    outside_private_cache: bool = False
    packed: bool = False
    min_m: int = 1
    m_multiple: int = 1


class GemmBlocking(msgspec.Struct, frozen=True):
    """Blocking and loop order of a GEMM.

    Attributes:
        row_tiles, panels: register tiles along m, and panels of B, per task.
        depth: reduction steps that are summed in registers before they are added to the result;
            None for all.
        rows_inside: whether the loop over row tiles is inside the loop over panels, so that a panel
            is used for all rows of a task before the next one; otherwise a row tile is
            multiplied with all panels first.
        bands: whether a task covers all rows, in bands of `row_tiles` tiles per pass over its
            panels; otherwise tasks have `row_tiles` tiles.
        packs: whether a task packs the panels that it uses, as many as it uses at a time; otherwise
            all threads pack all panels before.
    """

    row_tiles: int
    panels: int
    depth: int | None = None
    rows_inside: bool = False
    bands: bool = False
    packs: bool = False


@lru_cache(maxsize=1024)
def gemm_tile(target: Target, product: GemmShape) -> RegisterTile:
    """The register tile with the highest throughput, or one nearly as good of lower cost.

    The cost model may prefer another tile, for example when rows of A evict each other from the
    first-level cache.
    """
    if product.m is None:
        return unknown_rows(target, product)[0].tile
    tiles = _tiles_within(target, product)
    if product.n is None or product.k is None:
        return tiles[0]
    best, smallest = tiles[0], math.inf
    for tile in tiles[:_TILES]:
        seconds = plan_seconds(target, product, tile, _starts(target, product, tile)[0])
        if seconds < smallest * _BETTER:
            best, smallest = tile, seconds
    if best is not tiles[0]:  # perhaps better only for the plans that the search starts from
        first, other = (_best_plan(target, product, tile)[1] for tile in (tiles[0], best))
        best = best if other < first * _BETTER else tiles[0]
    return best


def _tiles_within(target: Target, product: GemmShape) -> list[RegisterTile]:
    """Register tiles that are no higher than the result, the one with the best throughput first."""
    assert product.m is not None
    step = max(1, product.m_stride)
    limit = min(16, product.m)
    return register_tiles(target, product.m, product.n, product.bits, step, limit)


def unknown_rows(target: Target, product: GemmShape) -> tuple[RowTile, ...]:
    """The register tile for a symbolic m, and other tiles for some of its values."""
    step = max(1, product.m_stride)
    return row_tiles(
        target, product.min_m, product.n, product.bits, step, product.uncached, product.m_multiple
    )


@lru_cache(maxsize=1024)
def gemm_blocking(target: Target, product: GemmShape, tile: RegisterTile) -> GemmBlocking:
    """The plan with the lowest estimated time.

    For symbolic extents, a plan that suits small and large ones.
    """
    starts = _starts(target, product, tile)
    if product.n is None or product.k is None:
        return starts[0]
    if product.m is None:
        return starts[0] if starts[0].bands else _in_even_tasks(target, product, tile, starts[0])
    packing = _packing(target, product, tile) if product.packed else None
    return packing or _best_plan(target, product, tile)[0]


@lru_cache(maxsize=1024)
def _best_plan(
    target: Target, product: GemmShape, tile: RegisterTile
) -> tuple[GemmBlocking, float]:
    """The best plan found from all start plans, and its estimated seconds."""
    starts = _starts(target, product, tile)
    best, smallest = starts[0], math.inf
    for start in starts:
        plan, seconds = _improved(target, product, tile, start)
        if seconds < smallest * _BETTER:
            best, smallest = plan, seconds
    return best, smallest


def ranked_blockings(target: Target, product: GemmShape) -> list[tuple[RegisterTile, GemmBlocking]]:
    """Register tiles and blockings near the best ones, the fastest by the cost model first.

    Empty unless all extents are known.
    """
    if None in (product.m, product.n, product.k):
        return []
    tiles = _tiles_within(target, product)
    seconds: dict[tuple[RegisterTile, GemmBlocking], float] = {}
    for tile in tiles[:_TILES]:
        best = gemm_blocking(target, product, tile)
        near = () if best.packs else _near(best, product, tile)
        for blocking in (best, *near):
            seconds[tile, blocking] = plan_seconds(target, product, tile, blocking)
    return sorted(seconds, key=lambda choice: seconds[choice])


def _starts(target: Target, product: GemmShape, tile: RegisterTile) -> list[GemmBlocking]:
    """Plans that the search starts from, the preferred one first.

    If A fits in half of the second-level cache, streaming it once per panel is free, and stalls on
    panels, which are read from DRAM or the last-level cache, are shortest, even when other programs
    share the caches. Otherwise A is blocked along m into bands that stay in that cache while all
    panels of a task are used. If A is much larger than B, A is streamed once: every further pass
    would read DRAM, and results would be written in strips as narrow as the panels of a task.
    """
    plain = _start(target, product, tile)
    if product.n is None or product.k is None:
        return [plain]
    size = (product.batch or 1) * product.n * product.k * product.bits // 8
    near = size <= target.caches[-1].size // 3 and not product.uncached
    banded = _by_bands(target, product, tile)
    if product.m is None:
        far = product.uncached or (
            product.outside_private_cache and size > target.cache(2).size // 2
        )
        flat = product.min_m <= product.n
        return [banded if banded is not None and flat and (far or not near) else plain]
    moved = product.m * product.k * product.bits // 8
    few = moved <= target.cache(2).size // 2
    if moved > max(_FAR * target.cache(2).size, 2 * size) and size <= target.caches[-1].size // 3:
        return [plain]
    if near:
        if not product.outside_private_cache:
            return [plain]
        if few:
            return [_in_turn(target, product, tile), plain]
        return [plain] if banded is None or size <= target.cache(2).size // 2 else [banded, plain]
    in_turn = _in_turn(target, product, tile)
    if few:
        return [in_turn] if product.uncached else [in_turn, plain]
    if product.uncached and banded is not None:
        return [banded, plain, in_turn]
    if product.uncached or not _is_far(target, product):
        return [plain, in_turn]
    return [_once(target, product, tile), plain, in_turn]


def _in_even_tasks(
    target: Target, product: GemmShape, tile: RegisterTile, start: GemmBlocking
) -> GemmBlocking:
    """For a symbolic m, choose the longest tasks that balance the load about as well as any.

    Candidates are the start plan's task length and its repeated halves, scored on likely values of
    m.
    """
    smallest = math.ceil(max(product.min_m, tile.rows) / product.m_multiple) * product.m_multiple
    seconds: dict[GemmBlocking, float] = {}
    tiles = start.row_tiles
    while tiles:
        plan = msgspec.structs.replace(start, row_tiles=tiles)
        seconds[plan] = sum(
            _seconds_for(target, product, tile, plan, smallest * count) for count in _UNKNOWN_ROWS
        )
        tiles //= 2
    enough = min(seconds.values()) * _AS_EVEN
    return next(plan for plan, needed in seconds.items() if needed <= enough)


def _seconds_for(
    target: Target, product: GemmShape, tile: RegisterTile, plan: GemmBlocking, rows: int
) -> float:
    """Estimated seconds per row if m is `rows`."""
    known = msgspec.structs.replace(product, m=rows)
    tiles = min(plan.row_tiles, math.ceil(rows / tile.rows))
    plan = msgspec.structs.replace(plan, row_tiles=tiles)
    return plan_seconds(target, known, tile, plan) / rows


def _improved(
    target: Target, product: GemmShape, tile: RegisterTile, start: GemmBlocking
) -> tuple[GemmBlocking, float]:
    """A plan that no single change improves, and its estimated seconds (hill climbing)."""
    best, smallest = start, plan_seconds(target, product, tile, start)
    changed = True
    while changed:
        changed = False
        for plan in _near(best, product, tile):
            seconds = plan_seconds(target, product, tile, plan)
            if seconds < smallest * _BETTER:
                best, smallest, changed = plan, seconds, True
    return best, smallest


def _in_turn(target: Target, product: GemmShape, tile: RegisterTile) -> GemmBlocking:
    """Use every panel for all rows of a task before the next one; each thread owns its panels.

    Each panel is read from DRAM once, while the other threads compute.
    """
    rows, columns = _tiles(product, tile)
    batch = product.batch or 1
    share = math.ceil(columns * batch / target.num_threads)
    return GemmBlocking(rows, _portion(share, columns if batch > 1 else share), rows_inside=True)


def _portion(share: int, whole: int) -> int:
    """Panels per task, of those that a thread owns: about an eighth.

    Other threads can then steal tasks from a descheduled thread. All threads have the same number
    of tasks, and `whole` panels fall into tasks about evenly.
    """
    largest = min(whole, math.ceil(share / _TASKS))
    return max(p for p in range(1, largest + 1) if math.ceil(whole / p) * p <= whole * _FULL)


def _by_bands(target: Target, product: GemmShape, tile: RegisterTile) -> GemmBlocking | None:
    """As `_in_turn`, for bands of rows that stay in half of the second-level cache.

    Bands may be a little smaller, so that all rows (or the smallest m, if symbolic) fall into equal
    bands. None when there are too few panels to distribute among the threads, or for a batched
    product with known m.
    """
    assert product.k is not None
    rows, columns = _tiles(product, tile)
    if product.m is not None and product.batch != 1:
        return None
    share = math.ceil(columns / target.num_threads)
    if columns < _EVEN * share * target.num_threads:
        return None
    row = product.k * product.bits // 8
    row_tiles = max(1, target.cache(2).size // 2 // row // tile.rows)
    unknown = product.m is None
    smallest = math.ceil(product.min_m / tile.rows) if unknown else rows
    if smallest > row_tiles:
        row_tiles = math.ceil(smallest / math.ceil(smallest / row_tiles))
    return GemmBlocking(row_tiles, _portion(share, share), rows_inside=True, bands=unknown)


def _is_far(target: Target, product: GemmShape) -> bool:
    """Whether B exceeds its share (a third) of the last-level cache, so that reuse misses it."""
    assert product.n is not None
    assert product.k is not None
    size = (product.batch or 1) * product.n * product.k * product.bits // 8
    return size > target.caches[-1].size // 3


def _once(target: Target, product: GemmShape, tile: RegisterTile) -> GemmBlocking:
    """A task covers all rows, and the panels that half of the second-level cache holds.

    Each panel is fetched there once. A panel that is larger is split along k.
    """
    assert product.k is not None
    rows, columns = _tiles(product, tile)
    step, largest = tile.columns * product.bits // 8, target.cache(2).size // 2
    cuts = _cuts(product.k)
    pieces = next((p for p in cuts if product.k // p * step <= largest), cuts[-1])
    depth = product.k // pieces
    share = math.ceil(columns * (product.batch or 1) / target.num_threads)
    panels = max(1, min(largest // (depth * step), share, columns))
    return GemmBlocking(rows, panels, depth if pieces > 1 else None)


def _packing(target: Target, product: GemmShape, tile: RegisterTile) -> GemmBlocking | None:
    """A task covers all rows and packs a few panels into half of the second-level cache.

    It packs one k-split at a time, short enough that a row tile stays in the first-level cache
    across these panels. None for a B that is near, and when there are too few panels to distribute.
    """
    if not _is_far(target, product):
        return None
    assert product.k is not None
    size, batch = product.bits // 8, product.batch or 1
    rows, columns = _tiles(product, tile)
    longest = int(target.cache(1).size * _SHARE_OF_ROWS) // (tile.rows * size)
    best, largest = None, 0
    for pieces in _cuts(product.k):
        depth = product.k // pieces
        for panels in range(1, target.cache(2).size // 2 // (depth * tile.columns * size) + 1):
            if depth > longest or columns % panels or panels * tile.columns * size < _RUN:
                continue
            even = math.ceil(batch * (columns // panels) / target.num_threads) * target.num_threads
            if batch * (columns // panels) >= _EVEN * even and depth * panels > largest:
                largest = depth * panels
                best = GemmBlocking(rows, panels, depth if pieces > 1 else None, packs=True)
    return best


def _start(target: Target, product: GemmShape, tile: RegisterTile) -> GemmBlocking:
    """The start plan, by closed formulas.

    While B fits in a third of the last-level cache, every row tile is multiplied with all panels:
    long streams are prefetched in time, and a row tile is fetched once. Otherwise, and when there
    are too few tasks along m, a task has the panels that half of the second-level cache holds. A
    long reduction is split so that a panel fills a quarter of that cache.
    """
    panels = panel_chunk(target, tile, product.k, product.n, product.bits)
    row_tiles = _ROW_TILES
    if product.k is None or product.n is None:
        rows, columns = _tiles(product, tile)
        if product.m is not None:
            row_tiles = min(row_tiles, rows)
        if product.n is not None:
            panels = min(panels, columns)
        return GemmBlocking(row_tiles, panels)
    rows, columns = _tiles(product, tile)
    if product.m is None:
        rows = math.ceil(product.min_m / tile.rows)
    else:
        row_tiles = min(row_tiles, rows)
    batch = product.batch or 1
    size = batch * columns * tile.columns * product.k * product.bits // 8
    tasks = batch * math.ceil(rows / row_tiles)
    if size <= target.caches[-1].size // 3 and tasks >= target.num_threads:
        panels = columns
    if product.m is None:
        # With a symbolic m, sums would be kept for all rows: no task has a part of its own.
        return GemmBlocking(row_tiles, panels)
    largest = max_depth(target, tile, product.bits)
    pieces = next((p for p in _cuts(product.k) if product.k // p <= largest), 1)
    return GemmBlocking(row_tiles, panels, product.k // pieces if pieces > 1 else None)


def _cuts(depth: int) -> list[int]:
    """Numbers of equal k-splits; splits shorter than `_SHORTEST` do not pay for their sums."""
    return [p for p in range(1, depth // _SHORTEST + 1) if depth % p == 0] or [1]


def _near(plan: GemmBlocking, product: GemmShape, tile: RegisterTile) -> Iterator[GemmBlocking]:
    """Plans that differ in one decision."""
    rows, columns = _tiles(product, tile)
    change = msgspec.structs.replace
    once = plan.rows_inside and plan.row_tiles == rows
    far = product.uncached or product.outside_private_cache
    if not (far and once):  # otherwise panels would be fetched from L3 or DRAM again
        yield change(plan, rows_inside=not plan.rows_inside)
        for count in _parts(rows, plan.row_tiles):
            yield change(plan, row_tiles=count)
    for panels in _parts(columns, plan.panels):
        yield change(plan, panels=panels)
    depth = product.k or _UNKNOWN
    cuts = _cuts(depth)
    at = cuts.index(depth // (plan.depth or depth))
    for pieces in (*cuts[max(0, at - 1) : at], *cuts[at + 1 : at + 2]):
        yield change(plan, depth=depth // pieces if pieces > 1 else None)


def _parts(extent: int, now: int) -> list[int]:
    """Sizes of nearly equal parts: half as many, one fewer, one more, twice as many."""
    parts = math.ceil(extent / now)
    counts = {max(1, parts // 2), max(1, parts - 1), parts + 1, parts * 2}
    sizes = {math.ceil(extent / count) for count in counts if count <= extent}
    return sorted(sizes - {now}, reverse=True)


def _tiles(product: GemmShape, tile: RegisterTile) -> tuple[int, int]:
    rows = math.ceil((product.m or _UNKNOWN) / tile.rows)
    return rows, math.ceil((product.n or _UNKNOWN) / tile.columns)


def plan_seconds(
    target: Target, product: GemmShape, tile: RegisterTile, plan: GemmBlocking
) -> float:
    """Seconds of a plan, estimated by the cost model."""
    return estimate_nest([_nest(target, product, tile, plan)], target).seconds


class _Axis(msgspec.Struct):
    """Loops over tiles along m or n: the loop over tasks, and the one within a task."""

    outer: LoopNode
    inner: LoopNode

    def moves(self, step: float) -> dict[LoopNode, float]:
        """Strides of an operand that moves by `step` bytes per tile, by loop."""
        return {self.outer: step * self.inner.count, self.inner: step}


class _Operand(msgspec.Struct):
    """A register tile's operand: strides in bytes by loop, by row and by column."""

    storage: BufferNode
    moves: dict[LoopNode, float]
    by_row: float
    by_column: float


def _nest(target: Target, product: GemmShape, tile: RegisterTile, plan: GemmBlocking) -> LoopNode:
    """The loop nest that the strategy builds for a plan, without packing B."""
    size = product.bits // 8
    depth = product.k or _UNKNOWN
    row_tiles, panels = _tiles(product, tile)
    m = _Axis(LoopNode(row_tiles / plan.row_tiles, "parallel"), LoopNode(plan.row_tiles))
    n = _Axis(LoopNode(panels / plan.panels, "parallel"), LoopNode(plan.panels))
    batch = LoopNode(product.batch or 1, "parallel")
    pieces = math.ceil(depth / plan.depth) if plan.depth else 1
    piece, step = LoopNode(pieces), LoopNode(depth / pieces)
    panel, rows = tile.columns * size, row_tiles * tile.rows
    width, count = panels * panel, batch.count
    a = _Operand(
        BufferNode("A", depth * rows * size * count),
        {
            batch: depth * rows * size,
            **m.moves(tile.rows * product.m_stride),
            piece: step.count * product.k_stride,
            step: product.k_stride,
        },
        product.m_stride,
        0,
    )
    b = _Operand(
        BufferNode("B", depth * width * count, uncached=product.uncached),
        {batch: depth * width, **n.moves(depth * panel), piece: step.count * panel, step: panel},
        0,
        size,
    )
    c = _Operand(
        BufferNode("C", rows * width * count),
        {batch: rows * width, **m.moves(tile.rows * width), **n.moves(panel)},
        width,
        size,
    )
    sums = _Operand(BufferNode("sums", tile.rows * panel, registers=True), {}, panel, size)
    step.body = [_each(tile, size, sums, sums, a, b)]
    body: list[LoopNode | StatementNode] = [_each(tile, size, sums), step]
    body.append(_each(tile, size, c, sums, c) if pieces > 1 else _each(tile, size, c, sums))
    first, second = (n, m) if plan.rows_inside else (m, n)
    tasks = [batch, first.outer, second.outer]
    share_out(tasks, target.num_threads)
    inside = [*tasks[1:], piece, first.inner, second.inner]
    around([batch, *(loop for loop in inside if loop.count > 1)], body)
    return batch


def _each(tile: RegisterTile, size: int, stored: _Operand, *loaded: _Operand) -> LoopNode:
    """One statement over all elements of a register tile."""
    row, column = LoopNode(tile.rows, "unrolled"), LoopNode(tile.columns, "lanes")

    def access(operand: _Operand, is_store: bool) -> AccessNode:
        inside = {row: operand.by_row, column: operand.by_column}
        moves = operand.moves | {loop: step for loop, step in inside.items() if step}
        return AccessNode(operand.storage, moves, size, stored=is_store)

    accesses = (access(stored, True), *(access(operand, False) for operand in loaded))
    column.body = [StatementNode(accesses, 1, stored in loaded, width=size)]
    row.body = [column]
    return row

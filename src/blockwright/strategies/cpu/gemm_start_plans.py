"""Blockings from which the search for the best GEMM blocking starts.

Each suits one relation between the sizes of A and B and the caches.
"""

from __future__ import annotations

import math

import msgspec

from blockwright.strategies.cpu.gemm_cost import UNKNOWN_EXTENT, GemmBlocking, GemmShape, tiles_of
from blockwright.strategies.cpu.register_tiling import (
    RegisterTile,
    max_depth,
    panel_chunk,
)
from blockwright.target import Target

_ROW_TILES = 16  # row tiles per task: enough to hide its start, few enough to balance the load
_SHORTEST = 128  # fewest reduction steps of a k-split
_EVEN = 0.9  # minimum utilization of the threads for parallelizing over panels alone
_TASKS = 8  # tasks per thread when a thread owns its panels
# Upper limit on the ratio of panels in tasks, including padding, to panels that exist.
_FULL = 1.02
# Share of the first-level cache for rows of A; the streamed operand uses the rest.
_SHARE_OF_ROWS = 0.75
_RUN = 128  # bytes of a row of B, two lines, from which packing a part of it pays
# Size of A, in second-level caches, from which A is expected in the last level or in DRAM.
_FAR = 4


def start_plans(target: Target, product: GemmShape, tile: RegisterTile) -> list[GemmBlocking]:
    """Plans that the search starts from, the preferred one first.

    Panels of bfloat16 may be widened by each task, once for all its rows.
    """
    if product.unit:
        return _near_panels(target, product, tile)
    starts = _start_plans(target, product, tile)
    known = None not in (product.m, product.n, product.k)
    if not (product.shifts and known) or product.packed:
        return starts
    own = [plan for plan in starts if plan.rows_inside and not plan.bands]
    own = own or [_panel_stationary(target, product, tile)]
    return starts + [msgspec.structs.replace(plan, depth=None, widens=True) for plan in own]


def _near_panels(target: Target, product: GemmShape, tile: RegisterTile) -> list[GemmBlocking]:
    """Tasks whose panels fill half of the second-level cache, and whose rows a quarter of it.

    A matrix unit needs a line of each operand every few cycles, which no further cache supplies.
    Panels that are not near are each used for all rows of a task, while the next one is prefetched.
    """
    step = (product.k or UNKNOWN_EXTENT) * product.bits // 8
    cache = target.cache(2).size
    rows, columns = tiles_of(product, tile)
    row_tiles, panels = (
        math.ceil(count / math.ceil(count / max(1, cache // part // (extent * step))))
        for count, extent, part in ((rows, tile.rows, 4), (columns, tile.columns, 2))
    )
    far = product.uncached or product.outside_private_cache
    orders = (True,) if far else (False, True)
    return [GemmBlocking(row_tiles, panels, rows_inside=inside) for inside in orders]


def _start_plans(target: Target, product: GemmShape, tile: RegisterTile) -> list[GemmBlocking]:
    """Start plans that read panels as they are.

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
    banded = _row_bands(target, product, tile)
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
            return [_panel_stationary(target, product, tile), plain]
        return [plain] if banded is None or size <= target.cache(2).size // 2 else [banded, plain]
    stationary = _panel_stationary(target, product, tile)
    if few:
        return [stationary] if product.uncached else [stationary, plain]
    if product.uncached and banded is not None:
        return [banded, plain, stationary]
    if product.uncached or not _exceeds_last_level(target, product):
        return [plain, stationary]
    return [_panels_in_l2(target, product, tile), plain, stationary]


def _panel_stationary(target: Target, product: GemmShape, tile: RegisterTile) -> GemmBlocking:
    """Use every panel for all rows of a task before the next one; each thread owns its panels.

    Each panel is read from DRAM once, while the other threads compute.
    """
    rows, columns = tiles_of(product, tile)
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


def _row_bands(target: Target, product: GemmShape, tile: RegisterTile) -> GemmBlocking | None:
    """As `_panel_stationary`, for bands of rows that stay in half of the second-level cache.

    Bands may be a little smaller, so that all rows (or the smallest m, if symbolic) fall into equal
    bands. None when there are too few panels to distribute among the threads, or for a batched
    product with known m.
    """
    assert product.k is not None
    rows, columns = tiles_of(product, tile)
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


def _exceeds_last_level(target: Target, product: GemmShape) -> bool:
    """Whether B exceeds its share (a third) of the last-level cache, so that reuse misses it."""
    assert product.n is not None
    assert product.k is not None
    size = (product.batch or 1) * product.n * product.k * product.bits // 8
    return size > target.caches[-1].size // 3


def _panels_in_l2(target: Target, product: GemmShape, tile: RegisterTile) -> GemmBlocking:
    """A task covers all rows, and the panels that half of the second-level cache holds.

    Each panel is fetched there once. A panel that is larger is split along k.
    """
    assert product.k is not None
    rows, columns = tiles_of(product, tile)
    step, largest = tile.columns * product.bits // 8, target.cache(2).size // 2
    cuts = cuts_of(product.k)
    pieces = next((p for p in cuts if product.k // p * step <= largest), cuts[-1])
    depth = product.k // pieces
    share = math.ceil(columns * (product.batch or 1) / target.num_threads)
    panels = max(1, min(largest // (depth * step), share, columns))
    return GemmBlocking(rows, panels, depth if pieces > 1 else None)


def packing_blocking(target: Target, product: GemmShape, tile: RegisterTile) -> GemmBlocking | None:
    """A task covers all rows and packs a few panels into half of the second-level cache.

    It packs one k-split at a time, short enough that a row tile stays in the first-level cache
    across these panels. None for a B that is near, and when there are too few panels to distribute.
    """
    if not _exceeds_last_level(target, product):
        return None
    assert product.k is not None
    size, batch = product.bits // 8, product.batch or 1
    rows, columns = tiles_of(product, tile)
    longest = int(target.cache(1).size * _SHARE_OF_ROWS) // (tile.rows * size)
    best, largest = None, 0
    for pieces in cuts_of(product.k):
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
        rows, columns = tiles_of(product, tile)
        if product.m is not None:
            row_tiles = min(row_tiles, rows)
        if product.n is not None:
            panels = min(panels, columns)
        return GemmBlocking(row_tiles, panels)
    rows, columns = tiles_of(product, tile)
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
    pieces = next((p for p in cuts_of(product.k) if product.k // p <= largest), 1)
    return GemmBlocking(row_tiles, panels, product.k // pieces if pieces > 1 else None)


def cuts_of(depth: int) -> list[int]:
    """Numbers of equal k-splits; splits shorter than `_SHORTEST` do not pay for their sums."""
    return [p for p in range(1, depth // _SHORTEST + 1) if depth % p == 0] or [1]

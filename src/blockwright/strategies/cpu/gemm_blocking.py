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

from blockwright.strategies.cpu.gemm_cost import (
    UNKNOWN_EXTENT,
    GemmBlocking,
    GemmShape,
    plan_estimate,
    plan_seconds,
    tiles_of,
)
from blockwright.strategies.cpu.gemm_start_plans import cuts_of, packing_blocking, start_plans
from blockwright.strategies.cpu.register_tiling import (
    RegisterTile,
    RowTile,
    register_tiles,
    row_tiles,
)
from blockwright.target import Target

_TILES = 8  # register tiles that are compared
_EDGE = 16  # rows and columns of sums in a tile register
# Multiples of the smallest m on which plans are scored when m is symbolic.
_UNKNOWN_ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
# Factor on the seconds of the best balanced plan; within it, longer tasks are preferred.
_AS_EVEN = 1.01
# A plan is preferred if it needs less than this share of the time; less is model error.
_BETTER = 0.97
# The same for register tiles whose time is that of reading B: they differ in how much they pad it.
_LESS_READ = 0.99


@lru_cache(maxsize=1024)
def gemm_tile(target: Target, product: GemmShape) -> RegisterTile:
    """The register tile with the highest throughput, or one nearly as good of lower cost.

    The cost model may prefer another tile, for example when rows of A evict each other from the
    first-level cache.
    """
    if product.unit:
        return matrix_tile(product)
    if product.m is None:
        return unknown_rows(target, product)[0].tile
    tiles = _tiles_within(target, product)
    if product.n is None or product.k is None:
        return tiles[0]
    best, smallest, margin = tiles[0], math.inf, _BETTER
    for tile in tiles[:_TILES]:
        found = plan_estimate(target, product, tile, start_plans(target, product, tile)[0])
        better = _LESS_READ if found.limits == "memory" else _BETTER
        if found.seconds < smallest * better:
            best, smallest, margin = tile, found.seconds, better
    if best is not tiles[0]:  # perhaps better only for the plans that the search starts from
        first, other = (_best_plan(target, product, tile)[1] for tile in (tiles[0], best))
        best = best if other < first * margin else tiles[0]
    if product.shifts:  # perhaps better if tasks widen the panels
        wide = gemm_tile(target, msgspec.structs.replace(product, shifts=0))
        best = min(best, wide, key=lambda tile: _best_plan(target, product, tile)[1])
    return best


def matrix_tile(product: GemmShape) -> RegisterTile:
    """Two tiles of 16 along m and along n, or one where the result is no larger."""
    rows, columns = (
        _EDGE if extent is not None and extent <= _EDGE else 2 * _EDGE
        for extent in (product.m, product.n)
    )
    return RegisterTile(rows, columns, _EDGE)


def _tiles_within(target: Target, product: GemmShape) -> list[RegisterTile]:
    """Register tiles that are no higher than the result, the one with the best throughput first."""
    assert product.m is not None
    step = max(1, product.m_stride)
    limit = min(16, product.m)
    return register_tiles(target, product.m, product.n, product.bits, step, limit, product.shifts)


def unknown_rows(target: Target, product: GemmShape) -> tuple[RowTile, ...]:
    """The register tile for a symbolic m, and other tiles for some of its values."""
    step = max(1, product.m_stride)
    return row_tiles(
        target,
        product.min_m,
        product.n,
        product.bits,
        step,
        product.uncached,
        product.m_multiple,
        product.b_bits,
        product.shifts,
    )


@lru_cache(maxsize=1024)
def gemm_blocking(target: Target, product: GemmShape, tile: RegisterTile) -> GemmBlocking:
    """The plan with the lowest estimated time.

    For symbolic extents, a plan that suits small and large ones.
    """
    starts = start_plans(target, product, tile)
    if product.n is None or product.k is None:
        return starts[0]
    if product.m is None:
        return starts[0] if starts[0].bands else _in_even_tasks(target, product, tile, starts[0])
    packs = product.packed and not product.unit
    packed = packing_blocking(target, product, tile) if packs else None
    return packed or _best_plan(target, product, tile)[0]


@lru_cache(maxsize=1024)
def _best_plan(
    target: Target, product: GemmShape, tile: RegisterTile
) -> tuple[GemmBlocking, float]:
    """The best plan found from all start plans, and its estimated seconds."""
    starts = start_plans(target, product, tile)
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
    tiles = [matrix_tile(product)] if product.unit else _tiles_within(target, product)
    seconds: dict[tuple[RegisterTile, GemmBlocking], float] = {}
    for tile in tiles[:_TILES]:
        best = gemm_blocking(target, product, tile)
        near = () if best.packs else _near(best, product, tile)
        for blocking in (best, *near):
            seconds[tile, blocking] = plan_seconds(target, product, tile, blocking)
    return sorted(seconds, key=lambda choice: seconds[choice])


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


def _near(plan: GemmBlocking, product: GemmShape, tile: RegisterTile) -> Iterator[GemmBlocking]:
    """Plans that differ in one decision."""
    rows, columns = tiles_of(product, tile)
    change = msgspec.structs.replace
    once = plan.rows_inside and plan.row_tiles == rows
    far = product.uncached or product.outside_private_cache
    if not (far and once):  # otherwise panels would be fetched from L3 or DRAM again
        if not plan.widens:
            yield change(plan, rows_inside=not plan.rows_inside)
        for count in _parts(rows, plan.row_tiles):
            yield change(plan, row_tiles=count)
    for panels in _parts(columns, plan.panels):
        yield change(plan, panels=panels)
    # Adding partial sums takes longer than reading whole panels from L2, and tiles are not split.
    if plan.widens or product.unit:
        return
    depth = product.k or UNKNOWN_EXTENT
    cuts = cuts_of(depth)
    at = cuts.index(depth // (plan.depth or depth))
    for pieces in (*cuts[max(0, at - 1) : at], *cuts[at + 1 : at + 2]):
        yield change(plan, depth=depth // pieces if pieces > 1 else None)


def _parts(extent: int, now: int) -> list[int]:
    """Sizes of nearly equal parts: half as many, one fewer, one more, twice as many."""
    parts = math.ceil(extent / now)
    counts = {max(1, parts // 2), max(1, parts - 1), parts + 1, parts * 2}
    sizes = {math.ceil(extent / count) for count in counts if count <= extent}
    return sorted(sizes - {now}, reverse=True)

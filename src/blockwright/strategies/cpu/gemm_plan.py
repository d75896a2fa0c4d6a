"""The analytic choice of how a matrix product is passed: tasks, panels, order, pieces.

A plan is written down as a nest and the cost model says what it takes; nothing is scheduled for
that. Plans are compared from a start that usually is good, one decision at a time, so that a few
dozen are looked at and not thousands.
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
    most_depth,
    panel_chunk,
    register_tiles,
    row_tiles,
)
from blockwright.target import Target

_UNKNOWN = 512  # taken for an extent that is a symbol
_ROW_TILES = 16  # of a task: enough to hide its start, few enough to share work evenly
_TILES = 8  # register tiles that are compared
_SHORTEST = 128  # steps of a piece of the reduction
_EVEN = 0.9  # of the threads' time, that is worked in where panels are all that is shared out
_TASKS = 8  # of a thread, where it has panels for its own
_FULL = 1.02  # times the panels that there are, from which tasks of as many leave too many out
_UNKNOWN_ROWS = (1, 2, 3, 4, 6, 8, 12, 16)  # times the least number, to try plans on
_AS_EVEN = 1.01  # times the seconds of the plan that shares work best: longer tasks cost less
_SHARE_OF_ROWS = 0.75  # of the first cache, that rows of A may take beside what passes
_RUN = 128  # bytes of a row of B, two lines, from which packing a part of it pays
_FAR = 4  # times the second cache, from which A is expected to be in the last one or further away
_BETTER = 0.97  # of the time, that a plan must take to be preferred: less is the model's error


class GemmShape(msgspec.Struct, frozen=True):
    """Extents of `C[b, m, n] += A[b, m, k] * B[b, n, k]`; None where they are symbols.

    Attributes:
        batch, rows, columns, depth: extents, each of all axes of its kind.
        row_step, depth_step: bytes from an element of A to the next row's and the next step's.
        bits: of an element.
        cold: whether B is in no cache when the product begins.
        away: whether it is in none of those that a core has for itself.
        packed: whether B is laid out in panels at every call; else they are there.
        least, each: number of rows, and what it is a multiple of, where it is not known.
    """

    batch: int | None
    rows: int | None
    columns: int | None
    depth: int | None
    row_step: int
    depth_step: int
    bits: int = 32
    cold: bool = False
    away: bool = False
    packed: bool = False
    least: int = 1
    each: int = 1


class GemmPlan(msgspec.Struct, frozen=True):
    """How a product is passed.

    Attributes:
        row_tiles, panels: register tiles along the rows, and panels of B, of a task.
        depth: steps of the reduction that are summed in registers before they are added to the
            result; None for all.
        rows_inside: whether a panel is used for all rows of a task before the next one is; else a
            tile of rows meets all panels before the next tile.
        bands: whether a task takes all rows, and passes its panels for `row_tiles` of them at a
            time; else tasks have that many.
        packs: whether a task writes the panels that it uses, as much of them as it uses at a time;
            else all threads write all panels before.
    """

    row_tiles: int
    panels: int
    depth: int | None = None
    rows_inside: bool = False
    bands: bool = False
    packs: bool = False


@lru_cache(maxsize=1024)
def gemm_tile(target: Target, product: GemmShape) -> RegisterTile:
    """The register tile: the best by its own work, or one nearly as good where the model knows of
    a reason, such as rows of A that drive each other out of the first cache."""
    if product.rows is None:
        return unknown_rows(target, product)[0].tile
    tiles = register_tiles(
        target, product.rows, product.columns, product.bits, max(1, product.row_step)
    )
    if product.columns is None or product.depth is None:
        return tiles[0]
    best, smallest = tiles[0], math.inf
    for tile in tiles[:_TILES]:
        seconds = plan_seconds(target, product, tile, _starts(target, product, tile)[0])
        if seconds < smallest * _BETTER:
            best, smallest = tile, seconds
    if best is not tiles[0]:  # perhaps only of the plans they start from
        first, other = (_best_plan(target, product, tile)[1] for tile in (tiles[0], best))
        best = best if other < first * _BETTER else tiles[0]
    return best


def unknown_rows(target: Target, product: GemmShape) -> tuple[RowTile, ...]:
    """The tile for a number of rows that calls decide, and others for some of these numbers."""
    step = max(1, product.row_step)
    return row_tiles(
        target, product.least, product.columns, product.bits, step, product.cold, product.each
    )


@lru_cache(maxsize=1024)
def gemm_plan(target: Target, product: GemmShape, tile: RegisterTile) -> GemmPlan:
    """The plan of which the cost model expects most; where extents are symbols, one that suits
    small and large ones."""
    starts = _starts(target, product, tile)
    if product.columns is None or product.depth is None:
        return starts[0]
    if product.rows is None:
        return starts[0] if starts[0].bands else _in_even_tasks(target, product, tile, starts[0])
    packing = _packing(target, product, tile) if product.packed else None
    return packing or _best_plan(target, product, tile)[0]


@lru_cache(maxsize=1024)
def _best_plan(target: Target, product: GemmShape, tile: RegisterTile) -> tuple[GemmPlan, float]:
    """The best of the plans that are found from where one may start, and its seconds."""
    starts = _starts(target, product, tile)
    best, smallest = starts[0], math.inf
    for start in starts:
        plan, seconds = _improved(target, product, tile, start)
        if seconds < smallest * _BETTER:
            best, smallest = plan, seconds
    return best, smallest


def _starts(target: Target, product: GemmShape, tile: RegisterTile) -> list[GemmPlan]:
    """Plans from which better ones are looked for, the one to prefer first.

    Where A stays in half of the second cache, passing it for every panel costs nothing, and the
    panels, from memory or far down in the last cache, are waited for least, also when other
    programs use these. Else rows go by bands that stay there, each for all panels of a task. Where
    A is far larger than B, it passes once: every further time would be from memory, and results
    would be written in strips as narrow as the panels of a task.
    """
    plain = _start(target, product, tile)
    if product.columns is None or product.depth is None:
        return [plain]
    size = (product.batch or 1) * product.columns * product.depth * product.bits // 8
    near = size <= target.caches[-1].size // 3 and not product.cold
    banded = _by_bands(target, product, tile)
    if product.rows is None:
        far = product.cold or (product.away and size > target.cache(2).size // 2)
        flat = product.least <= product.columns
        return [banded if banded is not None and flat and (far or not near) else plain]
    moved = product.rows * product.depth * product.bits // 8
    few = moved <= target.cache(2).size // 2
    if moved > max(_FAR * target.cache(2).size, 2 * size) and size <= target.caches[-1].size // 3:
        return [plain]
    if near:
        if not product.away:
            return [plain]
        if few:
            return [_in_turn(target, product, tile), plain]
        return [plain] if banded is None or size <= target.cache(2).size // 2 else [banded, plain]
    in_turn = _in_turn(target, product, tile)
    if few:
        return [in_turn] if product.cold else [in_turn, plain]
    if product.cold and banded is not None:
        return [banded, plain, in_turn]
    if product.cold or not _is_far(target, product):
        return [plain, in_turn]
    return [_once(target, product, tile), plain, in_turn]


def _in_even_tasks(
    target: Target, product: GemmShape, tile: RegisterTile, start: GemmPlan
) -> GemmPlan:
    """For an unknown number of rows: the longest tasks, of those half as long again and again, that
    let threads share the work of the likely numbers about as evenly as any."""
    smallest = math.ceil(max(product.least, tile.rows) / product.each) * product.each
    seconds: dict[GemmPlan, float] = {}
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
    target: Target, product: GemmShape, tile: RegisterTile, plan: GemmPlan, rows: int
) -> float:
    """Seconds for each row of a product that turns out to have so many."""
    known = msgspec.structs.replace(product, rows=rows)
    tiles = min(plan.row_tiles, math.ceil(rows / tile.rows))
    plan = msgspec.structs.replace(plan, row_tiles=tiles)
    return plan_seconds(target, known, tile, plan) / rows


def _improved(
    target: Target, product: GemmShape, tile: RegisterTile, start: GemmPlan
) -> tuple[GemmPlan, float]:
    """A plan that no other decision improves by itself, and its seconds."""
    best, smallest = start, plan_seconds(target, product, tile, start)
    changed = True
    while changed:
        changed = False
        for plan in _near(best, product, tile):
            seconds = plan_seconds(target, product, tile, plan)
            if seconds < smallest * _BETTER:
                best, smallest, changed = plan, seconds, True
    return best, smallest


def _in_turn(target: Target, product: GemmShape, tile: RegisterTile) -> GemmPlan:
    """Every panel is used for all rows of a task before the next one is fetched, and the threads
    have panels of their own: each comes from memory once, while the other threads compute."""
    rows, columns = _tiles(product, tile)
    batch = product.batch or 1
    share = math.ceil(columns * batch / target.num_threads)
    return GemmPlan(rows, _portion(share, columns if batch > 1 else share), rows_inside=True)


def _portion(share: int, whole: int) -> int:
    """Panels of a task, of those that a thread has for its own: about an eighth, which the other
    threads can take from one that the system does not run; each thread has as many tasks, into
    which `whole` panels fall about evenly."""
    largest = min(whole, math.ceil(share / _TASKS))
    return max(p for p in range(1, largest + 1) if math.ceil(whole / p) * p <= whole * _FULL)


def _by_bands(target: Target, product: GemmShape, tile: RegisterTile) -> GemmPlan | None:
    """As `_in_turn`, for as many rows at a time as stay in half of the second cache, or a few less,
    so that all of them, or the least number that there may be, come in equal bands.

    None where there are too few panels to share out among the threads, or several products of known
    rows.
    """
    assert product.depth is not None
    rows, columns = _tiles(product, tile)
    if product.rows is not None and product.batch != 1:
        return None
    share = math.ceil(columns / target.num_threads)
    if columns < _EVEN * share * target.num_threads:
        return None
    row = product.depth * product.bits // 8
    row_tiles = max(1, target.cache(2).size // 2 // row // tile.rows)
    unknown = product.rows is None
    smallest = math.ceil(product.least / tile.rows) if unknown else rows
    if smallest > row_tiles:
        row_tiles = math.ceil(smallest / math.ceil(smallest / row_tiles))
    return GemmPlan(row_tiles, _portion(share, share), rows_inside=True, bands=unknown)


def _is_far(target: Target, product: GemmShape) -> bool:
    """Whether B is not in the last cache when it is used again, or drives the rest out of it."""
    assert product.columns is not None
    assert product.depth is not None
    size = (product.batch or 1) * product.columns * product.depth * product.bits // 8
    return size > target.caches[-1].size // 3


def _once(target: Target, product: GemmShape, tile: RegisterTile) -> GemmPlan:
    """A task takes all rows, and as many panels as half of the second cache holds, so that each
    comes there once. A panel that is larger is cut into pieces of the reduction."""
    assert product.depth is not None
    rows, columns = _tiles(product, tile)
    step, largest = tile.columns * product.bits // 8, target.cache(2).size // 2
    cuts = _cuts(product.depth)
    pieces = next((p for p in cuts if product.depth // p * step <= largest), cuts[-1])
    depth = product.depth // pieces
    share = math.ceil(columns * (product.batch or 1) / target.num_threads)
    panels = max(1, min(largest // (depth * step), share, columns))
    return GemmPlan(rows, panels, depth if pieces > 1 else None)


def _packing(target: Target, product: GemmShape, tile: RegisterTile) -> GemmPlan | None:
    """A task takes all rows and a few panels, which it writes to half of the second cache: a piece
    of the reduction at a time, so long that a tile of rows stays in the first cache while it meets
    them. None for a B that is near, and where there are too few panels to share out.
    """
    if not _is_far(target, product):
        return None
    assert product.depth is not None
    size, batch = product.bits // 8, product.batch or 1
    rows, columns = _tiles(product, tile)
    longest = int(target.cache(1).size * _SHARE_OF_ROWS) // (tile.rows * size)
    best, largest = None, 0
    for pieces in _cuts(product.depth):
        depth = product.depth // pieces
        for panels in range(1, target.cache(2).size // 2 // (depth * tile.columns * size) + 1):
            if depth > longest or columns % panels or panels * tile.columns * size < _RUN:
                continue
            even = math.ceil(batch * (columns // panels) / target.num_threads) * target.num_threads
            if batch * (columns // panels) >= _EVEN * even and depth * panels > largest:
                largest = depth * panels
                best = GemmPlan(rows, panels, depth if pieces > 1 else None, packs=True)
    return best


def _start(target: Target, product: GemmShape, tile: RegisterTile) -> GemmPlan:
    """By closed formulas.

    All panels pass every tile of rows while B stays in a third of the last cache: long streams come
    in time, and a tile of rows is fetched once. Else, and where rows make too few tasks, the
    panels of a task are those that half of the second cache holds. A long reduction is cut so that
    a panel takes a quarter of that.
    """
    panels = panel_chunk(target, tile, product.depth, product.columns, product.bits)
    row_tiles = _ROW_TILES
    if product.depth is None or product.columns is None:
        return GemmPlan(row_tiles, panels)
    rows, columns = _tiles(product, tile)
    if product.rows is None:
        rows = math.ceil(product.least / tile.rows)
    else:
        row_tiles = min(row_tiles, rows)
    batch = product.batch or 1
    size = batch * columns * tile.columns * product.depth * product.bits // 8
    tasks = batch * math.ceil(rows / row_tiles)
    if size <= target.caches[-1].size // 3 and tasks >= target.num_threads:
        panels = columns
    if product.rows is None:
        # Sums for an unknown number of rows would be kept for all: no task has its own part.
        return GemmPlan(row_tiles, panels)
    largest = most_depth(target, tile, product.bits)
    pieces = next((p for p in _cuts(product.depth) if product.depth // p <= largest), 1)
    return GemmPlan(row_tiles, panels, product.depth // pieces if pieces > 1 else None)


def _cuts(depth: int) -> list[int]:
    """Into how many equal pieces a reduction may be cut; short ones are not worth their sums."""
    return [p for p in range(1, depth // _SHORTEST + 1) if depth % p == 0] or [1]


def _near(plan: GemmPlan, product: GemmShape, tile: RegisterTile) -> Iterator[GemmPlan]:
    """Plans with one decision made otherwise."""
    rows, columns = _tiles(product, tile)
    change = msgspec.structs.replace
    once = plan.rows_inside and plan.row_tiles == rows
    far = product.cold or product.away
    if not (far and once):  # else panels would come from far away again
        yield change(plan, rows_inside=not plan.rows_inside)
        for count in _parts(rows, plan.row_tiles):
            yield change(plan, row_tiles=count)
    for panels in _parts(columns, plan.panels):
        yield change(plan, panels=panels)
    depth = product.depth or _UNKNOWN
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
    rows = math.ceil((product.rows or _UNKNOWN) / tile.rows)
    return rows, math.ceil((product.columns or _UNKNOWN) / tile.columns)


def plan_seconds(target: Target, product: GemmShape, tile: RegisterTile, plan: GemmPlan) -> float:
    """What the cost model expects a plan to take."""
    return estimate_nest([_nest(target, product, tile, plan)], target).seconds


class _Axis(msgspec.Struct):
    """Tiles of rows or columns: the tasks' loop, and the one within a task."""

    outer: LoopNode
    inner: LoopNode

    def moves(self, step: float) -> dict[LoopNode, float]:
        """Of something that lies `step` bytes further with each tile."""
        return {self.outer: step * self.inner.count, self.inner: step}


class _Operand(msgspec.Struct):
    """What a register tile touches: bytes from one row to the next, and from column to column."""

    storage: BufferNode
    moves: dict[LoopNode, float]
    by_row: float
    by_column: float


def _nest(target: Target, product: GemmShape, tile: RegisterTile, plan: GemmPlan) -> LoopNode:
    """The program that the rule makes of a plan, without what packs B."""
    size = product.bits // 8
    depth = product.depth or _UNKNOWN
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
            **m.moves(tile.rows * product.row_step),
            piece: step.count * product.depth_step,
            step: product.depth_step,
        },
        product.row_step,
        0,
    )
    b = _Operand(
        BufferNode("B", depth * width * count, cold=product.cold),
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
    """One operation for all elements of a register tile."""
    row, column = LoopNode(tile.rows, "unrolled"), LoopNode(tile.columns, "lanes")

    def access(operand: _Operand, is_store: bool) -> AccessNode:
        inside = {row: operand.by_row, column: operand.by_column}
        moves = operand.moves | {loop: step for loop, step in inside.items() if step}
        return AccessNode(operand.storage, moves, size, stored=is_store)

    accesses = (access(stored, True), *(access(operand, False) for operand in loaded))
    column.body = [StatementNode(accesses, 1, stored in loaded, width=size)]
    row.body = [column]
    return row

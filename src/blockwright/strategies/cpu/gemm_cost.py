"""Predicted time of a GEMM blocking: the cost model applied to the loop nest that it describes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from blockwright.cost import (
    AccessNode,
    BufferNode,
    Estimate,
    LoopNode,
    StatementNode,
    around,
    estimate_nest,
    share_out,
)
from blockwright.strategies.cpu.register_tiling import RegisterTile
from blockwright.target import Target

UNKNOWN_EXTENT = 512  # extent assumed for a symbolic axis


class GemmShape(msgspec.Struct, frozen=True):
    """Extents of `C[b, m, n] += A[b, m, k] * B[b, n, k]`; None for symbolic ones.

    Attributes:
        batch, m, n, k: extents, each the product over its axes. A step of k is a group of the
            micro-kernel.
        m_stride, k_stride: strides of A along m and k, in bytes.
        bits: of an accumulator, and of the group of elements that one lane multiplies per step.
        b_bits: of such a group in the panels of B. Fewer than `bits` if elements are widened.
        shifts: instructions of an arithmetic unit that widen a vector of B, besides the load.
        uncached: whether B is in no cache at entry.
        outside_private_cache: whether B is in no private cache (L1, L2) at entry.
        packed: whether B is packed into panels at every call; otherwise it is packed already.
        min_m, m_multiple: smallest value and a divisor of a symbolic m.
        unit: the compute unit whose tile registers hold the operands; "" for vector registers.
        gathers: whether each task copies its rows of A to tiles.
    """

    batch: int | None
    m: int | None
    n: int | None
    k: int | None
    m_stride: int
    k_stride: int
    bits: int = 32
    b_bits: int = 32
    shifts: int = 0
    uncached: bool = False
    outside_private_cache: bool = False
    packed: bool = False
    min_m: int = 1
    m_multiple: int = 1
    unit: str = ""
    gathers: bool = False


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
        widens: whether a task widens a panel once and then multiplies all its rows with it;
            otherwise the micro-kernel widens elements whenever it loads them. Needs `rows_inside`.
    """

    row_tiles: int
    panels: int
    depth: int | None = None
    rows_inside: bool = False
    bands: bool = False
    packs: bool = False
    widens: bool = False


def tiles_of(product: GemmShape, tile: RegisterTile) -> tuple[int, int]:
    rows = math.ceil((product.m or UNKNOWN_EXTENT) / tile.rows)
    return rows, math.ceil((product.n or UNKNOWN_EXTENT) / tile.columns)


def panels_outside(rows: int, columns: int, tile: RegisterTile, plan: GemmBlocking) -> bool:
    """Whether tasks in tile registers go through all rows before the next panels.

    Their rows are then read again for each group of panels, otherwise the panels for each band of
    rows: whichever is less. Arguments: `rows` and `columns` are numbers of register tiles.
    """
    bands, groups = math.ceil(rows / plan.row_tiles), math.ceil(columns / plan.panels)
    return rows * tile.rows * (groups - 1) <= columns * tile.columns * (bands - 1)


def plan_seconds(
    target: Target, product: GemmShape, tile: RegisterTile, plan: GemmBlocking
) -> float:
    """Seconds of a plan, estimated by the cost model."""
    return plan_estimate(target, product, tile, plan).seconds


def plan_estimate(
    target: Target, product: GemmShape, tile: RegisterTile, plan: GemmBlocking
) -> Estimate:
    """The predicted time of a plan, and what limits it."""
    return estimate_nest([parallel_nest(target, product, tile, plan)], target)


class Storage(msgspec.Struct, frozen=True):
    """Operands of a product that other parts of a larger nest write or read; None for its own."""

    a: BufferNode | None = None
    c: BufferNode | None = None


_OWN = Storage()


def parallel_nest(
    target: Target,
    product: GemmShape,
    tile: RegisterTile,
    plan: GemmBlocking,
    storage: Storage = _OWN,
    sums: Sequence[int] = (),
) -> LoopNode:
    """The loop nest that the strategy builds for a plan, without packing B.

    Arguments: `sums` are the terms of nested partial sums, coarse to fine.
    """
    return _nest(target, product, tile, plan, storage, sums, target.num_threads)


def serial_nest(
    target: Target,
    product: GemmShape,
    tile: RegisterTile,
    plan: GemmBlocking,
    storage: Storage = _OWN,
    sums: Sequence[int] = (),
) -> LoopNode:
    """The same in one thread, for a task that computes a whole product as one of its steps.

    The tasks of all threads read the same B.
    """
    return _nest(target, product, tile, plan, storage, sums, None)


TILE_STEPS = 16  # groups of the reduction that a product of tiles sums


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


def _nest(
    target: Target,
    product: GemmShape,
    tile: RegisterTile,
    plan: GemmBlocking,
    storage: Storage,
    parts: Sequence[int],
    threads: int | None,
) -> LoopNode:
    """The loop nest of a plan, shared by a number of threads; None for a serial one."""
    size, b_size = product.bits // 8, product.b_bits // 8
    depth = product.k or UNKNOWN_EXTENT
    row_tiles, panels = tiles_of(product, tile)
    if product.unit:
        return _nest_of_tiles(target, product, tile, plan, storage, threads)
    kind = "serial" if threads is None else "parallel"
    m = _Axis(LoopNode(row_tiles / plan.row_tiles, kind), LoopNode(plan.row_tiles))
    n = _Axis(LoopNode(panels / plan.panels, kind), LoopNode(plan.panels))
    batch = LoopNode(product.batch or 1, kind)
    pieces = math.ceil(depth / plan.depth) if plan.depth else 1
    piece, *split, step = _reduction(target, depth, pieces, parts)
    read = LoopNode(step.count) if plan.widens else step  # the loop that reads B
    panel, rows = tile.columns * size, row_tiles * tile.rows
    b_panel = tile.columns * b_size
    width, b_width, count = panels * panel, panels * b_panel, batch.count
    a = _Operand(
        storage.a or BufferNode("A", depth * rows * size * count),
        {
            batch: depth * rows * size,
            **m.moves(tile.rows * product.m_stride),
            **_moves([piece, *split, step], product.k_stride),
        },
        product.m_stride,
        0,
    )
    b = _Operand(
        BufferNode("B", depth * b_width * count, uncached=product.uncached, common=threads is None),
        {
            batch: depth * b_width,
            **n.moves(depth * b_panel),
            **_moves([piece, *split, read], b_panel),
        },
        0,
        b_size,
    )
    c = _Operand(
        storage.c or BufferNode("C", rows * width * count),
        {batch: rows * width, **m.moves(tile.rows * width), **n.moves(panel)},
        width,
        size,
    )
    sums = _Operand(BufferNode("sums", tile.rows * panel, registers=True), {}, panel, size)
    step.body = [_each(tile, size, sums, sums, a, b)]
    if plan.widens or product.shifts:
        # The widened elements of one step in registers, or of all steps in memory.
        steps_held = step.count if plan.widens else 1
        held = BufferNode("wide", panel * steps_held, registers=not plan.widens)
        written, used = (
            _Operand(held, {loop: panel} if plan.widens else {}, 0, size) for loop in (read, step)
        )
        row = msgspec.structs.replace(tile, rows=1)
        widening = _each(row, size, written, b, operations=product.shifts)
        step.body = [_each(tile, size, sums, sums, a, used)]
        read.body = [widening, *read.body]
    body: list[LoopNode | StatementNode] = [_each(tile, size, sums, operations=0), step]
    for loop in reversed(split):
        total = _Operand(BufferNode("total", sums.storage.size, registers=True), {}, panel, size)
        loop.body = [*body, _each(tile, size, total, total, sums)]
        body = [_each(tile, size, total, operations=0), loop]
        sums = total
    body.append(_each(tile, size, c, sums, c) if pieces > 1 else _each(tile, size, c, sums))
    first, second = (n, m) if plan.rows_inside else (m, n)
    tasks = [batch, first.outer, second.outer]
    if threads is not None:
        share_out(tasks, threads)
    inside = [*tasks[1:], piece, first.inner, second.inner]
    if plan.widens:
        body = [read, *around([loop for loop in (inside.pop(),) if loop.count > 1], body)]
    around([batch, *(loop for loop in inside if loop.count > 1)], body)
    return batch


def _nest_of_tiles(
    target: Target,
    product: GemmShape,
    tile: RegisterTile,
    plan: GemmBlocking,
    storage: Storage,
    threads: int | None,
) -> LoopNode:
    """The nest of a product of tiles: a step loads tiles of both operands and multiplies them."""
    line = tile.lanes * product.bits // 8  # bytes of a row of a tile
    steps = math.ceil((product.k or UNKNOWN_EXTENT) / TILE_STEPS)
    row_tiles, panels = tiles_of(product, tile)
    kind = "serial" if threads is None else "parallel"
    m = _Axis(LoopNode(row_tiles / plan.row_tiles, kind), LoopNode(plan.row_tiles))
    n = _Axis(LoopNode(panels / plan.panels, kind), LoopNode(plan.panels))
    batch, step = LoopNode(product.batch or 1, kind), LoopNode(steps)
    a_size, b_size = tile.rows * line * steps, tile.columns * line * steps
    c_row = panels * tile.columns * product.bits // 8
    a = storage.a or BufferNode("A", a_size * row_tiles * batch.count)
    b = BufferNode(
        "B",
        b_size * panels * batch.count,
        uncached=product.uncached,
        common=threads is None,
    )
    c = storage.c or BufferNode("C", c_row * row_tiles * tile.rows * batch.count)
    sums = BufferNode("sums", tile.rows * tile.columns * product.bits // 8)
    a_moves = {batch: a_size * row_tiles, **m.moves(a_size), step: a_size / steps}
    b_moves = {batch: b_size * panels, **n.moves(b_size), step: b_size / steps}
    c_moves = {
        batch: c_row * row_tiles * tile.rows,
        **m.moves(c_row * tile.rows),
        **n.moves(tile.columns * product.bits // 8),
    }
    unit = next(u for u in target.compute_units if u.name == product.unit)
    tiles = tile.rows * tile.columns // (unit.m * unit.n)
    busy = tiles / unit.per_cycle * target.core.narrow_arithmetic
    step.body = [
        _rows_of_tiles(tile.rows, line, (a, a_moves, line, False)),
        _rows_of_tiles(tile.columns, line, (b, b_moves, line, False)),
        StatementNode((), busy),
    ]
    width = tile.columns * product.bits // 8
    stored = _rows_of_tiles(tile.rows, width, (sums, {}, width, True))
    read = _rows_of_tiles(tile.rows, width, (sums, {}, width, False), (c, c_moves, c_row, True))
    body: list[LoopNode | StatementNode] = [step, stored, read]
    first, second = (n, m) if plan.rows_inside else (m, n)
    by_panels = panels_outside(row_tiles, panels, tile, plan)
    outer = (n.outer, m.outer) if by_panels else (m.outer, n.outer)
    tasks = [batch, *outer]
    if threads is not None:
        share_out(tasks, threads)
    body = around([loop for loop in (first.inner, second.inner) if loop.count > 1], body)
    if product.gathers:
        count = LoopNode(plan.row_tiles * tile.rows * steps)
        moved = {batch: a_moves[batch], m.outer: a_moves[m.outer], count: line}
        count.body = [_rows_of_tiles(1, line, (a, moved, line, False), (a, moved, line, True))]
        body = [count, *body]
    around([batch, *(loop for loop in tasks[1:] if loop.count > 1)], body)
    return batch


def _rows_of_tiles(
    rows: int, nbytes: int, *places: tuple[BufferNode, dict[LoopNode, float], float, bool]
) -> LoopNode:
    """Move rows of `nbytes`; a place is a buffer, its moves, the distance of rows, and whether it
    is stored to."""
    row, lane = LoopNode(rows, "unrolled"), LoopNode(nbytes // 4, "lanes")
    accesses = tuple(
        AccessNode(storage, {**moves, row: apart, lane: 4}, stored=stored)
        for storage, moves, apart, stored in places
    )
    lane.body = [StatementNode(accesses)]
    row.body = [lane]
    return row


def _reduction(target: Target, depth: int, pieces: int, parts: Sequence[int]) -> list[LoopNode]:
    """The loops of a reduction: k-splits, partial sums, and the steps of one of these."""
    loops, left = [LoopNode(pieces)], depth / pieces
    for part in parts:
        loops.append(LoopNode(left / part))
        left = part
    short = left <= target.core.predicted_iterations
    return [*loops, LoopNode(left, predicted=short)]


def _moves(loops: list[LoopNode], step: float) -> dict[LoopNode, float]:
    """Strides of nested loops through contiguous steps."""
    result: dict[LoopNode, float] = {}
    for loop in reversed(loops):
        result[loop] = step
        step *= loop.count
    return result


def _each(
    tile: RegisterTile, size: int, stored: _Operand, *loaded: _Operand, operations: int = 1
) -> LoopNode:
    """One statement over all elements of a register tile."""
    row, column = LoopNode(tile.rows, "unrolled"), LoopNode(tile.columns, "lanes")

    def access(operand: _Operand, is_store: bool) -> AccessNode:
        inside = {row: operand.by_row, column: operand.by_column}
        moves = operand.moves | {loop: step for loop, step in inside.items() if step}
        return AccessNode(operand.storage, moves, int(operand.by_column) or size, stored=is_store)

    accesses = (access(stored, True), *(access(operand, False) for operand in loaded))
    column.body = [StatementNode(accesses, operations, stored in loaded, width=size)]
    row.body = [column]
    return row

"""Predicted time of a channels-first convolution, with filters or with pixels as rows of tiles.

Both are described as loop nests for the cost model; no schedule is built. A tile of pixels (GEMM)
stores its results one by one, because those of a vector of filters are on different planes; it
reads the data in place. A tile of filters (the channels-first strategy) stores whole vectors of
pixels, but copies the data first.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from blockwright import ir
from blockwright.cost import (
    AccessNode,
    BufferNode,
    LoopNode,
    StatementNode,
    around,
    estimate_nest,
)
from blockwright.strategies.cpu.register_tiling import RegisterTile, choose_register_tile
from blockwright.strategies.match.blocks import address_of, extent_of, stride
from blockwright.strategies.match.planes import Planes
from blockwright.target import Target

_TAPS = 9  # longest loop over taps that is unrolled

Nest = list[LoopNode | StatementNode]


class _Operand(msgspec.Struct):
    """An operand of a register tile: strides in bytes by loop, by row and by column."""

    storage: BufferNode
    moves: dict[LoopNode, float]
    by_row: float
    by_column: float


class _Sizes(msgspec.Struct):
    """Extents and strides of a convolution, in elements and in bytes.

    Attributes:
        size: bytes of an element.
        filters, lines, line: filters; lines of pixels of all images, and pixels of a line.
        taps: extents of the reduction loops and strides of the data along them.
        step, line_step: strides of the data from pixel to pixel and from line to line.
        data: bytes of the data.
    """

    size: int
    filters: int
    lines: int
    line: int
    taps: list[tuple[int, float]]
    step: float
    line_step: float
    data: int

    @property
    def depth(self) -> int:
        return math.prod(length for length, _ in self.taps)

    @property
    def plane(self) -> int:
        """Bytes of the results of one filter."""
        return self.lines * self.line * self.size


def planes_seconds(target: Target, block: ir.Block, roles: Planes) -> float:
    """Seconds with filters as rows, pixels as columns, and a copy of the data."""
    sizes = _sizes_of(block, roles)
    tile = choose_register_tile(target, sizes.filters, sizes.line, sizes.size * 8)
    size, width = sizes.size, tile.columns * sizes.size
    line, pixels = LoopNode(sizes.lines), LoopNode(max(1.0, sizes.line / tile.columns))
    filters = LoopNode(math.ceil(sizes.filters / tile.rows))
    taps = _loops(sizes)
    near = BufferNode("copy", min(sizes.data, target.cache(2).size // 2))
    if roles.slides:
        moves = {loop: step for loop, (_, step) in zip(taps, sizes.taps, strict=True)}
        data = _Operand(near, {line: sizes.line_step, pixels: width, **moves}, 0, size)
    else:
        data = _Operand(near, _packed(taps, pixels, sizes.depth, width), 0, size)
    weights = _weights(sizes, tile.rows, filters, taps)
    stored: dict[LoopNode, float] = {line: sizes.line * size, pixels: width}
    stored[filters] = tile.rows * sizes.plane
    result = _Operand(_results(sizes), stored, sizes.plane, size)
    product = _product(sizes, tile, data, msgspec.structs.replace(weights, by_row=size), result)
    copy = _copy(sizes, roles, tile.lanes, near)
    nest = around([line, pixels, filters], product(taps))
    return estimate_nest([*copy, *nest], target).seconds


def pixels_seconds(target: Target, block: ir.Block, roles: Planes) -> float:
    """Seconds with pixels as rows and filters as columns, as the GEMM strategy does."""
    sizes = _sizes_of(block, roles)
    count, size = sizes.lines * sizes.line, sizes.size
    tile = choose_register_tile(target, count, sizes.filters, size * 8)
    pixels = LoopNode(math.ceil(count / tile.rows))
    filters = LoopNode(math.ceil(sizes.filters / tile.columns))
    taps = _loops(sizes)
    moves = {loop: step for loop, (_, step) in zip(taps, sizes.taps, strict=True)}
    data = _Operand(
        BufferNode("data", sizes.data), {pixels: tile.rows * sizes.step, **moves}, sizes.step, 0
    )
    weights = _weights(sizes, tile.columns, filters, taps)
    stored: dict[LoopNode, float] = {pixels: tile.rows * size}
    stored[filters] = tile.columns * sizes.plane
    result = _Operand(_results(sizes), stored, size, sizes.plane)
    product = _product(sizes, tile, data, msgspec.structs.replace(weights, by_column=size), result)
    return estimate_nest(around([pixels, filters], product(taps)), target).seconds


def _sizes_of(block: ir.Block, roles: Planes) -> _Sizes:
    load = next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is roles.data)
    address, size = address_of(load, block), roles.data.dtype.nbytes

    def moved(position: int) -> float:
        step = stride(address, block.iter_vars[position])
        return 0.0 if math.isinf(step) else float(abs(step)) * size

    taps = [(extent_of(block, [p]) or 1, moved(p)) for p in roles.depth]
    return _Sizes(
        size,
        extent_of(block, roles.filters) or 1,
        extent_of(block, roles.outer) or 1,
        extent_of(block, roles.pixels) or 1,
        [tap for tap in taps if tap[0] > 1],
        moved(roles.pixels[-1]),
        max((moved(p) for p in roles.outer), default=0.0),
        math.prod(ir.const_int(n) or 1 for n in roles.data.shape[1:]) * size,
    )


def _loops(sizes: _Sizes) -> list[LoopNode]:
    return [LoopNode(n, "unrolled" if n <= _TAPS else "serial") for n, _ in sizes.taps]


def _packed(
    taps: list[LoopNode], panel: LoopNode, depth: int, width: float
) -> dict[LoopNode, float]:
    """Strides in panels of `width` bytes per step."""
    moves, step = {panel: depth * width}, width
    for loop in reversed(taps):
        moves[loop] = step
        step *= loop.count
    return moves


def _weights(sizes: _Sizes, width: int, panel: LoopNode, taps: list[LoopNode]) -> _Operand:
    storage = BufferNode("weights", sizes.filters * sizes.depth * sizes.size)
    return _Operand(storage, _packed(taps, panel, sizes.depth, width * sizes.size), 0, 0)


def _results(sizes: _Sizes) -> BufferNode:
    return BufferNode("results", sizes.filters * sizes.plane)


def _product(
    sizes: _Sizes, tile: RegisterTile, a: _Operand, b: _Operand, result: _Operand
) -> Callable[[list[LoopNode]], Nest]:
    """The statements of a register tile around its reduction loops."""
    width = tile.columns * sizes.size
    sums = _Operand(BufferNode("sums", tile.rows * width, registers=True), {}, width, sizes.size)

    def each(stored: _Operand, *loaded: _Operand) -> LoopNode:
        row, column = LoopNode(tile.rows, "unrolled"), LoopNode(tile.columns, "lanes")

        def access(operand: _Operand, is_store: bool) -> AccessNode:
            inside = {row: operand.by_row, column: operand.by_column}
            moves = operand.moves | {loop: step for loop, step in inside.items() if step}
            return AccessNode(operand.storage, moves, sizes.size, stored=is_store)

        accesses = (access(stored, True), *(access(one, False) for one in loaded))
        column.body = [StatementNode(accesses, 1, stored in loaded, width=sizes.size)]
        row.body = [column]
        return row

    return lambda taps: [each(sums), *around(taps, [each(sums, sums, a, b)]), each(result, sums)]


def _copy(sizes: _Sizes, roles: Planes, lanes: int, copy: BufferNode) -> Nest:
    """The copy of the data, vector by vector; vectors of pixels that are apart are gathered."""
    elements = sizes.data // sizes.size
    if not roles.slides:
        elements = sizes.lines * sizes.line * sizes.depth
    vectors, lane = LoopNode(elements / lanes), LoopNode(lanes, "lanes")
    accesses = [
        AccessNode(
            storage, {vectors: lanes * step, lane: sizes.size}, sizes.size, stored=storage is copy
        )
        for storage, step in ((copy, sizes.size), (BufferNode("data", sizes.data), sizes.step))
    ]
    gathers = roles.step if roles.step > 1 else 0
    lane.body = [StatementNode(tuple(accesses), gathers, width=sizes.size)]
    return around([vectors], [lane])

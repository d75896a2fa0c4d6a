"""Loop nest of a channels-first convolution for the cost model: tasks, copies of data, tiles."""

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
from blockwright.strategies.cpu.conv_nchw_shape import ConvAxis, ConvShape, row_major
from blockwright.strategies.cpu.register_tiling import (
    RegisterTile,
    choose_register_tile,
    min_width,
)
from blockwright.strategies.cpu.split_k import piece_at
from blockwright.target import Target

Nest = list[LoopNode | StatementNode]
_Moves = dict[LoopNode, float]

_GUARD = 8  # instructions that decide which elements of a vector are copied
_GUARD_OF_BORDER = 28  # the same for both ends of a line, without mask registers
_TAPS = 9  # longest loop over taps that is unrolled


class ConvBlocks(msgspec.Struct, frozen=True):
    """A register tile and the size of a task.

    Attributes:
        tile: filters are its rows, pixels its columns.
        steps: lines of pixels per task, or tiles of pixels where no axis of lines slides.
        filters: tiles of filters per task.
    """

    tile: RegisterTile
    steps: int
    filters: int


def conv_estimate(target: Target, shape: ConvShape, blocks: ConvBlocks) -> Estimate:
    """The predicted time of a plan."""
    return estimate_nest(_Nest(target, shape, blocks).tasks(), target)


class _Operand(msgspec.Struct):
    """An operand of a register tile: strides in bytes by loop, row and column; where it begins."""

    storage: BufferNode
    moves: _Moves
    base: float = 0
    by_row: float = 0
    by_column: float = 0

    def from_column(self, column: int) -> _Operand:
        """The part of it that begins with a column."""
        return msgspec.structs.replace(self, base=self.base + column * self.by_column)


def gemm_estimate(target: Target, shape: ConvShape) -> Estimate:
    """The predicted time of the GEMM strategy: pixels as rows of tiles, filters as columns.

    The threads share the tiles evenly.
    """
    size, outer = shape.size, (*shape.batch, *shape.outer)
    plane = shape.pixels.count * (1 if shape.lines is None else shape.lines.count)
    count = plane * math.prod(axis.count for axis in outer)
    tile = choose_register_tile(target, count, shape.filters.count, shape.bits)
    around_pixels = [LoopNode(axis.count, "parallel") for axis in outer]
    pixels = LoopNode(plane / tile.rows, "parallel")  # on average: tiles may go across planes
    filters = LoopNode(math.ceil(shape.filters.count / tile.columns))
    tasks = [*around_pixels, pixels]
    share_out(tasks, target.num_threads)
    taps = [
        LoopNode(tap.count, "unrolled" if tap.count <= _TAPS else "serial") for tap in shape.taps
    ]
    pixel, width = shape.step * size, tile.columns * size
    held = BufferNode("sums", tile.rows * width, registers=True)
    packed = BufferNode("weights", filters.count * shape.depth * width, common=True)
    apart = shape.filters.stored * size
    sums = _Operand(held, {}, by_row=width, by_column=size)
    data = _Operand(
        BufferNode("data", math.prod(shape.data) * size),
        {
            **{loop: shape.moved(axis) for loop, axis in zip(around_pixels, outer, strict=True)},
            pixels: tile.rows * pixel,
            **{loop: shape.moved(tap) for loop, tap in zip(taps, shape.taps, strict=True)},
        },
        by_row=pixel,
    )
    weights = _Operand(
        packed,
        {filters: shape.depth * width, **_contiguous(taps, width)},
        by_column=size,
    )
    result = _Operand(
        BufferNode("result", shape.results * size),
        {
            **{loop: axis.stored * size for loop, axis in zip(around_pixels, outer, strict=True)},
            pixels: tile.rows * shape.pixels.stored * size,
            filters: tile.columns * apart,
        },
        by_row=shape.pixels.stored * size,
        by_column=apart,
    )

    def each(operations: int, stored: _Operand, *loaded: _Operand) -> Nest:
        loops = LoopNode(tile.rows, "unrolled"), LoopNode(tile.columns, "lanes")
        return _statement(size, loops, operations, stored, *loaded)

    body = [
        *each(0, sums),
        *around(taps, each(1, sums, sums, data, weights)),
        *each(0, result, sums),
    ]
    return estimate_nest(around([*tasks, filters], body), target)


class _Nest:
    """Builds the nest of one plan. Strides are in bytes."""

    def __init__(self, target: Target, shape: ConvShape, blocks: ConvBlocks) -> None:
        self.target, self.shape, self.blocks = target, shape, blocks
        self.tile, self.size = blocks.tile, shape.size
        self.around = [(LoopNode(axis.count, "parallel"), axis) for axis in shape.batch]
        self.around += [(LoopNode(axis.count, "parallel"), axis) for axis in shape.outer]
        panels = shape.panels(self.tile.rows)
        self.task = LoopNode(shape.steps(self.tile.columns) / blocks.steps, "parallel")
        self.groups = LoopNode(panels / blocks.filters, "parallel")
        self.panel = shape.depth * self.tile.rows * self.size  # bytes of a panel of weights
        many = math.prod(axis.count for axis in shape.batch)
        self.weights = BufferNode(
            "weights", many * panels * self.panel, common=self.groups.count == 1 == many
        )
        self.data = BufferNode("data", math.prod(shape.data) * self.size)
        self.box = shape.box(blocks.steps, self._pixels())
        copied = shape.copied(self.tile.columns, blocks.steps)
        self.copy = BufferNode("copy", copied * self.size)

    @property
    def _packed(self) -> int:
        """Elements of a packed panel of data."""
        return self.shape.depth * self.tile.columns

    def _pixels(self) -> int:
        """Pixels of a line in a task, padded to whole tiles."""
        steps = self.blocks.steps if self.shape.lines is None else self._tiles()
        return steps * self.tile.columns

    def _tiles(self) -> int:
        """Tiles of a line of pixels."""
        return math.ceil(self.shape.pixels.count / self.tile.columns)

    def _loop(self, count: float) -> LoopNode:
        """A loop that always has this many iterations."""
        return LoopNode(count, predicted=count <= self.target.core.predicted_iterations)

    def tasks(self) -> Nest:
        loops = [*(loop for loop, _ in self.around), self.task, self.groups]
        share_out(loops, self.target.num_threads)
        body = [*self._copied(), *self._product()]
        return around([loops[0], *(n for n in loops[1:] if n.count > 1)], body)

    # -------------------------------------------------------------------------------------- copies
    def _copied(self) -> Nest:
        """The copy of the data that a task reads, vector by vector."""
        lane = LoopNode(self.tile.lanes, "lanes")
        loops, loaded, stored = self._box_loops() if self.shape.slides else self._panel_loops()
        inside: _Moves = {loops[-1]: self.tile.lanes * self.size, lane: self.size}
        loaded |= {**self._task_moves(), loops[-1]: inside[loops[-1]] * self.shape.step}
        loaded[lane] = self.size
        gathers = self.shape.step if self.shape.step > 1 else 0
        accesses = (
            _access(_Operand(self.copy, stored), inside, self.size, stored=True),
            _access(_Operand(self.data, loaded), {}, self.size),
        )
        lane.body = [StatementNode(accesses, self._guards() + gathers, width=self.size)]
        return around([loop for loop in loops if loop.count > 1] or loops[-1:], [lane])

    def _guards(self) -> int:
        """Instructions that decide which elements of a vector to copy: those inside the image."""
        if not self.shape.slides:
            return _GUARD if self.shape.pixels.count % self.tile.columns else 0
        isa = self.target.isa
        return _GUARD_OF_BORDER if isa is not None and isa.masked_store_cycles else _GUARD

    def _box_loops(self) -> tuple[list[LoopNode], _Moves, _Moves]:
        """Loops over the box that a task reads, and strides of the data and of the copy."""
        *counts, last = self.box
        loops = [self._loop(count) for count in counts]
        loaded, stored = (
            {loop: pitch * self.size for loop, pitch in zip(loops, row_major(n), strict=False)}
            for n in (self.shape.data, self.box)
        )
        return [*loops, self._loop(math.ceil(last / self.tile.lanes))], loaded, stored

    def _panel_loops(self) -> tuple[list[LoopNode], _Moves, _Moves]:
        """Loops over packed panels, their taps and the vectors of one."""
        tile, taps = self.tile, [self._loop(tap.count) for tap in self.shape.taps]
        panel, vectors = self._loop(self.blocks.steps), self._loop(tile.vectors)
        loaded = {
            loop: self.shape.moved(tap) for loop, tap in zip(taps, self.shape.taps, strict=True)
        }
        loaded[panel] = tile.columns * self.shape.moved(self.shape.pixels)
        stored = {panel: float(self._packed * self.size)}
        stored |= _contiguous(taps, tile.columns * self.size)
        return [panel, *taps, vectors], loaded, stored

    def _task_moves(self) -> _Moves:
        """Strides of the data from task to task."""
        moves = {loop: self.shape.moved(axis) for loop, axis in self.around}
        lines = self.shape.lines
        each = self.tile.columns if lines is None else 1
        one = self.shape.moved(lines or self.shape.pixels)
        return moves | {self.task: self.blocks.steps * each * one}

    # --------------------------------------------------------------------------------------- tiles
    def _product(self) -> Nest:
        """Lines, tiles of a line, tiles of filters. The last tile of a line is shorter."""
        width = self.tile.columns
        whole, rest = divmod(self.shape.pixels.count, width)
        line = self._loop(1 if self.shape.lines is None else self.blocks.steps)
        # On average: one task of those that divide a line has its short tile.
        share = 1 if self.shape.lines is not None else self.blocks.steps / self._tiles()
        body: Nest = []
        if whole:
            body += self._row_of_tiles(line, whole * share, 0, width, whole * width)
        if rest:
            body += self._row_of_tiles(line, share, whole * share, self._end(rest), rest)
        return body if line.count == 1 else around([line], body)

    def _end(self, pixels: int) -> int:
        """Columns of the last tile of a line: whole vectors, or a half one at the end."""
        step = min_width(self.target, pixels, self.shape.bits)
        return min(self.tile.columns, math.ceil(pixels / step) * step)

    def _row_of_tiles(
        self, line: LoopNode, count: float, first: float, columns: int, pixels: int
    ) -> Nest:
        """Some tiles of a line with all filters of the task.

        Args:
            line: the loop around them.
            count, first: their number, and how many are before them.
            columns: of a tile.
            pixels: of all of them, in a whole line.
        """
        shape, size, tile, blocks = self.shape, self.size, self.tile, self.blocks
        tiles, filters = self._loop(count), self._loop(blocks.filters)
        taps, pieces = self._taps()
        weights: _Moves = {
            **_contiguous([loop for loop, _ in taps], tile.rows * size),
            filters: self.panel,
            self.groups: blocks.filters * self.panel,
        }
        sets = math.prod(axis.count for axis in shape.batch)
        weights |= {loop: self.weights.size / sets for loop, _ in self.around[: len(shape.batch)]}
        if shape.slides:
            beside = tile.columns * shape.moved(shape.pixels, self.box)
            data = {loop: shape.moved(axis, self.box) for loop, axis in taps}
            if shape.lines is not None:
                data[line] = shape.moved(shape.lines, self.box)
        else:
            beside = float(self._packed * size)
            data = _contiguous([loop for loop, _ in taps], tile.columns * size)
        data[tiles] = beside
        step = tile.columns * shape.pixels.stored * size
        stored = {loop: float(axis.stored * size) for loop, axis in self.around}
        stored |= {
            tiles: step,
            filters: float(tile.rows * shape.filters.stored * size),
            self.groups: float(blocks.filters * tile.rows * shape.filters.stored * size),
        }
        if shape.lines is None:
            stored[self.task] = blocks.steps * step
        else:
            stored[line] = float(shape.lines.stored * size)
            stored[self.task] = blocks.steps * stored[line]
        operands = (
            _Operand(self.copy, data, first * beside, by_column=size),
            _Operand(self.weights, weights, by_row=size),
        )
        # The last tiles of lines and the others store different parts of the result.
        result = _Operand(
            BufferNode("result", shape.results * size * pixels / shape.pixels.count),
            stored,
            first * step,
            by_row=shape.filters.stored * size,
            by_column=shape.pixels.stored * size,
        )
        body = self._tile(columns, operands, result, [loop for loop, _ in taps], pieces)
        return around([n for n in (tiles, filters) if n.count != 1], body)

    def _taps(self) -> tuple[list[tuple[LoopNode, ConvAxis]], int]:
        """Loops over taps with the axis of a step; how many of them are loops over pieces."""
        counts = [axis.count for axis in self.shape.taps]
        cut = piece_at(counts, self.shape.sums)
        result: list[tuple[LoopNode, ConvAxis]] = []
        for at, axis in enumerate(self.shape.taps):
            count: float = axis.count
            if cut is not None and at == cut[0]:
                result.append((self._loop(count / cut[1]), axis.in_steps_of(cut[1])))
                count = cut[1]
            outside = cut is not None and at < cut[0]
            unrolled = count <= _TAPS and not outside
            loop = LoopNode(count, "unrolled") if unrolled else self._loop(count)
            result.append((loop, axis))
        return result, 0 if cut is None else cut[0] + 1

    def _tile(
        self,
        columns: int,
        operands: tuple[_Operand, _Operand],
        result: _Operand,
        taps: list[LoopNode],
        pieces: int,
    ) -> Nest:
        """A register tile: its reduction loops, of which the outermost add partial sums."""
        row = float(columns * self.size)

        def sums(name: str) -> _Operand:
            held = BufferNode(name, self.tile.rows * row, registers=True)
            return _Operand(held, {}, by_row=row, by_column=self.size)

        data, weights = operands
        last = sums("sums")
        update = [*self._loads(columns, data), *self._each(columns, 1, last, last, weights)]
        body = [*self._each(columns, 0, last), *around(taps[pieces:], update)]
        if pieces:
            total = sums("total")
            body += self._each(columns, 1, total, total, last)
            body = [*self._each(columns, 0, total), *around(taps[:pieces], body)]
            last = total
        return [*body, *self._each(columns, 0, result, last)]

    def _widths(self, columns: int) -> list[tuple[int, int]]:
        """Where the whole vectors and the half one at the end of a row begin, and their columns."""
        whole = columns // self.tile.lanes * self.tile.lanes
        return [(at, n) for at, n in ((0, whole), (whole, columns - whole)) if n]

    def _loads(self, columns: int, data: _Operand) -> Nest:
        """Loads of the vectors of data. Those that begin at any element cross lines."""
        result: Nest = []
        for at, width in self._widths(columns):
            vector = min(width, self.tile.lanes) * self.size
            crossing = (vector - self.size) / self.target.cache(1).line
            part = LoopNode(1 + crossing * self.shape.slides, "unrolled")
            lane = LoopNode(width, "lanes")
            inside = {part: float(vector), lane: float(self.size)}
            access = _access(data.from_column(at), inside, self.size)
            lane.body = [StatementNode((access,), 0, width=self.size)]
            result += around([part], [lane])
        return result

    def _each(self, columns: int, operations: int, stored: _Operand, *loaded: _Operand) -> Nest:
        """One statement over all elements of a register tile."""
        result: Nest = []
        for at, width in self._widths(columns):
            loops = LoopNode(self.tile.rows, "unrolled"), LoopNode(width, "lanes")
            operands = (one.from_column(at) for one in (stored, *loaded))
            result += _statement(self.size, loops, operations, *operands)
        return result


def _statement(
    size: int,
    loops: tuple[LoopNode, LoopNode],
    operations: int,
    stored: _Operand,
    *loaded: _Operand,
) -> Nest:
    """One statement over the rows and columns of a register tile."""

    def access(operand: _Operand, is_store: bool) -> AccessNode:
        inside = dict(zip(loops, (operand.by_row, operand.by_column), strict=True))
        return _access(operand, inside, size, is_store)

    accesses = (access(stored, True), *(access(operand, False) for operand in loaded))
    row, lane = loops
    lane.body = [StatementNode(accesses, operations, stored in loaded, width=size)]
    return around([row], [lane])


def _access(operand: _Operand, inside: _Moves, size: int, stored: bool = False) -> AccessNode:
    moves = {loop: float(step) for loop, step in (operand.moves | inside).items() if step}
    return AccessNode(operand.storage, moves, size, operand.base, stored)


def _contiguous(loops: Sequence[LoopNode], step: float) -> _Moves:
    """Strides of nested loops through contiguous steps of some bytes."""
    result: _Moves = {}
    for loop in reversed(loops):
        result[loop] = step
        step *= loop.count
    return result


__all__ = ["ConvBlocks", "conv_estimate", "gemm_estimate"]

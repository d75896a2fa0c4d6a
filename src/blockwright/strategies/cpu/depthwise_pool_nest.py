"""Loop nest of a sliding window for the cost model: tasks, copies of the data, tiles and taps."""

from __future__ import annotations

import math

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
from blockwright.strategies.cpu.depthwise_pool_shape import (
    WindowBlocks,
    WindowShape,
    WindowTile,
    groups_of,
    places_of,
)
from blockwright.target import Target

Nest = list[LoopNode | StatementNode]
_GUARD = 8  # instructions that decide whether copied elements are in the border


def window_estimate(
    target: Target, shape: WindowShape, tile: WindowTile, blocks: WindowBlocks, bits: int
) -> Estimate:
    """The predicted time of a window that is a parallel nest of its own."""
    return estimate_nest(_Nest(target, shape, tile, blocks, bits).tasks(), target)


def window_seconds(
    target: Target, shape: WindowShape, tile: WindowTile, blocks: WindowBlocks, bits: int
) -> float:
    """Predicted seconds of a window that is a parallel nest of its own."""
    return window_estimate(target, shape, tile, blocks, bits).seconds


class _Nest:
    """Builds the nest of one choice. Strides are in bytes."""

    def __init__(
        self,
        target: Target,
        shape: WindowShape,
        tile: WindowTile,
        blocks: WindowBlocks,
        bits: int,
    ) -> None:
        self.target, self.shape, self.tile, self.blocks = target, shape, tile, blocks
        self.size = bits // 8
        self.vector = tile.lanes * self.size  # bytes
        self.wide = blocks.groups * tile.vectors * self.vector  # bytes of a task's vector axis
        groups = groups_of(shape, tile)
        self.images = LoopNode(shape.tasks or 1, "parallel")
        self.row_blocks = LoopNode(shape.known_rows / blocks.rows, "parallel")
        self.group_blocks = LoopNode(groups / blocks.groups, "parallel")
        along = blocks.rows if shape.one_axis else shape.known_columns
        self.rows = self._loop(1 if shape.one_axis else blocks.rows)
        self.tiles = self._loop(math.ceil(along / tile.columns))
        self.groups = self._loop(blocks.groups)
        taps = math.ceil((shape.taps or 9) / shape.along)
        self.taps = LoopNode(taps, "unrolled") if tile.written_out else self._loop(taps)
        # Bytes from column to column and from row to row of the data.
        self.pitch = float(shape.pitch)
        self.row = self.pitch if shape.one_axis else self.pitch * shape.known_width
        self.lane_step = shape.known_width if shape.groups_move and shape.one_axis else 1
        self.whole = groups * tile.vectors * self.vector

    def _loop(self, count: float) -> LoopNode:
        """A loop that always has this many iterations."""
        return LoopNode(count, predicted=count <= self.target.core.predicted_iterations)

    def tasks(self) -> Nest:
        loops = [self.images, self.row_blocks, self.group_blocks]
        share_out(loops, self.target.num_threads)
        return around([loops[0], *(n for n in loops[1:] if n.count > 1)], self.task())

    def task(self) -> Nest:
        """What one task does."""
        image = self.row * _rows_of(self.shape)
        data = BufferNode("data", max(self.whole, image) * (self.shape.tasks or 1))
        if not self.blocks.copied:
            return self.window(data, self.pitch, self.row, image)
        read = (self.blocks.rows - 1) * self.shape.row_step + self.shape.row_reach
        pitch = self.row if self.shape.groups_move else float(self.wide)
        row = pitch if self.shape.one_axis else pitch * self.shape.known_width
        copy = BufferNode("copy", read * row)
        return [*self._copy(data, copy, read, row, image), *self.window(copy, pitch, row, 0)]

    def _copy(
        self, data: BufferNode, copy: BufferNode, read: int, row: float, image: float
    ) -> Nest:
        """The copy of the rows that a task reads."""
        rows, lane = self._loop(read), LoopNode(self.tile.lanes, "lanes")
        runs = self._loop(1 if self.shape.groups_move else row / self.wide)
        vectors = self._loop((row if self.shape.groups_move else self.wide) / self.vector)
        inside = {vectors: self.vector, lane: self.size}
        run = 0 if self.shape.groups_move else self.pitch
        loaded = {
            self.images: image,
            self.row_blocks: self.blocks.rows * self.shape.row_step * self.row,
            self.group_blocks: self.wide,
            rows: self.row,
            runs: run,
            **inside,
        }
        stored = {rows: row, runs: float(self.wide), **inside}
        accesses = (self._access(copy, stored, True), self._access(data, loaded))
        lane.body = [StatementNode(accesses, _GUARD, width=self.size)]
        return around([n for n in (rows, runs, vectors) if n.count > 1], [lane])

    def window(self, data: BufferNode, pitch: float, row: float, image: float) -> Nest:
        """The window over data with these strides; `image`: from task to task."""
        shape, tile = self.shape, self.tile
        group = tile.vectors * self.vector
        moved = {
            self.rows: shape.row_step * row,
            self.tiles: tile.columns * shape.step * pitch,
            self.groups: group * self.lane_step,
            self.taps: self._tap_step(pitch, row),
        }
        if image:
            moved[self.images] = image
            moved[self.row_blocks] = self.blocks.rows * shape.row_step * row
            moved[self.group_blocks] = self.wide * self.lane_step
        places = self._places()
        reach = (tile.columns - 1) * shape.step + (shape.along - 1) * shape.gap
        between = pitch * reach / max(1, places - 1)
        body: Nest = [self._loads(data, places, between, moved)]
        if shape.weighted:
            body.append(self._weights())
        held = BufferNode("sums", tile.columns * group, registers=True)
        column, along = LoopNode(tile.columns, "unrolled"), LoopNode(shape.along, "unrolled")
        body.append(self._each(held, {column: group}, (column, along), 1, True))
        inner = body if self.taps.count == 1 else around([self.taps], body)
        result = BufferNode("result", self._result_bytes())
        stored, last = self._result_moves(), LoopNode(tile.columns, "unrolled")
        end = self._each(result, {**stored, last: stored[self.tiles] / tile.columns}, (last,), 0)
        loops = [n for n in (self.rows, self.tiles, self.groups) if n.count > 1]
        return around(loops, [*inner, end])

    def _tap_step(self, pitch: float, row: float) -> float:
        """Bytes of the data from one tap to the next, of those that are not along columns."""
        shape = self.shape
        if shape.groups_move and (shape.one_axis or not pitch):
            return self.size
        if not pitch:
            return self.whole
        return row * (shape.row_reach - 1) / max(1, self.taps.count - 1) or pitch

    def _places(self) -> int:
        """Elements that a tile loads for one value of the other taps.

        Adjacent results share them if the registers hold them.
        """
        shape, tile = self.shape, self.tile
        places = places_of(shape, tile.columns)
        weights = 0 if not shape.weighted else shape.along if tile.written_out else 1
        held = tile.columns + weights + min(shape.along, places)
        fits = held * tile.vectors <= self.target.vector_registers
        return places if fits else tile.columns * shape.along

    def _loads(
        self, data: BufferNode, places: int, between: float, moved: dict[LoopNode, float]
    ) -> LoopNode:
        """Loads of the elements that a tile reads for one value of the other taps."""
        place, part = LoopNode(places, "unrolled"), LoopNode(self._parts(), "unrolled")
        vector, lane = LoopNode(self.tile.vectors, "unrolled"), LoopNode(self.tile.lanes, "lanes")
        moves = {
            **moved,
            place: between,
            vector: self.vector * self.lane_step,
            part: self.vector,
            lane: self.size,
        }
        shuffles = self.lane_step if self.lane_step > 1 else 0
        statement = StatementNode(
            (self._access(data, moves, ahead=self.blocks.ahead),), shuffles, width=self.size
        )
        return _nested((place, vector, part, lane), statement)

    def _parts(self) -> float:
        """Loads per vector of the data.

        Elements of every `lane_step`-th column are picked from several vectors. Vectors that begin
        at any element cross lines, and the part in each line is a load.
        """
        if not self.shape.groups_move:
            return 1
        crossing = (self.vector - self.size) / self.target.cache(1).line
        return self.lane_step * (1 + crossing)

    def _weights(self) -> LoopNode:
        """Loads of the weights along the tile for one value of the other taps."""
        shape, along = self.shape, LoopNode(self.shape.along, "unrolled")
        vector, lane = LoopNode(self.tile.vectors, "unrolled"), LoopNode(self.tile.lanes, "lanes")
        tap = self.size if shape.groups_move else self.whole
        moves: dict[LoopNode, float] = {along: tap, self.taps: shape.along * tap}
        total = (shape.taps or 9) * tap
        if shape.groups_move:
            moves[self.images] = total
            return _nested((along,), self._load(BufferNode("weights", total), moves))
        moves |= {vector: self.vector, lane: self.size}
        moves |= {self.groups: self.tile.vectors * self.vector, self.group_blocks: self.wide}
        statement = self._load(BufferNode("weights", total), moves)
        return _nested((along, vector, lane), statement)

    def _load(self, storage: BufferNode, moves: dict[LoopNode, float]) -> StatementNode:
        return StatementNode((self._access(storage, moves),), 0, width=self.size)

    def _each(
        self,
        stored: BufferNode,
        moves: dict[LoopNode, float],
        loops: tuple[LoopNode, ...],
        operations: int,
        chained: bool = False,
    ) -> LoopNode:
        """One statement over the vectors of a tile."""
        vector, lane = LoopNode(self.tile.vectors, "unrolled"), LoopNode(self.tile.lanes, "lanes")
        moves = {**moves, vector: self.vector, lane: self.size}
        accesses = (self._access(stored, moves, True),)
        statement = StatementNode(
            accesses, operations, chained, chained and self.tile.written_out, width=self.size
        )
        return _nested((*loops, vector, lane), statement)

    def _access(
        self,
        storage: BufferNode,
        moves: dict[LoopNode, float],
        stored: bool = False,
        ahead: bool = False,
    ) -> AccessNode:
        used = {loop: float(step) for loop, step in moves.items() if step}
        return AccessNode(storage, used, self.size, stored=stored, prefetched=ahead)

    def _result_bytes(self) -> float:
        shape = self.shape
        lines = 1 if shape.one_axis else shape.known_rows
        return self.whole * shape.known_columns * lines * (shape.tasks or 1)

    def _result_moves(self) -> dict[LoopNode, float]:
        shape, line = self.shape, self.whole * self.shape.known_columns
        row = self.whole if shape.one_axis else line
        image = self._result_bytes() / (shape.tasks or 1)
        return {
            self.images: image,
            self.row_blocks: self.blocks.rows * row,
            self.group_blocks: self.wide,
            self.rows: row,
            self.tiles: self.tile.columns * self.whole,
            self.groups: self.tile.vectors * self.vector,
        }


def _rows_of(shape: WindowShape) -> int:
    """Rows of the data of one image."""
    return (shape.known_rows - 1) * shape.row_step + shape.row_reach


def _nested(loops: tuple[LoopNode, ...], statement: StatementNode) -> LoopNode:
    (node,) = around(loops, [statement])
    assert isinstance(node, LoopNode)
    return node


__all__ = ["window_estimate", "window_seconds"]

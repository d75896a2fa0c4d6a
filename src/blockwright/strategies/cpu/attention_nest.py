"""Loop nest of attention for the cost model: packed keys, scores, softmax, and the second product.

    for head, task:                           parallel
        for block of keys:                    one block, unless the keys are processed in kv blocks
            pack the keys
            for row tile:
                for panel of keys:            scores of a register tile, summed over the head
                two passes over the scores    their maximum; their exponentials and the sum of these
                for slice of the head:        results of a register tile, summed over the keys
        combine the partial results of the blocks

Tails count as whole tiles.
"""

from __future__ import annotations

import math

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

_LINE = 64  # bytes
_EXP = 12  # instructions of a vector of exponentials, its scaling and its sum
_Moves = dict[LoopNode, float]


class AttentionNest(msgspec.Struct, frozen=True):
    """Sizes of attention as it is scheduled.

    Attributes:
        heads, rows, keys: heads with the batch, query rows, keys of a block; blocks: of keys.
        key, value: elements of a row of keys, and of values.
        group: elements of a row of keys that a step multiplies; slots: instructions of a step.
        size: bytes of a score, a group of queries or keys, and a result.
        tile: of the scores; columns: of a slice of the head.
        tasks: per head.
    """

    heads: int
    rows: int
    keys: int
    blocks: int
    key: int
    value: int
    group: int
    slots: float
    size: int
    tile: RegisterTile
    columns: int
    tasks: int

    def estimate(self, target: Target) -> Estimate:
        """The predicted time, without causal masks."""
        return estimate_nest([_Builder(self, target).nest()], target)


class _Builder:
    def __init__(self, nest: AttentionNest, target: Target) -> None:
        self.sizes, self.target = nest, target
        self.head = LoopNode(nest.heads, "parallel")
        self.task = LoopNode(nest.tasks, "parallel")
        self.block = LoopNode(nest.blocks)
        rows = math.ceil(nest.rows / nest.tasks)
        self.tile = LoopNode(math.ceil(rows / nest.tile.rows))
        self.own_rows = self.tile.count * nest.tile.rows

    def nest(self) -> LoopNode:
        sizes = self.sizes
        steps = math.ceil(sizes.key / sizes.group)
        panels = math.ceil(sizes.keys / sizes.tile.columns)
        keys = panels * sizes.tile.columns
        query, packed, value = (
            steps * sizes.size,
            keys * steps * sizes.size,
            sizes.value * sizes.size,
        )
        whole = sizes.keys * sizes.blocks
        k_bytes, v_bytes = steps * sizes.size * whole, value * whole
        k = BufferNode("K", sizes.heads * k_bytes)
        v = BufferNode("V", sizes.heads * v_bytes)
        panel = BufferNode("packed K", packed)
        scores = BufferNode("scores", sizes.tile.rows * keys * sizes.size)
        in_block = {self.head: k_bytes, self.block: k_bytes / sizes.blocks}
        pack = self._pass(packed, 0, (k, in_block, False), (panel, {}, True))
        rows_of_head = self.task.count * self.own_rows
        q = BufferNode("Q", sizes.heads * rows_of_head * query)
        of_rows = {
            self.head: rows_of_head * query,
            self.task: self.own_rows * query,
            self.tile: sizes.tile.rows * query,
        }
        column, step = LoopNode(panels), LoopNode(steps)
        width = sizes.tile.columns * sizes.size
        step.body = [
            self._product(
                sizes.tile,
                sizes.slots,
                (q, {**of_rows, step: sizes.size}, query),
                (panel, {column: width * steps, step: width}),
            )
        ]
        # Rows of scores may be a multiple of a page apart. The model would let more of them than a
        # cache has ways replace each other; that costs less than 3 % (14 rows, 12 ways).
        row_of_scores = keys * sizes.size + _LINE
        column.body = [step, self._store(sizes.tile, scores, {column: width}, row_of_scores)]
        whole_tile = sizes.tile.rows * row_of_scores
        softmax = [
            self._pass(whole_tile, 1, (scores, {}, False)),
            self._pass(whole_tile, _EXP, (scores, {}, False), (scores, {}, True)),
        ]
        held = RegisterTile(sizes.tile.rows, sizes.columns, sizes.tile.lanes)
        part, key = LoopNode(math.ceil(sizes.value / sizes.columns)), LoopNode(sizes.keys)
        in_values = {self.head: v_bytes, self.block: v_bytes / sizes.blocks}
        line = sizes.columns * sizes.size
        key.body = [
            self._product(
                held,
                1,
                (scores, {key: sizes.size}, row_of_scores),
                (v, {**in_values, part: line, key: value}),
            )
        ]
        result = rows_of_head * value * sizes.blocks
        out = BufferNode("results", sizes.heads * result if sizes.blocks == 1 else result)
        of_result = {
            **({self.head: result} if sizes.blocks == 1 else {}),
            self.task: self.own_rows * value * sizes.blocks,
            self.block: self.own_rows * value,
            self.tile: sizes.tile.rows * value,
        }
        part.body = [key, self._store(held, out, {**of_result, part: line}, value)]
        self.tile.body = [column, *softmax, part]
        self.block.body = [pack, self.tile]
        body: list[LoopNode | StatementNode] = [self.block]
        if sizes.blocks > 1:
            partial = self.own_rows * value * sizes.blocks
            moved = {self.task: partial}
            body.append(self._pass(partial, 2, (out, moved, False)))
        share_out([self.head, self.task], self.target.num_threads)
        around([self.head, self.task], body)
        return self.head

    def _product(
        self,
        tile: RegisterTile,
        operations: float,
        left: tuple[BufferNode, _Moves, float],
        right: tuple[BufferNode, _Moves],
    ) -> LoopNode:
        """A step of a register tile: elements of rows times a vector row of columns."""
        size = self.sizes.size
        row, column = LoopNode(tile.rows, "unrolled"), LoopNode(tile.columns, "lanes")
        sums = BufferNode("sums", tile.rows * tile.columns * size, registers=True)
        own = {row: float(tile.columns * size), column: float(size)}
        storage, moves, apart = left
        accesses = (
            AccessNode(sums, own, size, stored=True),
            AccessNode(sums, own, size),
            AccessNode(storage, {**moves, row: apart}, size),
            AccessNode(right[0], {**right[1], column: size}, size),
        )
        column.body = [StatementNode(accesses, operations, True, width=size)]
        row.body = [column]
        return row

    def _store(
        self, tile: RegisterTile, storage: BufferNode, moves: _Moves, apart: float
    ) -> LoopNode:
        """Store the sums of a register tile."""
        size = self.sizes.size
        row, column = LoopNode(tile.rows, "unrolled"), LoopNode(tile.columns, "lanes")
        place = AccessNode(storage, {**moves, row: apart, column: size}, size, stored=True)
        column.body = [StatementNode((place,), width=size)]
        row.body = [column]
        return row

    def _pass(
        self,
        nbytes: float,
        operations: float,
        *places: tuple[BufferNode, _Moves, bool],
    ) -> LoopNode:
        """A loop over vectors of memory; a place: a buffer, its moves, whether it is stored to."""
        size, lanes = self.sizes.size, self.sizes.tile.lanes
        vectors, lane = LoopNode(nbytes / (lanes * size)), LoopNode(lanes, "lanes")
        accesses = tuple(
            AccessNode(storage, {**moves, vectors: lanes * size, lane: size}, size, stored=stored)
            for storage, moves, stored in places
        )
        lane.body = [StatementNode(accesses, operations, width=size)]
        vectors.body = [lane]
        return vectors

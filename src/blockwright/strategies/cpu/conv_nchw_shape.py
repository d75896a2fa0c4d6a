"""Extents and strides of a channels-first convolution, as its loop nest needs them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from blockwright import ir
from blockwright.arith import simplify
from blockwright.strategies.cpu.split_k import Pieces
from blockwright.strategies.match.blocks import extent_of
from blockwright.strategies.match.planes import Planes


class ConvAxis(msgspec.Struct, frozen=True):
    """An axis of the convolution.

    Attributes:
        count: its extent.
        moves: elements by which a step moves each index of the data.
        stored: elements by which it moves the result.
    """

    count: int
    moves: tuple[int, ...]
    stored: float

    def in_steps_of(self, count: int) -> ConvAxis:
        """The axis of every `count`-th element."""
        moves = tuple(count * step for step in self.moves)
        return ConvAxis(math.ceil(self.count / count), moves, count * self.stored)


class ConvShape(msgspec.Struct, frozen=True):
    """What the plans of one convolution depend on.

    Attributes:
        bits: of an element.
        sums: how long reductions are split into partial sums.
        data: extents of the data.
        batch: axes of data, weights and result, such as groups.
        outer: other axes of data and result, without the one of lines.
        lines: the axis whose lines form tasks; None if tiles of pixels do.
        pixels: the axis along which vectors run.
        filters: the axis of filters.
        taps: reduction axes.
        step: stride of the data from one pixel to the next, in elements.
        slides: whether tasks copy the data unchanged; otherwise they pack it in panels.
    """

    bits: int
    sums: Pieces
    data: tuple[int, ...]
    batch: tuple[ConvAxis, ...]
    outer: tuple[ConvAxis, ...]
    lines: ConvAxis | None
    pixels: ConvAxis
    filters: ConvAxis
    taps: tuple[ConvAxis, ...]
    step: int
    slides: bool

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.bits // 8

    @property
    def depth(self) -> int:
        return math.prod(tap.count for tap in self.taps)

    def panels(self, rows: int) -> int:
        """Tiles of this many filters."""
        return math.ceil(self.filters.count / rows)

    @property
    def results(self) -> int:
        """Elements of the result."""
        axes = (*self.batch, *self.outer, self.pixels, self.filters)
        axes += () if self.lines is None else (self.lines,)
        return math.prod(axis.count for axis in axes)

    def steps(self, columns: int) -> int:
        """Steps that tasks divide among them: lines, or tiles of this many pixels."""
        return math.ceil(self.pixels.count / columns) if self.lines is None else self.lines.count

    def moved(self, axis: ConvAxis, extents: Sequence[int] | None = None) -> float:
        """Bytes by which a step of an axis moves through the data, or a copy of some extents."""
        pitches = row_major(self.data if extents is None else extents)
        return self.size * sum(n * step for n, step in zip(pitches, axis.moves, strict=True))

    def tasks(self, columns: int, steps: int = 1) -> int:
        """Tasks of some steps with all filters."""
        around = math.prod(axis.count for axis in (*self.batch, *self.outer))
        return around * math.ceil(self.steps(columns) / steps)

    def copied(self, columns: int, steps: int) -> int:
        """Elements that a task of some steps copies."""
        if not self.slides:
            return steps * columns * self.depth
        tiles = steps if self.lines is None else math.ceil(self.pixels.count / columns)
        return math.prod(self.box(steps, tiles * columns))

    def box(self, lines: int, pixels: int) -> tuple[int, ...]:
        """Extents of the data that some lines of some pixels read."""
        axes = [(tap, tap.count) for tap in self.taps] + [(self.pixels, pixels)]
        axes += [] if self.lines is None else [(self.lines, lines)]
        return tuple(
            min(extent, 1 + sum((count - 1) * abs(axis.moves[k]) for axis, count in axes))
            for k, extent in enumerate(self.data)
        )


def conv_shape(block: ir.Block, roles: Planes, sums: Pieces) -> ConvShape:
    """The extents and strides of a convolution that `planes_of` matched."""
    load = next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is roles.data)
    store = block.body
    assert isinstance(store, ir.BufferStore)
    pitches = row_major([ir.const_int(n) or 1 for n in store.buffer.shape])

    def axis(*positions: int) -> ConvAxis:
        last = block.iter_vars[positions[-1]]
        moves = tuple(_step(index, last, block) for index in load.indices)
        stored = zip(pitches, (_step(index, last, block) for index in store.indices), strict=True)
        return ConvAxis(
            extent_of(block, positions) or 1, moves, sum(pitch * step for pitch, step in stored)
        )

    def axes(positions: Sequence[int]) -> tuple[ConvAxis, ...]:
        return tuple(axis(p) for p in positions if extent_of(block, [p]) != 1)

    lines = lines_of(block, roles)
    return ConvShape(
        roles.data.dtype.bits,
        sums,
        tuple(ir.const_int(n) or 1 for n in roles.data.shape),
        axes(roles.batch),
        axes([p for p in roles.outer if p != lines]),
        None if lines is None else axis(lines),
        axis(*roles.pixels),
        axis(*roles.filters),
        axes(roles.depth),
        roles.step,
        roles.slides,
    )


def lines_of(block: ir.Block, roles: Planes) -> int | None:
    """The axis whose lines form tasks: the last outer one, if taps share its index of the data."""
    if not roles.slides or not roles.outer or extent_of(block, roles.outer[-1:]) == 1:
        return None
    own = block.iter_vars[roles.outer[-1]].var
    taps = [block.iter_vars[p].var for p in roles.depth if extent_of(block, [p]) != 1]
    loads = [n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is roles.data]
    shared = any(
        ir.uses_var(index, own) and any(ir.uses_var(index, tap) for tap in taps)
        for load in loads
        for index in load.indices
    )
    return roles.outer[-1] if shared else None


def row_major(extents: Sequence[float]) -> list[float]:
    """Elements by which a step of each index moves through contiguous memory."""
    result: list[float] = []
    pitch = 1.0
    for extent in reversed(extents):
        result.insert(0, pitch)
        pitch *= extent
    return result


def _step(index: ir.Expr, it: ir.IterVar, block: ir.Block) -> int:
    """By how much an index moves at an iterator's first step; 0 if that depends on others."""
    if not ir.uses_var(index, it.var) or ir.is_const_int(it.dom.extent, 1):
        return 0
    start = {other.var: other.dom.min for other in block.iter_vars}
    moved = ir.substitute(index, {**start, it.var: it.dom.min + 1})
    return ir.const_int(simplify(moved - ir.substitute(index, start))) or 0


__all__ = ["ConvAxis", "ConvShape", "conv_shape", "lines_of", "row_major"]

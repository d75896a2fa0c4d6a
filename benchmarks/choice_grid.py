"""A grid of schedules for matrix products, written with the schedule primitives.

    C[m, n] = sum over k of A[m, k] * W[k, n], W constant

Parameters: the register tile (every one that fits), the k-split, rows and columns per task, the
loop order of tasks and of the tiles in a task, and whether W is packed into panels. The grid is
independent of the choices of the compiler's strategies.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockwright.ir import Expr, PrimFunc
    from blockwright.schedule import BlockRV, LoopRV, Schedule
    from blockwright.target import Target

PIECES = (1, 2, 3, 4, 6, 8)
"""Numbers of k-splits to try."""
ROW_TILES = (1, 4, 8, 16, 32, 0)
"""Register tiles per task along m; 0 for all."""
COLUMNS = (128, 512, 1024, 0)
"""Approximate columns per task; 0 for all."""


@dataclass(frozen=True)
class Shape:
    """C is m × n; k is a multiple of 24, so that every k-split is even."""

    m: int
    n: int
    k: int

    @property
    def operations(self) -> int:
        return 2 * self.m * self.n * self.k

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


def random_shape(draw: random.Random, most: int = 1536) -> Shape:
    """Random extents of at least 256, log-uniform."""

    def extent(step: int) -> int:
        exact = 256 * (most / 256) ** draw.random()
        return max(256, round(exact / step) * step)

    return Shape(extent(1), extent(draw.choice([1, 16, 64])), extent(24))


@dataclass(frozen=True)
class Point:
    """One schedule of the grid.

    Attributes:
        rows, vectors: register tile.
        pieces, row_tiles, columns: see `PIECES`, `ROW_TILES`, `COLUMNS`.
        rows_inside: whether a panel of W is used for all rows of a task before the next one.
        packed: whether W is packed into panels.
    """

    rows: int
    vectors: int
    pieces: int
    row_tiles: int
    columns: int
    rows_inside: bool
    packed: bool

    def __str__(self) -> str:
        order = "rows inside" if self.rows_inside else "columns inside"
        packed = "packed" if self.packed else "in place"
        return (
            f"{self.rows}x{self.vectors} k/{self.pieces} m{self.row_tiles} n{self.columns}"
            f" {order} {packed}"
        )


def tiles(registers: int) -> list[tuple[int, int]]:
    """Register tiles that leave registers for a row of W and an element of A."""
    return [
        (rows, vectors)
        for rows in range(1, registers)
        for vectors in range(1, 7)
        if rows * vectors + vectors + 1 <= registers
    ]


def random_point(draw: random.Random, shape: Shape, target: Target) -> Point:
    """A random point of the grid that is valid for the shape."""
    rows, vectors = draw.choice(tiles(target.vector_registers))
    point = Point(
        rows,
        vectors,
        draw.choice(PIECES),
        draw.choice(ROW_TILES),
        draw.choice(COLUMNS),
        draw.random() < 0.5,
        draw.random() < 0.75,
    )
    return point if possible(point, shape, target) else replace(point, packed=True)


def possible(point: Point, shape: Shape, target: Target) -> bool:
    """Whether a point is valid: W can be read in place only if whole tiles cover its columns."""
    return point.packed or shape.n % (point.vectors * target.lanes("float32")) == 0


def neighbours(point: Point, shape: Shape, target: Target) -> Iterator[Point]:
    """Points that differ in one choice, by one step."""
    for name, values in (("pieces", PIECES), ("row_tiles", ROW_TILES), ("columns", COLUMNS)):
        at = values.index(getattr(point, name))
        for near in (at - 1, at + 1):
            if 0 <= near < len(values):
                yield replace(point, **{name: values[near]})
    yield replace(point, rows_inside=not point.rows_inside)
    other = replace(point, packed=not point.packed)
    if possible(other, shape, target):
        yield other
    fits = set(tiles(target.vector_registers))
    for rows, vectors in (
        (point.rows - 1, point.vectors),
        (point.rows + 1, point.vectors),
        (point.rows, point.vectors + 1),
        (point.rows, point.vectors - 1),
        (point.rows * 2, point.vectors // 2),
    ):
        changed = replace(point, rows=rows, vectors=vectors)
        if (rows, vectors) in fits and possible(changed, shape, target):
            yield changed


@functools.cache
def program(shape: Shape) -> PrimFunc:
    """The unscheduled product, with W marked as constant."""
    from blockwright import ir
    from blockwright.script.compute import Program
    from blockwright.strategies import CONSTANT_PARAMS

    p = Program("product")
    m, n, k = (ir.const(extent, "int64") for extent in (shape.m, shape.n, shape.k))
    a, w = p.param("A", (m, k), "float32"), p.param("W", (k, n), "float32")

    def term(i: Expr, j: Expr, k: Expr) -> Expr:
        return a[i, k] * w[k, j]

    func = p.finish([p.reduce("C", (m, n), (k,), term)])
    return func.replace(attrs={**func.attrs, CONSTANT_PARAMS: (1,)})


def scheduled(shape: Shape, point: Point, target: Target) -> PrimFunc:
    """The product with the schedule of a point."""
    from blockwright.schedule import Schedule

    width = point.vectors * target.lanes("float32")
    sch = Schedule(program(shape))
    column, panels, result = _operands(sch, point, width)
    partial = _pieces(sch, point)
    *piece, m, n = sch.get_loops("C") if partial is not None else sch.get_loops("C")[:2]
    m0, m1 = sch.split(m, [None, point.rows])
    n0, n1 = sch.split(n, [None, width])
    if partial is None:
        k = sch.get_loops("C")[-1]
        sch.reorder(m0, n0, k, m1, n1)
        _tile(sch, sch.get_block("C"), column, k, m1, point, width)
    else:
        sch.reorder(m0, n0, m1, n1)
        sch.compute_at(partial, n0, preserve_unit_loops=True)
        pm, pn, pk = sch.get_loops(partial)[-3:]
        sch.reorder(pk, pm, pn)
        _tile(sch, partial, column, pk, pm, point, width)
    row_tiles, column_tiles = math.ceil(shape.m / point.rows), math.ceil(shape.n / width)
    mo, mi = sch.split(m0, [None, min(point.row_tiles or row_tiles, row_tiles)])
    no, ni = sch.split(n0, [None, min(max(1, (point.columns or shape.n) // width), column_tiles)])
    outer, inner = ((no, mo), (ni, mi)) if point.rows_inside else ((mo, no), (mi, ni))
    sch.reorder(*outer, *piece, *inner)
    if partial is None:
        sch.reverse_compute_at(result, inner[1], preserve_unit_loops=True)
        _rows(sch, result, width)
    else:
        sch.reverse_compute_at(result, outer[1])
        start = sch.decompose_reduction("C", piece[0])
        for block in (start, sch.get_block("C")):
            _rows(sch, block, width)
        _, lane = sch.split(sch.get_loops(result)[-1], [None, target.lanes("float32")])
        sch.vectorize(lane)
    sch.parallel(sch.fuse(*outer))
    if panels is not None:
        _pack(sch, panels, point, target)
    return sch.func


def _pack(sch: Schedule, panels: BlockRV, point: Point, target: Target) -> None:
    n, k = sch.get_loops(panels)
    panel, vector, lane = sch.split(n, [None, point.vectors, target.lanes("float32")])
    sch.reorder(panel, k, vector, lane)
    sch.vectorize(lane)
    sch.parallel(panel)


def _operands(sch: Schedule, point: Point, width: int) -> tuple[BlockRV, BlockRV | None, BlockRV]:
    """Copies padded to whole tiles: a column of A, W as panels, and the result."""
    column = sch.reindex("C", "A")
    panels = sch.reindex("C", "W") if point.packed else None
    result = sch.reindex("C", "C")
    made = sch.pad_einsum("C", [point.rows, width, 1], mode="clamp") or []
    for block in made:
        source = _buffer(sch, block, "reads")
        if source == _buffer(sch, column, "writes"):
            sch.compute_inline(column)
            column = block
        elif panels is not None and source == _buffer(sch, panels, "writes"):
            sch.compute_inline(panels)
            panels = block
        else:
            sch.compute_inline(block)
    if panels is not None:

        def panel_of(n: Expr, k: Expr) -> tuple[Expr, ...]:
            return n // width, k, n % width

        sch.transform_layout(panels, ("write", 0), panel_of)
    return column, panels, result


def _buffer(sch: Schedule, block: BlockRV, side: str) -> str:
    (region,) = getattr(sch.get(block), side)
    return region.buffer.name


def _pieces(sch: Schedule, point: Point) -> BlockRV | None:
    """Split the reduction: returns the block of partial sums, which "C" then adds up."""
    if point.pieces == 1:
        return None
    m, n, k = sch.get_loops("C")
    piece, _ = sch.split(k, [point.pieces, None])
    sch.reorder(piece, m, n)
    return sch.rfactor(piece, 0)


def _tile(
    sch: Schedule, block: BlockRV, column: BlockRV, k: LoopRV, m1: LoopRV, point: Point, width: int
) -> None:
    """Accumulators and a column of A in registers, one intrinsic per step."""
    from blockwright.intrin import outer_product_name

    sch.set_scope(block, 0, "local")
    sch.set_scope(column, 0, "local")
    sch.compute_at(column, k)
    for loop in sch.get_loops(column)[len(sch.get_loops(block)) - 2 :]:
        sch.unroll(loop)
    _rows(sch, sch.decompose_reduction(block, k), width)
    sch.tensorize(m1, outer_product_name(point.rows, width))


def _rows(sch: Schedule, block: BlockRV, width: int) -> None:
    """Unroll the rows of a register tile, each one vector."""
    row, columns = sch.get_loops(block)[-2:]
    vectors, lane = sch.split(columns, [None, width])
    sch.unroll(row)
    sch.unroll(vectors)
    sch.vectorize(lane)

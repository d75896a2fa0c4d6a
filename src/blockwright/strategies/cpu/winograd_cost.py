"""Predicted time of a Winograd convolution, and the best group size of tiles.

The steps of the algorithm are described as loop nests for the cost model; no schedule is built.
Tiles are processed in groups: a task takes a group through all steps, so that its transforms stay
in the second-level cache, and every group reads all filters again. Where filters are large and
tiles few, all tiles are one group, and each step is a separate pass. Filters that come from memory,
because a model has more weights than the last-level cache holds, favor few groups and small tiles,
whose filters are fewer bytes. The direct method is a product of pixels and filters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

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
from blockwright.ops.winograd import TAPS
from blockwright.ops.winograd_transforms import operations, transforms
from blockwright.strategies.cpu.gemm_blocking import gemm_blocking, gemm_tile
from blockwright.strategies.cpu.gemm_cost import (
    GemmBlocking,
    GemmShape,
    Storage,
    parallel_nest,
    serial_nest,
    tiles_of,
)
from blockwright.strategies.cpu.gemm_start_plans import start_plans
from blockwright.strategies.cpu.register_tiling import RegisterTile, choose_register_tile
from blockwright.strategies.cpu.split_k import Pieces, piece_lengths
from blockwright.target import Target

# Output transforms magnify the errors of sums over channels; short pieces keep these small: at most
# 4 times the error of a direct sum, which itself grows with the channels.
_COARSE = Pieces(most=128, least=64, longest=192)
_FINE = Pieces(most=16, least=8, longest=32)
_FINE_OF_MANY = Pieces(most=32, least=16, longest=48)
_MANY_CHANNELS = 512
_BETTER = 0.97  # plans that differ by less are equally fast within the error of the model
_A_FEW = 4  # images assumed for a batch of unknown size

Nest = list[LoopNode | StatementNode]


class Convolution(msgspec.Struct, frozen=True):
    """Extents of a 3×3 convolution with stride 1; height and width are those of the result.

    Attributes:
        batch: number of images; None if unknown, which is costed as a few.
        uncached: whether filters are in no cache at entry.
    """

    batch: int | None
    height: int
    width: int
    channels: int
    filters: int
    bits: int = 32
    uncached: bool = False

    def grid(self, m: int) -> tuple[int, int, int]:
        """Number of images, and rows and columns of m×m result tiles in each."""
        return self.images, math.ceil(self.height / m), math.ceil(self.width / m)

    @property
    def images(self) -> int:
        return _A_FEW if self.batch is None else self.batch

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.bits // 8


class Grouping(msgspec.Struct, frozen=True):
    """How to process the tiles.

    Attributes:
        group: tiles per group; None for all steps one after another.
        seconds: predicted time.
    """

    group: int | None
    seconds: float


@lru_cache(maxsize=1024)
def ranked_groupings(target: Target, conv: Convolution, m: int) -> tuple[Grouping, ...]:
    """All ways to process the tiles of edge m, the best first.

    Of those whose times differ by no more than the error of the model, the best is the one that is
    fastest if nothing is computed while memory is read.
    """
    near = target.cache(2).size * 3 // 4
    groups = [g for g in _groups(conv, m) if _group_bytes(conv, m, g) <= near]
    found: dict[int | None, Estimate] = {}
    for group in groups:
        found[group] = group_estimate(target, conv, m, group)
    least = min((one.seconds for one in found.values()), default=math.inf)
    found[None] = passes_estimate(target, conv, m, least)
    ways = sorted(found, key=lambda group: found[group].seconds)
    least = found[ways[0]].seconds
    equal = [group for group in ways if found[group].seconds * _BETTER <= least]
    best = min(equal, key=lambda group: found[group].seconds + found[group].waits("memory"))
    ways.remove(best)
    return tuple(Grouping(group, found[group].seconds) for group in (best, *ways))


def best_grouping(target: Target, conv: Convolution, m: int) -> Grouping:
    """The best way to process the tiles of edge m."""
    return ranked_groupings(target, conv, m)[0]


def direct_seconds(target: Target, conv: Convolution) -> float:
    """Predicted time of the direct method: a product of pixels and filters."""
    pixels = conv.images * conv.height * conv.width
    product = _shape(conv, 1, pixels, TAPS**2 * conv.channels)
    tile = choose_register_tile(target, pixels, conv.filters, conv.bits, product.m_stride)
    plan = start_plans(target, product, tile)[0]
    image = _Image.around(conv, conv.height, conv.width)
    padded = BufferNode("padded", image.bytes)
    nest = parallel_nest(target, _fetched(target, product), tile, plan, Storage(a=padded))
    return estimate_nest([*_copy(target, conv, image, padded), nest], target).seconds


def group_estimate(
    target: Target, conv: Convolution, m: int, group: int, tile: RegisterTile | None = None
) -> Estimate:
    """Predicted time of groups of tiles, each taken through all steps by a task.

    Arguments: `tile` is the register tile of the product; None for the one of highest throughput.
    """
    product = _shape(conv, (m + TAPS - 1) ** 2, group, conv.channels)
    tile = tile or choose_register_tile(target, group, conv.filters, conv.bits, product.m_stride)
    blocking = GemmBlocking(*tiles_of(product, tile), rows_inside=True)
    tiles, image = _Tiles.in_groups(conv, m, group), _Image.of_tiles(conv, m)
    before: Nest = []
    task: Nest = []
    if input_in_task(target, image.bytes):
        rows, columns = (int(m * loop.count) + TAPS - 1 for loop in tiles.inner[1:])
        part = _Image(tiles.inner[0].count, rows, columns, image.pixel)
        padded = BufferNode("padded", part.bytes)
        line = conv.width * image.pixel
        task = _copy(
            target,
            conv,
            part,
            padded,
            tiles.outer_moves((conv.height * line, m * line, m * image.pixel)),
        )
        read = _Operand(padded, tiles.inner_moves(part.steps(m)), part.pitch, part.pixel)
    else:
        padded = BufferNode("padded", image.bytes)
        before = _copy(target, conv, image, padded)
        read = _Operand(padded, tiles.moves(image.steps(m)), image.pitch, image.pixel)
    back = tiles.again()
    inputs = _points(conv, m, tiles.inner, conv.channels)
    sums = _points(conv, m, back.inner, conv.filters)
    storage = Storage(a=inputs.storage, c=sums.storage)
    task += _input_transform(target, conv, m, tiles.inner, read, inputs)
    terms = piece_lengths(conv.channels, partial_sums(conv.channels))
    task.append(serial_nest(target, _fetched(target, product), tile, blocking, storage, terms))
    task += _output_transform(target, conv, m, back.inner, sums, _results(conv, m, back.moves))
    share_out(tiles.outer, target.num_threads)
    return estimate_nest([*before, *_nested(target, tiles.outer, task)], target)


def passes_estimate(target: Target, conv: Convolution, m: int, least: float = math.inf) -> Estimate:
    """Predicted time of all steps one after another, each for all tiles.

    The blocking of the product is that of its plan. It is not searched for where even a product at
    the peak rate would not make the whole as fast as `least` seconds.
    """
    product = _shape(conv, (m + TAPS - 1) ** 2, math.prod(conv.grid(m)), conv.channels)
    tile = choose_register_tile(
        target, product.m, conv.filters, conv.bits, conv.channels * conv.size
    )
    blocking = start_plans(target, product, tile)[0]
    found = _in_passes(target, conv, m, product, tile, blocking)
    steps = math.prod(conv.grid(m)) * conv.channels * conv.filters / target.num_threads
    cycles = (m + TAPS - 1) ** 2 * steps / _lanes(target, conv) / target.core.arithmetic
    others = sum(part.seconds for part in (*found.parts[:2], found.parts[-1]))
    if others + cycles / target.core.frequency_hz >= least:
        return found
    tile = gemm_tile(target, product)
    return _in_passes(target, conv, m, product, tile, gemm_blocking(target, product, tile))


def _in_passes(
    target: Target,
    conv: Convolution,
    m: int,
    product: GemmShape,
    tile: RegisterTile,
    blocking: GemmBlocking,
) -> Estimate:
    image = _Image.of_tiles(conv, m)
    padded = BufferNode("padded", image.bytes)
    into, back = (_Tiles.in_groups(conv, m, 1) for _ in range(2))
    read = _Operand(padded, into.outer_moves(image.steps(m)), image.pitch, image.pixel)
    inputs = _points(conv, m, into.outer, conv.channels)
    sums = _points(conv, m, back.outer, conv.filters)
    made = _results(conv, m, back.outer_moves)
    storage = Storage(a=inputs.storage, c=sums.storage)
    terms = piece_lengths(conv.channels, partial_sums(conv.channels))
    nest = [
        *_copy(target, conv, image, padded),
        *_input_transform(target, conv, m, into.outer, read, inputs),
        parallel_nest(target, _fetched(target, product), tile, blocking, storage, terms),
        *_output_transform(target, conv, m, back.outer, sums, made),
    ]
    return estimate_nest(nest, target)


def partial_sums(channels: int | None) -> tuple[Pieces, ...]:
    """How sums over channels are split, coarse to fine; None for an unknown number of channels."""
    many = channels is not None and channels >= _MANY_CHANNELS
    return _COARSE, _FINE_OF_MANY if many else _FINE


def input_in_task(target: Target, size: int) -> bool:
    """Whether tasks compute the parts of the transforms' input that they read.

    Adjacent groups share a border, which each of them computes then; a separate pass over the whole
    input of `size` bytes costs more only when it goes through memory.
    """
    return size > target.cache(2).size * target.num_threads


# ------------------------------------------------------------------------------ tiles and operands
_Moves = dict[LoopNode, float]
_Steps = tuple[float, float, float]
"""Bytes from a tile to the next image's, the one below, and the one beside it."""


class _Tiles(msgspec.Struct, frozen=True):
    """Loops over the images, rows and columns of tiles: those of tasks, and those within one."""

    outer: list[LoopNode]
    inner: list[LoopNode]

    @staticmethod
    def in_groups(conv: Convolution, m: int, group: int) -> _Tiles:
        counts: list[int] = []
        left = group
        for count in reversed(conv.grid(m)):
            counts.insert(0, min(count, left))
            left //= counts[0]
        outer = [n / own for n, own in zip(conv.grid(m), counts, strict=True)]
        return _Tiles([LoopNode(n, "parallel") for n in outer], [LoopNode(n) for n in counts])

    def again(self) -> _Tiles:
        """The same tiles, for another step of a task: with loops of its own within the task."""
        return _Tiles(self.outer, [LoopNode(loop.count) for loop in self.inner])

    def outer_moves(self, steps: _Steps) -> _Moves:
        loops = zip(self.outer, self.inner, steps, strict=True)
        return {outer: step * inner.count for outer, inner, step in loops}

    def inner_moves(self, steps: _Steps) -> _Moves:
        return dict(zip(self.inner, steps, strict=True))

    def moves(self, steps: _Steps) -> _Moves:
        """Strides of an operand, by loop."""
        return self.outer_moves(steps) | self.inner_moves(steps)


class _Image(msgspec.Struct, frozen=True):
    """Images with their borders.

    Attributes:
        count, rows, columns: number of images, and the pixels of each.
        pixel: bytes of a pixel.
    """

    count: float
    rows: int
    columns: int
    pixel: int

    @staticmethod
    def around(conv: Convolution, height: int, width: int) -> _Image:
        """The input of all results."""
        pixel = conv.channels * conv.size
        return _Image(conv.images, height + TAPS - 1, width + TAPS - 1, pixel)

    @staticmethod
    def of_tiles(conv: Convolution, m: int) -> _Image:
        _, rows, columns = conv.grid(m)
        return _Image.around(conv, rows * m, columns * m)

    @property
    def pitch(self) -> int:
        return self.columns * self.pixel

    @property
    def bytes(self) -> int:
        return int(self.count * self.rows * self.pitch)

    def steps(self, m: int) -> _Steps:
        """Strides of tiles of edge m."""
        return self.rows * self.pitch, m * self.pitch, m * self.pixel


class _Operand(msgspec.Struct):
    """A tile that a transform reads or writes: strides by loop, and by row and column of it."""

    storage: BufferNode
    moves: _Moves
    by_row: float
    by_column: float


def _points(conv: Convolution, m: int, loops: list[LoopNode], channels: int) -> _Operand:
    """Transformed tiles: for each point of a tile, a matrix of tiles and channels.

    Tasks that take a group through all steps use the same memory for one group after another.
    """
    edge, pixel = m + TAPS - 1, channels * conv.size
    _, rows, columns = (loop.count for loop in loops)
    steps = rows * columns * pixel, columns * pixel, pixel
    matrix = math.prod(loop.count for loop in loops) * pixel
    storage = BufferNode("points", edge**2 * matrix)
    return _Operand(storage, dict(zip(loops, steps, strict=True)), edge * matrix, matrix)


def _results(conv: Convolution, m: int, moves: Callable[[_Steps], _Moves]) -> _Operand:
    pixel = conv.filters * conv.size
    pitch = conv.width * pixel
    storage = BufferNode("results", conv.images * conv.height * pitch)
    return _Operand(storage, moves((conv.height * pitch, m * pitch, m * pixel)), pitch, pixel)


def _shape(conv: Convolution, batch: int, m: int, k: int) -> GemmShape:
    return GemmShape(
        batch,
        m,
        conv.filters,
        k,
        m_stride=conv.channels * conv.size,
        k_stride=conv.size,
        bits=conv.bits,
        b_bits=conv.bits,
        uncached=conv.uncached,
    )


def _fetched(target: Target, product: GemmShape) -> GemmShape:
    """The same product; filters are in no cache at entry if they exceed the share of the last-level
    cache that products count on (`gemm_start_plans`)."""
    size = math.prod(n or 1 for n in (product.batch, product.k, product.n)) * product.b_bits // 8
    exceed = size > target.caches[-1].size // 3
    return msgspec.structs.replace(product, uncached=product.uncached or exceed)


# ------------------------------------------------------------------------------------------- steps
def _input_transform(
    target: Target, conv: Convolution, m: int, loops: list[LoopNode], read: _Operand, made: _Operand
) -> Nest:
    work = _work(transforms(m, TAPS).input)
    edges = m + TAPS - 1, m + TAPS - 1
    return _transform(target, conv, work, edges, loops, conv.channels, read, made)


def _output_transform(
    target: Target, conv: Convolution, m: int, loops: list[LoopNode], read: _Operand, made: _Operand
) -> Nest:
    work = _work(transforms(m, TAPS).output)
    return _transform(target, conv, work, (m + TAPS - 1, m), loops, conv.filters, read, made)


def _transform(
    target: Target,
    conv: Convolution,
    work: int,
    edges: tuple[int, int],
    loops: list[LoopNode],
    channels: int,
    read: _Operand,
    made: _Operand,
) -> Nest:
    """Transform tiles, vector of channels by vector, with the columns of one in registers.

    Args:
        work: operations per line.
        edges: of the tile that is read, and of the one that is made.
        loops: over tiles; if parallel, a task has a vector of channels of one.
    """
    lanes, (before, after) = _lanes(target, conv), edges
    vectors = LoopNode(math.ceil(channels / lanes), loops[0].kind)
    lanes = channels / vectors.count  # on average: the last vector may be shorter
    loops = [*loops, vectors]
    if vectors.kind == "parallel":
        share_out(loops, target.num_threads)
    half = BufferNode("columns", before * after * lanes * conv.size, registers=True)

    def each(edge: int, stored: _Operand, loaded: _Operand) -> Nest:
        row, column = LoopNode(edge, "unrolled"), LoopNode(edge, "unrolled")
        lane = LoopNode(lanes, "lanes")

        def access(operand: _Operand, is_store: bool) -> AccessNode:
            inside = {row: operand.by_row, column: operand.by_column, lane: conv.size}
            moves = operand.moves | inside
            if not operand.storage.registers:
                moves |= {vectors: lanes * conv.size}
            return AccessNode(operand.storage, moves, conv.size, stored=is_store)

        accesses = (access(stored, True), access(loaded, False))
        lane.body = [StatementNode(accesses, work / edge, width=conv.size)]
        return around([row, column], [lane])

    step = lanes * conv.size
    columns = _Operand(half, {}, before * step, step)
    body = [*each(before, columns, read), *each(after, made, columns)]
    return _nested(target, loops, body)


def _copy(
    target: Target,
    conv: Convolution,
    image: _Image,
    padded: BufferNode,
    task: _Moves | None = None,
) -> Nest:
    """Copy the input and add its border, vector of channels by vector.

    Arguments: `task` has the strides of the part that a task copies; None for a pass of its own.
    """
    kind, lanes = "serial" if task is not None else "parallel", _lanes(target, conv)
    loops = [LoopNode(image.count, kind), LoopNode(image.rows, kind), LoopNode(image.columns)]
    if task is None:
        share_out(loops[:2], target.num_threads)
    vectors = LoopNode(math.ceil(conv.channels / lanes))
    lane = LoopNode(conv.channels / vectors.count, "lanes")
    inside: _Moves = {vectors: lane.count * conv.size, lane: conv.size}
    pitch = conv.width * image.pixel
    data = BufferNode("data", conv.images * conv.height * pitch)
    accesses: list[AccessNode] = []
    for storage, steps, more in (
        (padded, (image.rows * image.pitch, image.pitch, image.pixel), {}),
        (data, (conv.height * pitch, pitch, image.pixel), task or {}),
    ):
        moves = dict(zip(loops, steps, strict=True)) | inside | more
        accesses.append(AccessNode(storage, moves, conv.size, stored=storage is padded))
    lane.body = [StatementNode(tuple(accesses), 1, width=conv.size)]
    return _nested(target, [*loops, vectors], [lane])


def _nested(target: Target, loops: list[LoopNode], body: Nest) -> Nest:
    """Wrap a body in those loops that repeat it or hand out tasks."""
    for loop in loops:
        loop.predicted = loop.count <= target.core.predicted_iterations
    return around([loop for loop in loops if loop.count > 1 or loop.tasks], body)


_work = lru_cache(maxsize=16)(operations)


# -------------------------------------------------------------------------------------- group sizes
def _groups(conv: Convolution, m: int) -> list[int]:
    """Group sizes: parts of a tile row, whole rows, or whole images; one and all are excluded.

    If the batch may be a single image, all tiles are those of one image.
    """
    images, rows, columns = conv.grid(m)
    batch = 1 if conv.batch is None else images
    result = {d for d in range(1, columns + 1) if columns % d == 0}
    result |= {columns * d for d in range(1, rows + 1) if rows % d == 0}
    result |= {columns * rows * d for d in range(1, batch + 1) if batch % d == 0}
    return sorted(result - {1, batch * rows * columns})


def _lanes(target: Target, conv: Convolution) -> int:
    return max(1, target.vector_bits // conv.bits)


def _group_bytes(conv: Convolution, m: int, tiles: int) -> int:
    return (m + TAPS - 1) ** 2 * tiles * (conv.channels + conv.filters) * conv.size

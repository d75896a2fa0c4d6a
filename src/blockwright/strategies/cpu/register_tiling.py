"""Choose register tiles and cache blocks for contractions, by an analytic model."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from blockwright.target import Core, Target

_MOST_VECTORS = 6  # largest number of vectors in a row of accumulators
_WHOLE_BITS = 256  # vector width in bits below which shorter vectors are no faster
_ROW_NUMBERS = range(16, 513)  # likely values of a symbolic m
_FEWEST = 8  # fewest rows from which a product is bound by arithmetic, not by reading the matrix
_ROW_TILES = 3  # register tiles that a call can choose from
_WORTH = 0.004  # share of the time, over all values of m, that pays for the code of one more tile
_UNIT = 1000  # fixed-point scale of tile costs, which are integers
_OF_LOOP = 3  # loop overhead in instructions: induction variable and exit branch
_SEVERAL = 4  # unroll factor where loop overhead counts
_SPARE = 0.75  # share of the issue slots up to which loop overhead is free
_LOSS = 0.06  # share of the speed lost per load per multiplication, at one multiplication per cycle


class RegisterTile(msgspec.Struct, frozen=True):
    """`rows` × `columns` accumulators in vectors of `lanes` elements.

    The last vector of a row may be shorter; see `_widths`.
    """

    rows: int
    columns: int
    lanes: int

    @property
    def vectors(self) -> int:
        """Registers per row."""
        return math.ceil(self.columns / self.lanes)


def _efficiency(core: Core, rows: int, vectors: float, shifts: int = 0) -> float:
    """Share of the FMA peak that the inner loop can reach: ports, front end, latency.

    A partial vector uses its share of an arithmetic unit, but issues like a whole one. Each vector
    of the packed operand also needs `shifts` instructions of an arithmetic unit.
    """
    fmas, registers = rows * vectors, math.ceil(vectors)
    shifts *= registers
    cycles = max(
        core.chained(fmas / core.arithmetic, core.latency),  # each update waits for the last one
        (fmas + shifts) / core.arithmetic,
        (rows + registers) / core.loads,  # an element of A is one load, a broadcast
        (rows * registers + rows + registers + shifts + 2) / core.issue,
    )
    return fmas / core.arithmetic / cycles


def _load_loss(core: Core, rows: int, vectors: float) -> float:
    """Share of the speed that loads cost even where there are ports for them.

    Loads compete with arithmetic for issue slots, and their data is not always there in time. Most
    often the row of the packed operand is late, because it comes from a larger cache than the
    elements of the other operand.
    """
    return _LOSS * core.arithmetic * (rows + 3 * vectors) / (rows * vectors)


def _widths(lanes: int, bits: int, limit: int) -> range:
    """Candidate tile widths in columns, up to `limit` vectors.

    They are multiples of a vector, and where vectors are longer than 256 bits also of half a
    vector, which cores that split long vectors into two steps execute in one.
    """
    step = min(lanes, max(1, _WHOLE_BITS // bits))
    return range(step, limit * lanes + 1, step)


def min_width(target: Target, columns: int, bits: int) -> int:
    """Granularity of a row of accumulators, in columns.

    Half a vector where `whole_row` keeps the row in one piece, else a vector.
    """
    lanes = max(1, target.vector_bits // bits)
    half = _widths(lanes, bits, 1)[0]
    return half if columns <= _MOST_VECTORS * lanes else lanes


def whole_row(target: Target, columns: int | None, bits: int = 32) -> int:
    """Columns of a row of accumulators as one long vector, which lowering splits.

    A single vector if the row is too long for that.
    """
    lanes = max(1, target.vector_bits // bits)
    if columns is None or columns > _MOST_VECTORS * lanes:
        return lanes
    width = min_width(target, columns, bits)
    return math.ceil(columns / width) * width


def _filled(extent: int | None, step: int) -> float:
    """Useful share of ceil(extent / step) steps; unknown extents are assumed large."""
    return 1.0 if extent is None else extent / (math.ceil(extent / step) * step)


def _filled_columns(columns: int | None, width: int) -> float:
    """Useful share of whole widths; the expected share when the number of columns is unknown."""
    return _useful(width) if columns is None else _filled(columns, width)


@functools.cache
def _row_waste(rows: int) -> float:
    """Expected useful share of tiles of `rows` rows for an unknown m.

    m is assumed log-uniform, from a short sentence to a page: padding rows cost small inputs the
    most. Products of batch and length are multiples of powers of two a little more often.
    """
    return _useful(rows) - 0.0025 * (8 - math.gcd(rows, 8))


@functools.cache
def _useful(step: int) -> float:
    """Expected useful share of steps over an unknown number."""
    weights = {count: 1 / count for count in _ROW_NUMBERS}
    useful = sum(weight * _filled(count, step) for count, weight in weights.items())
    return useful / sum(weights.values())


def _rows_apart(target: Target, row_bytes: int) -> int:
    """Rows of an operand, `row_bytes` apart, whose lines fit the first-level cache together.

    Strides that are multiples of a large power of two map to few sets. Two ways of each set are
    reserved for other data.
    """
    cache = target.cache(1)
    span = max(cache.line, cache.size // cache.ways)
    sets = span // math.gcd(row_bytes, span)
    return sets * max(1, cache.ways - 2)


def choose_register_tile(
    target: Target,
    rows: int | None,
    columns: int | None,
    bits: int = 32,
    row_bytes: int = 1,
    most_rows: int = 16,
) -> RegisterTile:
    """The tile with the highest predicted throughput that fits the register file.

    One register is reserved for the broadcast operand and `vectors` for the row of the packed
    operand. The rows of the broadcast operand are `row_bytes` apart. Half a vector next to fewer
    than two whole ones is used only for results with no more columns, because broadcasts dominate
    then.
    """
    return register_tiles(target, rows, columns, bits, row_bytes, most_rows)[0]


def register_tiles(
    target: Target,
    rows: int | None,
    columns: int | None,
    bits: int = 32,
    row_bytes: int = 1,
    most_rows: int = 16,
    shifts: int = 0,
) -> list[RegisterTile]:
    """All tiles that fit the register file, best first; see `choose_register_tile`.

    Each vector of the packed operand takes `shifts` instructions of an arithmetic unit.
    """
    largest = max(1, min(most_rows, _rows_apart(target, row_bytes)))
    lanes = max(1, target.vector_bits // bits)
    result: list[tuple[float, RegisterTile]] = []
    for width in _widths(lanes, bits, _MOST_VECTORS):
        if width % lanes and width < 2 * lanes and (columns is None or columns > width):
            continue
        tile_of = functools.partial(RegisterTile, columns=width, lanes=lanes)
        for tile in (tile_of(height) for height in range(1, largest + 1)):
            if (tile.rows + 1) * tile.vectors + 1 > target.vector_registers:
                continue
            score = _efficiency(target.core, tile.rows, width / lanes, shifts)
            score *= _filled_columns(columns, width)
            score *= _filled(rows, tile.rows) if rows is not None else _row_waste(tile.rows)
            score -= _load_loss(target.core, tile.rows, width / lanes)
            result.append((score, tile))
    result.sort(key=lambda entry: -entry[0])
    return [tile for _, tile in result]


class RowTile(msgspec.Struct, frozen=True):
    """A register tile for some values of m.

    Costs are in units of 1 / `_UNIT` of a row's time per column at peak speed.

    Attributes:
        tile: for all rows but the last ones.
        cost: of one tile.
        min_cost: lower bound on the cost of a panel, while it is read from memory.
        short: remainders of up to this many rows have specialized code; 0 for none.
        short_cost: of the specialized code.
    """

    tile: RegisterTile
    cost: int
    min_cost: int = 0
    short: int = 0
    short_cost: int = 0

    def of(self, rows: _Rows) -> _Rows:
        """Cost of `rows` rows."""
        return np.maximum(self._passed(rows), self.min_cost)

    def waiting(self, rows: _Rows) -> _Rows:
        """Cost of `rows` rows when the first pass over a panel waits for all of it."""
        return self._passed(rows) + max(0, self.min_cost - self.cost)

    def _passed(self, rows: _Rows) -> _Rows:
        tiles = -(-rows // self.tile.rows)
        if not self.short:
            return tiles * self.cost
        whole = (rows + (self.tile.rows - self.short - 1)) // self.tile.rows
        return whole * self.cost + (tiles - whole) * self.short_cost


@functools.cache
def row_tiles(
    target: Target,
    min_rows: int,
    columns: int | None,
    bits: int = 32,
    row_bytes: int = 1,
    uncached: bool = False,
    each: int = 1,
    b_bits: int = 32,
    shifts: int = 0,
) -> tuple[RowTile, ...]:
    """Register tiles for a symbolic m, at least `min_rows` and a multiple of `each`.

    The default tile comes first, then tiles that suit some values of m better. Each further tile,
    and each specialized tail, must be worth its code.

    A small m may divide well by one tile height and badly by another. All tiles use the same
    panels, and are as wide as a panel: reading half a panel at a time would fetch memory in
    fragments. If panels are `uncached`, the width and the first tiles are chosen for the first pass
    over a panel, which stalls on DRAM unless the tile is high enough to overlap the loads with
    arithmetic; this favors narrow panels and high tiles. Most panels are prefetched while the
    previous one is used, so values of m that divide better by another height get their own tile.
    """
    smallest = round(_UNIT * _rows_meanwhile(target, bits)) if uncached else 0
    fits: dict[int, list[RowTile]] = {}
    for tile in register_tiles(target, None, columns, bits, row_bytes, shifts=shifts):
        speed = speed_of_panels(target, tile, b_bits, shifts) * _filled_columns(
            columns, tile.columns
        )
        if speed > 0:
            cost = round(_UNIT * tile.rows / speed)
            fits.setdefault(tile.columns, []).append(RowTile(tile, cost, smallest))
    numbers = np.array(_likely(min_rows, each), np.int64)
    result = (_best_of((), tiles, numbers, RowTile.waiting) for tiles in fits.values())
    first = min(result, key=lambda best: _expected(_costs(best, numbers, RowTile.waiting), numbers))
    return _best_of(first, fits[first[0].tile.columns], numbers, RowTile.of)


def _likely(min_m: int, each: int) -> range:
    """Values of m to evaluate."""
    low = min_m if each > 1 else max(_FEWEST, min_m)
    high = max(_ROW_NUMBERS.stop, 2 * low)
    step = (high - low) // len(_ROW_NUMBERS) | 1
    return range(low, high, math.ceil(step / each) * each)


_Rows = npt.NDArray[np.int64]
_Cost = Callable[[RowTile, _Rows], _Rows]


def _best_of(
    chosen: tuple[RowTile, ...], tiles: list[RowTile], numbers: _Rows, cost: _Cost
) -> tuple[RowTile, ...]:
    """Extend the chosen tiles by the best others, as long as each is worth its code."""
    best = list(chosen)
    costs = _costs(best, numbers, cost)
    while len(best) < _ROW_TILES:
        heights = {one.tile.rows for one in best}
        others = [one for one in tiles if one.tile.rows not in heights]
        if not others:
            break
        before = _expected(costs, numbers)
        added = [
            (_expected(np.minimum(costs, cost(one, numbers)), numbers), one)
            for other in others
            for one in (other, *_shortened(other, tiles))
        ]
        plain = min(expected for expected, one in added if not one.short)
        # specialized tails must be worth their code too
        now, more = min(
            (entry for entry in added if not entry[1].short or entry[0] <= plain * (1 - _WORTH)),
            key=lambda entry: entry[0],
        )
        if best and now > (1 - _WORTH) * before:
            break
        best.append(more)
        costs = np.minimum(costs, cost(more, numbers))
    return tuple(best)


def _shortened(whole: RowTile, tiles: list[RowTile]) -> list[RowTile]:
    """The tile with a specialized tail: short remainders run a lower tile."""
    return [
        msgspec.structs.replace(whole, short=low.tile.rows, short_cost=low.cost)
        for low in tiles
        if low.tile.rows < whole.tile.rows and low.cost < whole.cost
    ]


def _costs(tiles: Sequence[RowTile], numbers: _Rows, cost: _Cost) -> _Rows:
    """Cost of the best tile for each value of m."""
    largest = np.full(len(numbers), np.iinfo(np.int64).max)
    return functools.reduce(np.minimum, (cost(one, numbers) for one in tiles), largest)


def _expected(costs: _Rows, numbers: _Rows) -> float:
    """Expected cost per row, with log-uniform m (weight 1 / m)."""
    return float((costs / numbers**2).sum() / (1 / numbers).sum())


def _rows_meanwhile(target: Target, bits: int) -> float:
    """Rows that a core computes with a line of a panel while memory delivers the next one."""
    core = target.core
    return (
        target.vector_bits // 8 * core.arithmetic / core.dram_bandwidth_per_core(target.num_threads)
    )


def speed_of_panels(target: Target, tile: RegisterTile, bits: int, shifts: int = 0) -> float:
    """Share of the FMA peak, with a panel read from the second-level cache for each row tile.

    Elements of the panel have `bits`; each vector takes `shifts` instructions to widen.
    """
    vectors = tile.columns / tile.lanes
    fetched = tile.columns * bits / 8 / target.core.cache_bandwidth[0]  # cycles per step
    speed = _efficiency(target.core, tile.rows, vectors, shifts)
    speed *= min(1.0, tile.rows * vectors / target.core.arithmetic / fetched)
    return speed - _load_loss(target.core, tile.rows, vectors)


def predicted_share(
    target: Target, tile: RegisterTile, rows: int | None, columns: int | None
) -> float:
    """Share of the FMA peak, with padding elements beyond the end of the result counted as lost."""
    share = _efficiency(target.core, tile.rows, tile.columns / tile.lanes)
    return share * _filled(rows, tile.rows) * _filled(columns, tile.columns)


def reduction_unroll_factor(target: Target, tile: RegisterTile) -> int:
    """Unroll factor of the reduction in a register tile.

    More than one where a core has no issue slots to spare for loop overhead, least of all when it
    runs another program as well.
    """
    updates = tile.rows * tile.vectors
    instructions = updates + tile.rows + tile.vectors + _OF_LOOP
    places = updates / target.core.arithmetic * target.core.issue
    return _SEVERAL if instructions > _SPARE * places else 1


def panel_chunk(
    target: Target, tile: RegisterTile, depth: int | None, columns: int | None, bits: int = 32
) -> int:
    """Panels of the packed operand per task.

    The panels should stay in half of the second-level cache across row tiles, and there should be a
    chunk for every thread even with a single row tile. Of the counts that satisfy both, the largest
    that divides the number of panels.
    """
    panel_bytes = (depth or 512) * tile.columns * bits // 8
    largest = max(1, target.cache(2).size // 2 // panel_bytes)
    if columns is None:
        return min(largest, 4)
    panels = math.ceil(columns / tile.columns)
    largest = min(largest, max(1, panels // target.num_threads))
    return max(c for c in range(1, largest + 1) if panels % c == 0 or c == 1)


def max_depth(target: Target, tile: RegisterTile, bits: int = 32) -> int:
    """Reduction steps whose panel fills at most a quarter of the second-level cache."""
    return max(64, target.cache(2).size // 4 // (tile.columns * bits // 8))


_FEW_BYTES = 1 << 15  # bytes of a matrix, below which dispatching a task costs more than running it
_STEPS = 8  # reduction steps added at a time, so that sums in cache are loaded and stored rarely
_STRETCH = 1 << 9  # elements of a row read at a time when the number of columns is unknown


def max_skinny_rows(target: Target, bits: int) -> int:
    """Largest number of rows for which a product is bound by reading its matrix.

    Each row keeps accumulators for at least two of the matrix's rows: then a step has fewer loads
    than multiplications, and a core multiplies faster than memory delivers. Above it, tiles of more
    rows pay, and with them the panels of the GEMM strategy.
    """
    return max(1, target.vector_registers // 4)


def dot_tile(target: Target, rows: int, many: int | None, bits: int) -> int:
    """Rows of the matrix whose dot products with `rows` others are kept in registers at once."""
    fits = [n for n in range(1, 9) if n * rows + n + 1 <= target.vector_registers]
    score = {n: _efficiency(target.core, rows, n) * _filled(many, n) for n in fits or [1]}
    return max(score, key=lambda n: (round(score[n], 2), -n))


def task_steps(many: int | None, tile: int, per_row: int, threads: int) -> int:
    """Tiles per task: enough work per task, and enough tasks to balance the load."""
    worth = max(1, _FEW_BYTES // max(1, tile * per_row))
    if many is None:
        return min(worth, 8)
    return max(1, min(worth, many // (tile * threads * 4)))


def update_stretch(target: Target, rows: int, many: int | None, bits: int) -> int:
    """Columns per task whose sums for all rows stay in a quarter of the first-level cache."""
    lanes = max(1, target.vector_bits // bits)
    largest = max(1, target.cache(1).size // 4 // (rows * bits // 8) // lanes)
    if many is None:
        return lanes * min(largest, _STRETCH // lanes)
    vectors = math.ceil(many / lanes)
    pieces = math.ceil(vectors / largest)
    pieces = math.ceil(pieces / target.num_threads) * target.num_threads
    return lanes * math.ceil(vectors / pieces)


def steps_at_once(depth: int | None) -> int:
    """Reduction steps that are added to sums in cache at a time."""
    return _STEPS if depth is None else min(_STEPS, depth)


def column_stretch(target: Target, columns: int | None, depth: int | None, bits: int) -> int:
    """Columns per task when `depth` elements of each are read several times.

    They stay in half of the second-level cache; with `depth` 0, only the sums need space. At least
    two vectors, because memory is fetched in lines, and enough tasks for all threads.
    """
    stretch = update_stretch(target, 1, columns, bits)
    if depth == 0:
        return stretch
    lanes = max(1, target.vector_bits // bits)
    room = target.cache(2).size // 2 // ((depth or 1024) * bits // 8)
    return max(min(2 * lanes, stretch), min(stretch, room // lanes * lanes))

"""Analytic choice of register tiles and cache blocks for contractions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from blockwright.target import Core, Target

_MOST_VECTORS = 6  # in a row of accumulators
_WHOLE_BITS = 256  # of a vector below which shorter ones are no faster
_ROW_NUMBERS = range(16, 513)  # that are likely where rows are unknown
_FEWEST = 8  # rows, from which on products are no matter of how fast the matrix can be read
_ROW_TILES = 3  # that are chosen from when a product is called
_WORTH = 0.004  # of the time, over all numbers of rows, that pays for the code of one more
_UNIT = 1000  # in which costs of tiles are whole numbers
_CROWDED = 0.2  # of the time, for vectors that begin anywhere, where loads take every place
_OF_LOOP = 3  # instructions of a loop: its variable, and whether it ends
_SEVERAL = 4  # steps that are written out where these count
_SPARE = 0.75  # of the places for instructions, up to which they do not
_LOSS = 0.06  # of the speed, for a load per multiplication and one multiplication per cycle


class RegisterTile(msgspec.Struct, frozen=True):
    """`rows` × `columns` accumulators in vectors of `lanes` elements.

    The last vector of a row may be shorter; see `_widths`.
    """

    rows: int
    columns: int
    lanes: int

    @property
    def vectors(self) -> int:
        """Registers of a row."""
        return math.ceil(self.columns / self.lanes)


def _efficiency(core: Core, rows: int, vectors: float) -> float:
    """Share of the FMA peak that the inner loop can reach: ports, front end, latency.

    Part of a vector takes its part of an arithmetic unit, but issues like a whole one.
    """
    fmas, registers = rows * vectors, math.ceil(vectors)
    cycles = max(
        core.chained(fmas / core.arithmetic, core.latency),  # each update waits for the last one
        (rows + registers) / core.loads,  # a row's is one element, broadcast
        (rows * registers + rows + registers + 2) / core.issue,
    )
    return fmas / core.arithmetic / cycles


def _load_loss(core: Core, rows: int, vectors: float) -> float:
    """Share of the speed that loads cost even where there are ports for them.

    They take turns with the arithmetic, and what they bring is not always there in time: most
    often the row of the packed operand, which comes from farther away than the other's elements.
    """
    return _LOSS * core.arithmetic * (rows + 3 * vectors) / (rows * vectors)


def _widths(lanes: int, bits: int, most: int) -> range:
    """Numbers of columns of a tile, up to `most` vectors: whole vectors, and where these are longer
    than 256 bits also halves, which cores that take long vectors in two steps do in one."""
    step = min(lanes, max(1, _WHOLE_BITS // bits))
    return range(step, most * lanes + 1, step)


def least_width(target: Target, columns: int, bits: int) -> int:
    """What a row of accumulators is a multiple of: half vectors where `whole_row` keeps it in one
    piece, else vectors."""
    lanes = max(1, target.vector_bits // bits)
    half = _widths(lanes, bits, 1)[0]
    return half if columns <= _MOST_VECTORS * lanes else lanes


def whole_row(target: Target, columns: int | None, bits: int = 32) -> int:
    """Columns of a row of accumulators as one long vector, which is cut when lowered; a vector
    where that is too long."""
    lanes = max(1, target.vector_bits // bits)
    if columns is None or columns > _MOST_VECTORS * lanes:
        return lanes
    width = least_width(target, columns, bits)
    return math.ceil(columns / width) * width


def _filled(extent: int | None, step: int) -> float:
    """Useful share of ceil(extent / step) steps; unknown extents are taken as large."""
    return 1.0 if extent is None else extent / (math.ceil(extent / step) * step)


def _filled_columns(columns: int | None, width: int) -> float:
    """Useful share of whole widths, expected where the number of columns is not known."""
    return _useful(width) if columns is None else _filled(columns, width)


@functools.cache
def _row_waste(rows: int) -> float:
    """Expected useful share for an unknown number of rows.

    Numbers from a short sentence to a page are taken as likely as numbers twice as large: rows
    beyond the end are felt most by small inputs. Products of batch and length are multiples of
    powers of two a little more often than not.
    """
    return _useful(rows) - 0.0025 * (8 - math.gcd(rows, 8))


@functools.cache
def _useful(step: int) -> float:
    """Expected useful share of steps over a number that is not known."""
    weights = {count: 1 / count for count in _ROW_NUMBERS}
    useful = sum(weight * _filled(count, step) for count, weight in weights.items())
    return useful / sum(weights.values())


def _rows_apart(target: Target, row_bytes: int) -> int:
    """Rows of an operand, so many bytes apart, whose lines stay in the first-level cache together.

    Distances that are multiples of a large power of two leave few sets for all of them; two ways
    of each are for what else passes.
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

    One register is kept for the broadcast operand and `vectors` for the row of the packed operand.
    The rows of the broadcast operand are `row_bytes` apart. A half vector beside less than two
    whole ones is taken for results that have no more columns: broadcasts take too much time then.
    """
    return register_tiles(target, rows, columns, bits, row_bytes, most_rows)[0]


def register_tiles(
    target: Target,
    rows: int | None,
    columns: int | None,
    bits: int = 32,
    row_bytes: int = 1,
    most_rows: int = 16,
) -> list[RegisterTile]:
    """All tiles that fit the register file, best first; see `choose_register_tile`."""
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
            score = _efficiency(target.core, tile.rows, width / lanes)
            score *= _filled_columns(columns, width)
            score *= _filled(rows, tile.rows) if rows is not None else _row_waste(tile.rows)
            score -= _load_loss(target.core, tile.rows, width / lanes)
            result.append((score, tile))
    result.sort(key=lambda entry: -entry[0])
    return [tile for _, tile in result]


class RowTile(msgspec.Struct, frozen=True):
    """A register tile for some numbers of rows.

    Attributes:
        tile: of all rows but the last ones.
        cost: of passing one, for each column.
        least: what passing a panel costs at least, while it comes from memory.
        short: so many rows, or fewer, have code of their own where they are the last; 0 for none.
        short_cost: of these.
    """

    tile: RegisterTile
    cost: int
    least: int = 0
    short: int = 0
    short_cost: int = 0

    def of(self, rows: _Rows) -> _Rows:
        """What it costs to pass this many rows."""
        return np.maximum(self._passed(rows), self.least)

    def waiting(self, rows: _Rows) -> _Rows:
        """The same where the first pass over a panel waits for all of it."""
        return self._passed(rows) + max(0, self.least - self.cost)

    def _passed(self, rows: _Rows) -> _Rows:
        tiles = -(-rows // self.tile.rows)
        if not self.short:
            return tiles * self.cost
        whole = (rows + (self.tile.rows - self.short - 1)) // self.tile.rows
        return whole * self.cost + (tiles - whole) * self.short_cost


@functools.cache
def row_tiles(
    target: Target,
    least_rows: int,
    columns: int | None,
    bits: int = 32,
    row_bytes: int = 1,
    cold: bool = False,
    each: int = 1,
) -> tuple[RowTile, ...]:
    """Tiles for a number of rows that calls decide, at least `least_rows` and a multiple of `each`.

    The usual one comes first, then those that some numbers are better passed in, each worth the
    code that it takes, and so is what its last rows have for themselves.

    Few rows fall into tiles of one height well and of another badly. All tiles pass the same
    panels, of which they are as wide: half a panel at a time, memory would be read in pieces. Where
    panels are `cold`, the width and the first tiles are those that suit a first pass that waits for
    memory unless it is high enough to compute meanwhile, which speaks for narrow panels and high
    tiles. Most panels are fetched while the one before is used, so numbers of rows that another
    height suits get one too.
    """
    smallest = round(_UNIT * _rows_meanwhile(target, bits)) if cold else 0
    fits: dict[int, list[RowTile]] = {}
    for tile in register_tiles(target, None, columns, bits, row_bytes):
        speed = speed_of_panels(target, tile, bits) * _filled_columns(columns, tile.columns)
        if speed > 0:
            cost = round(_UNIT * tile.rows / speed)
            fits.setdefault(tile.columns, []).append(RowTile(tile, cost, smallest))
    numbers = np.array(_likely(least_rows, each), np.int64)
    result = (_best_of((), tiles, numbers, RowTile.waiting) for tiles in fits.values())
    first = min(result, key=lambda best: _expected(_costs(best, numbers, RowTile.waiting), numbers))
    return _best_of(first, fits[first[0].tile.columns], numbers, RowTile.of)


def _likely(least: int, each: int) -> range:
    """Numbers of rows to reckon with."""
    low = least if each > 1 else max(_FEWEST, least)
    high = max(_ROW_NUMBERS.stop, 2 * low)
    step = (high - low) // len(_ROW_NUMBERS) | 1
    return range(low, high, math.ceil(step / each) * each)


_Rows = npt.NDArray[np.int64]
_Cost = Callable[[RowTile, _Rows], _Rows]


def _best_of(
    chosen: tuple[RowTile, ...], tiles: list[RowTile], numbers: _Rows, cost: _Cost
) -> tuple[RowTile, ...]:
    """The best tile, or those that are chosen, and others beside as long as they are worth it."""
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
        # Last rows are worth their code too.
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
    """The tile with code of their own for some numbers of last rows: that of lower tiles."""
    return [
        msgspec.structs.replace(whole, short=low.tile.rows, short_cost=low.cost)
        for low in tiles
        if low.tile.rows < whole.tile.rows and low.cost < whole.cost
    ]


def _costs(tiles: Sequence[RowTile], numbers: _Rows, cost: _Cost) -> _Rows:
    """Of the best of the tiles for each number of rows."""
    largest = np.full(len(numbers), np.iinfo(np.int64).max)
    return functools.reduce(np.minimum, (cost(one, numbers) for one in tiles), largest)


def _expected(costs: _Rows, numbers: _Rows) -> float:
    """Of the time for a row; numbers of rows are as likely as numbers twice as large."""
    return float((costs / numbers**2).sum() / (1 / numbers).sum())


def _rows_meanwhile(target: Target, bits: int) -> float:
    """Rows that a core could compute with a line of a panel while memory delivers the next one."""
    core = target.core
    return (
        target.vector_bits // 8 * core.arithmetic / core.dram_bandwidth_per_core(target.num_threads)
    )


def speed_of_panels(target: Target, tile: RegisterTile, bits: int) -> float:
    """Of the FMA peak, with a panel that comes out of the second cache for each tile of rows."""
    vectors = tile.columns / tile.lanes
    fetched = tile.columns * bits / 8 / target.core.cache_bandwidth[0]  # cycles of a step
    speed = _efficiency(target.core, tile.rows, vectors)
    speed *= min(1.0, tile.rows * vectors / target.core.arithmetic / fetched)
    return speed - _load_loss(target.core, tile.rows, vectors)


def predicted_share(
    target: Target,
    tile: RegisterTile,
    rows: int | None,
    columns: int | None,
    *,
    anywhere: bool = False,
    short_end: bool = False,
) -> float:
    """Of the FMA peak, with the elements beyond the end of the result counted as lost.

    With a `short_end`, the last tile of a row has only the vectors that it needs. Where vectors may
    begin `anywhere` in memory, those that cross lines are loaded in two steps, which takes time
    where loads have few places left.
    """
    share_of = functools.partial(_share, target, tile.rows, lanes=tile.lanes, anywhere=anywhere)
    share = share_of(tile.columns) * _filled(rows, tile.rows)
    if not short_end or columns is None:
        return share * _filled(columns, tile.columns)
    whole, rest = divmod(columns, tile.columns)
    rest = math.ceil(rest / tile.lanes) * tile.lanes
    if not rest:
        return share
    time = whole * tile.columns + rest * share_of(tile.columns) / share_of(rest)
    return share * columns / time


def _share(target: Target, rows: int, columns: int, *, lanes: int, anywhere: bool) -> float:
    """Of the FMA peak, in a whole tile."""
    core, vectors = target.core, columns / lanes
    share = _efficiency(core, rows, vectors)
    if anywhere:
        registers = math.ceil(vectors)
        crossing = registers * target.vector_bits / 8 / target.cache(1).line
        loads = (rows + registers + crossing) / core.loads
        taken = min(1.0, loads / (rows * vectors / core.arithmetic / share))
        share /= 1 + _CROWDED * max(0.0, 2 * taken - 1)
    return share


def steps_written_out(target: Target, tile: RegisterTile) -> int:
    """Steps of a reduction that are written out in a tile: several, where a core has no places to
    spare for a loop's own instructions, least of all when it runs another program besides."""
    updates = tile.rows * tile.vectors
    instructions = updates + tile.rows + tile.vectors + _OF_LOOP
    places = updates / target.core.arithmetic * target.core.issue
    return _SEVERAL if instructions > _SPARE * places else 1


def panel_chunk(
    target: Target, tile: RegisterTile, depth: int | None, columns: int | None, bits: int = 32
) -> int:
    """Panels of the packed operand that one task passes for each row tile.

    The panels should stay in half of the second-level cache while row tiles come and go, and there
    should be a chunk for every thread even when there is only one row tile. Of the numbers that
    allow both, the largest that divides the panels evenly.
    """
    panel_bytes = (depth or 512) * tile.columns * bits // 8
    largest = max(1, target.cache(2).size // 2 // panel_bytes)
    if columns is None:
        return min(largest, 4)
    panels = math.ceil(columns / tile.columns)
    largest = min(largest, max(1, panels // target.num_threads))
    return max(c for c in range(1, largest + 1) if panels % c == 0 or c == 1)


def most_depth(target: Target, tile: RegisterTile, bits: int = 32) -> int:
    """Steps of the reduction whose panel takes no more than a quarter of the second-level cache."""
    return max(64, target.cache(2).size // 4 // (tile.columns * bits // 8))


_FEW_BYTES = 1 << 15  # of a matrix, below which a task costs more to hand out than to do
_STEPS = 8  # of a reduction that are added at a time, so that sums in cache are touched rarely
_STRETCH = 1 << 9  # elements of a row that are read at a time when nothing else says how many


def most_skinny_rows(target: Target, bits: int) -> int:
    """Rows up to which a product is done as fast as its matrix can be read.

    Each row keeps accumulators for two of the matrix's rows at least: then a step has fewer loads
    than multiplications, and a core multiplies faster than the memory delivers. Beyond, tiles of
    more rows pay, and with them the panels of the GEMM rule.
    """
    return max(1, target.vector_registers // 4)


def dot_tile(target: Target, rows: int, many: int | None, bits: int) -> int:
    """Rows of the matrix whose dot products with `rows` others run at once, in registers."""
    fits = [n for n in range(1, 9) if n * rows + n + 1 <= target.vector_registers]
    score = {n: _efficiency(target.core, rows, n) * _filled(many, n) for n in fits or [1]}
    return max(score, key=lambda n: (round(score[n], 2), -n))


def task_steps(many: int | None, tile: int, per_row: int, threads: int) -> int:
    """Tiles of one task: worth handing out, and enough tasks to share them evenly."""
    worth = max(1, _FEW_BYTES // max(1, tile * per_row))
    if many is None:
        return min(worth, 8)
    return max(1, min(worth, many // (tile * threads * 4)))


def update_stretch(target: Target, rows: int, many: int | None, bits: int) -> int:
    """Columns of one task, whose sums for all rows stay in a quarter of the first-level cache."""
    lanes = max(1, target.vector_bits // bits)
    largest = max(1, target.cache(1).size // 4 // (rows * bits // 8) // lanes)
    if many is None:
        return lanes * min(largest, _STRETCH // lanes)
    vectors = math.ceil(many / lanes)
    pieces = math.ceil(vectors / largest)
    pieces = math.ceil(pieces / target.num_threads) * target.num_threads
    return lanes * math.ceil(vectors / pieces)


def steps_at_once(depth: int | None) -> int:
    """Steps of a reduction that are added to sums in cache at a time."""
    return _STEPS if depth is None else min(_STEPS, depth)


def column_stretch(target: Target, columns: int | None, depth: int | None, bits: int) -> int:
    """Columns of one task when `depth` elements of each are passed several times.

    They stay in half of the second-level cache; without any (0), sums alone take room. No less
    than two vectors, because memory is fetched in lines, and enough tasks for all threads.
    """
    stretch = update_stretch(target, 1, columns, bits)
    if depth == 0:
        return stretch
    lanes = max(1, target.vector_bits // bits)
    room = target.cache(2).size // 2 // ((depth or 1024) * bits // 8)
    return max(min(2 * lanes, stretch), min(stretch, room // lanes * lanes))

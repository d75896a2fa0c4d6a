"""Analytic choice of register tiles and cache blocks for contractions."""

from __future__ import annotations

import math

import msgspec

from blockwright.target import Core, Target

_LOSS = 0.06  # of the speed, for a load per multiplication and one multiplication per cycle


class RegisterTile(msgspec.Struct, frozen=True):
    """`rows` × `vectors` accumulators of `lanes` elements each."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


def _efficiency(core: Core, rows: int, vectors: int) -> float:
    """Share of the FMA peak that the inner loop can reach: ports, front end, latency."""
    fmas = rows * vectors
    cycles = max(
        fmas / core.arithmetic,
        (rows + vectors) / core.loads,  # a row's is one element, broadcast
        (fmas + rows + vectors + 2) / core.issue,
        core.latency,  # every accumulator waits for its own last update
    )
    return fmas / core.arithmetic / cycles


def _load_loss(core: Core, rows: int, vectors: int) -> float:
    """Share of the speed that loads cost even where there are ports for them.

    They take turns with the arithmetic, and what they bring is not always there in time: most
    often the row of the packed operand, which comes from farther away than the other's elements.
    """
    return _LOSS * core.arithmetic * (rows + 3 * vectors) / (rows * vectors)


def _filled(extent: int | None, step: int) -> float:
    """Useful share of ceil(extent / step) steps; unknown extents are taken as large."""
    return 1.0 if extent is None else extent / (math.ceil(extent / step) * step)


def _row_waste(rows: int) -> float:
    """Expected useful share for an unknown number of rows.

    Batch × sequence products are mostly multiples of small powers of two: a tile height that
    shares few of their factors leaves a partial tile more often, and small inputs feel it most.
    """
    shared = math.gcd(rows, 8)
    return 1.0 - 0.01 * (8 - shared) - 0.002 * rows


def choose_register_tile(
    target: Target, rows: int | None, columns: int | None, bits: int = 32
) -> RegisterTile:
    """The tile with the highest predicted throughput that fits the register file.

    One register is kept for the broadcast operand and `vectors` for the row of the packed operand.
    """
    return register_tiles(target, rows, columns, bits)[0]


def register_tiles(
    target: Target, rows: int | None, columns: int | None, bits: int = 32
) -> list[RegisterTile]:
    """All tiles that fit the register file, best first."""
    lanes = max(1, target.vector_bits // bits)
    found: list[tuple[float, RegisterTile]] = []
    for vectors in range(1, 7):
        for height in range(1, 17):
            if height * vectors + vectors + 1 > target.vector_registers:
                continue
            score = _efficiency(target.core, height, vectors) * _filled(columns, vectors * lanes)
            score *= _filled(rows, height) if rows is not None else _row_waste(height)
            score -= _load_loss(target.core, height, vectors)
            found.append((score, RegisterTile(height, vectors, lanes)))
    found.sort(key=lambda entry: -entry[0])
    return [tile for _, tile in found]


def panel_chunk(
    target: Target, tile: RegisterTile, depth: int | None, columns: int | None, bits: int = 32
) -> int:
    """Panels of the packed operand that one task passes for each row tile.

    The panels should stay in half of the second-level cache while row tiles come and go, and there
    should be a chunk for every thread even when there is only one row tile. Of the numbers that
    allow both, the largest that divides the panels evenly.
    """
    panel_bytes = (depth or 512) * tile.columns * bits // 8
    most = max(1, target.cache(2).size // 2 // panel_bytes)
    if columns is None:
        return min(most, 4)
    panels = math.ceil(columns / tile.columns)
    most = min(most, max(1, panels // target.num_threads))
    return max(c for c in range(1, most + 1) if panels % c == 0 or c == 1)


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
    most = max(1, target.cache(1).size // 4 // (rows * bits // 8) // lanes)
    if many is None:
        return lanes * min(most, _STRETCH // lanes)
    vectors = math.ceil(many / lanes)
    pieces = math.ceil(vectors / most)
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

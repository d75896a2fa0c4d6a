"""What decides how attention is cut: rows whose results stay in registers, keys that come at once.

A tile of rows passes all keys, and its scores are kept meanwhile; keys and values are read again
for each tile. While both stay in caches nothing else is faster. Longer keys come in pieces: the
scores of one piece are kept, and keys and values of it are read once for many rows, for which each
row has a result more for each piece.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from blockwright.strategies.cpu.register_tiling import (
    RegisterTile,
    least_width,
    register_tiles,
    speed_of_panels,
)
from blockwright.target import Target

BITS = 32  # of an element, as far as these choices go

_CLEARLY = 0.95  # share of the speed of slices, that the whole head may be slower
_OF_SCORES = 0.75  # of the second cache, that scores of a tile of rows may fill
_PIECES = range(1024, 255, -64)  # keys of a piece, that whole register tiles make up
_SHARED = 16  # rows of queries that are worth laying pieces out for
_KEPT = 2  # times as many keys in a piece as elements in a head, which is kept for each


def slice_of_head(target: Target, head: int) -> RegisterTile:
    """Rows, and columns of the head, whose results stay in registers while keys pass.

    The whole head, so that the powers of the scores are read once, unless it leaves so few rows
    that V is fetched more slowly than it is multiplied: then equal slices of it.
    """
    step, lanes = least_width(target, head, BITS), target.lanes("float32")
    columns = math.ceil(head / step) * step
    vectors = math.ceil(columns / lanes)
    whole = RegisterTile((target.vector_registers - vectors - 1) // vectors, columns, lanes)
    slices = [
        tile
        for tile in register_tiles(target, None, columns, BITS)
        if columns % tile.columns == 0 and tile.rows > 1
    ]
    best = max(slices, key=lambda tile: speed_of_panels(target, tile, BITS))
    if whole.rows < 2:
        return best
    fast, faster = (speed_of_panels(target, tile, BITS) for tile in (whole, best))
    return best if faster * _CLEARLY > fast else whole


def keys_at_once(target: Target, rows: int, keys: int, heads: Sequence[int], causal: bool) -> int:
    """Keys of a piece; 0 where all keys should be passed at once.

    Args:
        rows: of queries.
        heads: elements of a row of keys, and of values.
    """
    seen = min(rows, keys) if causal else keys  # no row of a causal form sees the keys beyond
    if rows < _SHARED or min(heads) < 2 or _stay_in_caches(target, rows, seen, heads):
        return 0
    return next(
        (piece for piece in _PIECES if keys % piece == 0 and keys > piece >= _KEPT * max(heads)), 0
    )


def _stay_in_caches(target: Target, rows: int, keys: int, heads: Sequence[int]) -> bool:
    """Whether scores of a tile of rows stay in the second cache, and keys and values of the heads
    that threads work on in the last one."""
    size = BITS // 8
    scores = min(rows, slice_of_head(target, heads[1]).rows) * keys * size
    last = target.caches[-1]
    sharing = max(1, min(target.num_threads, last.shared_by))
    read = sharing * keys * sum(heads) * size
    return scores < _OF_SCORES * target.cache(2).size and read < last.size

"""Tile sizes and kv blocks of attention, chosen by cost.

A row tile runs over all keys and keeps its scores; keys and values are read again for each tile.
While both stay in caches nothing else is faster. More keys are split into kv blocks: the scores of
one block are kept, and its keys and values are read once for many rows, at the cost of one more
partial result per row and block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from blockwright.strategies.cpu.register_tiling import (
    RegisterTile,
    min_width,
    register_tiles,
    speed_of_panels,
)
from blockwright.target import Target

BITS = 32  # bits of an element assumed for these choices

_CLEARLY = 0.95  # share of the speed of slices below which the whole head is rejected
_SHARE_OF_SCORES = 0.75  # share of the second-level cache that the scores of a row tile may fill
_PIECES = range(1024, 255, -64)  # keys per kv block: multiples of register tiles
_SHARED = 16  # query rows from which packing kv blocks pays
# smallest ratio of keys per kv block to elements of a head; partial results are kept per block
_KEPT = 2


def slice_of_head(target: Target, head: int) -> RegisterTile:
    """Rows, and columns of the head, whose results stay in registers across the keys.

    The whole head, so that the softmax numerators are read once, unless that leaves so few rows
    that fetching V takes longer than multiplying it; then equal slices of the head.
    """
    whole = _whole_head(target, head)
    slices = [tile for tile in _equal_slices(target, whole.columns) if tile.rows > 1]
    best = max(slices, key=lambda tile: speed_of_panels(target, tile, BITS))
    if whole.rows < 2:
        return best
    fast, faster = (speed_of_panels(target, tile, BITS) for tile in (whole, best))
    return best if faster * _CLEARLY > fast else whole


def slices_of_head(target: Target, head: int) -> list[RegisterTile]:
    """The whole head, and its equal slices, each with the most rows that fit the registers."""
    highest: dict[int, RegisterTile] = {}
    whole = _whole_head(target, head)
    for tile in (*_equal_slices(target, whole.columns), *([whole] if whole.rows > 0 else [])):
        known = highest.get(tile.columns)
        if known is None or tile.rows > known.rows:
            highest[tile.columns] = tile
    return list(highest.values())


def _whole_head(target: Target, head: int) -> RegisterTile:
    """The whole head, with as many rows as the registers hold; maybe none."""
    step, lanes = min_width(target, head, BITS), target.lanes("float32")
    columns = math.ceil(head / step) * step
    vectors = math.ceil(columns / lanes)
    return RegisterTile((target.vector_registers - vectors - 1) // vectors, columns, lanes)


def _equal_slices(target: Target, columns: int) -> list[RegisterTile]:
    tiles = register_tiles(target, None, columns, BITS)
    return [tile for tile in tiles if columns % tile.columns == 0]


def why_whole(target: Target, rows: int, keys: int, heads: Sequence[int], causal: bool) -> str:
    """The reason to process all keys at once; "" if there is none.

    Args:
        rows: number of query rows.
        heads: elements of a row of keys, and of values.
    """
    seen = min(rows, keys) if causal else keys  # with a causal mask no row sees the keys beyond
    if rows < _SHARED or min(heads) < 2:
        return f"{rows} rows of {min(heads)} elements are too few for packing blocks of keys"
    if _stay_in_caches(target, rows, seen, heads):
        return "keys, values and the scores of a tile stay in the caches"
    if not kv_block_size(keys, heads):
        return f"no block size divides {keys} keys"
    return ""


def kv_block_size(keys: int, heads: Sequence[int]) -> int:
    """Size of a kv block in keys; 0 if none fits."""
    return next(
        (piece for piece in _PIECES if keys % piece == 0 and keys > piece >= _KEPT * max(heads)), 0
    )


def _stay_in_caches(target: Target, rows: int, keys: int, heads: Sequence[int]) -> bool:
    """Whether a row tile's scores stay in the second-level cache, and K and V in the last one.

    K and V are those of the heads that the threads work on at the same time.
    """
    size = BITS // 8
    scores = min(rows, slice_of_head(target, heads[1]).rows) * keys * size
    last = target.caches[-1]
    sharing = max(1, min(target.num_threads, last.shared_by))
    read = sharing * keys * sum(heads) * size
    return scores < _SHARE_OF_SCORES * target.cache(2).size and read < last.size

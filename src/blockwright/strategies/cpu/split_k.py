"""Split the long sums of register tiles: each k-split has a partial sum, added to a total.

Adding one term after another to a single sum loses the digits of a term below the sum's last digit:
thousands of terms lose three digits. Registers hold the partial sum; the totals are in the
first-level cache.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import msgspec

from blockwright import ir
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.inline import block_of, extent, longest, reduces
from blockwright.strategies.cpu.vector_loops import inner_loops


class Pieces(msgspec.Struct, frozen=True):
    """How a long reduction is split into pieces with partial sums.

    Attributes:
        most: approximate largest number of terms per piece.
        least: smallest number of terms per piece.
        longest: largest number of terms of a reduction that is not split.
        unknown: whether to split a reduction of symbolic length.
    """

    most: int = 256
    least: int = 96
    longest: int = 512
    unknown: bool = False


# steps assumed for a symbolic loop; a multiple of every power-of-two piece length
_UNKNOWN = 1 << 40
WHOLE = Pieces(longest=sys.maxsize)


def sum_pieces(
    sch: Schedule,
    total: BlockRV,
    k: Sequence[LoopRV],
    pieces: Pieces,
    ragged: bool = False,
    in_tile: int = 0,
) -> tuple[BlockRV, list[LoopRV], LoopRV] | None:
    """Compute the partial sums of a long reduction where they are added to the total of a tile.

    Args:
        total: a block with the loops `k` around the two loops of a tile.
        ragged: whether the last piece may be shorter than the others.
        in_tile: number of reduction loops inside the loops of the tile.

    Returns the block that computes a partial sum, its loops in the same order, and the loop over
    pieces; None if the reduction is short, of unknown length, or has no equal pieces.
    """
    over = _cut_pieces(sch, k, pieces, ragged)
    if over is None:
        return None
    partial = sch.rfactor(over, 0)
    block = block_of(sch, total)
    (loop,) = [around for around in sch.get_loops(total) if reduces(sch, block, around)]
    sch.compute_at(partial, loop, preserve_unit_loops=True)
    own, tile = reduction_outside(sch, partial, loop, in_tile)
    return partial, [*own, *tile], loop


def reduction_outside(
    sch: Schedule, block: BlockRV, around: LoopRV, in_tile: int
) -> tuple[list[LoopRV], list[LoopRV]]:
    """Move the reduction loops of a block, below `around`, outside of the two loops of a tile.

    The innermost `in_tile` of them stay inside. Reduction axes of one element may lack a loop.
    Returns the loops outside and those of the tile.
    """
    left = sum(it.iter_type is ir.IterType.REDUCE for it in block_of(sch, block).iter_vars)
    m, n, *own = inner_loops(sch, block, around)[-2 - left :]
    split = len(own) - in_tile
    sch.reorder(*own[:split], m, n, *own[split:])
    return own[:split], [m, n, *own[split:]]


def _cut_pieces(sch: Schedule, k: Sequence[LoopRV], pieces: Pieces, ragged: bool) -> LoopRV | None:
    """Split the loops of a long reduction into pieces.

    Returns the loop over pieces; None if the reduction is short, of unknown length, or has no equal
    pieces.
    """
    sizes = [extent(sch, loop) for loop in k]
    bounds = [longest(sch, loop) for loop in k]
    if math.prod(sys.maxsize if n is None else n for n in bounds) <= pieces.longest:
        return None
    result = piece_at(sizes, pieces)
    if result is None or not (ragged or cuts_evenly(sizes, pieces)):
        return None
    at, together = result
    outer = list(k[: at + 1])
    if together > 1:
        outer[-1], _ = sch.split(outer[-1], [None, together])
    over = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    sch.annotate(over, LOOP_PARTITION, True)  # the last piece may be padded
    return over


def piece_at(sizes: Sequence[int | None], pieces: Pieces) -> tuple[int, int] | None:
    """The loop of a long reduction nest to split, and its steps per piece.

    None if the reduction is short or of unknown length.
    """
    if None in sizes and not pieces.unknown:
        return None
    known = [size or _UNKNOWN for size in sizes]
    if math.prod(known) <= pieces.longest:
        return None
    at, inner = len(known) - 1, 1
    while at and inner * known[at] <= pieces.most:
        inner *= known[at]
        at -= 1
    size, largest = known[at], max(1, pieces.most // inner)
    smallest = max(1, pieces.least // inner)
    even = [d for d in range(smallest, 2 * largest + 1) if size % d == 0]
    fitting = [d for d in even if d <= largest]
    if even:
        return at, max(fitting) if fitting else min(even)
    return at, math.ceil(size / math.ceil(size / largest))


def cuts_evenly(sizes: Sequence[int | None], pieces: Pieces) -> bool:
    """Whether a reduction nest is short enough, or divides into equal pieces."""
    result = piece_at(sizes, pieces)
    return result is None or (sizes[result[0]] or 0) % result[1] == 0


def piece_lengths(depth: int, sums: Sequence[Pieces]) -> list[int]:
    """Terms of each nested partial sum of a reduction of `depth` terms, coarse to fine."""
    result: list[int] = []
    for pieces in sums:
        cut = piece_at([depth], pieces)
        if cut is not None:
            depth = cut[1]
            result.append(depth)
    return result


def whole_pieces(sizes: Sequence[int | None], pieces: Pieces) -> int:
    """Number that the innermost reduction loop's length must be a multiple of for equal pieces."""
    result = piece_at(sizes, pieces)
    return 1 if result is None or result[0] < len(sizes) - 1 else result[1]

"""Loops of a block below a row, and vectors along the last of them."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.inline import block_of, extent, reduces
from blockwright.target import Target


def inner_loops(sch: Schedule, handle: BlockRV, row: LoopRV | None) -> list[LoopRV]:
    """Loops of a block below the row loop."""
    loops = sch.get_loops(handle)
    if row is None:
        return loops
    outer = sch.get(row)
    position = next(k for k, loop in enumerate(loops) if sch.get(loop) is outer)
    return loops[position + 1 :]


def spatial_loops(sch: Schedule, handle: BlockRV, loops: Sequence[LoopRV]) -> list[LoopRV]:
    """The spatial ones of some loops of a block; a new loop that runs once where there is none, as
    after `compute_at` of a block whose axis has at most one element."""
    block = block_of(sch, handle)
    return [k for k in loops if not reduces(sch, block, k)] or [sch.add_unit_loop(handle)]


def cut_tail(sch: Schedule, chunks: LoopRV, size: int | None, lanes: int) -> None:
    """Masks in the last vector alone, where the vectors do not fit."""
    if has_tail(size, lanes):
        sch.annotate(chunks, LOOP_PARTITION, True)


def has_tail(size: int | None, lanes: int) -> bool:
    """Whether there is a last vector, behind others, that is not full."""
    return size is None or (size > lanes and size % lanes > 0)


def lanes_for(block: ir.Block, target: Target) -> int:
    """Vector lanes of the widest element a block touches."""
    bits = max(r.buffer.dtype.bits for r in (*block.reads, *block.writes))
    return max(1, target.vector_bits // max(bits, 8))


def vectorize_last(
    sch: Schedule, handle: BlockRV, loop: LoopRV, target: Target, many: int = 1
) -> int:
    """Cut a loop into vectors, or so many at once, and return their lanes; an extent below two
    lanes stays scalar."""
    size = extent(sch, loop)
    lanes = lanes_for(block_of(sch, handle), target) * many
    if size is not None and size < 2:
        return size
    if size is not None:
        lanes = min(lanes, size)
    _, lane = sch.split(loop, [None, lanes])
    sch.vectorize(lane)
    return lanes

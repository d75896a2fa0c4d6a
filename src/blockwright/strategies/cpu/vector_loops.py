"""Loops of a block inside a row loop, and vectorization of the innermost one."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.inline import block_of, extent, reduces
from blockwright.target import Target


def inner_loops(sch: Schedule, handle: BlockRV, row: LoopRV | None) -> list[LoopRV]:
    """Loops of a block inside the row loop."""
    loops = sch.get_loops(handle)
    if row is None:
        return loops
    outer = sch.get(row)
    position = next(k for k, loop in enumerate(loops) if sch.get(loop) is outer)
    return loops[position + 1 :]


def spatial_loops(sch: Schedule, handle: BlockRV, loops: Sequence[LoopRV]) -> list[LoopRV]:
    """The spatial loops among some loops of a block.

    If there is none, a new unit loop, as after `compute_at` of a block whose axis has at most one
    element.
    """
    block = block_of(sch, handle)
    return [k for k in loops if not reduces(sch, block, k)] or [sch.add_unit_loop(handle)]


def cut_tail(sch: Schedule, chunks: LoopRV, size: int | None, lanes: int) -> None:
    """Partition the loop over vectors so that only the last, partial vector is masked."""
    if has_tail(size, lanes):
        sch.annotate(chunks, LOOP_PARTITION, True)


def has_tail(size: int | None, lanes: int) -> bool:
    """Whether full vectors are followed by a partial one."""
    return size is None or (size > lanes and size % lanes > 0)


def lanes_for(block: ir.Block, target: Target) -> int:
    """Vector lanes for the widest element type that a block accesses."""
    bits = max(r.buffer.dtype.bits for r in (*block.reads, *block.writes))
    return max(1, target.vector_bits // max(bits, 8))


def vectorize_last(
    sch: Schedule, handle: BlockRV, loop: LoopRV, target: Target, many: int = 1
) -> int:
    """Split a loop by `many` vectors, vectorize it, and return the number of lanes.

    A loop of fewer than two iterations stays scalar.
    """
    size = extent(sch, loop)
    lanes = lanes_for(block_of(sch, handle), target) * many
    if size is not None and size < 2:
        return size
    if size is not None:
        lanes = min(lanes, size)
    _, lane = sch.split(loop, [None, lanes])
    sch.vectorize(lane)
    return lanes

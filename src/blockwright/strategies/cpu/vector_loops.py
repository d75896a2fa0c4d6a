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
    return lanes_in(block, target.vector_bits)


def lanes_in(block: ir.Block, vector_bits: int) -> int:
    """Lanes of a vector of some bits, for the widest element type that a block accesses."""
    bits = max(r.buffer.dtype.bits for r in (*block.reads, *block.writes))
    return max(1, vector_bits // max(bits, 8))


def vectorize_last(
    sch: Schedule, handle: BlockRV, loop: LoopRV, target: Target, many: int = 1
) -> int:
    """Split a loop by `many` vectors of the target, vectorize it, and return the number of lanes.

    A loop of fewer than two iterations stays scalar.
    """
    return vectorize_by(sch, handle, loop, target.vector_bits, many)


def vectorize_by(
    sch: Schedule, handle: BlockRV, loop: LoopRV, vector_bits: int, many: int = 1
) -> int:
    """`vectorize_last` with vectors of a given width."""
    size = extent(sch, loop)
    lanes = lanes_in(block_of(sch, handle), vector_bits) * many
    if size is not None and size < 2:
        return size
    if size is not None:
        lanes = min(lanes, size)
    _, lane = sch.split(loop, [None, lanes])
    sch.vectorize(lane)
    return lanes

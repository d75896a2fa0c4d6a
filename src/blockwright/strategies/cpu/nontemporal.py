"""Hints for data larger than the caches: non-temporal stores, and prefetch of the next row."""

from __future__ import annotations

import math

from blockwright import ir
from blockwright.analysis.facts import symbol_facts
from blockwright.ir.annotations import NONTEMPORAL_STORES, PREFETCH_READ
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.inline import block_of, extent
from blockwright.strategies.match.blocks import is_spatial


def stream(sch: Schedule, loop: LoopRV, handle: BlockRV, smallest: int | None) -> None:
    """Mark a loop for non-temporal stores if its result has at least `smallest` bytes; None: never.

    A result as large as the last-level cache has evicted its first elements when the next program
    reads them. Unknown sizes are checked when the loop starts; if their upper bound is smaller,
    nothing is marked.
    """
    if smallest is None:
        return
    outputs = set(sch.func.buffers)
    sizes = [
        _max_bytes(sch.func, r.buffer) for r in block_of(sch, handle).writes if r.buffer in outputs
    ]
    if any(size >= smallest for size in sizes):
        sch.annotate(loop, NONTEMPORAL_STORES, smallest)


def read_next_row(
    sch: Schedule, handles: list[BlockRV], row: LoopRV, smallest: int | None, room: int
) -> None:
    """Let the last pass over the data of a row prefetch the next row.

    Otherwise the memory is idle while a row is processed in the caches. It pays where the rows
    together are in no cache, and a row stays in a near cache until it is used.

    Args:
        smallest: bytes of a buffer that is in no cache; None: there is none.
        room: bytes of the largest row that is prefetched.
    """
    if smallest is None:
        return
    for handle in reversed(handles):
        block = block_of(sch, handle)
        rows = [r.buffer for r in block.reads if r.buffer in sch.func.buffers]
        if not is_spatial(block) or not any(known_bytes(b) >= smallest for b in rows):
            continue  # the only pass over a row: the hardware prefetches it
        passes = sch.get_loops(handle)
        outer = sch.get(row)
        around = next(k for k, loop in enumerate(passes) if sch.get(loop) is outer)
        inner = passes[around + 1 :]
        size = math.prod(extent(sch, loop) or math.inf for loop in inner)
        if inner and _is_serial(sch, inner[0]) and size * rows[0].dtype.nbytes <= room:
            sch.annotate(inner[0], PREFETCH_READ, 1)
        return


def _is_serial(sch: Schedule, loop: LoopRV) -> bool:
    return sch.get(loop).kind is ir.ForKind.SERIAL


def known_bytes(buffer: ir.Buffer) -> int:
    """Bytes of a buffer; 0 if unknown: prefetching near data costs a little and gains nothing."""
    return math.prod(ir.const_int(dim) or 0 for dim in buffer.shape) * buffer.dtype.nbytes


def _max_bytes(func: ir.PrimFunc, buffer: ir.Buffer) -> float:
    facts = symbol_facts(func)
    total: float = buffer.dtype.nbytes
    for dim in buffer.shape:
        largest = facts.const_bounds(dim)[1]
        total *= math.inf if largest is None else largest
    return total

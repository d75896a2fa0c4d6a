"""Matrices that are decoded while they are read: which blocks decode them, and how lanes are laid.

W[k, j] = f(data[k, j // 8] >> j % 8 * 4, scale[k, j // 32])

Eight columns share an element of `data`. If adjacent lanes hold columns j, j + 8, j + 16, …, a
vector loads adjacent elements, and shifts all of them by the same number of bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.schedule import BlockRV, Schedule
from blockwright.strategies.cpu.gemm_canonical import node

_MOST = 16  # columns that may share an element: the code of each is unrolled


def decoders_of(blocks: Sequence[ir.Block], matrix: ir.Buffer) -> list[ir.Block]:
    """The blocks that compute the elements of a matrix, in program order."""
    needed, found = {matrix}, list[ir.Block]()
    for block in reversed(blocks):
        if any(region.buffer in needed for region in block.writes):
            found.insert(0, block)
            needed.update(region.buffer for region in block.reads)
    return found


def shared_columns(decoders: Sequence[ir.Block]) -> int:
    """Adjacent columns that read the same element of an operand of the decoders.

    Of several operands, that with the most elements counts: the others hold scales of groups.
    """
    counts = [n for block in decoders for n in _repeats(block) if n > 1]
    least = min(counts, default=1)
    return least if least <= _MOST else 1


def _repeats(block: ir.Block) -> list[int]:
    """The constants c of indices `column // c`, for the last axis of what a block stores."""
    store = block.body
    if not isinstance(store, ir.BufferStore) or not store.indices:
        return []
    column = store.indices[-1]
    divisors = [
        ir.const_int(index.b)
        for load in ir.collect(store.value, ir.BufferLoad)
        for index in load.indices[-1:]
        if isinstance(index, ir.FloorDiv) and index.a is column
    ]
    return [n for n in divisors if n is not None]


def interleaved(sch: Schedule, block: BlockRV, lanes: int, shared: int) -> None:
    """Lay out the sums of columns that are `shared` apart contiguously, a vector at a time."""
    store = node(sch, block).body
    assert isinstance(store, ir.BufferStore)
    axes = tuple(ir.var(f"i{p}", index.dtype) for p, index in enumerate(store.indices))
    *outer, j = axes
    vector = ir.floordiv(j, lanes * shared)
    lane = ir.floormod(ir.floordiv(j, shared), lanes)
    mapping = IndexMap(axes, (*outer, vector, ir.floormod(j, shared), lane))
    sch.transform_layout(block, ("write", 0), mapping)

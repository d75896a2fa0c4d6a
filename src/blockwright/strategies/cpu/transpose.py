"""Transposes: element-wise programs whose reads are strided along the axis that vectors store.

    for f, v: B[f, v] = A[v, f]    →    for v0, f0:                 # tasks along the longer axis
                                            for f1 in unroll(16):   # a tile of rows of both
                                                for v1 in vectorized(16): …

A vector of the result gathers strided elements, but the elements for sixteen adjacent results are
adjacent. Square tiles are read by rows and transposed in registers (`lower.transpose`). Axes that
are adjacent in all buffers are fused: all pixels of a convolution's result are one axis.
"""

from __future__ import annotations

import msgspec

from blockwright import ir
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.inline import block_of, bound_iterators, extent
from blockwright.strategies.cpu.spread_plan import SpreadPlan
from blockwright.strategies.cpu.vector_loops import lanes_in
from blockwright.strategies.match.blocks import address_of, extent_of, linear_groups, stride
from blockwright.target import GATHER_STRIDE

_LINE_TILE = 8  # rows and columns of a tile of a padded line


class _Roles(msgspec.Struct, frozen=True, eq=False):
    """Groups of a block's iterators that are fused into one axis each, in storage order.

    Attributes:
        groups: positions of iterators, outermost first; vectors are stored along the last group.
        near: index of the group that is contiguous in the reads.
    """

    groups: list[tuple[int, ...]]
    near: int


def stored_order(block: ir.Block) -> list[int] | None:
    """The iterators in the order of the stored buffer's axes; None unless one to one."""
    store = block.body
    if not isinstance(store, ir.BufferStore):
        return None
    order = [
        k
        for index in store.indices
        for k, it in enumerate(block.iter_vars)
        if ir.uses_var(index, it.var)
    ]
    return order if sorted(order) == list(range(len(block.iter_vars))) else None


def turn(
    sch: Schedule, handle: BlockRV, plan: SpreadPlan
) -> tuple[list[LoopRV], int | None, bool] | None:
    """Tile a block that transposes into square tiles; None if it does not transpose.

    Returns the loops to parallelize, the elements below them if known, and whether the last tasks
    have conditions.
    """
    block, bound = block_of(sch, handle), bound_iterators(sch, handle)
    order = stored_order(block)
    if bound is None or order is None:
        return None
    roles, size = _roles(block, order), min(plan.transpose_tile, lanes_in(block, plan.vector_bits))
    if roles is None or size <= 2:
        return None
    lengths = [extent_of(block, group) for group in roles.groups]
    if any(length is not None and length < size for length in (lengths[roles.near], lengths[-1])):
        return None
    loops = sch.get_loops(handle)
    loops = [loops[bound.index(position)] for position in order]
    if bound != order:
        sch.reorder(*loops)
    axes = [_fused(sch, [loops[order.index(p)] for p in group]) for group in roles.groups]
    near, last = axes[roles.near], axes[-1]
    others = [axis for k, axis in enumerate(axes[:-1]) if k != roles.near]
    n0, n1 = sch.split(near, [None, size])
    v0, v1 = sch.split(last, [None, size])
    tiles = [(n0, lengths[roles.near]), (v0, lengths[-1])]
    (outer, long), (inner, short) = sorted(tiles, key=lambda tile: -_many(tile[1]))
    ragged = {axis: length is None or length % size != 0 for axis, length in tiles}
    if others and ragged[outer] and not ragged[inner]:
        (outer, long), (inner, short) = (inner, short), (outer, long)
    around = 1
    for k, length in enumerate(lengths[:-1]):
        around *= 1 if k == roles.near else _many(length)
    sch.unroll(n1)
    sch.vectorize(v1)
    if ragged[inner]:
        sch.annotate(inner, LOOP_PARTITION, True)
    if around > 1 and ragged[outer] and around >= plan.busy_tasks:
        sch.reorder(*others, outer, inner, n1, v1)
        sch.annotate(outer, LOOP_PARTITION, True)
        below = None if long is None or short is None else long * short
        return others, below, False
    if ragged[outer]:
        sch.reorder(outer, *others, inner, n1, v1)
        return [outer], None if short is None else size * short * around, True
    sch.reorder(*others, outer, inner, n1, v1)
    return [*others, outer], None if short is None else size * short, False


def turn_lines(sch: Schedule, handle: BlockRV, pixels: LoopRV, channels: LoopRV) -> bool:
    """Tile the last two loops of a block if its reads are contiguous along the one but last.

    Tiles that contain padding at either end of a line are gathered, so tiles are small and lines of
    fewer than three are left alone. Returns whether the loops are tiled.
    """
    block, length, across = block_of(sch, handle), extent(sch, pixels), extent(sch, channels)
    order = stored_order(block)
    roles = None if order is None else _roles(block, order)
    pixel = len(block.iter_vars) - 2
    if roles is None or length is None or across is None or pixel not in roles.groups[roles.near]:
        return False
    if length < 3 * _LINE_TILE or across % _LINE_TILE:
        return False
    p0, p1 = sch.split(pixels, [None, _LINE_TILE])
    c0, c1 = sch.split(channels, [None, _LINE_TILE])
    sch.reorder(p0, c0, p1, c1)
    sch.unroll(p1)
    sch.vectorize(c1)
    sch.annotate(p0, LOOP_PARTITION, True)
    return True


def _roles(block: ir.Block, order: list[int]) -> _Roles | None:
    """The axis groups, if some load is contiguous along another axis than the store."""
    store = block.body
    if not isinstance(store, ir.BufferStore):
        return None
    axes = [p for p in order if not ir.is_const_int(block.iter_vars[p].dom.extent, 1)]
    if len(axes) < 2:
        return None
    stored = address_of(ir.BufferLoad(store.buffer, store.indices), block)
    if stride(stored, block.iter_vars[axes[-1]]) != 1:
        return None
    reads = [load for load in ir.collect(store.value, ir.BufferLoad) if load.indices]
    addresses = [address_of(load, block) for load in reads]
    near = {_read_along(address, block, axes) for address in addresses} - {None}
    if len(near) != 1 or any(load.buffer is store.buffer for load in reads):
        return None
    groups = linear_groups(block, [stored, *addresses], order)
    (axis,) = near
    at = next(k for k, group in enumerate(groups) if axis in group)
    return None if at == len(groups) - 1 else _Roles(groups, at)


def _read_along(address: ir.Expr, block: ir.Block, axes: list[int]) -> int | None:
    """The axis along which a load is contiguous, if its stride along the last axis is large."""
    if not ir.uses_var(address, block.iter_vars[axes[-1]].var):
        return None
    if stride(address, block.iter_vars[axes[-1]]) <= GATHER_STRIDE:
        return None
    return next((p for p in axes[:-1] if stride(address, block.iter_vars[p]) == 1), None)


def _fused(sch: Schedule, loops: list[LoopRV]) -> LoopRV:
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def _many(length: int | None) -> int:
    """Elements of an axis; an axis of unknown length is assumed long."""
    return 1 << 16 if length is None else length

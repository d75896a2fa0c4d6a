"""Rank the iterators of a block as vectorization axes, by the strides of its accesses."""

from __future__ import annotations

import math

import msgspec

from blockwright import ir
from blockwright.strategies.match.blocks import address_of, extent_of, stride


class VectorAxis(msgspec.Struct, frozen=True, eq=False):
    """A candidate vectorization axis; `reach` is the sum of its accesses' strides, in elements."""

    position: int
    it: ir.IterVar
    reach: float

    @property
    def spatial(self) -> bool:
        return self.it.iter_type is ir.IterType.SPATIAL


_FAR = 16  # Elements. Larger strides all cost the same: each lane is a separate access.


def _addresses(block: ir.Block) -> list[ir.Expr]:
    """Offsets of the elements that a block reads and stores, in terms of its iterators.

    Loads of the buffer that the block writes are left out.
    """
    store = block.body
    accesses = [
        load
        for load in ir.collect(store, ir.BufferLoad)
        if load.indices and load.buffer is not block.writes[0].buffer
    ]
    if isinstance(store, ir.BufferStore) and store.indices:
        accesses.append(ir.BufferLoad(store.buffer, store.indices))
    return [address_of(access, block) for access in accesses]


def neighbours(block: ir.Block) -> list[tuple[int, ...]]:
    """Group the spatial iterators that are adjacent in memory for every access of a block."""
    addresses = _addresses(block)
    groups: list[tuple[int, ...]] = []
    for position, it in enumerate(block.iter_vars):
        if it.iter_type is not ir.IterType.SPATIAL:
            continue
        size = ir.const_int(it.dom.extent)
        steps = [(stride(a, block.iter_vars[position - 1]), stride(a, it)) for a in addresses]
        if (
            groups
            and size
            and groups[-1][-1] == position - 1
            and all(near < math.inf and far == near * size for far, near in steps)
        ):
            groups[-1] = (*groups[-1], position)
        else:
            groups.append((position,))
    return groups


def axes_of(block: ir.Block, lanes: int) -> list[VectorAxis]:
    """Vectorization axes of more than one step, best first.

    Axes at least half a vector long (adjacent axes included) come first, then those with the
    smallest strides, then spatial ones.
    """
    addresses = _addresses(block)
    groups = {position: group for group in neighbours(block) for position in group}
    result: list[tuple[bool, VectorAxis]] = []
    for position, it in enumerate(block.iter_vars):
        if not ir.is_const_int(it.dom.extent, 1):
            reach = sum(min(stride(address, it), _FAR) for address in addresses)
            length = extent_of(block, groups.get(position, (position,)))
            short = length is not None and 2 * length < lanes
            result.append((short, VectorAxis(position, it, reach)))
    result.sort(key=lambda entry: (entry[0], entry[1].reach, not entry[1].spatial))
    return [axis for _, axis in result]

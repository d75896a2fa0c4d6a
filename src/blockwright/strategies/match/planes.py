"""Match NCHW convolutions: contractions whose data and result are contiguous along one axis."""

from __future__ import annotations

import msgspec

from blockwright import ir
from blockwright.strategies.match.blocks import (
    address_of,
    contraction_of,
    extent_of,
    is_linear,
    stride,
    windowed,
)
from blockwright.target import GATHER_STRIDE


class Planes(msgspec.Struct, frozen=True, eq=False):
    """A contraction with the block's iterators by role.

    Attributes:
        data: the operand that is contiguous along the result's contiguous axis.
        weights: the other operand.
        batch: axes of data, weights and result, such as groups.
        outer: axes of data and result other than the vectorized ones; the last one may be that of
            lines.
        pixels: axes that are contiguous together, along which vectors run.
        filters: axes of weights and result.
        depth: reduction axes.
        step: stride of the data from one pixel to the next, in elements.
        slides: whether tasks copy the data unchanged: several results read the same elements, and
            its vectors are contiguous.
    """

    data: ir.Buffer
    weights: ir.Buffer
    batch: tuple[int, ...]
    outer: tuple[int, ...]
    pixels: tuple[int, ...]
    filters: tuple[int, ...]
    depth: tuple[int, ...]
    step: int
    slides: bool

    @property
    def order(self) -> list[tuple[int, ...]]:
        """The new iterators, each a group of old ones."""
        first = [(p,) for p in (*self.batch, *self.outer)]
        return [*first, self.filters, self.pixels, *((p,) for p in self.depth)]

    def part(self, *leave: tuple[int, ...]) -> list[tuple[int, ...]]:
        """`order` without some groups."""
        return [group for group in self.order if not any(p in own for own in leave for p in group)]


def planes_of(block: ir.Block) -> Planes | str:
    """Match an NCHW convolution; return the reason as text if a contraction is not one."""
    facts = contraction_of(block)
    store = block.body
    if facts is None or not isinstance(store, ir.BufferStore):
        return "no contraction"
    if any(extent_of(block, [p]) is None for p in range(len(block.iter_vars))):
        return "sizes are symbolic"
    load = next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is facts.a)
    source = address_of(load, block)
    result = address_of(ir.BufferLoad(store.buffer, store.indices), block)
    *outer, last = facts.m
    step = stride(source, block.iter_vars[last])
    if stride(result, block.iter_vars[last]) != 1 or not 1 <= step <= GATHER_STRIDE:
        return (
            "no axis is contiguous in the result and nearly contiguous in its data: at most "
            f"{GATHER_STRIDE} elements apart"
        )
    slides = step == 1 and facts.a in windowed(block)
    pixels = (last,)
    while outer and not slides:
        merged = (outer[-1], *pixels)
        if not (is_linear(source, block, merged) and is_linear(result, block, merged)):
            break
        outer.pop()
        pixels = merged
    return Planes(
        facts.a, facts.b, facts.batch, tuple(outer), pixels, facts.n, facts.k, int(step), slides
    )

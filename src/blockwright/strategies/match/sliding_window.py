"""Match sliding windows: depthwise convolution, pooling, and sums over axes other than the last."""

from __future__ import annotations

from typing import Literal

import msgspec

from blockwright import ir
from blockwright.analysis import NoReduction, find_reduction
from blockwright.arith import simplify
from blockwright.strategies.cpu.depthwise_pool_shape import WindowShape
from blockwright.strategies.match.blocks import address_of, extent_of, stride
from blockwright.target import GATHER_STRIDE


class Sliding(msgspec.Struct, frozen=True, eq=False):
    """A reduction to one value whose operands share its spatial axes.

    Positions are those of the block's iterators.

    Attributes:
        data: the operand that the window slides over.
        weights: other operands that depend on the taps (window positions).
        vector: the axis along which the result is contiguous and the data nearly so.
        moved: the other spatial axes that move the window, outermost first.
        vector_moves: whether `vector` moves the window too.
        other_taps, taps_along: the reduction axes, with those along the last axis of `moved`
            separate.
        still: reduction axes along which no window slides.
    """

    data: ir.BufferLoad
    weights: tuple[ir.Buffer, ...]
    vector: int
    moved: tuple[int, ...]
    vector_moves: bool
    other_taps: tuple[int, ...]
    taps_along: tuple[int, ...]
    still: tuple[int, ...]

    @property
    def column(self) -> int | None:
        """The axis that register tiles run along."""
        return self.moved[-1] if self.moved else None

    @property
    def taps(self) -> tuple[int, ...]:
        return (*self.other_taps, *self.taps_along)

    @property
    def special(self) -> set[int]:
        """The vector axis, the axes that move the window, and the taps."""
        return {self.vector, *self.moved, *self.taps}


def sliding_of(block: ir.Block) -> Sliding | str:
    """Match a sliding window in a block; return the reason as text when there is none."""
    if isinstance(find_reduction(block), NoReduction):
        return "a block is not a recognized reduction"
    store = block.body
    if not isinstance(store, ir.BufferStore):
        return "the reduction has several components"
    iters = block.iter_vars
    taps = [p for p, it in enumerate(iters) if it.iter_type is ir.IterType.REDUCE]
    spatial = [p for p in range(len(iters)) if p not in taps]
    loads = [
        n
        for n in ir.collect(store.value, ir.BufferLoad)
        if n.buffer is not store.buffer and any(_uses(n, iters[p]) for p in taps)
    ]
    long = [it for it in iters if not ir.is_const_int(it.dom.extent, 1)]
    full = [n for n in loads if all(_uses(n, it) for it in long)]
    if not taps or not spatial or len(full) != 1:
        return "no operand has all axes of the result and all taps"
    data = full[0]
    if sum(n.buffer is data.buffer for n in loads) > 1:
        return "the data is read by several loads"
    vector = _vector(block, store, data, spatial)
    if vector is None:
        return "no axis is contiguous in both result and data"
    shared = _shared(block, data, spatial, taps)
    moved = tuple(p for p in spatial if p in shared and p != vector)
    along = tuple(p for p in taps if moved and p in shared[moved[-1]])
    weights = dict.fromkeys(n.buffer for n in loads if n is not data)
    other = tuple(p for p in taps if p not in along)
    slid = {p for group in shared.values() for p in group}
    still = tuple(p for p in taps if p not in slid)
    return Sliding(data, tuple(weights), vector, moved, vector in shared, other, along, still)


def _uses(node: ir.Node, it: ir.IterVar) -> bool:
    return ir.uses_var(node, it.var)


def _vector(
    block: ir.Block, store: ir.BufferStore, data: ir.BufferLoad, spatial: list[int]
) -> int | None:
    """The last spatial axis along which the result is contiguous and the data nearly so."""
    result = address_of(ir.BufferLoad(store.buffer, store.indices), block)
    source = address_of(data, block)
    for position in reversed(spatial):
        it = block.iter_vars[position]
        if stride(result, it) == 1 and 1 <= stride(source, it) <= GATHER_STRIDE:
            return position
    return None


def _shared(
    block: ir.Block, data: ir.BufferLoad, spatial: list[int], taps: list[int]
) -> dict[int, list[int]]:
    """Map each spatial axis that shares an index of the data with taps to these taps."""
    shared: dict[int, list[int]] = {}
    for index in data.indices:
        here = [p for p in taps if _uses(index, block.iter_vars[p])]
        for position in spatial:
            if here and _uses(index, block.iter_vars[position]):
                shared.setdefault(position, []).extend(here)
    return shared


def shape_of(
    block: ir.Block, facts: Sliding, source: Literal["plain", "border", "made"]
) -> WindowShape:
    """The sizes that determine tiles and tasks."""
    fixed = [p for p in range(len(block.iter_vars)) if p not in facts.special]
    result = WindowShape(
        extent_of(block, [facts.vector]),
        taps=extent_of(block, facts.taps),
        weighted=bool(facts.weights),
        tasks=extent_of(block, fixed),
        groups_move=facts.vector_moves,
        source=source,
    )
    if not facts.moved:
        return result
    row, column = facts.moved[0], facts.moved[-1]
    pitch = stride(address_of(facts.data, block), block.iter_vars[column])
    return msgspec.structs.replace(
        result,
        columns=extent_of(block, [column]),
        step=_move(block, facts.data, column),
        gap=_move(block, facts.data, facts.taps_along[-1]),
        along=extent_of(block, facts.taps_along) or 1,
        one_axis=row == column,
        rows=extent_of(block, [row]),
        row_step=_move(block, facts.data, row),
        row_reach=_reach(block, facts, row),
        width=_width(block, facts),
        pitch=0 if pitch == float("inf") else int(pitch) * facts.data.buffer.dtype.nbytes,
    )


def _index(block: ir.Block, load: ir.BufferLoad, position: int) -> ir.Expr:
    """The index of the data that contains an axis."""
    return next(i for i in load.indices if _uses(i, block.iter_vars[position]))


def _move(block: ir.Block, load: ir.BufferLoad, position: int) -> int:
    """Elements by which the data's index moves at an axis's first step; 1 when unknown."""
    it = block.iter_vars[position]
    if ir.is_const_int(it.dom.extent, 1):
        return 1
    index = _index(block, load, position)
    low, high = (ir.substitute(index, {it.var: v}) for v in (it.dom.min, it.dom.min + 1))
    return max(1, abs(ir.const_int(simplify(high - low)) or 1))


def _reach(block: ir.Block, facts: Sliding, row: int) -> int:
    """Rows of the data that one row of the result reads."""
    index = _index(block, facts.data, row)
    along = [p for p in facts.taps if _uses(index, block.iter_vars[p])]
    return 1 + sum(((extent_of(block, [p]) or 1) - 1) * _move(block, facts.data, p) for p in along)


def _width(block: ir.Block, facts: Sliding) -> int | None:
    """Elements of a row of the data, per element of the vector axis; None when unknown."""
    row, total = _index(block, facts.data, facts.moved[0]), 1
    for index, size in zip(facts.data.indices, facts.data.buffer.shape, strict=True):
        if index is row or not any(_uses(index, block.iter_vars[p]) for p in facts.moved):
            continue
        number = ir.const_int(size)
        if number is None:
            return None
        total *= number
    return total * (_move(block, facts.data, facts.vector) if facts.vector_moves else 1)

"""Blocks that slide a window, or sum over an axis that is not the last: what the window rule needs
to know of them."""

from __future__ import annotations

import msgspec

from blockwright import ir
from blockwright.analysis import NoReduction, find_reduction
from blockwright.arith import simplify
from blockwright.rules.facts import address_of, extent_of, stride
from blockwright.rules.window_tiles import WindowShape


class Sliding(msgspec.Struct, frozen=True, eq=False):
    """A reduction of one element whose operands share their spatial axes.

    Attributes:
        data: the operand that the window slides over.
        weights: other operands that change with the taps.
        vector: the iterator along which data and result are contiguous.
        column: the innermost other iterator that moves the window, if there is one.
        row: the outermost iterator that moves the window and is not `vector`; often `column`.
        taps: the reduction iterators, those that `column` shares an index with last.
        along: number of taps that `column` shares an index with.
        moved: every iterator that moves the window.
    """

    data: ir.Buffer
    weights: tuple[ir.Buffer, ...]
    vector: int
    column: int | None
    row: int | None
    taps: tuple[int, ...]
    along: int
    moved: tuple[int, ...]


def sliding_of(block: ir.Block) -> Sliding | str:
    """What a block slides a window over; text says why it does not."""
    found = find_reduction(block)
    if isinstance(found, NoReduction):
        return "a block is no reduction that is known"
    store = block.body
    if not isinstance(store, ir.BufferStore):
        return "the reduction has several components"
    taps = [p for p, it in enumerate(block.iter_vars) if it.iter_type is ir.IterType.REDUCE]
    loads = [n for n in ir.collect(store.value, ir.BufferLoad) if n.buffer is not store.buffer]
    loads = [n for n in loads if any(ir.uses_var(n, block.iter_vars[p].var) for p in taps)]
    spatial = [p for p in range(len(block.iter_vars)) if p not in taps]
    full = [n for n in loads
            if all(ir.uses_var(n, block.iter_vars[p].var) for p in (*spatial, *taps)
                   if not ir.is_const_int(block.iter_vars[p].dom.extent, 1))]  # fmt: skip
    if not taps or len({n.buffer for n in full}) != 1:
        return "no operand has all axes of the result and all taps"
    data = full[0]
    if any(n.buffer is data.buffer and n is not data for n in loads):
        return "the data is read at several places"
    vector = _vector(block, store, data, spatial)
    if vector is None:
        return "result and data have no axis along which both are contiguous"
    shared = _shared(block, data, spatial, taps)
    moving = [p for p in spatial if p in shared and p != vector]
    column = moving[-1] if moving else None
    own = [] if column is None else [p for p in taps if p in shared[column]]
    return Sliding(
        data.buffer,
        tuple(dict.fromkeys(n.buffer for n in loads if n.buffer is not data.buffer)),
        vector,
        column,
        moving[0] if moving else None,
        (*(p for p in taps if p not in own), *own),
        len(own),
        tuple(p for p in spatial if p in shared),
    )


def _vector(
    block: ir.Block, store: ir.BufferStore, data: ir.BufferLoad, spatial: list[int]
) -> int | None:
    """The spatial iterator along which the result is contiguous and the data nearly so."""
    result = address_of(ir.BufferLoad(store.buffer, store.indices), block)
    source = address_of(data, block)
    for position in reversed(spatial):
        it = block.iter_vars[position]
        if stride(result, it) == 1 and stride(source, it) <= _NEAR:
            return position
    return None


_NEAR = 4  # elements between neighbours of a vector that a few loads and shuffles still bring


def _shared(
    block: ir.Block, data: ir.BufferLoad, spatial: list[int], taps: list[int]
) -> dict[int, list[int]]:
    """For each spatial iterator that shares an index of the data with taps, these taps."""
    shared: dict[int, list[int]] = {}
    for index in data.indices:
        here = [p for p in taps if ir.uses_var(index, block.iter_vars[p].var)]
        for position in spatial:
            if here and ir.uses_var(index, block.iter_vars[position].var):
                shared.setdefault(position, []).extend(here)
    return shared


def shape_of(block: ir.Block, facts: Sliding, buffered: bool) -> WindowShape:
    """The sizes that decide on tiles and tasks."""
    load = next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is facts.data)
    fixed = [p for p in range(len(block.iter_vars))
             if p not in (facts.vector, *facts.moved, *facts.taps)]  # fmt: skip
    step, gap = 1, 1
    along = facts.taps[len(facts.taps) - facts.along :]
    columns, row_step, row_reach, rows = 1, 1, 1, 1
    if facts.column is not None and facts.row is not None:
        columns, rows = (extent_of(block, [p]) for p in (facts.column, facts.row))
        step = _move(block, load, facts.column)
        gap = _move(block, load, along[-1]) if along else 1
        row_step = _move(block, load, facts.row)
        row_reach = _reach(block, load, facts)
    width: int | None = 1
    for index, size in zip(load.indices, load.buffer.shape, strict=True):
        if facts.row is not None and ir.uses_var(index, block.iter_vars[facts.row].var):
            continue
        if any(ir.uses_var(index, block.iter_vars[p].var) for p in facts.moved):
            number = ir.const_int(size)
            width = None if width is None or number is None else width * number
    if facts.vector in facts.moved and width is not None:
        vector = extent_of(block, [facts.vector])
        width = None if vector is None else max(1, width // vector)
    return WindowShape(
        extent_of(block, [facts.vector]), columns, step, gap,
        extent_of(block, along) or 1, extent_of(block, facts.taps), bool(facts.weights),
        rows, row_step, row_reach, width, extent_of(block, fixed), buffered,
        facts.vector not in facts.moved,
    )  # fmt: skip


def _move(block: ir.Block, load: ir.BufferLoad, position: int) -> int:
    """How far the index of the data moves when an iterator takes its first step."""
    it = block.iter_vars[position]
    (index,) = (i for i in load.indices if ir.uses_var(i, it.var))
    low, high = (ir.substitute(index, {it.var: v}) for v in (it.dom.min, it.dom.min + 1))
    return abs(ir.const_int(simplify(high - low)) or 1)


def _reach(block: ir.Block, load: ir.BufferLoad, facts: Sliding) -> int:
    """Rows of the data that one row of the result reads."""
    assert facts.row is not None
    reach = 1
    (index,) = (i for i in load.indices if ir.uses_var(i, block.iter_vars[facts.row].var))
    for position in facts.taps:
        if ir.uses_var(index, block.iter_vars[position].var):
            reach += (( extent_of(block, [position]) or 1) - 1) * _move(block, load, position)
    return reach

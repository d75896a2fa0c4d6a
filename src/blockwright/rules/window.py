"""Sliding windows: depthwise convolution, pooling, and sums over axes that are not the last.

    out[n, i, j, c] = epilogue(sum over kh, kw of X[n, i * s + kh, j * s + kw, c] * W[kh, kw, c], …)

A block that reduces over a few taps and shares all other axes between its operands has nothing to
pack and little to reuse: what counts are contiguous vectors, loads that neighbouring results share,
and a border that costs nothing.

1. Work before that is no plain copy (padding, an activation) is done by each task for the rows that
   it reads, into a buffer that stays in cache; the kernel itself has no conditions.
2. Vectors run along the axis that is contiguous in data and result: channels when they come last,
   else the row. Weights are laid out so that their vectors are contiguous too.
3. A register tile is one vector of several neighbours along another axis of the window. Its taps
   are written out, so that an element that several neighbours use is loaded once.
4. Tasks take a block of rows and, with channels last, a block of channels; the work behind follows
   per register tile.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.rules.facts import is_spatial, leaf_blocks, position_of
from blockwright.rules.inline import block_of, extent, is_copy
from blockwright.rules.rows import inner_loops, vectorize_last
from blockwright.rules.rule import Rule
from blockwright.rules.sliding import Sliding, shape_of, sliding_of
from blockwright.rules.window_tiles import WindowTile, window_blocks, window_tile
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.support import ScheduleError
from blockwright.target import Target


def refuses(func: ir.PrimFunc, target: Target) -> str:
    found = leaf_blocks(func)
    sliding = [b for b in found if not is_spatial(b)]
    if len(sliding) != 1:
        return f"{len(sliding)} blocks reduce, one is wanted"
    facts = sliding_of(sliding[0])
    if isinstance(facts, str):
        return facts
    written = [region.buffer for b in found for region in b.writes]
    if len(set(written)) < len(written):
        return "several blocks write one buffer"
    return ""


def apply(sch: Schedule, target: Target) -> None:
    block, tail, before = _neighbours(sch)
    facts = sliding_of(block_of(sch, block))
    if isinstance(facts, str):
        raise ScheduleError(facts, code="BW340")
    _lay_out_weights(sch, block, facts)
    if tail is None:
        tail = sch.cache_write(block, 0, "local")
    sch.set_scope(block, 0, "local")
    bits = block_of(sch, block).writes[0].buffer.dtype.bits
    shape = shape_of(block_of(sch, block), facts, bool(before))
    tile = window_tile(target, shape, bits)
    blocks = window_blocks(target, shape, tile, bits)
    loops = sch.get_loops(block)
    vo, vi, v1, lane = sch.split(loops[facts.vector], [None, blocks.groups, tile.vectors, tile.lanes])
    moved = [p for p in facts.moved if p != facts.vector]
    batch = [loops[p] for p in range(len(loops))
             if p not in (facts.vector, *facts.moved, *facts.taps)]  # fmt: skip
    around: list[LoopRV] = []
    columns: list[LoopRV] = []
    inner: list[LoopRV] = []
    for position in moved:
        factors = [tile.columns] if position == facts.column else []
        if position == moved[0]:
            rows = blocks.rows
            factors.insert(0, -(-rows // tile.columns) if factors else rows)
        first, *others = sch.split(loops[position], [None, *factors]) if factors else [loops[position]]
        if position == facts.column:
            columns = [others.pop()]
            split_at = [others[-1] if others else first]
        if position == moved[0]:
            around.append(first)
            inner += others
        else:
            inner.append(first)
    taps = [loops[p] for p in facts.taps]
    other, along = taps[: len(taps) - facts.along], taps[len(taps) - facts.along :]
    sch.reorder(*batch, *around, vo, *inner, vi, *other, *columns, *along, v1, lane)
    task = sch.fuse(*batch, *around, vo)
    for handle in reversed(before):
        sch.compute_at(handle, task)
        vectorize_last(sch, handle, sch.get_loops(handle)[-1], target)
    sch.reverse_compute_at(tail, vi)
    init = sch.decompose_reduction(block, taps[0] if not other else other[0])
    sch.vectorize(lane)
    for loop in (*other, *columns, *along, v1):
        sch.unroll(loop)
    for handle in (init, tail):
        *rest, last = inner_loops(sch, handle, vi)
        for loop in rest:
            sch.unroll(loop)
        sch.vectorize(last)
    if facts.column is not None:
        sch.annotate(split_at[0], "loop_partition", True)
    sch.parallel(task)


def _neighbours(sch: Schedule) -> tuple[BlockRV, BlockRV | None, list[BlockRV]]:
    """Inline the work around the window.

    Returns the window, the last block behind it, and the producers that stay.
    """
    handles = sch.get_child_blocks(sch.get_block("root"))
    at = next(k for k, h in enumerate(handles) if not is_spatial(block_of(sch, h)))
    facts = sliding_of(block_of(sch, handles[at]))
    before: list[BlockRV] = []
    for handle in handles[:at]:
        block = block_of(sch, handle)
        data = isinstance(facts, Sliding) and block.writes[0].buffer is facts.data
        if data and facts.moved and not is_copy(block) and not _is_border(block):
            before.append(handle)
        else:
            sch.compute_inline(handle)
    behind = handles[at + 1 :]
    for handle in behind[:-1]:
        sch.compute_inline(handle)
    return handles[at], (behind[-1] if behind else None), before


def _is_border(block: ir.Block) -> bool:
    """Whether a block chooses between an element of another buffer and a constant."""
    store = block.body
    if not isinstance(store, ir.BufferStore) or not isinstance(store.value, ir.Call):
        return False
    choice = store.value
    return (choice.op == "if_then_else" and isinstance(choice.args[1], ir.BufferLoad)
            and isinstance(choice.args[2], ir.FloatImm | ir.IntImm))  # fmt: skip


def _lay_out_weights(sch: Schedule, block: BlockRV, facts: Sliding) -> None:
    """Copy weights so that their last axis is the one vectors run along, if they have it."""
    for weights in facts.weights:
        now = block_of(sch, block)
        vector = now.iter_vars[facts.vector].var
        load = next(n for n in ir.collect(now.body, ir.BufferLoad) if n.buffer is weights)
        if not any(ir.uses_var(i, vector) for i in load.indices):
            continue
        if load.indices[-1] is vector:
            continue
        copy = sch.reindex(block, ("read", position_of(weights, now.reads)))
        used = [it.var for it in now.iter_vars if any(ir.uses_var(i, it.var) for i in load.indices)]
        axes = tuple(ir.Var(f"i{k}", v.dtype) for k, v in enumerate(used))
        last = used.index(vector)
        order = [k for k in range(len(used)) if k != last] + [last]
        sch.transform_layout(copy, ("write", 0), IndexMap(axes, tuple(axes[k] for k in order)))


RULE = Rule("window", refuses, apply)

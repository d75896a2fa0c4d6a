"""Sliding windows: depthwise convolution, pooling, and sums over axes other than the last.

    out[n, i, j, c] = epilogue(sum over kh, kw of X[n, i * s + kh, j * s + kw, c] * W[kh, kw, c], …)

A block that reduces over a few taps and shares all other axes between its operands has nothing to
pack and little reuse. It needs contiguous vectors, loads shared by adjacent results, and a border
without conditions.

1. A producer that is more than a copy (padding, an activation) is computed by each task for the
   rows that it reads, into a buffer that stays in cache; the kernel itself has no conditions.
2. Vectors run along the axis that is contiguous in data and result: channels when they come last,
   else the row. Weights are copied so that their vectors are contiguous too.
3. A register tile is one vector of several adjacent results along another axis of the window. Its
   taps are unrolled, so that an element that several results use is loaded once.
4. Several windows that write parts of one result, such as the phases of a transposed convolution,
   have separate loop nests.
5. A task covers a block of rows and, with channels last, a block of channels; the epilogue is fused
   per register tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.ir.annotations import LOOP_PARTITION, PREFETCH_READ, PREFETCH_WRITE
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.blocked_sums import LONGEST, sums_floats
from blockwright.strategies.cpu.depthwise_pool_plan import (
    DepthwisePoolPlan,
    WindowFacts,
    WindowPlan,
    best_window,
    ranked_window_plans,
)
from blockwright.strategies.cpu.elementwise import spread
from blockwright.strategies.cpu.inline import block_of, extent, inline_where, is_copy, reduces
from blockwright.strategies.cpu.vector_loops import cut_tail, inner_loops, vectorize_by
from blockwright.strategies.match.blocks import (
    address_of,
    extent_of,
    is_spatial,
    leaf_blocks,
    position_of,
    stride,
)
from blockwright.strategies.match.sliding_window import Sliding, shape_of, sliding_of
from blockwright.strategies.strategy import Strategy, facts_unless
from blockwright.support import ScheduleError
from blockwright.target import GATHER_STRIDE, Target


def why_not(func: ir.PrimFunc, target: Target) -> str:
    result = leaf_blocks(func)
    sliding = [b for b in result if not is_spatial(b)]
    if not sliding:
        return "no block reduces"
    for block in sliding:
        facts = sliding_of(block)
        if isinstance(facts, str):
            return facts
        if _is_long(block, facts) and not facts.weights:
            return f"a sum of more than {LONGEST} terms without a window is split into blocks"
    results = {region.buffer for b in sliding for region in b.writes}
    if len(results) > 1:
        return "blocks reduce into several buffers"
    rest = [region.buffer for b in result if is_spatial(b) for region in b.writes]
    if len(set(rest)) < len(rest) or results.intersection(rest):
        return "several blocks write one buffer"
    return ""


def _is_long(block: ir.Block, facts: Sliding) -> bool:
    """Whether a sum has, besides the window's taps, more terms than are added in order."""
    return sums_floats(block) and (extent_of(block, facts.still) or LONGEST + 1) > LONGEST


class _Prepared(msgspec.Struct, frozen=True):
    """The windows of a program, with the blocks around them inlined.

    Attributes:
        windows: the windows.
        made: the producer of the only window's data, if any, that tasks compute.
        tail: the only window's consumer, if any.
        behind: the consumers of several windows.
    """

    windows: list[BlockRV]
    made: list[BlockRV]
    tail: BlockRV | None
    behind: list[BlockRV]

    @property
    def in_place(self) -> bool:
        """Whether several windows write parts of one result."""
        return len(self.windows) > 1


def _prepare(sch: Schedule, target: Target) -> _Prepared:
    handles = sch.get_child_blocks(sch.get_block("root"))
    parts = [h for h in handles if not is_spatial(block_of(sch, h))]
    before = handles[: handles.index(parts[0])]
    if len(parts) == 1:
        transposed = _spread_transposed(sch, before, target)
        block, made, tail = neighbours(sch, [h for h in handles if h not in transposed])
        return _Prepared([block], made, tail, [])
    for handle in _inline_before(sch, before):
        spread(sch, [handle], target)
    return _Prepared(parts, [], None, handles[handles.index(parts[-1]) + 1 :])


def plans(func: ir.PrimFunc, target: Target) -> Iterator[DepthwisePoolPlan]:
    """The best plan of each window, then plans that differ in one window."""
    sch = Schedule(func)
    program = _prepare(sch, target)
    facts = [
        window_facts(sch, block, program.made, split=not program.in_place)
        for block in program.windows
    ]
    best = [best_window(target, one) for one in facts]
    yield DepthwisePoolPlan(tuple(best))
    for k, one in enumerate(facts):
        for plan in ranked_window_plans(target, one):
            if plan != best[k]:
                yield DepthwisePoolPlan((*best[:k], plan, *best[k + 1 :]))


def apply(sch: Schedule, target: Target, plan: DepthwisePoolPlan) -> None:
    """Schedule a program by a plan."""
    program = _prepare(sch, target)
    if len(program.windows) != len(plan.windows):
        raise ScheduleError(
            f"the plan is for {len(plan.windows)} windows; the program has {len(program.windows)}",
            code="BW342",
            help="use one of the strategy's plans for this program",
        )
    for block, one in zip(program.windows, plan.windows, strict=True):
        schedule_window(sch, block, program.made, program.tail, one, program.in_place)
    for handle in inline_where(sch, program.behind):
        spread(sch, [handle], target)


def _inline_before(sch: Schedule, handles: list[BlockRV]) -> list[BlockRV]:
    """Inline the cheap producers of the windows' data; return the others."""
    remaining: list[BlockRV] = []
    for handle in handles:
        block = block_of(sch, handle)
        if is_copy(block) or _is_border(block):
            sch.compute_inline(handle)
        else:
            remaining.append(handle)
    return remaining


def window_facts(
    sch: Schedule,
    block: BlockRV,
    before: list[BlockRV],
    lines: int | None = None,
    split: bool = True,
) -> WindowFacts:
    """What the plans of a window depend on.

    Args:
        before: the producers of its data that tasks may compute.
        lines: lines of its result that another nest computes at a time; None for a nest of its own.
        split: whether a long sum may be split into partial sums.
    """
    facts, now = _facts(sch, block), block_of(sch, block)
    shape = shape_of(now, facts, _source(sch, before))
    if lines is not None:
        shape = msgspec.structs.replace(shape, rows=lines, tasks=1)
    steps = None
    if split and _is_long(now, facts):
        steps = extent_of(now, facts.other_taps[:1]) or 0
    return WindowFacts(shape, now.writes[0].buffer.dtype.bits, steps)


def schedule_window(
    sch: Schedule,
    block: BlockRV,
    before: list[BlockRV],
    tail: BlockRV | None,
    plan: WindowPlan,
    in_place: bool = False,
    around: LoopRV | None = None,
) -> None:
    """Schedule one window with the producers that stay, and its one consumer, by a plan.

    Sums are accumulated in a local buffer, that is in registers, or with `in_place` in the result
    itself: of a fully unrolled tile only the last stores remain. With `around`, the
    window is computed inside this loop of its consumer, some lines per iteration.
    """
    facts = _facts(sch, block)
    _check_fit(plan, facts, before, in_place)
    _lay_out_weights(sch, block, facts)
    if before and not plan.blocks.copied:
        sch.compute_inline(before[-1])
        before = before[:-1]
        facts = _facts(sch, block)
    if tail is None and not in_place:
        tail = sch.cache_write(block, 0, "local")
    if tail is not None:
        sch.set_scope(block, 0, "local")
    if around is not None:
        for handle in (tail, block) if tail is not None else (block,):
            sch.compute_at(handle, around, preserve_unit_loops=True)
    unknown = _has_unknown_size(block_of(sch, block), facts)
    task, step, inner = _tiles(sch, block, facts, plan, around)
    for handle in reversed(before):
        sch.compute_at(handle, task)
        vectorize_by(sch, handle, sch.get_loops(handle)[-1], plan.vector_bits)
        for loop in inner_loops(sch, handle, task)[:-1] if unknown else ():
            if extent(sch, loop) != 1:  # a task may have few of its rows and columns
                sch.annotate(loop, LOOP_PARTITION, True)
    if tail is not None and plan.terms is not None:
        _sum_pieces(sch, block, facts, inner, plan, plan.terms)
        sch.reverse_compute_at(tail, step)
        vectorize_by(sch, tail, sch.get_loops(tail)[-1], plan.vector_bits)
    else:
        _write_out(sch, block, tail, step, inner, plan)
    if around is None and extent(sch, task) != 1:
        sch.parallel(task)


def _check_fit(plan: WindowPlan, facts: Sliding, before: list[BlockRV], in_place: bool) -> None:
    """Refuse a plan with a decision that the window has no place for."""
    wrong = ""
    if plan.blocks.copied and not before:
        wrong = "blocks.copied=True, but the window reads its data as it is"
    elif plan.terms is not None and plan.tile.written_out:
        wrong = f"terms={plan.terms}, but tile.written_out=True unrolls all terms"
    elif plan.terms is not None and (in_place or not facts.other_taps):
        wrong = f"terms={plan.terms}, but the window has no sum that can be split"
    if wrong:
        raise ScheduleError(
            f"the plan has {wrong}",
            code="BW342",
            help="use one of the strategy's plans for this program",
        )


def _has_unknown_size(block: ir.Block, facts: Sliding) -> bool:
    """Whether the vector axis, rows or columns have a symbolic extent."""
    axes = (facts.vector, *facts.moved[:1], *facts.moved[-1:])
    return any(extent_of(block, [p]) is None for p in axes)


def _facts(sch: Schedule, block: BlockRV) -> Sliding:
    result = sliding_of(block_of(sch, block))
    if isinstance(result, str):
        raise ScheduleError(result, code="BW340")
    return result


def _spread_transposed(sch: Schedule, before: list[BlockRV], target: Target) -> list[BlockRV]:
    """Schedule copies that permute axes as separate blocks; inlined, they scatter reads."""
    result: list[BlockRV] = []
    for handle in before:
        block = block_of(sch, handle)
        last = next(
            (it for it in reversed(block.iter_vars) if not ir.is_const_int(it.dom.extent, 1)), None
        )
        if last is None or not is_copy(block):
            continue
        (load,) = ir.collect(block.body, ir.BufferLoad)
        if stride(address_of(load, block), last) > GATHER_STRIDE:
            spread(sch, [handle], target)
            result.append(handle)
    return result


def neighbours(
    sch: Schedule, handles: list[BlockRV]
) -> tuple[BlockRV, list[BlockRV], BlockRV | None]:
    """Inline the blocks around the only window among some blocks.

    Returns the window, the producer of its data if it is more than a copy, and the last consumer.
    """
    at = next(k for k, h in enumerate(handles) if not is_spatial(block_of(sch, h)))
    facts = _facts(sch, handles[at])
    before: list[BlockRV] = []
    for handle in handles[:at]:
        block = block_of(sch, handle)
        makes_data = block.writes[0].buffer is facts.data.buffer
        if makes_data and _overlaps(facts) and not is_copy(block):
            before.append(handle)
        else:
            sch.compute_inline(handle)
    behind = handles[at + 1 :]
    for handle in behind[:-1]:
        sch.compute_inline(handle)
    return handles[at], before, (behind[-1] if behind else None)


def _overlaps(facts: Sliding) -> bool:
    """Whether adjacent windows may share elements."""
    return bool(facts.moved) or facts.vector_moves


def _source(sch: Schedule, before: list[BlockRV]) -> Literal["plain", "border", "made"]:
    if not before:
        return "plain"
    return "border" if _is_border(block_of(sch, before[0])) else "made"


def _is_border(block: ir.Block) -> bool:
    """Whether a block selects between an element of another buffer and a constant."""
    choice = block.body.value if isinstance(block.body, ir.BufferStore) else None
    return (
        isinstance(choice, ir.Call)
        and choice.op == "if_then_else"
        and isinstance(choice.args[1], ir.BufferLoad)
        and isinstance(choice.args[2], ir.FloatImm | ir.IntImm)
    )


def _lay_out_weights(sch: Schedule, block: BlockRV, facts: Sliding) -> None:
    """Copy weights so that their last axis is the vector axis, if they have it."""
    for weights in facts.weights:
        now = block_of(sch, block)
        vector = now.iter_vars[facts.vector].var
        load = next(n for n in ir.collect(now.body, ir.BufferLoad) if n.buffer is weights)
        used = [it.var for it in now.iter_vars if ir.uses_var(load, it.var)]
        if load.indices[-1] is vector or all(v is not vector for v in used):
            continue
        copy = sch.reindex(block, ("read", position_of(weights, now.reads)))
        axes = tuple(ir.Var(f"i{k}", v.dtype) for k, v in enumerate(used))
        last = next(axis for axis, v in zip(axes, used, strict=True) if v is vector)
        order = (*(axis for axis in axes if axis is not last), last)
        sch.transform_layout(copy, ("write", 0), IndexMap(axes, order))


def _tiles(
    sch: Schedule,
    block: BlockRV,
    facts: Sliding,
    plan: WindowPlan,
    around: LoopRV | None,
) -> tuple[LoopRV, LoopRV, list[LoopRV]]:
    """Split and reorder the loops into tasks, tiles and the inside of a tile.

    Returns the loop over tasks, the innermost one over tiles, and the loops inside a tile: taps,
    columns, taps along them, vectors, lanes.
    """
    tile, blocks = plan.tile, plan.blocks
    loops = inner_loops(sch, block, around)
    tasks = [loop for p, loop in enumerate(loops) if p not in facts.special]
    groups, group, vectors, lane = sch.split(
        loops[facts.vector], [None, blocks.groups, tile.vectors, tile.lanes]
    )
    if facts.vector_moves:  # masks at the border only
        sch.annotate(group, LOOP_PARTITION, True)
    else:
        cut_tail(sch, group, extent_of(block_of(sch, block), [facts.vector]), tile.lanes)
    places: list[LoopRV] = []
    columns: list[LoopRV] = []
    for position in facts.moved:
        first, last = position == facts.moved[0], position == facts.column
        factors = [-(-blocks.rows // tile.columns) if last else blocks.rows] if first else []
        factors += [tile.columns] if last else []
        parts = sch.split(loops[position], [None, *factors]) if factors else [loops[position]]
        if last:
            columns.append(parts.pop())
            sch.annotate(parts[-1], LOOP_PARTITION, True)
        if first:
            tasks.append(parts.pop(0))
        places += parts
    taps, along = ([loops[p] for p in part] for part in (facts.other_taps, facts.taps_along))
    inner = [*taps, *columns, *along, vectors, lane]
    if not tile.written_out:  # adjacent results use a row of the data one after another
        inner = [*taps, *along, *columns, vectors, lane]
    sch.reorder(*tasks, groups, *places, group, *inner)
    if blocks.ahead and facts.vector_moves and places:
        # A tile of rows reads and writes parts of many lines that are far apart, which the hardware
        # does not prefetch: prefetch the next rows while a tile is computed.
        sch.annotate(group, PREFETCH_READ, 1)
        sch.annotate(group, PREFETCH_WRITE, 1)
    elif blocks.ahead and len(places) > 1:
        sch.annotate(places[-1], PREFETCH_READ, 1)
    return sch.fuse(*tasks, groups), group, inner


def _sum_pieces(
    sch: Schedule,
    block: BlockRV,
    facts: Sliding,
    inner: list[LoopRV],
    plan: WindowPlan,
    terms: int,
) -> None:
    """Split a tile's long sums into pieces, summed in registers and added to the totals."""
    before = block_of(sch, block)
    order = [p for p, it in enumerate(before.iter_vars) if it.iter_type is ir.IterType.SPATIAL]
    pieces, _ = sch.split(inner[0], [None, terms])
    partial = sch.rfactor(pieces, 0)
    (pieces,) = [k for k in sch.get_loops(block) if reduces(sch, block_of(sch, block), k)]
    sch.compute_at(partial, pieces, preserve_unit_loops=True)
    sch.set_scope(partial, 0, "local")
    own = inner_loops(sch, partial, pieces)
    steps = [loop for loop in own if reduces(sch, block_of(sch, partial), loop)]
    _, *spatial = [loop for loop in own if loop not in steps]  # the first one counts pieces
    vector = spatial.pop(order.index(facts.vector))
    parts = list(sch.split(vector, [None, plan.tile.lanes]))
    sch.reorder(*steps, *spatial, *parts)
    init = sch.decompose_reduction(partial, steps[0])
    clear = sch.decompose_reduction(block, pieces)
    _in_registers(sch, [*steps, *spatial, *parts], plan)
    _in_registers(sch, inner_loops(sch, init, pieces), plan)
    totals = inner_loops(sch, block, pieces)
    _in_registers(sch, sch.get_loops(clear)[-len(totals) :], plan)
    _in_registers(sch, totals, plan)


def _in_registers(sch: Schedule, loops: list[LoopRV], plan: WindowPlan) -> None:
    """Vectorize the last loop; unroll all sums, and as many taps as the unroll limit allows."""
    *outer, lane = loops
    sch.vectorize(lane)
    count = 1
    for loop in reversed(outer):
        count *= extent(sch, loop) or plan.unrolled
        if count > plan.unrolled and count > plan.tile.columns * plan.tile.vectors:
            break
        sch.unroll(loop)


def _write_out(
    sch: Schedule,
    block: BlockRV,
    tail: BlockRV | None,
    step: LoopRV,
    inner: list[LoopRV],
    plan: WindowPlan,
) -> None:
    """Schedule one tile: accumulators in registers, unrolled taps, and its consumer."""
    ends: list[BlockRV] = []
    if tail is not None:
        sch.reverse_compute_at(tail, step)
        ends = [sch.decompose_reduction(block, inner[0]), tail]
    _in_registers(sch, inner, plan)
    for handle in ends:
        *rest, last = inner_loops(sch, handle, step)
        for loop in rest:
            sch.unroll(loop)
        sch.vectorize(last)


STRATEGY = Strategy("depthwise_pool", facts_unless(why_not), apply, DepthwisePoolPlan, plans)

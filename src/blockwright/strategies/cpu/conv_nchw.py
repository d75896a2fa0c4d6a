"""NCHW convolution, vectorized along output width.

    out[n, f, i, j] = epilogue(sum over c, kh, kw of X[n, c, i + kh, j + kw] * W[f, c, kh, kw], …)

Elements adjacent along j are adjacent in memory, in X and in the result. The GEMM strategy would
load X element by element and scatter its results; here vectors run along j, and the broadcast
elements are those of W.

1. Adjacent axes that are contiguous in X and in the result are fused (the pixels of a 1×1
   convolution).
2. The register tile has filters as rows and pixels as columns. Both are padded with zeros: filters
   to whole tiles, the pixels of a line to half a vector.
3. W is packed into panels [f / rows][c…][rows], at compile time when it is a constant.
4. A task covers some lines (or tiles) of pixels. It copies the part of X that it reads, with its
   border, into a buffer that stays in the second-level cache; filters run over the copy. Where
   adjacent results read elements of X that are two to four apart, the copy gathers the vectors, one
   copy of X per tap.
5. Accumulators stay in registers; the epilogue is fused per tile. The last tile of a line is
   specialized: it has no vectors beyond the end.

A cost model decides between this strategy and the GEMM strategy.
"""

from __future__ import annotations

import math

import msgspec

from blockwright import ir
from blockwright.arith import simplify
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu import gemm
from blockwright.strategies.cpu.elementwise import spread
from blockwright.strategies.cpu.gemm_canonical import (
    align,
    clear_total,
    fuse_copy,
    node,
    panels,
    regroup,
    vector_rows,
)
from blockwright.strategies.cpu.inline import extent
from blockwright.strategies.cpu.register_tiling import (
    RegisterTile,
    choose_register_tile,
    predicted_share,
)
from blockwright.strategies.cpu.split_k import Pieces, sum_pieces
from blockwright.strategies.cpu.vector_loops import inner_loops, vectorize_last
from blockwright.strategies.match.blocks import (
    address_of,
    contraction_of,
    extent_of,
    is_linear,
    leaf_blocks,
    position_of,
    stride,
    windowed,
)
from blockwright.strategies.strategy import NoDecision, Strategy, facts_unless
from blockwright.support import ScheduleError
from blockwright.target import Target

_SCATTER = 1.5  # cycles per element of a result that is stored alone
_FAR = 6.0  # cycles per cache line that is not next to the one before
_COPY = 3.0  # cycles per vector of contiguous elements in a task's copy
_APART = 4  # largest stride of the data, in elements, between adjacent results
_TASK = 4000  # cycles to start a task
_UNEVEN = 0.25  # share of a task by which the last thread finishes after the others
# largest ratio to the GEMM strategy's time at which this strategy is chosen: its tasks are few and
# long
_BETTER = 0.97
_PIECES = Pieces()
_BITS_PER_CYCLE = 512  # bits multiplied per cycle: two units of 256 bits, or one of 512


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
    if stride(result, block.iter_vars[last]) != 1 or not 1 <= step <= _APART:
        return (
            "no axis is contiguous in the result and nearly contiguous in its data: at most "
            f"{_APART} elements apart"
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


def why_not(func: ir.PrimFunc, target: Target) -> str:
    reason = gemm.why_not(func, target)
    if reason:
        return reason
    products = [b for b in leaf_blocks(func) if contraction_of(b) is not None]
    if len(products) != 1:
        return f"{len(products)} contractions instead of one"
    (block,) = products
    if len({r.buffer.dtype for r in (*block.reads, *block.writes)}) > 1:
        return "operands and result do not share one type"
    roles = planes_of(block)
    if isinstance(roles, str):
        return roles
    return "" if _pays(target, block, roles) else "the GEMM strategy is expected to take less time"


def _pays(target: Target, block: ir.Block, roles: Planes) -> bool:
    """Whether this strategy is cheaper per result than a GEMM over pixels with scattered stores."""
    bits = block.writes[0].buffer.dtype.bits
    depth = extent_of(block, roles.depth) or 1
    filters, line = (extent_of(block, part) for part in (roles.filters, roles.pixels))
    rows = extent_of(block, (*roles.outer, *roles.pixels))
    tile = choose_register_tile(target, filters, line, bits)
    here = predicted_share(target, tile, filters, line, anywhere=roles.slides, short_end=True)
    copied = 0.0  # cycles per result for gathering its operands
    if roles.step > 1:
        copied = depth / (filters or 1) * roles.step * _COPY / tile.lanes
    tile = choose_register_tile(target, rows, filters, bits)
    there = predicted_share(target, tile, rows, filters)
    steps = depth * bits / _BITS_PER_CYCLE
    lines = _lines(target, block, roles)
    if lines * target.cache(1).line * 2 <= target.cache(1).size:
        lines = 0.0  # the data stays in the first-level cache
    scattered = _SCATTER + lines * _FAR / (tile.rows * tile.columns)
    return steps / here + copied < _BETTER * (steps / there + scattered)


def _lines(target: Target, block: ir.Block, roles: Planes) -> float:
    """Cache lines that hold the data of one pixel."""
    load = next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is roles.data)
    address, size = address_of(load, block), roles.data.dtype.nbytes
    depth = extent_of(block, roles.depth) or 1
    near = [
        p for p in roles.depth if stride(address, block.iter_vars[p]) * size < target.cache(1).line
    ]
    return depth / (extent_of(block, near) or 1)


def apply(sch: Schedule, target: Target, plan: NoDecision) -> None:
    before, (block,), behind = gemm.parts(sch)
    kept = gemm.inline_producers(sch, before, [block])
    for handle in behind[:-1]:
        sch.compute_inline(handle)
    roles = planes_of(node(sch, block))
    if isinstance(roles, str):
        raise ScheduleError(roles, code="BW340")
    makes = [h for h in kept if roles.slides and node(sch, h).writes[0].buffer is roles.data]
    bits = node(sch, block).writes[0].buffer.dtype.bits
    filters, line = (extent_of(node(sch, block), p) for p in (roles.filters, roles.pixels))
    tile = choose_register_tile(target, filters, line, bits)
    parts = _arrange(sch, block, makes, behind[-1:], roles, tile)
    _schedule(sch, parts, roles, tile, target)
    for handle in kept:
        if handle not in makes:
            spread(sch, [handle], target)


class _Parts(msgspec.Struct, frozen=True):
    """The product, the blocks that copy its operands, and its consumer."""

    block: BlockRV
    data: BlockRV
    weights: BlockRV
    tail: BlockRV


def _arrange(
    sch: Schedule,
    block: BlockRV,
    makes: list[BlockRV],
    behind: list[BlockRV],
    roles: Planes,
    tile: RegisterTile,
) -> _Parts:
    """Steps 1 to 3: order the iterators, pad to whole tiles, pack panels."""
    extents = [it.dom.extent for it in node(sch, block).iter_vars]
    weights = sch.reindex(block, ("read", position_of(roles.weights, node(sch, block).reads)))
    at = position_of(roles.data, node(sch, block).reads)
    if not roles.slides:
        data = sch.reindex(block, ("read", at))
    else:
        data = makes[0] if makes else sch.cache_read(block, at, "global")
    result = sch.reindex(block, ("write", 0))
    tail = result
    if behind:
        (tail,) = behind
        sch.compute_inline(result)
        align(sch, block, tail)
    regroup(sch, block, extents, roles.order)
    fuse_copy(sch, weights, weights, extents, roles.part(roles.outer, roles.pixels))
    if not roles.slides:
        fuse_copy(sch, data, data, extents, roles.part(roles.filters))
    fuse_copy(sch, block, tail, extents, roles.part(roles.depth))
    outer = len(roles.batch) + len(roles.outer)
    padding = [1] * outer + [tile.rows, tile.columns] + [1] * len(roles.depth)
    sources = {node(sch, h).writes[0].buffer: h for h in (data, weights)}
    for created in sch.pad_einsum(block, padding, mode="zero") or []:
        plain = sources.get(node(sch, created).reads[0].buffer)
        sch.compute_inline(created if plain is None else plain)
        data, weights = (created if h == plain else h for h in (data, weights))
    panels(sch, weights, len(roles.batch), tile.rows)
    if not roles.slides:
        panels(sch, data, outer, tile.columns)
    return _Parts(block, data, weights, tail)


def _schedule(
    sch: Schedule, parts: _Parts, roles: Planes, tile: RegisterTile, target: Target
) -> None:
    """Steps 4 and 5: tasks with their copies, register tiles, epilogue."""
    outer = len(roles.batch) + len(roles.outer)
    first, (f, v), depth = _cut(sch.get_loops(parts.block), outer, outer + 2)
    f0, f1 = sch.split(f, [None, tile.rows])
    v0, v1 = sch.split(v, [None, tile.columns])
    lines = roles.slides and _shares_index(node(sch, parts.block), outer - 1, roles)
    plan = _plan(sch, parts, roles, tile, target, lines, (f0, v0))
    ft, f0 = sch.split(f0, [None, plan.filters])
    if lines:
        task, line = sch.split(first.pop(), [None, plan.steps])
        inner = [line, v0, f0]
    else:
        task, v0 = sch.split(v0, [None, plan.steps])
        inner = [v0, f0]
    sch.reorder(*first, task, ft, *inner, *depth, f1, v1)
    task = sch.fuse(*first, task, ft)
    sch.reverse_compute_at(parts.tail, f0)
    sch.set_scope(parts.block, 0, "local")
    _sums(sch, parts.block, depth, f1, v1, tile)
    sch.annotate(v0, LOOP_PARTITION, True)  # the last tile has only the vectors that it needs
    vector_rows(sch, parts.tail, tile.columns)
    _copy(sch, parts.data, task, roles, tile, target)
    sch.parallel(task)
    _pack(sch, parts.weights, len(roles.batch), tile)


def _sums(
    sch: Schedule, block: BlockRV, depth: list[LoopRV], f1: LoopRV, v1: LoopRV, tile: RegisterTile
) -> None:
    """Schedule a register tile; its long sums are split into pieces."""
    cut = sum_pieces(sch, block, depth, _PIECES, ragged=True)
    partial = block
    if cut is not None:
        partial, (*depth, f1, v1), loop = cut
        clear_total(sch, block, loop, tile.columns)
        sch.set_scope(partial, 0, "local")
    init = sch.decompose_reduction(partial, depth[0])
    sch.unroll(f1)
    sch.vectorize(v1)
    vector_rows(sch, init, tile.columns)


def _cut(loops: list[LoopRV], *at: int) -> tuple[list[LoopRV], list[LoopRV], list[LoopRV]]:
    first, second = at
    return loops[:first], loops[first:second], loops[second:]


def _copy(
    sch: Schedule, data: BlockRV, task: LoopRV, roles: Planes, tile: RegisterTile, target: Target
) -> None:
    """Copy the data that a task reads into its own buffer."""
    sch.compute_at(data, task)
    if roles.slides:
        vectorize_last(sch, data, sch.get_loops(data)[-1], target)
        return
    loops = inner_loops(sch, data, task)
    pixels, *depth = loops[len(loops) - 1 - len(roles.depth) :]
    lanes = math.gcd(tile.columns, tile.lanes)
    panel, chunk, lane = sch.split(pixels, [None, tile.columns // lanes, lanes])
    sch.reorder(panel, *depth, chunk, lane)
    sch.vectorize(lane)


def _pack(sch: Schedule, weights: BlockRV, batch: int, tile: RegisterTile) -> None:
    """Pack the weights, one panel per task."""
    loops = sch.get_loops(weights)
    filters, *depth = loops[batch:]
    panel, row = sch.split(filters, [None, tile.rows])
    sch.reorder(panel, *depth, row)
    sch.parallel(sch.fuse(*loops[:batch], panel) if batch else panel)


# ------------------------------------------------------------------------------------------- tasks
class _Plan(msgspec.Struct, frozen=True):
    """Size of a task: lines, or tiles of pixels; and tiles of filters."""

    steps: int
    filters: int


def _plan(
    sch: Schedule,
    parts: _Parts,
    roles: Planes,
    tile: RegisterTile,
    target: Target,
    lines: bool,
    tiles: tuple[LoopRV, LoopRV],
) -> _Plan:
    """The task size with the shortest estimated time of the busiest thread."""
    block = node(sch, parts.block)
    filters, pixels = (extent(sch, loop) or 1 for loop in tiles)
    outer = len(roles.batch) + len(roles.outer)
    count = pixels
    others = extent_of(block, range(outer)) or 1
    if lines:
        count = extent_of(block, [outer - 1]) or 1
        others //= count
    depth = extent_of(block, range(outer + 2, len(block.iter_vars))) or 1
    work = tile.rows * tile.columns * depth * _bits(block) / _BITS_PER_CYCLE
    work *= pixels if lines else 1
    room = target.cache(2).size // 2 * 8 // _bits(block)
    best: tuple[float, _Plan] | None = None
    for steps in _sizes(count):
        copied = (
            steps * tile.columns * depth
            if not roles.slides
            else _read(block, parts, sch, outer, steps if lines else steps * tile.columns, lines)
        )
        if copied > room and best is not None:
            break
        for group in _sizes(filters):
            tasks = others * math.ceil(count / steps) * math.ceil(filters / group)
            each = steps * group * work + copied / tile.lanes * roles.step * _COPY + _TASK
            time = each * (math.ceil(tasks / target.num_threads) + _UNEVEN)
            if best is None or time < best[0]:
                best = time, _Plan(steps, group)
    assert best is not None
    return best[1]


def _bits(block: ir.Block) -> int:
    return block.writes[0].buffer.dtype.bits


def _sizes(extent: int) -> list[int]:
    """Sizes that divide an axis into nearly equal parts."""
    return sorted({math.ceil(extent / parts) for parts in range(1, extent + 1)})


def _data_load(block: ir.Block, data: ir.Buffer) -> ir.BufferLoad:
    return next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is data)


def _shares_index(block: ir.Block, position: int, roles: Planes) -> bool:
    """Whether an axis and a tap occur in the same index of the data."""
    if position < len(roles.batch):
        return False
    own = block.iter_vars[position].var
    taps = [it.var for it in block.iter_vars if it.iter_type is ir.IterType.REDUCE]
    loads = [
        n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is not block.writes[0].buffer
    ]
    return any(
        ir.uses_var(index, own) and any(ir.uses_var(index, tap) for tap in taps)
        for load in loads
        for index in load.indices
    )


def _read(
    block: ir.Block, parts: _Parts, sch: Schedule, outer: int, steps: int, lines: bool
) -> int:
    """Elements of the data that some steps of a task read: the size of their bounding box."""
    load = _data_load(block, node(sch, parts.data).writes[0].buffer)
    last: dict[ir.Var, ir.Expr] = {}
    first: dict[ir.Var, ir.Expr] = {}
    for position, it in enumerate(block.iter_vars):
        length = ir.const_int(it.dom.extent) or 1
        if position < outer:
            length = steps if lines and position == outer - 1 else 1
        elif position == outer + 1 and not lines:
            length = steps
        first[it.var] = ir.const(0, it.var.dtype)
        last[it.var] = ir.const(length - 1, it.var.dtype)
    total = 1
    for index in load.indices:
        span = simplify(ir.substitute(index, last) - ir.substitute(index, first))
        total *= 1 + (ir.const_int(span) or 0)
    return total


STRATEGY = Strategy("conv_nchw", facts_unless(why_not), apply)

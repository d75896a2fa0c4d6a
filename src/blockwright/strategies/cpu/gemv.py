"""GEMV and skinny GEMM: a matrix times a few rows, bound by reading the matrix.

    out[b, m, n] = epilogue(sum over k of A[b, m, k] * W[b, n, k], …)   with few m

The matrix is read once, in its own layout, and is not packed. (A constant matrix is left to the
GEMM strategy: panels are one memory stream, and packing a constant is free.) There are two forms,
depending on the matrix's layout:

- *dots*, where reduction elements are contiguous: some rows of W at a time, each with a vector of
  partial sums per row of A; the lanes are added up at the end. Bfloat16 is multiplied by a
  dot-product instruction, where the target has it, on the vectors as they are in memory;
- *updates*, where columns are contiguous: a task computes a strip of columns, its sums stay in the
  first-level cache, and some reduction steps are added at a time.

Narrow operands are otherwise widened as they are loaded.

A matrix that is computed element by element, such as decoded weights, is computed as it is read.
Where several columns share an element of packed data, the lanes of a vector of updates are as many
columns apart: it then loads different words and shifts all of them by one constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.intrin import dot_lanes_name
from blockwright.ir.annotations import LOOP_PARTITION, PREFETCH_READ
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.blocked_sums import long_sums
from blockwright.strategies.cpu.elementwise import spread_by
from blockwright.strategies.cpu.gemm_canonical import fuse_copy, node, pad_operands, regroup
from blockwright.strategies.cpu.gemv_match import (
    Skinny,
    dot_kernel,
    long_axes,
    skinny,
    why_not,
)
from blockwright.strategies.cpu.gemv_plan import (
    LONGEST,
    Dots,
    GemvPlan,
    GemvShape,
    Updates,
    best_dots,
    best_updates,
    other_plans,
)
from blockwright.strategies.cpu.inline import extent, is_copy
from blockwright.strategies.cpu.micro_kernel import MicroKernel
from blockwright.strategies.cpu.packed_columns import decoders_of, interleaved, shared_columns
from blockwright.strategies.cpu.vector_loops import inner_loops, vectorize_by
from blockwright.strategies.match.blocks import (
    contraction_of,
    extent_of,
    position_of,
)
from blockwright.strategies.ranking import misfit, ranked, refuse_below_one
from blockwright.strategies.strategy import Fusion, Strategy, facts_unless
from blockwright.support import ScheduleError
from blockwright.target import Target

_DECODED_ROWS = 4  # rows up to which the elements of the matrix are computed as they are read


def _shape(func: ir.PrimFunc, target: Target) -> tuple[Skinny, GemvShape]:
    """The roles of a product's axes, and the sizes that plans depend on."""
    sch = Schedule(func)
    handle, _, others = _neighbours(sch)
    block = node(sch, handle)
    roles = _roles(block, target)
    kernel = dot_kernel(block, target)
    decoders = decoders_of([node(sch, other) for other in others], roles.matrix)
    return roles, GemvShape(
        extent_of(block, roles.few) or 1,
        extent_of(block, roles.many),
        extent_of(block, roles.k),
        block.writes[0].buffer.dtype.bits,
        roles.matrix.dtype.bits,
        "" if kernel is None else kernel.dot,
        1 if kernel is None else kernel.group,
        shared_columns(decoders),
        len({region.buffer for block in decoders for region in block.reads}),
    )


def _best_plan(func: ir.PrimFunc, target: Target, unknown: bool = False) -> GemvPlan:
    """The plan that the cost model prefers; `unknown` splits sums of unknown length."""
    roles, shape = _shape(func, target)
    return (best_dots if roles.dots else best_updates)(target, shape, unknown)


def plans(func: ir.PrimFunc, target: Target) -> Iterator[GemvPlan]:
    """The plan that the cost model prefers, then others in the order of predicted time."""
    best = _best_plan(func, target)
    return ranked(func, target, apply, best, other_plans(_shape(func, target)[1], best))


def apply(sch: Schedule, target: Target, plan: GemvPlan) -> None:
    """Schedule a program by a plan."""
    refuse_below_one(plan, "vector_bits")
    refuse_below_one(plan.form, *(n for n in plan.form.__struct_fields__ if n != "ahead"))
    block, out, others = _neighbours(sch)
    roles = _roles(node(sch, block), target)
    decoders = decoders_of([node(sch, other) for other in others], roles.matrix)
    if roles.dots != isinstance(plan.form, Dots):
        raise misfit(
            "the matrix is contiguous along its " + ("reduction" if roles.dots else "columns"),
            "use the form Dots" if roles.dots else "use the form Updates",
        )
    kernel = dot_kernel(node(sch, block), target)
    if plan.dot and (not roles.dots or kernel is None or kernel.dot != plan.dot):
        raise misfit(f"dot={plan.dot!r} does not multiply the operands", "use dot=''")
    if isinstance(plan.form, Dots):
        task = _dots(sch, block, out, roles, plan, plan.form, kernel if plan.dot else None)
    else:
        task = _updates(sch, block, out, roles, plan, plan.form)
    sch.parallel(task)
    for handle in others:
        if node(sch, handle) in decoders:
            sch.compute_inline(handle)
        else:
            spread_by(sch, [handle], plan.producers)


def _roles(block: ir.Block, target: Target) -> Skinny:
    roles = skinny(block, target)
    if isinstance(roles, str):
        raise ScheduleError(roles, code="BW340")
    return roles


def _neighbours(sch: Schedule) -> tuple[BlockRV, BlockRV, list[BlockRV]]:
    """Inline the blocks before and after the product.

    Returns the product, the block after it, and the producers of the operands. Inlining those of
    the smaller operand would recompute them for every row of the matrix.
    """
    handles = sch.get_child_blocks(sch.get_block("root"))
    at = next(k for k, h in enumerate(handles) if contraction_of(node(sch, h)) is not None)
    kept: list[BlockRV] = []
    for handle in handles[:at]:
        if is_copy(node(sch, handle)):
            sch.compute_inline(handle)
        else:
            kept.append(handle)
    behind = handles[at + 1 :] or [sch.cache_write(handles[at], 0, "local")]
    for handle in behind[:-1]:
        sch.compute_inline(handle)
    return handles[at], behind[-1], kept


def _axes(
    sch: Schedule, block: BlockRV, roles: Skinny, in_groups: bool = False
) -> tuple[list[LoopRV], ...]:
    """The block's loops by role: batch, few, many, k; the last two are fused into one loop each.

    The three loops of a reduction `in_groups` are not fused.
    """
    loops = sch.get_loops(block)
    groups = [[loops[p] for p in part] for part in (roles.batch, roles.few, roles.many, roles.k)]
    sch.reorder(*(loop for group in groups for loop in group))
    for group in groups[2 : 3 if in_groups else 4]:
        if len(group) > 1:
            group[:] = [sch.fuse(*group)]
    return tuple(groups)


def _dots(
    sch: Schedule,
    block: BlockRV,
    out: BlockRV,
    roles: Skinny,
    plan: GemvPlan,
    form: Dots,
    kernel: MicroKernel | None,
) -> LoopRV:
    """Keep vectors of partial sums along the reduction, for a few rows of both operands at once.

    If there are more rows than registers allow, they are processed in parts, while the matrix's
    rows stay in cache.
    """
    dtype = node(sch, block).writes[0].buffer.dtype
    rows = extent_of(node(sch, block), roles.few) or 1
    in_parts = form.rows < rows
    lanes = max(1, plan.vector_bits // dtype.bits)
    groups = None
    if kernel is not None:
        groups = _in_groups(sch, block, roles, lanes, kernel, plan.piece)
        roles = groups.roles
    batch, few, (count,), k = _axes(sch, block, roles, groups is not None)
    lane = k[1] if groups is not None else sch.split(k[0], [None, lanes])[1]
    sch.reorder(lane, *batch, *few, count)
    partial = sch.rfactor(lane, -1)
    lane, *outer = sch.get_loops(block)
    task, n0, n1 = sch.split(outer[-1], [None, form.steps, form.columns])
    batch, few = outer[: len(batch)], outer[len(batch) : -1]
    at = n0
    if in_parts:
        (p,) = long_axes(node(sch, block), range(len(batch), len(outer) - 1))
        at, outer[p] = sch.split(outer[p], [None, form.rows])
        sch.annotate(at, LOOP_PARTITION, True)
        few = outer[len(batch) : -1]
    sch.reorder(*batch, task, n0, *([at] if in_parts else []), *few, n1, lane)
    sch.reverse_compute_at(out, at)
    sch.set_scope(block, 0, "local")
    sch.compute_at(partial, at, preserve_unit_loops=True)
    sch.set_scope(partial, 0, "local")
    _partial_sums(sch, partial, at, len(batch), plan.piece, groups)
    sch.decompose_reduction(block, lane)
    sch.vectorize(lane)
    for loop in (*inner_loops(sch, block, at)[:-1], *inner_loops(sch, out, at)):
        sch.unroll(loop)
    sch.annotate(n0, LOOP_PARTITION, True)
    return sch.fuse(*batch, task) if batch else task


class _Groups(msgspec.Struct, frozen=True):
    """A product whose reduction is split into steps, lanes, and elements of a lane's group.

    Attributes:
        operands: blocks that copy one vector of each operand.
        roles: with three axes k.
    """

    operands: tuple[BlockRV, BlockRV]
    roles: Skinny
    kernel: MicroKernel
    lanes: int


def _in_groups(
    sch: Schedule, block: BlockRV, roles: Skinny, lanes: int, kernel: MicroKernel, piece: int
) -> _Groups:
    """Split the reduction for a dot product, padded with zeros to whole vectors and pieces."""
    before = node(sch, block)
    facts = contraction_of(before)
    assert facts is not None  # `_dot_kernel` checked it
    extents = [it.dom.extent for it in before.iter_vars]
    a = sch.reindex(block, ("read", position_of(facts.a, before.reads)))
    b = sch.reindex(block, ("read", position_of(facts.b, node(sch, block).reads)))
    parts = [[(p,) for p in part] for part in (roles.batch, roles.few, roles.many)]
    own = [axes for part in parts for axes in part]
    regroup(sch, block, extents, [*own, roles.k])
    for copy, axes in ((a, (*facts.batch, *facts.m)), (b, (*facts.batch, *facts.n))):
        fuse_copy(sch, copy, copy, extents, [*(p for p in own if p[0] in axes), roles.k])
    run = lanes * kernel.group
    a, b = pad_operands(sch, block, a, b, [*[1] * len(own), run * max(1, piece)], "zero")
    for handle in (block, a, b):
        axes = tuple(ir.Var(it.var.name, it.var.dtype) for it in node(sch, handle).iter_vars)
        *lead, k = axes
        step, rest = ir.floordiv(k, run), ir.floormod(k, run)
        digits = (step, ir.floordiv(rest, kernel.group), ir.floormod(rest, kernel.group))
        mapping = IndexMap(axes, (*lead, *digits))
        if handle != block:
            sch.transform_layout(handle, ("write", 0), mapping)
        sch.transform_block_layout(handle, mapping)
    places = iter(range(len(own) + 3))
    axes_of = [tuple(next(places) for _ in part) for part in parts]
    split = msgspec.structs.replace(
        roles, batch=axes_of[0], few=axes_of[1], many=axes_of[2], k=tuple(places)
    )
    return _Groups((a, b), split, kernel, lanes)


def _multiply_groups(
    sch: Schedule, groups: _Groups, step: LoopRV, rows: list[LoopRV], lane: LoopRV
) -> None:
    """Load a vector of each operand's rows once per step, and multiply them lane by lane."""
    for copy in groups.operands:
        sch.set_scope(copy, 0, "local")
        sch.compute_at(copy, step)
        *_, lanes, elements = inner_loops(sch, copy, step)
        sch.fuse(lanes, elements)
        _in_registers(sch, inner_loops(sch, copy, step))
    for loop in rows:
        sch.unroll(loop)
    sch.tensorize(lane, dot_lanes_name(groups.kernel.dot, groups.lanes))


def _without_last(loops: list[LoopRV], count: int) -> list[LoopRV]:
    return loops[: len(loops) - count]


def _partial_sums(
    sch: Schedule, partial: BlockRV, n0: LoopRV, batch: int, piece: int, groups: _Groups | None
) -> None:
    """Keep all partial sums in registers across the reduction, or across a piece of it."""
    inside = 0 if groups is None else 1
    lane, *rows, k0 = _without_last(inner_loops(sch, partial, n0), inside)
    sch.reorder(k0, *rows, lane)
    over = _cut(sch, k0, piece)
    if over is not None:
        sums = sch.rfactor(over, 0)
        over, *rows, lane = inner_loops(sch, partial, n0)
        sch.compute_at(sums, over, preserve_unit_loops=True)
        sch.set_scope(sums, 0, "local")
        clear = sch.decompose_reduction(partial, over)
        _in_registers(sch, [*rows[batch:], lane])
        _in_registers(sch, inner_loops(sch, clear, n0))
        partial, n0 = sums, over
        _, lane, *rows, k0 = _without_last(inner_loops(sch, partial, n0), inside)
        sch.reorder(k0, *rows, lane)
    init = sch.decompose_reduction(partial, k0)
    sch.annotate(k0, LOOP_PARTITION, True)
    if groups is None:
        _in_registers(sch, [*rows[batch:], lane])
    else:
        _multiply_groups(sch, groups, k0, rows[batch:], lane)
    _in_registers(sch, inner_loops(sch, init, n0))


def _in_registers(sch: Schedule, loops: list[LoopRV]) -> None:
    *others, last = loops
    sch.vectorize(last)
    for loop in others:
        sch.unroll(loop)


def _cut(sch: Schedule, k: LoopRV, piece: int) -> LoopRV | None:
    """Split a reduction into pieces; returns the loop over them, None if it is not split."""
    if not piece:
        return None
    over, _ = sch.split(k, [None, piece])
    sch.annotate(over, LOOP_PARTITION, True)
    return over


def _updates(
    sch: Schedule, block: BlockRV, out: BlockRV, roles: Skinny, plan: GemvPlan, form: Updates
) -> LoopRV:
    """Keep the sums of a strip of columns in cache; add some reduction steps to them at a time."""
    lanes = max(1, plan.vector_bits // node(sch, block).writes[0].buffer.dtype.bits)
    _sums_along(sch, block, roles.many)
    if form.shared > 1:
        interleaved(sch, block, lanes, form.shared)
    batch, few, (count,), (k,) = _axes(sch, block, roles)
    over, sums = _cut(sch, k, plan.piece), block
    if over is not None:
        sums = sch.rfactor(over, 0)
        *batch_and_few, count, over = sch.get_loops(block)
        batch, few = batch_and_few[: len(batch)], batch_and_few[len(batch) :]
    whole = lanes * form.shared
    vectors_of_task = max(1, form.columns // whole)
    if (columns := extent(sch, count)) is not None:
        vectors_of_task = min(vectors_of_task, -(-columns // whole))
    task, vectors, lane, part = sch.split(count, [None, vectors_of_task, lanes, form.shared])
    if over is not None:
        sch.reorder(*batch, task, over, *few, vectors, part, lane)
        sch.compute_at(sums, over, preserve_unit_loops=True)
        _, *own, count, k = inner_loops(sch, sums, over)
        few = own[len(batch) :]
        vectors, lane, part = sch.split(count, [None, lanes, form.shared])
    k0, k1 = sch.split(k, [None, min(form.steps, extent(sch, k) or form.steps)])
    sch.reorder(*([*batch, task] if over is None else []), k0, vectors, part, *few, k1, lane)
    sch.reverse_compute_at(out, task)
    if over is not None:
        for each in (sch.decompose_reduction(block, over), block):
            sch.vectorize(sch.get_loops(each)[-1])
    init = sch.decompose_reduction(sums, k0)
    sch.vectorize(lane)
    for loop in (part, *few, k1):
        sch.unroll(loop)
    if over is None:
        sch.vectorize(sch.get_loops(init)[-1])
    else:
        vectorize_by(sch, init, sch.get_loops(init)[-1], plan.vector_bits)
    vectorize_by(sch, out, sch.get_loops(out)[-1], plan.vector_bits)
    sch.annotate(k0, LOOP_PARTITION, True)
    if form.ahead:
        sch.annotate(vectors, PREFETCH_READ, form.ahead)
    task = sch.fuse(*batch, task) if batch else task
    sch.annotate(task, LOOP_PARTITION, True)
    return task


def _sums_along(sch: Schedule, block: BlockRV, many: Sequence[int]) -> None:
    """Lay the sums out contiguously along the matrix's rows; columns of a result are strided."""
    store = node(sch, block).body
    assert isinstance(store, ir.BufferStore)
    own = {node(sch, block).iter_vars[p].var for p in long_axes(node(sch, block), many)}
    last = [p for p, index in enumerate(store.indices) if index in own]
    if last and last != [len(store.indices) - 1]:
        axes = tuple(ir.var(f"i{p}", index.dtype) for p, index in enumerate(store.indices))
        order = (*(axis for p, axis in enumerate(axes) if p not in last), *(axes[p] for p in last))
        sch.transform_layout(block, ("write", 0), IndexMap(axes, order))


def variants(func: ir.PrimFunc, target: Target) -> list[tuple[ir.Expr, GemvPlan]]:
    """Long sums split into pieces, for a symbolic reduction length."""
    long = long_sums(func, LONGEST)
    return [] if long is None else [(long, _best_plan(func, target, unknown=True))]


def decodes_operand(func: ir.PrimFunc, operand: int, target: Target) -> bool:
    """Whether an operand is a matrix of which each element is read once, so that it can be computed
    as it is read."""
    roles, shape = _shape(func, target)
    return shape.rows <= _DECODED_ROWS and func.buffers[operand] is roles.matrix


STRATEGY = Strategy(
    "gemv",
    facts_unless(why_not),
    apply,
    GemvPlan,
    plans,
    variants=variants,
    fusion=Fusion(computes_operand=decodes_operand),
)

"""GEMV and skinny GEMM: a matrix times a few rows, bound by reading the matrix.

    out[b, m, n] = epilogue(sum over k of A[b, m, k] * W[b, n, k], …)   with few m

The matrix is read once, in its own layout, and is not packed. (A constant matrix is left to the
GEMM strategy: panels are one memory stream, and packing a constant is free.) There are two forms,
depending on the matrix's layout:

- *dots*, where reduction elements are contiguous: some rows of W at a time, each with a vector of
  partial sums per row of A; the lanes are added up at the end;
- *updates*, where columns are contiguous: a task computes a strip of columns, its sums stay in the
  first-level cache, and some reduction steps are added at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.blocked_sums import long_sums
from blockwright.strategies.cpu.elementwise import spread_by
from blockwright.strategies.cpu.gemm_canonical import node
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
from blockwright.strategies.cpu.register_tiling import max_skinny_rows
from blockwright.strategies.cpu.vector_loops import inner_loops, vectorize_by
from blockwright.strategies.match.blocks import (
    Contraction,
    address_of,
    contraction_of,
    depth_groups,
    extent_of,
    is_constant,
    is_spatial,
    leaf_blocks,
    stride,
    windowed,
)
from blockwright.strategies.ranking import misfit, ranked, refuse_below_one
from blockwright.strategies.strategy import Strategy, facts_unless
from blockwright.support import ScheduleError
from blockwright.target import Target

_GATHERED = 3  # rows up to which vectors of strided elements are worth gathering
_TILES = 8  # passes of dot products over matrix rows in cache, at most


class Skinny(msgspec.Struct, frozen=True, eq=False):
    """A contraction with the block's iterators by role.

    Attributes:
        matrix: the operand that is read once.
        few, many: the rows of the other operand, and of the matrix.
        dots: whether the matrix is contiguous along the reduction.
    """

    matrix: ir.Buffer
    batch: tuple[int, ...]
    few: tuple[int, ...]
    many: tuple[int, ...]
    k: tuple[int, ...]
    dots: bool


def _skinny(block: ir.Block, target: Target) -> Skinny | str:
    """Match a skinny product; return the reason as text if it is not one."""
    facts = contraction_of(block)
    if facts is None:
        return "no contraction"
    largest = _TILES * max_skinny_rows(target, block.writes[0].buffer.dtype.bits)
    sides = [(facts.m, facts.n, facts.b), (facts.n, facts.m, facts.a)]
    sides.sort(key=lambda side: extent_of(block, side[0]) or largest + 1)
    few, count, matrix = sides[0]
    if (extent_of(block, few) or largest + 1) > largest:
        return f"both operands have more than {largest // _TILES} rows"
    if extent_of(block, facts.k) == 1 or extent_of(block, count) == 1:
        return "there is no matrix"
    if len(_long(block, count)) > 1:
        return "the rows of the matrix span several axes"
    if not windowed(block).isdisjoint((facts.a, facts.b)):
        return "a window slides over an operand"
    loads = [n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is matrix]
    address = address_of(loads[0], block)
    near = {p for p in (*count, *facts.k) if stride(address, block.iter_vars[p]) == 1}
    if not near:
        return "no axis of the matrix is contiguous"
    dots = not near.isdisjoint(facts.k)
    rows = extent_of(block, few) or 1
    # The GEMM strategy would pack a right operand into panels; a left one it reads in place.
    saves_panels = dots and matrix is facts.b and len(_long(block, few)) == 1
    if rows * (1 if saves_panels else _TILES) > largest:
        return f"both operands have more than {largest // _TILES} rows"
    if dots and rows > _GATHERED and not _contiguous(block, facts, matrix):
        return f"more than {_GATHERED} rows of the other operand are not contiguous"
    return Skinny(matrix, facts.batch, few, count, facts.k, dots)


def _contiguous(block: ir.Block, facts: Contraction, matrix: ir.Buffer) -> bool:
    """Whether the operand that meets the matrix is contiguous along the reduction."""
    other = facts.a if matrix is facts.b else facts.b
    load = next(n for n in ir.collect(block.body, ir.BufferLoad) if n.buffer is other)
    address = address_of(load, block)
    return any(stride(address, block.iter_vars[p]) == 1 for p in facts.k)


def _long(block: ir.Block, axes: Sequence[int]) -> list[int]:
    """The axes of more than one element."""
    return [p for p in axes if not ir.is_const_int(block.iter_vars[p].dom.extent, 1)]


def why_not(func: ir.PrimFunc, target: Target) -> str:
    matches = leaf_blocks(func)
    contractions = [b for b in matches if contraction_of(b) is not None]
    if len(contractions) != 1:
        return f"{len(contractions)} contractions instead of one"
    (product,) = contractions
    if not all(is_spatial(b) for b in matches if b is not product):
        return "other blocks reduce too"
    roles = _skinny(product, target)
    if isinstance(roles, str):
        return roles
    if is_constant(func, roles.matrix):
        return "the matrix is a constant: it is packed into panels at compile time"
    facts = contraction_of(product)
    assert facts is not None
    result = product.writes[0].buffer.dtype
    if not result.is_float or facts.a.dtype is not result or facts.b.dtype is not result:
        return "operands and result do not share one floating-point type"
    depth = extent_of(product, roles.k)
    if roles.dots and depth is not None and depth < 2 * target.lanes(result):
        return "the reduction is shorter than two vectors"
    along = msgspec.structs.replace(facts, a=roles.matrix)
    if roles.dots and len(depth_groups(product, along)) > 1:
        return "the rows of the matrix are not contiguous"
    return ""


def _best_plan(func: ir.PrimFunc, target: Target, unknown: bool = False) -> GemvPlan:
    """The plan that the cost model prefers; `unknown` splits sums of unknown length."""
    sch = Schedule(func)
    block = node(sch, _neighbours(sch)[0])
    roles = _roles(block, target)
    bits = block.writes[0].buffer.dtype.bits
    rows = extent_of(block, roles.few) or 1
    shape = GemvShape(rows, extent_of(block, roles.many), extent_of(block, roles.k), bits)
    return (best_dots if roles.dots else best_updates)(target, shape, unknown)


def plans(func: ir.PrimFunc, target: Target) -> Iterator[GemvPlan]:
    """The plan that the cost model prefers, then others in the order of predicted time."""
    best = _best_plan(func, target)
    return ranked(func, target, apply, best, other_plans(best))


def apply(sch: Schedule, target: Target, plan: GemvPlan) -> None:
    """Schedule a program by a plan."""
    refuse_below_one(plan, "vector_bits")
    refuse_below_one(plan.form, *plan.form.__struct_fields__)
    block, out, kept = _neighbours(sch)
    roles = _roles(node(sch, block), target)
    if roles.dots != isinstance(plan.form, Dots):
        raise misfit(
            "the matrix is contiguous along its " + ("reduction" if roles.dots else "columns"),
            "use the form Dots" if roles.dots else "use the form Updates",
        )
    if isinstance(plan.form, Dots):
        task = _dots(sch, block, out, roles, plan, plan.form)
    else:
        task = _updates(sch, block, out, roles, plan, plan.form)
    sch.parallel(task)
    for handle in kept:
        spread_by(sch, [handle], plan.producers)


def _roles(block: ir.Block, target: Target) -> Skinny:
    roles = _skinny(block, target)
    if isinstance(roles, str):
        raise ScheduleError(roles, code="BW340")
    return roles


def _neighbours(sch: Schedule) -> tuple[BlockRV, BlockRV, list[BlockRV]]:
    """Inline the blocks before and after the product.

    Returns the product, the block after it, and the producers of the smaller operand, which
    inlining would recompute for every row of the matrix.
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


def _axes(sch: Schedule, block: BlockRV, roles: Skinny) -> tuple[list[LoopRV], ...]:
    """The block's loops by role: batch, few, many, k; the last two are fused into one loop each."""
    loops = sch.get_loops(block)
    groups = [[loops[p] for p in part] for part in (roles.batch, roles.few, roles.many, roles.k)]
    sch.reorder(*(loop for group in groups for loop in group))
    for group in groups[2:]:
        if len(group) > 1:
            group[:] = [sch.fuse(*group)]
    return tuple(groups)


def _dots(
    sch: Schedule, block: BlockRV, out: BlockRV, roles: Skinny, plan: GemvPlan, form: Dots
) -> LoopRV:
    """Keep vectors of partial sums along the reduction, for a few rows of both operands at once.

    If there are more rows than registers allow, they are processed in parts, while the matrix's
    rows stay in cache.
    """
    dtype = node(sch, block).writes[0].buffer.dtype
    rows = extent_of(node(sch, block), roles.few) or 1
    in_parts = form.rows < rows
    batch, few, (count,), (k,) = _axes(sch, block, roles)
    _, lane = sch.split(k, [None, max(1, plan.vector_bits // dtype.bits)])
    sch.reorder(lane, *batch, *few, count)
    partial = sch.rfactor(lane, -1)
    lane, *outer = sch.get_loops(block)
    task, n0, n1 = sch.split(outer[-1], [None, form.steps, form.columns])
    batch, few = outer[: len(batch)], outer[len(batch) : -1]
    at = n0
    if in_parts:
        (p,) = _long(node(sch, block), range(len(batch), len(outer) - 1))
        at, outer[p] = sch.split(outer[p], [None, form.rows])
        sch.annotate(at, LOOP_PARTITION, True)
        few = outer[len(batch) : -1]
    sch.reorder(*batch, task, n0, *([at] if in_parts else []), *few, n1, lane)
    sch.reverse_compute_at(out, at)
    sch.set_scope(block, 0, "local")
    sch.compute_at(partial, at, preserve_unit_loops=True)
    sch.set_scope(partial, 0, "local")
    _partial_sums(sch, partial, at, len(batch), plan.piece)
    sch.decompose_reduction(block, lane)
    sch.vectorize(lane)
    for loop in (*inner_loops(sch, block, at)[:-1], *inner_loops(sch, out, at)):
        sch.unroll(loop)
    sch.annotate(n0, LOOP_PARTITION, True)
    return sch.fuse(*batch, task) if batch else task


def _partial_sums(sch: Schedule, partial: BlockRV, n0: LoopRV, batch: int, piece: int) -> None:
    """Keep all partial sums in registers across the reduction, or across a piece of it."""
    lane, *rows, k0 = inner_loops(sch, partial, n0)
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
        _, lane, *rows, k0 = inner_loops(sch, partial, n0)
        sch.reorder(k0, *rows, lane)
    init = sch.decompose_reduction(partial, k0)
    sch.annotate(k0, LOOP_PARTITION, True)
    _in_registers(sch, [*rows[batch:], lane])
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
    batch, few, (count,), (k,) = _axes(sch, block, roles)
    over, sums = _cut(sch, k, plan.piece), block
    if over is not None:
        sums = sch.rfactor(over, 0)
        *batch_and_few, count, over = sch.get_loops(block)
        batch, few = batch_and_few[: len(batch)], batch_and_few[len(batch) :]
    task, vectors, lane = sch.split(count, [None, max(1, form.columns // lanes), lanes])
    if over is not None:
        sch.reorder(*batch, task, over, *few, vectors, lane)
        sch.compute_at(sums, over, preserve_unit_loops=True)
        _, *own, count, k = inner_loops(sch, sums, over)
        few = own[len(batch) :]
        vectors, lane = sch.split(count, [None, lanes])
    k0, k1 = sch.split(k, [None, min(form.steps, extent(sch, k) or form.steps)])
    sch.reorder(*([*batch, task] if over is None else []), k0, vectors, *few, k1, lane)
    sch.reverse_compute_at(out, task)
    if over is not None:
        for part in (sch.decompose_reduction(block, over), block):
            sch.vectorize(sch.get_loops(part)[-1])
    init = sch.decompose_reduction(sums, k0)
    sch.vectorize(lane)
    for loop in (*few, k1):
        sch.unroll(loop)
    if over is None:
        sch.vectorize(sch.get_loops(init)[-1])
    else:
        vectorize_by(sch, init, sch.get_loops(init)[-1], plan.vector_bits)
    vectorize_by(sch, out, sch.get_loops(out)[-1], plan.vector_bits)
    sch.annotate(k0, LOOP_PARTITION, True)
    task = sch.fuse(*batch, task) if batch else task
    sch.annotate(task, LOOP_PARTITION, True)
    return task


def _sums_along(sch: Schedule, block: BlockRV, many: Sequence[int]) -> None:
    """Lay the sums out contiguously along the matrix's rows; columns of a result are strided."""
    store = node(sch, block).body
    assert isinstance(store, ir.BufferStore)
    own = {node(sch, block).iter_vars[p].var for p in _long(node(sch, block), many)}
    last = [p for p, index in enumerate(store.indices) if index in own]
    if last and last != [len(store.indices) - 1]:
        axes = tuple(ir.var(f"i{p}", index.dtype) for p, index in enumerate(store.indices))
        order = (*(axis for p, axis in enumerate(axes) if p not in last), *(axes[p] for p in last))
        sch.transform_layout(block, ("write", 0), IndexMap(axes, order))


def variants(func: ir.PrimFunc, target: Target) -> list[tuple[ir.Expr, GemvPlan]]:
    """Long sums split into pieces, for a symbolic reduction length."""
    long = long_sums(func, LONGEST)
    return [] if long is None else [(long, _best_plan(func, target, unknown=True))]


STRATEGY = Strategy("gemv", facts_unless(why_not), apply, GemvPlan, plans, variants=variants)

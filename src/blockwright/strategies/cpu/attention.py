"""Fused attention: two chained contractions with row-wise work between them, in one kernel.

    S = Q K^T;  P = f(S, mask, row statistics);  out = g(P V, row statistics)

A task computes one batch element and head. It packs K into panels once. Then, for a few query rows
at a time, it computes the scores tile by tile in registers, the softmax on rows that stay in the
first-level cache, and the product with V in registers: for the whole head, or for one slice of it
after another where registers are few. Any sequence length works: padding rows occur in the last
tile only, which `loop_partition` peels. If there are too few heads for all threads, the rows of a
head are distributed over several tasks.

Scores of bfloat16 queries and keys are summed by a dot-product instruction where the target has it:
panels of K then hold the elements of a group next to each other, and heads that do not divide into
groups are padded with zeros. Otherwise K is widened as it is packed. The numerators P are float32,
and so are the products with V.

Split-KV attention, where each kv block has its own softmax,

    S1[c] = Q K[c]^T;  P = f(S1[c], row statistics of c);  O1[c] = P V[c];  out = g(O1, statistics)

runs one kv block after another in a task that covers some rows of a head: the task packs K and V of
the block, runs its rows over them as above, and at its end combines the partial results of each
row. The scores of a block then stay in near caches for any number of keys, and keys and values are
read from memory once for all rows of a task.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.ir.annotations import LOOP_PARTITION, REGISTER_PRESSURE
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.attention_cost import BITS
from blockwright.strategies.cpu.attention_plan import (
    AttentionPlan,
    AttentionShape,
    HeadSlice,
    best_plan,
    other_plans,
    refuse_unless_fits,
    score_kernel,
)
from blockwright.strategies.cpu.elementwise import spread_by
from blockwright.strategies.cpu.gemm_canonical import (
    Canonical,
    align,
    canonicalize,
    clear_total,
    node,
    pack_panels,
    row_distance,
    unroll_all,
    vector_rows,
    vector_tile,
)
from blockwright.strategies.cpu.inline import extent, inline_where, is_copy, longest
from blockwright.strategies.cpu.inner_reduction import schedule_inner
from blockwright.strategies.cpu.split_k import sum_pieces
from blockwright.strategies.cpu.vector_loops import has_tail, inner_loops, vectorize_by
from blockwright.strategies.match.blocks import (
    Contraction,
    contraction_of,
    extent_of,
    is_spatial,
    leaf_blocks,
    position_of,
    widens_factors,
)
from blockwright.strategies.strategy import Strategy, facts_unless
from blockwright.support import ScheduleError
from blockwright.target import Target


def _roles(func: ir.PrimFunc) -> tuple[list[ir.Block], list[int]]:
    result = leaf_blocks(func)
    return result, [k for k, b in enumerate(result) if contraction_of(b, guarded=True) is not None]


def why_not(func: ir.PrimFunc, target: Target) -> str:
    result, at = _roles(func)
    if len(at) != 2:
        return f"{len(at)} contractions instead of two"
    scores = contraction_of(result[at[0]])
    product = contraction_of(result[at[1]], guarded=True)
    if scores is None:
        return "the scores are predicated before they are summed"
    assert product is not None
    pieces = len(product.batch) - len(scores.batch)
    if not scores.batch or pieces not in (0, 1):
        return "the contractions have different batch axes"
    if len(scores.m) != 1 or len(scores.n) != 1 + pieces or len(product.n) != 1:
        return "rows or columns have several axes"
    head = extent_of(result[at[1]], product.n)
    if head is None:
        return "the head size is symbolic"
    for position, facts in zip(at, (scores, product), strict=True):
        iters = result[position].iter_vars
        axes = (iters[p].dom.extent for p in (*facts.m, *facts.n, *facts.k))
        if any(ir.is_const_int(size, 1) for size in axes):
            return "an axis has one element"
    if not all(is_spatial(b) or b.init is not None for b in result):
        return "a block is neither spatial nor a reduction with an init statement"
    return _no_pieces(result, at, scores, product) if pieces else ""


def _no_pieces(
    found: list[ir.Block], at: list[int], scores: Contraction, product: Contraction
) -> str:
    """Why the first n axis of the scores does not index kv blocks; "" if it does."""
    if len(scores.k) != 1 or len(product.k) != 1 or product.batch[-1] < product.m[0]:
        return "the product has no result for each kv block"
    pieces = (found[at[0]].iter_vars[scores.n[0]], found[at[1]].iter_vars[product.batch[-1]])
    if not ir.structural_equal(*(it.dom.extent for it in pieces)):
        return "scores and product have different kv blocks"
    if all(is_spatial(b) for b in found[at[1] + 1 :]):
        return "no block combines the results of the kv blocks"
    return ""


def _inlined(sch: Schedule, before: list[BlockRV], scores: BlockRV) -> list[BlockRV]:
    """Blocks to inline: all, except the producer of K if Q comes from the same buffer.

    The operands of a product of a buffer with itself would be indistinguishable; K is then a copy.
    """
    result = contraction_of(node(sch, scores))
    assert result is not None  # `why_not` checked it
    made_by = {node(sch, h).writes[0].buffer: h for h in before}

    def source(buffer: ir.Buffer) -> ir.Buffer:
        while buffer in made_by and len(node(sch, made_by[buffer]).reads) == 1:
            buffer = node(sch, made_by[buffer]).reads[0].buffer
        return buffer

    same = source(result.a) is source(result.b)
    return [h for h in before if not (same and h == made_by.get(result.b))]


class _Blocks(msgspec.Struct):
    """The blocks of a program by role.

    Attributes:
        before: produce queries, keys and values.
        between: compute the softmax numerators from the scores.
        out: stores the product's results from registers.
        together: combine the partial results of the kv blocks.
    """

    before: list[BlockRV]
    scores: BlockRV
    between: list[BlockRV]
    product: BlockRV
    out: BlockRV
    together: list[BlockRV]


def _parts(sch: Schedule) -> _Blocks:
    handles = sch.get_child_blocks(sch.get_block("root"))
    at = [k for k, h in enumerate(handles) if contraction_of(node(sch, h), guarded=True)]
    first, second = at
    facts = contraction_of(node(sch, handles[first]))
    behind, together = handles[second + 1 :], list[BlockRV]()
    if facts is not None and len(facts.n) > 1:
        behind, together = [], behind
    if not behind:
        behind = [sch.cache_write(handles[second], 0, "local")]
    for handle in behind[:-1]:
        sch.compute_inline(handle)
    align(sch, handles[second], behind[-1])
    if together:
        together = _put_together(sch, together)
    between = handles[first + 1 : second]
    copies = [h for h in between if is_copy(node(sch, h))]
    remaining = [h for h in between if h not in copies]
    return _Blocks(
        [*handles[:first], *copies],
        handles[first],
        remaining,
        handles[second],
        behind[-1],
        together,
    )


def _put_together(sch: Schedule, handles: list[BlockRV]) -> list[BlockRV]:
    """Prepare the blocks that combine partial results, with one consumer over the same axes."""
    last = max(k for k, h in enumerate(handles) if not is_spatial(node(sch, h)))
    *plain, out = handles[last + 1 :] or [sch.cache_write(handles[last], 0, "local")]
    for handle in plain:
        sch.compute_inline(handle)
    align(sch, handles[last], out)
    return [*handles[: last + 1], out]


def _size_of_head(sch: Schedule, product: BlockRV) -> int:
    block = node(sch, product)
    facts = contraction_of(block, guarded=True)
    assert facts is not None  # `why_not` checked it
    head = extent_of(block, facts.n)
    assert head is not None
    return head


def _whole_vectors(sch: Schedule, product: BlockRV, head: int, plan: HeadSlice) -> BlockRV | None:
    """Pad the head with zeros to whole vectors, so that sums in registers need no masks.

    Returns the block that packs V into slices, if a head has more than one.
    """
    slices = _slices(sch, product, plan.columns) if plan.columns < head else None
    block = node(sch, product)
    facts = contraction_of(block, guarded=True)
    assert facts is not None  # `why_not` checked it
    (axis,) = facts.n
    padding = [1] * len(block.iter_vars)
    padding[axis] = plan.multiple
    for result in sch.pad_einsum(product, padding, mode="zero") or []:
        sch.compute_inline(result)
    return slices


def _slices(sch: Schedule, product: BlockRV, width: int) -> BlockRV:
    """Pack V into slices of its columns, one after another and aligned to cache lines.

    Rows of V may be pages apart, or unaligned. The last slice is padded with zeros.
    """
    block = node(sch, product)
    facts = contraction_of(block, guarded=True)
    assert facts is not None  # `why_not` checked it
    copy = sch.reindex(product, ("read", position_of(facts.b, block.reads)))
    *batch, column, key = (ir.Var(it.var.name, it.var.dtype) for it in node(sch, copy).iter_vars)
    slices = (*batch, ir.floordiv(column, width), key, ir.floormod(column, width))
    sch.transform_layout(copy, ("write", 0), IndexMap((*batch, column, key), slices), 0.0)
    return copy


def _score_tile(
    sch: Schedule,
    form: Canonical,
    masked: BlockRV,
    loops: list[LoopRV],
    plan: AttentionPlan,
) -> None:
    """Keep the scores of a tile in registers.

    `loops` are those over steps, rows and columns, then over the elements of a group, if any.
    """
    sums, lanes = form.block, plan.tile.columns
    cut = sum_pieces(sch, sums, loops[:1], plan.score_sums, in_tile=form.in_tile)
    if cut is not None:
        sums, loops, over = cut
        clear_total(sch, form.block, over, lanes)
        sch.set_scope(sums, 0, "local")
    depth, i1, j1 = loops[:3]
    init = sch.decompose_reduction(sums, depth)
    vector_rows(sch, init, lanes)
    if plan.dot:
        _dot_products(sch, form, depth, i1)
    else:
        vector_tile(sch, sums, j1, i1, lanes)
    vector_rows(sch, masked, lanes)


def _dot_products(sch: Schedule, form: Canonical, depth: LoopRV, rows: LoopRV) -> None:
    """Multiply a group of each query row by the panel, row by row: the last tile has fewer rows."""
    sch.set_scope(form.a, 0, "local")
    sch.compute_at(form.a, depth)
    unroll_all(sch, form.a, below=depth, inside=form.in_tile)
    sch.vectorize(sch.get_loops(form.a)[-1])
    row, one = sch.split(rows, [None, 1])
    sch.unroll(row)
    sch.tensorize(one, form.kernel.intrin(1, form.tile.columns))


def _rows(sch: Schedule, handle: BlockRV, i0: LoopRV, plan: AttentionPlan, kept: bool) -> None:
    """Schedule row statistics and exponentials row by row, vectorized along the keys.

    Statistics are `kept`, or live in registers for the tile only.
    """
    loops = inner_loops(sch, handle, i0)
    if is_spatial(node(sch, handle)):
        keys = extent(sch, loops[-1])
        lanes = vectorize_by(sch, handle, loops[-1], plan.lanes.vector_bits)
        chunks = inner_loops(sch, handle, i0)[len(loops) - 1]
        _cut(sch, handle, chunks, plan.peel_tails and has_tail(keys, lanes))
        return
    if not kept:
        sch.set_scope(handle, 0, "local")
    schedule_inner(sch, handle, loops[0], plan.lanes)


def _cut(sch: Schedule, handle: BlockRV, keys: LoopRV, tail: bool = False) -> None:
    """Partition the loop over keys.

    Keys that all rows of a tile see, some see, and none sees get separate code; or, with `tail`,
    the keys behind the last full vector.
    """
    block = node(sch, handle)
    own = {it.var for it in block.iter_vars}
    chosen = (n.condition for n in ir.collect(block.body, ir.Select))
    if tail or any(
        isinstance(c, ir.CompareOp)
        and ir.uses_var(c, own)
        and not any(isinstance(n, ir.BufferLoad) for n in ir.walk(c))
        for c in chosen
    ):
        sch.annotate(keys, LOOP_PARTITION, True)


def _pack_slices(
    sch: Schedule, copy: BlockRV, task: LoopRV, plan: AttentionPlan, *, whole: bool
) -> None:
    """A task packs the slices of its V; all are `whole`, or the last one is padded."""
    sch.compute_at(copy, task)
    width = plan.head.columns
    step = math.gcd(width, plan.lanes.vector_bits // BITS)
    loops = inner_loops(sch, copy, task)
    if whole:
        columns, keys = loops[-2:]
        part, vectors, lanes = sch.split(columns, [None, width // step, step])
    else:  # a padded layout has its own loops: over slices, keys, and columns in a slice
        part, keys, columns = loops[-3:]
        vectors, lanes = sch.split(columns, [None, step])
        sch.annotate(part, LOOP_PARTITION, True)
        sch.annotate(vectors, LOOP_PARTITION, True)
    # slice by slice: a task writes all the data of a slice that it reads
    sch.reorder(keys, part, vectors, lanes)
    sch.vectorize(lanes)


def _product_tile(
    sch: Schedule,
    product: BlockRV,
    out: BlockRV,
    i0: LoopRV,
    size: int,
    plan: AttentionPlan,
    pieces: int,
) -> None:
    """Keep all rows of the tile and a slice of the head in registers across the keys.

    Results are written back row by row, vectorized along the head.
    """
    loops = inner_loops(sch, product, i0)
    # between them is the kv block loop that contains i0
    rows, head, keys = loops[-3 - pieces], *loops[-2:]
    at, width, lanes = i0, plan.head.columns, plan.head.lanes
    if extent(sch, head) != width:
        at, head = sch.split(head, [None, width])
        sch.reorder(at, keys, rows, head)
        if plan.peel_tails and has_tail(size, width):
            sch.annotate(at, LOOP_PARTITION, True)
    else:
        sch.reorder(keys, rows, head)
    sums, few = product, extent(sch, keys) is None
    cut = sum_pieces(sch, product, [keys], plan.product_sums, ragged=True)
    sch.reverse_compute_at(out, at)
    if cut is not None:
        sums, (keys, rows, head), over = cut
        _cut(sch, sums, over)
        clear_total(sch, product, over, lanes)
    sch.set_scope(sums, 0, "local")
    init = sch.decompose_reduction(sums, keys)
    sch.annotate(keys, REGISTER_PRESSURE, 1)  # statistics of rows are live across the loop
    _cut(sch, sums, keys, cut is not None and few)  # the last piece may have a few keys
    vector_rows(sch, init, lanes)
    vector_tile(sch, sums, head, rows, lanes)
    vector_rows(sch, out, lanes)


class _Prepared(msgspec.Struct):
    """A program whose producers of queries, keys and values are inlined where possible.

    Attributes:
        blocks: the blocks by role.
        remaining: producers that are computed before.
        scores: the first contraction, with producers inlined.
    """

    blocks: _Blocks
    remaining: list[BlockRV]
    scores: Contraction


def _prepare(sch: Schedule) -> _Prepared:
    blocks = _parts(sch)
    inlined = _inlined(sch, blocks.before, blocks.scores)
    remaining = inline_where(sch, inlined) + [h for h in blocks.before if h not in inlined]
    result = contraction_of(node(sch, blocks.scores))
    if result is None:
        raise ScheduleError(
            "with producers inlined, the scores are not a contraction",
            code="BW340",
            help="schedule the program by the fallback strategy, or write the scores "
            "as sums of products of a query and a key element",
        )
    return _Prepared(blocks, remaining, result)


def _shape(sch: Schedule, program: _Prepared) -> AttentionShape:
    """The sizes that plans depend on."""
    block, facts = node(sch, program.blocks.scores), program.scores
    total = block.writes[0].buffer.dtype
    heads = (ir.const_int(block.iter_vars[p].dom.extent) for p in facts.batch)
    return AttentionShape(
        heads=math.prod(size or 1 for size in heads),
        rows=extent_of(block, facts.m),
        most_rows=longest(sch, sch.get_loops(program.blocks.scores)[facts.m[0]]),
        keys=extent_of(block, facts.n[-1:]),
        head=_size_of_head(sch, program.blocks.product),
        row_bytes=row_distance(block, facts.a, facts.m) * total.bits // 8,
        in_blocks=len(facts.n) > 1,
        types=(facts.a.dtype, facts.b.dtype, total)
        if widens_factors(block)
        else (total, total, total),
        bits_of_result=node(sch, program.blocks.product).writes[0].buffer.dtype.bits,
    )


def shape_of(func: ir.PrimFunc) -> AttentionShape:
    """The sizes of a program that matches."""
    sch = Schedule(func)
    return _shape(sch, _prepare(sch))


def plans(func: ir.PrimFunc, target: Target) -> Iterator[AttentionPlan]:
    """The plan that the cost model prefers, then others in the order of predicted cost."""
    shape = shape_of(func)
    best = best_plan(target, shape)
    yield best
    yield from other_plans(target, shape, best)


def apply(sch: Schedule, target: Target, plan: AttentionPlan) -> None:
    """Schedule a program by a plan."""
    program = _prepare(sch)
    blocks = program.blocks
    scores, product = blocks.scores, blocks.product
    shape = _shape(sch, program)
    refuse_unless_fits(target, plan, shape)
    batch, pieces = len(program.scores.batch), len(program.scores.n) - 1
    head = plan.head
    slices = _whole_vectors(sch, product, shape.head, head)
    masked, rest = blocks.between[0], blocks.between[1:]
    form = canonicalize(
        sch,
        scores,
        masked,
        target,
        pad_rows=False,
        columns_apart=pieces,
        tile=plan.tile,
        kernel=score_kernel(target, shape, plan.dot),
    )
    if not plan.dot:
        sch.compute_inline(form.a)  # query elements are broadcast from Q itself
    loops = sch.get_loops(scores)
    tasks, rows, each = loops[:batch], loops[batch], loops[batch + 1 : batch + 1 + pieces]
    columns, *depth = loops[batch + 1 + pieces :]
    keys = extent(sch, sch.get_loops(masked)[-1])
    if plan.tasks_per_head > 1:
        part, i0, i1 = sch.split(rows, [plan.tasks_per_head, None, form.tile.rows])
        tasks.append(part)
    else:
        i0, i1 = sch.split(rows, [None, form.tile.rows])
    j0, j1 = sch.split(columns, [None, form.tile.columns])
    outer, inside = form.reduction_loops(depth)
    sch.reorder(*tasks, *each, i0, j0, *outer, i1, j1, *inside)
    task = sch.fuse(*tasks) if len(tasks) > 1 else tasks[0]
    home = each[0] if each else task
    sch.set_scope(scores, 0, "local")
    sch.reverse_compute_at(masked, j0)
    for handle in (*rest, product):
        sch.reverse_compute_at(handle, i0, preserve_unit_loops=True)  # a tile may have one row
    sch.compute_at(form.b, home)
    panel = pack_panels(sch, form, inner_loops(sch, form.b, home))
    sch.annotate(panel, LOOP_PARTITION, True)
    _score_tile(sch, form, masked, [*outer, i1, j1, *inside], plan)
    for handle in rest:
        _rows(sch, handle, i0, plan, kept=bool(pieces))
    if slices is not None:
        _pack_slices(sch, slices, home, plan, whole=shape.head % head.columns == 0)
    _product_tile(sch, product, blocks.out, i0, shape.head, plan, pieces)
    sch.annotate(i0, LOOP_PARTITION, True)
    _cut(sch, masked, j0, plan.peel_tails and has_tail(keys, form.tile.columns))
    for handle in blocks.together:
        sch.reverse_compute_at(handle, task, preserve_unit_loops=True)
        schedule_inner(sch, handle, inner_loops(sch, handle, task)[0], plan.lanes)
    sch.parallel(task)
    for handle in program.remaining:
        if is_spatial(node(sch, handle)):
            spread_by(sch, [handle], plan.producers)


STRATEGY = Strategy("attention", facts_unless(why_not), apply, AttentionPlan, plans)

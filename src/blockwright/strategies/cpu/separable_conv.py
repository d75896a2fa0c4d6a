"""Separable convolution: a depthwise window and the 1×1 product after it, fused in one pass.

    mid[n, i, j, c] = f(sum over kh, kw of X[n, i * s + kh, j * s + kw, c] * D[kh, kw, c], …)
    out[n, i, j, f] = epilogue(sum over c of mid[n, i, j, c] * W[c, f], …)

A task computes some lines of the window's result, which stay in its second-level cache, and
multiplies them there: `mid` is never written to memory, and threads are started once.

1. The product's last m axis (the pixels of a line) is split into register tiles, its other m axes
   into tasks of some lines; canonical form, panels and epilogue are those of the GEMM strategy.
2. The window is computed in the task, in the tiles of the sliding-window strategy.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.strategies.cpu.depthwise_pool import (
    neighbours,
    schedule_window,
    window_facts,
)
from blockwright.strategies.cpu.depthwise_pool_plan import WindowFacts
from blockwright.strategies.cpu.gemm_canonical import (
    canonicalize,
    node,
    tile_registers,
    vector_rows,
)
from blockwright.strategies.cpu.gemm_contract import pack
from blockwright.strategies.cpu.separable_conv_cost import (
    Separable,
    SeparableConvPlan,
    one_pass,
    ranked_plans,
    two_passes,
)
from blockwright.strategies.match.blocks import (
    Contraction,
    contraction_of,
    extent_of,
    is_spatial,
    leaf_blocks,
)
from blockwright.strategies.match.sliding_window import shape_of, sliding_of
from blockwright.strategies.strategy import FusedTime, Fusion, Strategy, facts_unless
from blockwright.support import ScheduleError
from blockwright.target import Target


def separable_of(window: ir.Block, product: ir.Block) -> Separable | str:
    """Match a separable convolution; return its extents, or the reason why it is none as text."""
    sliding, facts = sliding_of(window), contraction_of(product)
    if isinstance(sliding, str):
        return sliding
    if facts is None:
        return "no contraction"
    kinds = {r.buffer.dtype for r in (*product.reads, *product.writes, *window.writes)}
    if len(kinds) > 1 or not product.writes[0].buffer.dtype.is_float:
        return "operands and results do not share one floating-point type"
    if facts.batch or len(facts.m) < 2 or len(facts.k) != 1 or len(facts.n) != 1:
        return "the product is not pixels by channels"
    own = [p for p, it in enumerate(window.iter_vars) if it.iter_type is ir.IterType.SPATIAL]
    if sliding.vector_moves or sliding.moved != tuple(own[-3:-1]):
        return "the window moves along axes other than lines and pixels"
    load = next(n for n in ir.collect(product.body, ir.BufferLoad) if n.buffer is facts.a)
    order = [product.iter_vars[p].var for p in (*facts.m, *facts.k)]
    if len(load.indices) != len(order) or any(
        index is not var for index, var in zip(load.indices, order, strict=True)
    ):
        return "the product does not read the window's result once and in order"
    *images, lines, width = facts.m
    sizes = [extent_of(product, [p]) for p in (lines, width, *facts.k, *facts.n)]
    if any(size is None for size in sizes):
        return "sizes are symbolic"
    stored = [i for s in ir.collect(product.body, ir.BufferStore) for i in s.indices]
    if len(stored) != len(facts.m) + 1 or not all(isinstance(i, ir.Var) for i in stored):
        return "the product does not store at its own iterators"
    if sizes[1] == 1:
        return "a line has one pixel"
    if sizes[2] == 1 or sizes[3] == 1:
        return "an operand is a vector"
    read = (*facts.m, *facts.k)
    if len(own) != len(read) or not all(
        ir.structural_equal(window.iter_vars[a].dom.extent, product.iter_vars[b].dom.extent)
        for a, b in zip(own, read, strict=True)
    ):
        return "the axes of the window's result differ from those that the product reads"
    return Separable(
        extent_of(product, images),
        *(size or 0 for size in sizes),
        bits=product.writes[0].buffer.dtype.bits,
    )


def expected(
    window: ir.PrimFunc, product: ir.PrimFunc, operand: int, target: Target
) -> FusedTime | None:
    """Estimated seconds of one fused pass over a window and its product, and of two passes.

    None if the strategy does not match.

    Args:
        operand: position of the window's result among the parameters of `product`.
    """
    result = [[b for b in leaf_blocks(f) if not is_spatial(b)] for f in (window, product)]
    if [len(blocks) for blocks in result] != [1, 1]:
        return None
    ((first,), (second,)) = result
    shape, sliding = separable_of(first, second), sliding_of(first)
    facts = contraction_of(second)
    if isinstance(shape, str) or isinstance(sliding, str) or facts is None:
        return None
    if facts.a is not product.buffers[operand]:
        return None
    source = "plain" if len(leaf_blocks(window)) == 1 else "border"
    sizes = msgspec.structs.replace(shape_of(first, sliding, source), tasks=1)
    hertz = target.core.frequency_hz
    seconds = (cost(target, shape, sizes) / hertz for cost in (one_pass, two_passes))
    return FusedTime(*seconds)


def _roles(func: ir.PrimFunc) -> tuple[ir.Block, ir.Block] | str:
    """The window and the product; the reason as text if the program is none of these."""
    result = leaf_blocks(func)
    reducing = [b for b in result if not is_spatial(b)]
    if len(reducing) != 2:
        return f"{len(reducing)} blocks reduce instead of two"
    window, product = reducing
    facts = contraction_of(product)
    if facts is None:
        return "the second reduction is not a contraction"
    created = window.writes[0].buffer
    for block in result[result.index(window) + 1 : result.index(product)]:
        if any(r.buffer is created for r in block.reads):
            if not _in_place(block, created):
                return "a block between them permutes the window's result"
            created = block.writes[0].buffer
    if facts.a is not created:
        return "the product does not read the window's result"
    return window, product


def _in_place(block: ir.Block, made: ir.Buffer) -> bool:
    """Whether a block computes each element from the same position of a buffer of equal size."""
    accesses = [
        *ir.collect(block.body, ir.BufferStore),
        *(load for load in ir.collect(block.body, ir.BufferLoad) if load.buffer is made),
    ]
    return all(
        len(access.indices) == len(block.iter_vars)
        and all(
            index is it.var or (ir.is_const_int(index, 0) and ir.is_const_int(size, 1))
            for index, it, size in zip(
                access.indices, block.iter_vars, access.buffer.shape, strict=True
            )
        )
        for access in accesses
    )


def why_not(func: ir.PrimFunc, target: Target) -> str:
    roles = _roles(func)
    if isinstance(roles, str):
        return roles
    result = separable_of(*roles)
    return result if isinstance(result, str) else ""


class _Prepared(msgspec.Struct, frozen=True):
    """The product and the window, with the blocks around them inlined.

    Attributes:
        product, tail: the product, and its consumer if any.
        window, made, result: the window, the producer of its data that tasks compute, if any, and
            its consumer before the product, if any.
        shape: the extents.
    """

    product: BlockRV
    tail: BlockRV | None
    window: BlockRV
    made: list[BlockRV]
    result: BlockRV | None
    shape: Separable


def _prepare(sch: Schedule) -> _Prepared:
    handles = sch.get_child_blocks(sch.get_block("root"))
    first, second = [k for k, h in enumerate(handles) if not is_spatial(node(sch, h))]
    product = handles[second]
    shape = separable_of(node(sch, handles[first]), node(sch, product))
    if isinstance(shape, str):
        raise ScheduleError(shape, code="BW340")
    behind = handles[second + 1 :]
    for handle in behind[:-1]:
        sch.compute_inline(handle)
    between = _of_weights(sch, handles[first + 1 : second], product)
    before = _of_weights(sch, handles[:first], product)
    window, made, result = neighbours(sch, [*before, handles[first], *between])
    return _Prepared(product, behind[-1] if behind else None, window, made, result, shape)


def plans(func: ir.PrimFunc, target: Target) -> Iterator[SeparableConvPlan]:
    """The best plan, then others in the order of their predicted time."""
    sch = Schedule(func)
    program = _prepare(sch)

    def window_of(lines: int) -> WindowFacts:
        return window_facts(sch, program.window, program.made, lines)

    return ranked_plans(target, program.shape, window_of)


def apply(sch: Schedule, target: Target, plan: SeparableConvPlan) -> None:
    """Schedule a program by a plan."""
    program = _prepare(sch)
    if program.shape.lines % plan.lines:
        raise ScheduleError(
            f"the plan has lines={plan.lines}, which does not divide the {program.shape.lines} "
            "lines of the window's result",
            code="BW342",
            help="give a divisor",
        )
    task = _multiply(sch, program, target, plan)
    schedule_window(sch, program.window, program.made, program.result, plan.window, around=task)


def _of_weights(sch: Schedule, handles: list[BlockRV], product: BlockRV) -> list[BlockRV]:
    """Inline the producers of the product's weights; return the other blocks."""
    others: list[BlockRV] = []
    for handle in handles:
        facts = contraction_of(node(sch, product))
        if facts is not None and node(sch, handle).writes[0].buffer is facts.b:
            sch.compute_inline(handle)
        else:
            others.append(handle)
    return others


def _multiply(sch: Schedule, program: _Prepared, target: Target, plan: SeparableConvPlan) -> LoopRV:
    """Schedule the product and its consumer; return the loop over tasks."""
    product = program.product
    facts = contraction_of(node(sch, product))
    assert facts is not None  # `separable_of` checked it
    tail = program.tail or sch.cache_write(product, 0, "local")
    alone = program.shape.images == 1 and program.shape.lines == plan.lines
    _in_tasks(sch, product, facts, plan.lines, alone)
    form = canonicalize(sch, product, tail, target, apart=0 if alone else 1, tile=plan.tile)
    loops = sch.get_loops(product)
    task, m, n, k = [sch.add_unit_loop(loops[0]), *loops] if alone else loops
    m0, m1 = sch.split(m, [None, form.tile.rows])
    n0, n1 = sch.split(n, [None, form.tile.columns])
    sch.reorder(task, n0, m0, k, m1, n1)
    tile_registers(sch, form, m1, [k])
    sch.reverse_compute_at(tail, m0)
    vector_rows(sch, tail, form.tile.columns)
    if not alone:
        sch.parallel(task)
    pack(sch, form, 0)
    return task


def _in_tasks(sch: Schedule, product: BlockRV, facts: Contraction, count: int, alone: bool) -> None:
    """Replace the image and line axes of product and result by tasks and lines of a task.

    `alone`: whether there is one task, which has no axis.
    """
    block = node(sch, product)
    (store,) = ir.collect(block.body, ir.BufferStore)
    iters = {it.var: it.dom.extent for it in block.iter_vars}
    images = dict.fromkeys(block.iter_vars[p].var for p in facts.m[:-2])
    line = block.iter_vars[facts.m[-2]].var
    cut = functools.partial(_cut, extents=iters, images=images, line=line, count=count, alone=alone)
    sch.transform_layout(product, ("write", 0), cut(store.indices))
    sch.transform_block_layout(product, cut(tuple(iters)))


def _cut(
    axes: Sequence[ir.Expr],
    extents: Mapping[ir.Var, ir.Expr],
    images: Mapping[ir.Var, None],
    line: ir.Var,
    count: int,
    alone: bool,
) -> IndexMap:
    """(…, images, lines, …) -> (…, tasks, lines of a task, …), without axes of one element."""
    names = {axis: ir.Var(f"i{k}", axis.dtype) for k, axis in enumerate(axes)}
    task: ir.Expr = ir.const(0, line.dtype)
    for image in images:
        task = task * extents[image] + names[image]
    task = task * ir.floordiv(extents[line], count) + ir.floordiv(names[line], count)
    parts: list[ir.Expr] = []
    for axis, name in names.items():
        if axis is line:
            parts += [] if alone else [task]
            parts += [ir.floormod(name, count)] if count > 1 else []
        elif axis not in images:
            parts.append(name)
    return IndexMap(tuple(names.values()), tuple(parts))


STRATEGY = Strategy(
    "separable_conv",
    facts_unless(why_not),
    apply,
    SeparableConvPlan,
    plans,
    fusion=Fusion(joins=expected),
)

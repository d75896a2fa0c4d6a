"""Cross-thread reductions: threads of one block that combine their terms of a reduction.

    for k in T.thread_binding(32, thread="threadIdx.x"):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = 0.0
            S[vi] = S[vi] + A[vi, vk]

The loop drives only reduction iterators, the update uses a commutative reducer, and the results are
in memory that the threads share. Then the threads do not race: the result is the combination of all
terms, in unspecified order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from blockwright import ir
from blockwright.analysis.access.tree import Tree
from blockwright.analysis.dataflow.contexts import (
    BlockContext,
    LoopLevel,
    block_contexts,
    leaf_contexts,
)
from blockwright.analysis.kernels import THREAD_AXES, axis_of, kernels
from blockwright.analysis.reduction.reducer import NoReduction, find_update
from blockwright.analysis.validate.atomics import updated_atomically
from blockwright.analysis.validate.violation import Violation

_INSTEAD = (
    "bind the loop to a threadIdx axis if the block reduces by a commutative reducer, "
    "rfactor the loop, or decompose_reduction and atomic_update the block"
)


def why_threads_race(
    block: ir.Block, values: Mapping[ir.Var, ir.Expr], var: ir.Var, tag: str
) -> str:
    """Why threads along an axis cannot combine their terms of a reduction; "" if they can.

    The axis drives reduction iterators of the block.

    Args:
        values: values bound to the iterators of the block, and to other variables that it uses.
        var: the variable of the axis, which occurs in the values.
        tag: the axis; "" for a loop that is not bound.
    """
    if tag not in THREAD_AXES:
        return "only threads along threadIdx.x, .y and .z can combine their terms"
    result = find_update(block)
    if isinstance(result, NoReduction):
        return f"block {block.name} is not a reduction that threads can share: {result.why}"
    for it in block.iter_vars:
        if it.iter_type is not ir.IterType.REDUCE and ir.uses_var(values[it.var], var):
            return f"it also drives {it.var.name}, which is not a reduction iterator"
    moving = _moving_result(block)
    if moving is not None:
        return f"the updated element of {moving.name} depends on a reduction iterator"
    own = {it.var for it in block.iter_vars}
    parts = [part for part in (block.init, block.body) if part is not None]
    outer = {v for part in parts for v in ir.collect(part, ir.Var)} - own
    if any(ir.uses_var(values.get(v, v), var) for v in outer):
        return f"the body of block {block.name} uses its variable"
    alone = next((r.buffer for r in block.writes if not _is_shared(r.buffer)), None)
    if alone is not None:
        return f"{alone.name} is in scope {alone.scope!r}, which the threads do not share"
    return ""


def _moving_result(block: ir.Block, loaded: bool = False) -> ir.Buffer | None:
    """A buffer that a block updates at indices that depend on reduction iterators, or None.

    In a histogram, for example, data decides which terms are combined.

    `loaded`: only if the index loads memory, so that the combined terms are unknown.
    """
    moved = {it.var for it in block.iter_vars if it.iter_type is ir.IterType.REDUCE}
    read: set[ir.Var] = set()
    for let in ir.collect(block.body, ir.LetStmt):  # outer ones first
        if ir.uses_var(let.value, moved):
            moved.add(let.var)
            if ir.uses_var(let.value, read) or ir.collect(let.value, ir.BufferLoad):
                read.add(let.var)
    for store in ir.collect(block.body, ir.BufferStore):
        for index in store.indices:
            known = not ir.uses_var(index, read) and not ir.collect(index, ir.BufferLoad)
            if ir.uses_var(index, moved) and not (loaded and known):
                return store.buffer
    return None


def lanes_meet(context: BlockContext, level: LoopLevel) -> Iterator[Violation]:
    """Violations by vector lanes that update data-dependent elements and may collide."""
    buffer = _moving_result(context.block, loaded=True) if driven_by(context, level) else None
    if buffer is not None and not updated_atomically(context.block, buffer):
        yield Violation(
            "BW240",
            f"lanes of loop {level.var.name} may update the same element of "
            f"{buffer.name}: it depends on data that block {context.block.name} reads",
            (level.stmt, context.realize),
            "leave the loop serial, or update with T.atomic_add in a parallel one",
        )


def _is_shared(buffer: ir.Buffer) -> bool:
    """Whether all threads of a block share one copy, regardless of axes."""
    return buffer.scope == "global" or buffer.scope.startswith("shared")


def driven_by(context: BlockContext, level: LoopLevel) -> list[ir.IterVar]:
    """Reduction iterators of a block and its enclosing blocks that a loop drives."""
    return [
        it
        for outer in (*context.around, context.block)
        if isinstance(outer, ir.Block)
        for it in outer.iter_vars
        if it.iter_type is ir.IterType.REDUCE and ir.uses_var(context.values[it.var], level.var)
    ]


def combines(context: BlockContext, level: LoopLevel) -> bool:
    """Whether the threads along the axis of a loop level combine their terms in a block."""
    driven = driven_by(context, level)
    return bool(driven) and not why_race(context, level, driven)


def combine_lanes(context: BlockContext, level: LoopLevel) -> bool:
    """Whether the lanes of an innermost loop combine their terms in a block without init statement.

    The lanes must drive only reduction iterators.
    """
    loop, block = level.stmt, context.block
    if not isinstance(loop, ir.For) or loop.body is not context.realize or block.init is not None:
        return False
    driven = [it for it in block.iter_vars if ir.uses_var(context.values[it.var], level.var)]
    if any(it.iter_type is not ir.IterType.REDUCE for it in driven):
        return False
    return _moving_result(block) is None and not isinstance(find_update(block), NoReduction)


def why_race(context: BlockContext, level: LoopLevel, driven: Sequence[ir.IterVar]) -> str:
    """Why threads along an axis race in a block whose reduction iterators they drive; "" if not."""
    own = {it.var for it in context.block.iter_vars}
    outer = next((it.var.name for it in driven if it.var not in own), None)
    if outer is not None:
        return f"iterator {outer} belongs to a block around block {context.block.name}"
    return why_threads_race(context.block, context.values, level.var, level.tag)


def unfinished(context: BlockContext, leaves: Sequence[BlockContext]) -> BlockContext | None:
    """A block inside the reduction loops that accesses the unfinished results, or None."""
    reduced = [
        context.values[it.var]
        for it in context.block.iter_vars
        if it.iter_type is ir.IterType.REDUCE
    ]
    outermost = next(
        (x.stmt for x in context.path if any(ir.uses_var(v, x.var) for v in reduced)), None
    )
    results = {r.buffer for r in context.block.writes}
    for other in leaves:
        touched = {r.buffer for r in (*other.block.reads, *other.block.writes)}
        if other is not context and outermost in other.around and touched & results:
            return other
    return None


def cross_thread_problems(func: ir.PrimFunc) -> Iterator[Violation]:
    """Reductions of a function whose terms are spread over threads that cannot combine them."""
    result = block_contexts(func, kernels(func))
    leaves = leaf_contexts(result)
    for context in leaves:
        for level in context.path:
            if level.tag:
                written = [r.buffer for r in context.block.writes]
                yield from reduction_problems(context, level, leaves, written)


def reduction_problems(
    context: BlockContext,
    level: LoopLevel,
    leaves: Sequence[BlockContext],
    written: Sequence[ir.Buffer],
) -> Iterator[Violation]:
    """Violations of reduction iterators driven by a loop with concurrent iterations.

    None if the updates of all buffers in question are atomic.
    """
    driven = driven_by(context, level)
    if not driven or ir.is_const_int(level.extent, 1):
        return
    if all(updated_atomically(context.block, b) for b in written):
        return
    why = why_race(context, level, driven)
    reader = None if why else unfinished(context, leaves)
    kind = level.tag or "parallel"
    if reader is not None:
        yield Violation(
            "BW240",
            f"block {reader.block.name} accesses results of block {context.block.name} while the "
            f"threads along {kind} still combine their terms",
            (level.stmt, context.realize, reader.realize),
            "move it behind all loops that drive reduction iterators",
        )
    elif why:
        names = ", ".join(it.var.name for it in driven)
        yield Violation(
            "BW240",
            f"loop {level.var.name} ({kind}) runs reduction iterator {names} of block "
            f"{context.block.name} concurrently, and the update is not atomic: {why}",
            (level.stmt, context.realize),
            _INSTEAD,
        )


def has_thread_loops(tree: Tree) -> bool:
    """Whether a function has loops bound to a thread axis."""
    return any(axis_of(loop) is not None for loop in tree.loops.values())

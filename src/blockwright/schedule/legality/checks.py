"""Requirements that several primitives share."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import cache, partial
from typing import Never

from blockwright import ir
from blockwright.analysis import BlockKind, BlockScope, updated_atomically
from blockwright.analysis.kernels import axis_of, shares
from blockwright.arith import is_bijective, jointly_cover
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.any_order import freely_updated
from blockwright.schedule.legality.cross_thread import driven_terms, require_combining
from blockwright.schedule.legality.disjoint_slices import own_slices
from blockwright.schedule.legality.remedies import (
    apart,
    beside,
    instead,
    terms,
    undriven,
    unordered,
)
from blockwright.schedule.legality.try_remedies import calls, first_legal


def require_plain_loop(state: StepState, loop: ir.For) -> None:
    """The loop is serial and carries no annotation, so that rewriting it loses nothing."""
    if loop.kind is not ir.ForKind.SERIAL:
        state.fail(
            f"loop {loop.loop_var.name} is {loop.kind.value} already",
            code="BW312",
            guilty=[loop],
            help=f"take {state.step_name} on loop {loop.loop_var.name} first, and make what "
            f"it gives {loop.kind.value} afterwards: shapes (split, fuse, reorder) come "
            "before kinds (parallel, vectorize, unroll, bind)",
        )
    if loop.annotations:
        state.fail(
            f"loop {loop.loop_var.name} is annotated with {', '.join(loop.annotations)}",
            code="BW312",
            guilty=[loop],
            help="; ".join(
                f'unannotate({loop.loop_var.name}, "{key}") first' for key in loop.annotations
            ),
        )
    require_whole(state, loop)


def require_whole(state: StepState, loop: ir.For) -> None:
    """The loop runs each iteration to its end."""
    if loop in state.tree.left_early:
        state.fail(
            f"loop {loop.loop_var.name} is left or continued early from inside, which means "
            "something else in a loop of another shape",
            code="BW312",
            guilty=[loop],
            help="guard the statements with a condition in place of the jump",
        )


def require_unbound(state: StepState, loop: ir.For) -> None:
    """The loop is not bound to a thread axis, which decides how it runs."""
    if loop.kind is ir.ForKind.THREAD_BINDING:
        tag = "a thread axis" if loop.thread is None else loop.thread.thread_tag
        state.fail(
            f"loop {loop.loop_var.name} is bound to {tag} already",
            code="BW312",
            guilty=[loop],
            help=f"split({loop.loop_var.name}, …) before it is bound, and bind one part only",
        )


def require_zero_start(state: StepState, loop: ir.For) -> None:
    if not ir.is_const_int(loop.min, 0):
        state.fail(
            f"loop {loop.loop_var.name} does not start at 0",
            code="BW350",
            guilty=[loop],
            help="take this step before loop_partition, whose pieces count on from one another",
        )


def require_only_blocks(state: StepState, loop: ir.Stmt) -> list[ir.Block]:
    """Everything below the loop (or in another statement) happens in blocks; returns them."""
    stack: list[ir.Stmt] = [loop.body if isinstance(loop, ir.For) else loop]
    what = f"loop {loop.loop_var.name}" if isinstance(loop, ir.For) else "the statement"
    while stack:
        node = stack.pop()
        if isinstance(node, (ir.For, ir.AttrStmt)):
            stack.append(node.body)
        elif isinstance(node, ir.SeqStmt):
            stack += node.seq
        elif isinstance(node, ir.IfThenElse):
            stack += [node.then_case] + ([] if node.else_case is None else [node.else_case])
        elif not isinstance(node, ir.BlockRealize):
            state.fail(
                f"{what} holds statements outside blocks, whose effects no signature states",
                code="BW313",
                guilty=[loop, node],
                help="wrap the statements in a block",
            )
    return state.tree.child_blocks(loop)


def require_known_kind(state: StepState, flow: BlockScope, block: ir.Block) -> BlockKind:
    """The block is complete, a reduction, or the update of one."""
    kind = flow.kind(block)
    if kind is BlockKind.OTHER:
        state.fail(
            f"block {block.name} is neither complete nor a reduction: {flow.why_other(block)}",
            code="BW314",
            guilty=[state.tree.realize(block)],
            help=_only_writer(flow, block) or unordered(flow, block),
        )
    return kind


def _only_writer(flow: BlockScope, block: ir.Block) -> str:
    """What to do about a block that would be in order if it were the only writer."""
    if flow.kind_alone(block) is BlockKind.OTHER:
        return ""
    return (
        "take the step before the writers are taken apart, as decompose_padding does, or let "
        "them write different parts"
    )


def require_complete(state: StepState, flow: BlockScope, block: ir.Block) -> None:
    kind = flow.kind(block)
    if kind is not BlockKind.COMPLETE:
        why = flow.why_other(block) or f"it is a {kind.value}{terms(block)}"
        state.fail(
            f"block {block.name} is not complete: {why}",
            code="BW314",
            guilty=[state.tree.realize(block)],
            help=beside(state, flow, block),
        )


def require_affine(state: StepState, flow: BlockScope, block: ir.Block) -> None:
    """The block's iterators are bound by an iterator map."""
    problems = flow.not_affine(block)
    if problems:
        state.fail(
            f"the iterators of block {block.name} are bound by no iterator map: "
            + "; ".join(problems),
            code="BW315",
            guilty=[state.tree.realize(block)],
            help="write T.axis values as splits and fusions of the loops: i, i // 4, i % 4, "
            "i * 4 + j with j < 4",
        )


def require_once(state: StepState, block: ir.Block, loops: Sequence[ir.For], word: str) -> None:
    """The given loops reach each instance of a reduction once, so that no term counts twice when
    the initial value is set elsewhere or the order changes."""
    realize = state.tree.realize(block)
    domains = {f.loop_var: f.dom for f in loops}
    if not domains or block.init is None:
        return
    predicate = None if ir.is_const_int(realize.predicate) else realize.predicate
    first = min(loops, key=lambda f: state.tree.order[f])
    if not is_bijective(realize.iter_values, domains, predicate, state.facts(first)):
        state.fail(
            f"the loops {word} may run instances of the reduction {block.name} more than once",
            code="BW315",
            guilty=[realize, *loops],
            help=undriven(realize, loops),
        )


def earlier_writers(
    state: StepState, block: ir.Block, buffer: ir.Buffer
) -> tuple[ir.Block, list[ir.Block]]:
    """The writers of a buffer before a block in its scope, or, where there are none, before the
    block around it, and so on; and the block that they stand before."""
    while block is not state.func.root and buffer not in block.alloc_buffers:
        flow = state.flow_at(block)
        before = [
            w for w in flow.writers.get(buffer, ()) if flow.position[w] < flow.position[block]
        ]
        if before:
            return block, before
        block = flow.block
    return block, []


def require_filled(state: StepState, scope: ir.Block, buffer: ir.Buffer) -> None:
    """Whoever writes a buffer in the scope, or before it where nobody does so inside, writes all of
    it; padding in its layout is not."""
    flow, whole = state.data_flow(scope), ir.full_region(buffer)
    writers = flow.writers.get(buffer, ())
    if writers:
        analyzer = state.facts(scope.body)
        filled = jointly_cover(flow.filled(writers, buffer, analyzer), whole.region, analyzer)
    else:
        inner, writers = earlier_writers(state, scope, buffer)
        filled = not writers or state.flow_at(inner).covers(writers, inner, whole)
    if writers and not filled:
        names = " and ".join(w.name for w in writers)
        state.fail(
            f"block {names} does not write every element of {buffer.name} that the copy would read",
            code="BW323",
            guilty=[*map(state.tree.realize, writers)],
            help=f"let the blocks write all of {buffer.name} (pad it in a block of its own "
            "before it), or take the step before transform_layout pads it",
        )


def require_compact_flow(
    state: StepState,
    loop: ir.For,
    own: Callable[[], Set[ir.Buffer]] = frozenset,
    atomic: bool = False,
) -> list[ir.Block]:
    """Each iteration of the loop stands on its own: what its blocks read from one another they
    have written in the same iteration, and none reads what a later one writes.

    Of the buffers that `own` gives each iteration has a slice, in which anything may happen. With
    `atomic`, iterations may meet in atomic updates.
    """
    blocks = require_only_blocks(state, loop)
    flow = state.flow_at(loop)
    inside = set(blocks)
    for block in blocks:
        other = flow.kind(block) is BlockKind.OTHER
        free = other and atomic and not any(map(flow.decides_itself, blocks))
        updated = freely_updated(block, blocks) if free else frozenset[ir.Buffer]()
        known = not other or not all(r.buffer in updated or r.buffer in own() for r in block.writes)
        if known:
            require_known_kind(state, flow, block)
        for region in block.reads:
            writers = [w for w in flow.writers.get(region.buffer, ()) if w in inside]
            if not writers or region.buffer in own() or region.buffer in updated:
                continue
            before = [w for w in flow.writers_before(block, region) if w in inside]
            later = [w for w in writers if flow.position[w] > flow.position[block]]
            if later:
                state.fail(
                    f"block {block.name} reads {region.buffer.name}, which block "
                    f"{later[0].name} after it in the same loop writes",
                    code="BW316",
                    guilty=[state.tree.realize(block), state.tree.realize(later[0])],
                    help="take the step on loops that hold only one of the two blocks",
                )
            if before and not flow.covers(before, block, region):
                state.fail(
                    f"iterations of {loop.loop_var.name} depend on one another: block "
                    f"{before[-1].name} does not write all of {region.buffer.name} that "
                    f"block {block.name} reads in the same iteration",
                    code="BW316",
                    guilty=[state.tree.realize(block), state.tree.realize(before[-1])],
                    help="take the step on loops around one of the two blocks, or bring "
                    "the producer to its consumer anew: compute_at computes all "
                    "that an iteration reads",
                )
    return blocks


def require_concurrent(
    state: StepState,
    loop: ir.For,
    word: str,
    private: Callable[[ir.Buffer], bool] | None = None,
    atomic: bool = False,
    redundant: Callable[[ir.Buffer], bool] | None = None,
    tag: str = "",
) -> None:
    """The iterations of the loop may run in any order and at the same time.

    Args:
        state, loop: where.
        word: what the loop becomes, for errors.
        private: which buffers that only blocks in the loop touch are given to every iteration anew.
        atomic: whether iterations may meet in atomic updates.
        redundant: which buffers all iterations may fill with the same values.
        tag: the thread axis whose members they become; threads may combine terms of a reduction.
    """
    require_whole(state, loop)
    if private is not None and len(state.tree.loops_above(loop.body)) > 1:
        _require_nothing_kept(state, loop, word, private)
    if ir.is_const_int(loop.extent, 1):
        return  # a single iteration meets no other
    own = cache(lambda: own_slices(state, loop, require_only_blocks(state, loop)))
    blocks = require_compact_flow(state, loop, own, atomic)
    flow = state.flow_at(loop)
    inside = set(blocks)
    for block in blocks:
        realize = state.tree.realize(block)
        if driven_terms(state, loop, block) is not None and not _all_atomic(block, atomic):
            ways = partial(instead, state, block, loop, word, atomic)
            require_combining(state, loop, block, word, tag, ways)
            continue
        if flow.separates(loop, block):
            continue
        for region in block.writes:
            buffer = region.buffer
            if (
                (atomic and updated_atomically(block, buffer))
                or (private and private(buffer) and _lives_in(flow, buffer, inside))
                or (redundant and redundant(buffer) and _repeats(flow, loop, block, inside))
                or flow.apart_in(block, region, [loop])
                or buffer in own()
            ):
                continue
            state.fail(
                f"iterations of {loop.loop_var.name} may write the same elements of "
                f"{buffer.name} in block {block.name}, so it cannot be {word}",
                code="BW317",
                guilty=[loop, realize],
                help=apart(flow, loop, block, buffer),
            )


def _require_nothing_kept(
    state: StepState, loop: ir.For, word: str, private: Callable[[ir.Buffer], bool]
) -> None:
    """What every iteration is given anew holds nothing that an earlier visit of the loop left."""
    flow = state.flow_at(loop)
    inside = set(state.tree.child_blocks(loop))
    for block in sorted(inside, key=lambda b: flow.position[b]):
        for region in block.reads:
            buffer = region.buffer
            if not private(buffer) or not _lives_in(flow, buffer, inside):
                continue
            before = [w for w in flow.writers_before(block, region) if w in inside]
            if not before or not flow.covers(before, block, region):
                state.fail(
                    f"block {block.name} reads elements of {buffer.name} that an earlier "
                    f"visit of loop {loop.loop_var.name} wrote, and every iteration of a "
                    f"loop that is {word} has a {buffer.name} of its own",
                    code="BW316",
                    guilty=[loop, state.tree.realize(block)],
                    help="take the step before rolling_buffer, or on a loop around all "
                    "that uses the buffer",
                )


def with_own_buffers(state: StepState, loop: ir.For, step: StepResult) -> StepResult:
    """The step, which has made several loops of one, if parallel loops inside, of which there are
    several now, still may run so: a buffer that only one of them used was each iteration's own, one
    that several use is shared."""
    if any(inner.kind is ir.ForKind.PARALLEL for inner in ir.loops(loop.body)):
        after, before = state.following(step.func), set(ir.loops(state.func.body))
        for inner in ir.loops(step.func.body):
            if inner.kind is ir.ForKind.PARALLEL and inner not in before:
                require_parallel(after, inner)
    return step


def require_parallel(state: StepState, loop: ir.For) -> None:
    """The iterations of the loop may run on several threads of a processor, outside of kernels."""
    for above in state.tree.ancestors(loop):
        axis = axis_of(above)
        if axis is not None:
            refuse_in_kernel(state, loop, above, axis.tag)
    require_concurrent(state, loop, "parallel", private=lambda _: True, atomic=True)


def refuse_in_kernel(state: StepState, loop: ir.For, kernel: ir.Stmt, tag: str) -> Never:
    """A parallel loop asks for threads of a processor, which no member of a kernel has."""
    name = loop.loop_var.name
    state.fail(
        f"loop {name} would be parallel inside of a loop bound to {tag}: a kernel has no "
        "threads but those of its axes",
        code="BW312",
        guilty=[loop, kernel],
        help=f'bind({name}, "threadIdx.x") or another axis, or leave it serial',
    )


def require_members(state: StepState, loop: ir.For, tag: str) -> None:
    """The iterations of the loop may be the members of a thread axis.

    What each of them has its own copy of is private. Shared memory may be filled by all of them
    with the same values, until a loop below is bound to the axis too and they share the work.
    """
    require_concurrent(
        state,
        loop,
        f"bound to {tag}",
        lambda buffer: not shares(buffer.scope, tag),
        atomic=True,
        redundant=lambda buffer: buffer.scope.startswith("shared"),
        tag=tag,
    )


def require_kind(state: StepState, loop: ir.For) -> None:
    """The loop may run the way its kind says."""
    if loop.kind is ir.ForKind.PARALLEL:
        require_parallel(state, loop)
    elif loop.kind is ir.ForKind.VECTORIZED:
        require_concurrent(state, loop, "vectorized")
    elif loop.kind is ir.ForKind.THREAD_BINDING and loop.thread is not None:
        require_members(state, loop, loop.thread.thread_tag)


def _repeats(flow: BlockScope, loop: ir.For, block: ir.Block, inside: set[ir.Block]) -> bool:
    """Whether a block does the same in every iteration: it depends neither on the loop nor on what
    the loop writes."""
    realize = flow.tree.realize(block)
    around = [realize.predicate, *realize.iter_values]
    for below in flow.tree.loops_above(block):
        around += [below.min, below.extent]
    if any(ir.uses_var(e, loop.loop_var) for e in around):
        return False
    sources = {w for r in block.reads for w in flow.writers.get(r.buffer, ())}
    return not sources & inside


def _all_atomic(block: ir.Block, atomic: bool) -> bool:
    return atomic and all(updated_atomically(block, r.buffer) for r in block.writes)


def _lives_in(flow: BlockScope, buffer: ir.Buffer, inside: set[ir.Block]) -> bool:
    """Whether a buffer is allocated by the scope and touched only by these blocks."""
    users = [*flow.writers.get(buffer, ()), *flow.readers.get(buffer, ())]
    return buffer in set(flow.block.alloc_buffers) and all(u in inside for u in users)


def require_chain(state: StepState, loops: Sequence[ir.For]) -> list[ir.For]:
    """The loops lie on one path; returns the path from the outermost to the innermost of them."""
    wanted = set(loops)
    if len(wanted) != len(loops):
        state.fail("a loop is given twice", code="BW304", guilty=loops, help="name each loop once")
    inner = max(loops, key=lambda f: state.tree.order[f])
    path: list[ir.For] = [inner]
    for above in state.tree.ancestors(inner):
        if wanted <= set(path):
            break
        if not isinstance(above, ir.For):
            break
        path.append(above)
    missing = wanted - set(path)
    if missing:
        between = state.tree.parent[path[-1]] if path else None
        others = (
            []
            if not isinstance(between, ir.SeqStmt)
            else [s for s in between.seq if s is not path[-1]]
        )
        names = ", ".join(b.name for s in others for b in state.tree.child_blocks(s))
        top = path[-1].loop_var.name
        lone = ", ".join(f.loop_var.name for f in loops if f in missing)
        nested = not others or any(state.tree.is_below(path[-1], f) for f in missing)
        if nested:
            why = (
                f"block {names} stands beside loop {top}"
                if names
                else (
                    "other statements stand beside it"
                    if others
                    else f"a block or a condition stands between {lone} and {top}, or they are "
                    "loops of different nests"
                )
            )
            help = (
                f"take {state.step_name} before block {names} comes to stand between the "
                f"loops, or name only loops outside or inside of {top}"
                if names
                else f"name only loops below that place, {top} among them"
            )
        else:
            why = f"loops {lone} and {top} belong to different nests"
            apart = sorted(
                [*(f for f in loops if f in missing), path[-1]], key=lambda f: state.tree.order[f]
            )
            way = first_legal(state, [f"merge({calls(state, apart)})"])
            help = "name loops of one nest" + (
                f"; {way} joins loops of different nests" if way else ""
            )
        state.fail(
            f"the loops are not nested directly in one another: {why}",
            code="BW310",
            guilty=[inner, *missing, *others],
            help=help,
        )
    return path[::-1]

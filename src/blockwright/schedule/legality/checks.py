"""Legality checks shared by several primitives: loop forms, block kinds, races."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import cache, partial
from typing import Never

from blockwright import ir
from blockwright.analysis import BlockKind, BlockScope, updated_atomically
from blockwright.analysis.kernels import axis_of, shares
from blockwright.analysis.validate.operands import RETURNS_HELP
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
    """Require a serial loop without annotations or early exit, so that it can be rewritten."""
    if loop.kind is not ir.ForKind.SERIAL:
        state.fail(
            f"loop {loop.loop_var.name} is {loop.kind.value} already",
            code="BW312",
            guilty=[loop],
            help=f"apply {state.step_name} to loop {loop.loop_var.name} first, and make the "
            f"result {loop.kind.value} afterwards: change shapes (split, fuse, reorder) "
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
    """Require a loop without `break` or `continue`."""
    if loop in state.tree.left_early:
        state.fail(
            f"loop {loop.loop_var.name} contains a break or continue, which would change meaning "
            "in a loop of another shape",
            code="BW312",
            guilty=[loop],
            help="guard the statements with a condition instead of the jump",
        )


def require_unbound(state: StepState, loop: ir.For) -> None:
    """Require a loop that is not bound to a thread axis."""
    if loop.kind is ir.ForKind.THREAD_BINDING:
        tag = "a thread axis" if loop.thread is None else loop.thread.thread_tag
        state.fail(
            f"loop {loop.loop_var.name} is bound to {tag} already",
            code="BW312",
            guilty=[loop],
            help=f"split({loop.loop_var.name}, …) before it is bound, and bind only one part",
        )


def require_zero_start(state: StepState, loop: ir.For) -> None:
    if not ir.is_const_int(loop.min, 0):
        state.fail(
            f"loop {loop.loop_var.name} does not start at 0",
            code="BW350",
            guilty=[loop],
            help="apply this step before loop_partition, whose parts start where the last one ends",
        )


def require_only_blocks(state: StepState, loop: ir.Stmt) -> list[ir.Block]:
    """Require that all statements below a loop (or statement) are in blocks; return the blocks."""
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
                f"{what} holds statements outside blocks, whose effects no signature declares",
                code="BW313",
                guilty=[loop, node],
                help="wrap the statements in a block",
            )
    return state.tree.child_blocks(loop)


def require_known_kind(state: StepState, flow: BlockScope, block: ir.Block) -> BlockKind:
    """Require that the block is complete, a reduction, or the update of one; return its kind."""
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
    """Help text for a block that would have a known kind if it were the only writer."""
    if flow.kind_alone(block) is BlockKind.OTHER:
        return ""
    return (
        "apply the step before the writers are separated, as decompose_padding does, or let "
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
    """Require that the block's iterators are bound by an iterator map."""
    problems = flow.not_affine(block)
    if problems:
        state.fail(
            f"the iterators of block {block.name} are not bound by an iterator map: "
            + "; ".join(problems),
            code="BW315",
            guilty=[state.tree.realize(block)],
            help="write T.axis values as splits and fusions of the loops: i, i // 4, i % 4, "
            "i * 4 + j with j < 4",
        )


def require_once(state: StepState, block: ir.Block, loops: Sequence[ir.For], word: str) -> None:
    """Require that the given loops execute each instance of a reduction once.

    Otherwise a term would be added twice when the initial value moves or the order changes.
    """
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
    """The writers of a buffer before a block in its scope; if none, before the enclosing block, and
    so on. Also returns the block that they precede."""
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
    """Require that the writers of a buffer in the scope, or else before it, cover all elements.

    This rules out buffers with layout padding.
    """
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
            help=f"let the blocks write all of {buffer.name} (pad it in a separate block "
            "before), or apply the step before transform_layout pads it",
        )


def require_compact_flow(
    state: StepState,
    loop: ir.For,
    own: Callable[[], Set[ir.Buffer]] = frozenset,
    atomic: bool = False,
) -> list[ir.Block]:
    """Require that the loop has no loop-carried flow dependence between its blocks.

    What blocks read from each other is written earlier in the same iteration. Accesses to the
    buffers of `own()` are exempt: each iteration has its own slice of them. With `atomic`,
    iterations may conflict in atomic updates.
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
                    help="apply the step to loops that contain only one of the two blocks",
                )
            if before and not flow.covers(before, block, region):
                state.fail(
                    f"iterations of {loop.loop_var.name} depend on one another: block "
                    f"{before[-1].name} does not write all of {region.buffer.name} that "
                    f"block {block.name} reads in the same iteration",
                    code="BW316",
                    guilty=[state.tree.realize(block), state.tree.realize(before[-1])],
                    help="apply the step to loops around one of the two blocks, or move "
                    "the producer to its consumer again: compute_at computes all "
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
    """Require that the iterations of the loop may run concurrently.

    Args:
        state, loop: the program and the loop.
        word: what the loop becomes, for errors.
        private: selects, among buffers used only inside the loop, those private to an iteration.
        atomic: whether iterations may conflict in atomic updates.
        redundant: selects buffers that all iterations may fill with the same values.
        tag: the thread axis that the loop is bound to; threads may combine terms of a reduction.
    """
    require_whole(state, loop)
    if any(call.op == "ret" for call in ir.collect(loop.body, ir.Call)):
        state.fail(
            f"loop {loop.loop_var.name} would be {word}, but the program returns inside it",
            code="BW312",
            guilty=[loop],
            help=RETURNS_HELP,
        )
    if private is not None and len(state.tree.loops_above(loop.body)) > 1:
        _require_nothing_kept(state, loop, word, private)
    if ir.is_const_int(loop.extent, 1):
        return  # a single iteration cannot race
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
    """Require that private buffers carry no values from an earlier execution of the loop."""
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
                    f"execution of loop {loop.loop_var.name} wrote, but {buffer.name} is private "
                    f"to each iteration of a loop that is {word}",
                    code="BW316",
                    guilty=[loop, state.tree.realize(block)],
                    help="apply the step before rolling_buffer, or to a loop around all "
                    "uses of the buffer",
                )


def with_own_buffers(state: StepState, loop: ir.For, step: StepResult) -> StepResult:
    """Check the parallel loops inside a loop that the step has duplicated; return the step.

    A buffer that only one parallel loop used was private to its iterations; a buffer that several
    use is shared.
    """
    if any(inner.kind is ir.ForKind.PARALLEL for inner in ir.loops(loop.body)):
        after, before = state.following(step.func), set(ir.loops(state.func.body))
        for inner in ir.loops(step.func.body):
            if inner.kind is ir.ForKind.PARALLEL and inner not in before:
                require_parallel(after, inner)
    return step


def require_parallel(state: StepState, loop: ir.For) -> None:
    """Require that the iterations of the loop may run on CPU threads, outside GPU kernels."""
    for above in state.tree.ancestors(loop):
        axis = axis_of(above)
        if axis is not None:
            refuse_in_kernel(state, loop, above, axis.tag)
    require_concurrent(state, loop, "parallel", private=lambda _: True, atomic=True)


def refuse_in_kernel(state: StepState, loop: ir.For, kernel: ir.Stmt, tag: str) -> Never:
    """Reject a parallel loop inside a kernel, which cannot start CPU threads (BW312)."""
    name = loop.loop_var.name
    state.fail(
        f"loop {name} would be parallel inside a loop bound to {tag}: a kernel has no "
        "threads but those of its axes",
        code="BW312",
        guilty=[loop, kernel],
        help=f'bind({name}, "threadIdx.x") or another axis, or leave it serial',
    )


def require_members(state: StepState, loop: ir.For, tag: str) -> None:
    """Require that the loop may be bound to a thread axis.

    Buffers with a copy per thread are private. All threads may fill shared memory with the same
    values, until an inner loop is also bound to the axis and distributes the work.
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
    """Require that the loop is legal for its kind (parallel, vectorized, thread-bound)."""
    if loop.kind is ir.ForKind.PARALLEL:
        require_parallel(state, loop)
    elif loop.kind is ir.ForKind.VECTORIZED:
        require_concurrent(state, loop, "vectorized")
    elif loop.kind is ir.ForKind.THREAD_BINDING and loop.thread is not None:
        require_members(state, loop, loop.thread.thread_tag)


def _repeats(flow: BlockScope, loop: ir.For, block: ir.Block, inside: set[ir.Block]) -> bool:
    """Whether a block is invariant in the loop: it depends neither on the loop variable nor on
    buffers that the loop writes."""
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
    """Whether a buffer is allocated by the scope and used only by these blocks."""
    users = [*flow.writers.get(buffer, ()), *flow.readers.get(buffer, ())]
    return buffer in set(flow.block.alloc_buffers) and all(u in inside for u in users)


def require_chain(state: StepState, loops: Sequence[ir.For]) -> list[ir.For]:
    """Require a perfect nest; return its loops from the outermost to the innermost given loop."""
    wanted = set(loops)
    if len(wanted) != len(loops):
        state.fail("a loop is given twice", code="BW304", guilty=loops, help="pass each loop once")
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
                f"block {names} is beside loop {top}"
                if names
                else (
                    "there are other statements beside it"
                    if others
                    else f"a block or a condition is between {lone} and {top}, or they are "
                    "loops of different nests"
                )
            )
            help = (
                f"apply {state.step_name} before block {names} is moved between the "
                f"loops, or pass only loops outside or only loops inside {top}"
                if names
                else f"pass only loops below that position, including {top}"
            )
        else:
            why = f"loops {lone} and {top} belong to different nests"
            apart = sorted(
                [*(f for f in loops if f in missing), path[-1]], key=lambda f: state.tree.order[f]
            )
            way = first_legal(state, [f"merge({calls(state, apart)})"])
            help = "pass loops of one nest" + (
                f"; {way} joins loops of different nests" if way else ""
            )
        state.fail(
            f"the loops are not nested directly in one another: {why}",
            code="BW310",
            guilty=[inner, *missing, *others],
            help=help,
        )
    return path[::-1]

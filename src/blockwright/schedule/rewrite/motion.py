"""Legality of moving a block: dependences with the code around it.

A move executes the instances of a block at another position, perhaps more often. It is legal if

- the block reads the same values at its new position: no other block writes them between the two
  positions, or in other iterations of a newly shared loop;
- no other block accesses the written elements between the two positions, and only the block itself
  writes them, so that re-executing an instance has no effect (the block is *idempotent*: complete,
  or a reduction that starts from its initial value each time);
- in every iteration of a loop shared with a producer or consumer, all elements read are written
  before, in the same iteration or by blocks that share no loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import NoReturn

from blockwright import ir
from blockwright.analysis import BlockKind, BlockScope, block_access_regions
from blockwright.analysis.access.store_coverage import fill_box, runs
from blockwright.arith import covers, detect_iter_map
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffer_uses import require_in_blocks
from blockwright.schedule.legality.checks import require_kind, require_known_kind
from blockwright.schedule.legality.reduction import require_kept_order
from blockwright.schedule.legality.try_remedies import called, legal
from blockwright.schedule.rewrite.move import Domains


def require_movable(state: StepState, block: ir.Block, loop: ir.For) -> BlockScope:
    """Require that block and loop share a scope, that the block is not in the loop, and that it is
    idempotent."""
    scope = state.scope(block)
    realize = state.realize(block)
    if state.scope(loop) is not scope:
        state.fail(
            f"block {block.name} and loop {loop.loop_var.name} are in different scopes",
            code="BW310",
            guilty=[realize, loop],
            help="choose a loop in the block's own scope: blocks move within one scope",
        )
    if state.tree.is_below(realize, loop):
        state.fail(
            f"block {block.name} is inside loop {loop.loop_var.name} already",
            code="BW310",
            guilty=[realize, loop],
            help="choose a loop of another block; split and reorder change the block's own loops",
        )
    flow = state.flow_at(block)
    near = [block, *flow.producers(block), *flow.consumers(block)]
    require_straight(state, scope, [*map(state.tree.realize, near), loop])
    require_alone(state, scope, block)
    require_idempotent(state, flow, block)
    require_settled(state, flow, [block, *flow.consumers(block)])
    return flow


def require_alone(state: StepState, top: ir.Block | ir.For, block: ir.Block) -> None:
    """Require that no statement outside blocks accesses what the block writes, or writes what it
    reads, because the block may then run earlier or later."""
    require_in_blocks(
        state, top, *(r.buffer for r in block.writes), unchanged=[r.buffer for r in block.reads]
    )


def require_idempotent(state: StepState, flow: BlockScope, block: ir.Block) -> None:
    """Require that re-executing an instance has no effect: same values, and only buffer writes."""
    realize = state.tree.realize(block)
    if _kind(flow, block) is BlockKind.OTHER:
        require_known_kind(state, flow, block)
    if flow.kind(block) is BlockKind.UPDATE:
        state.fail(
            f"block {block.name} is a decomposed reduction; its initial value would stay behind",
            code="BW314",
            guilty=[realize],
            help=f"apply {state.step_name} before decompose_reduction, or restore the initial "
            "value with merge_reduction first",
        )
    for region in block.writes:
        for other in flow.writers[region.buffer]:
            reads_back = any(r.buffer is region.buffer for r in other.reads)
            if other is not block and reads_back:
                state.fail(
                    f"block {other.name} updates the values of {region.buffer.name} that "
                    f"block {block.name} writes, and running the latter again would undo it",
                    code="BW314",
                    guilty=[realize, state.tree.realize(other)],
                    help=f"apply {state.step_name} before decompose_reduction, or restore the "
                    f'initial value first: merge_reduction("{block.name}", '
                    f'"{other.name}")',
                )
    if flow.kind(block) is BlockKind.REDUCTION and flow.restart(block) is None:
        state.fail(
            f"the loops run instances of the reduction {block.name} more than once between "
            "two initial values",
            code="BW315",
            guilty=[realize],
            help=f"bind an iterator of the block to each loop around it: {state.loops_of(block)}",
        )
    for node in ir.walk(block):
        effect = isinstance(node, ir.Call) and ir.op_has_effect(node.op)
        if effect or isinstance(node, ir.AssertStmt):
            state.fail(
                f"block {block.name} does more than write buffers; its side effects must not "
                "move or be repeated",
                code="BW353",
                guilty=[realize, node],
                help="leave the block where it is, and move the blocks around it",
            )


def _kind(flow: BlockScope, block: ir.Block) -> BlockKind:
    """The kind of the block.

    A block that overwrites parts of earlier blocks' outputs, and is overwritten by none, counts as
    complete: re-executing it has no effect, as if it were the only writer.
    """
    kind = flow.kind(block)
    overwrites = kind is BlockKind.OTHER and flow.writes_last(block)
    alone = flow.kind_alone(block) if overwrites else kind
    return alone if alone is BlockKind.COMPLETE else kind


def require_settled(state: StepState, flow: BlockScope, blocks: Iterable[ir.Block]) -> None:
    """Require that each block reads only elements that producers in the same loops have written in
    the same iteration."""
    for block in blocks:
        for region in block.reads:
            for maker in flow.writers.get(region.buffer, ()):
                before = flow.position[maker] < flow.position[block]
                if before and state.tree.common_loops(maker, block):
                    require_known_kind(state, flow, maker)
        problem = flow.uncovered(block)
        if problem:
            state.fail(
                problem,
                code="BW316",
                guilty=[state.tree.realize(block)],
                help="choose a loop whose iterations write all elements that they read, "
                "such as one further outside",
            )


def neighbours(
    state: StepState, flow: BlockScope, block: ir.Block, place: ir.For | ir.BlockRealize
) -> list[ir.Block]:
    """Blocks that run between the block's present position and another place.

    Loops that contain only one of the two positions count as a whole, because their other
    iterations run in between.
    """
    mine, its = state.tree.loops_above(block), state.tree.loops_above(place)
    if isinstance(place, ir.For):
        its.append(place)
    shared = next(
        (k for k, (a, b) in enumerate(zip(mine, its, strict=False)) if a is not b),
        min(len(mine), len(its)),
    )
    ends: list[ir.Block] = [block]
    for path, end in ((mine, state.tree.realize(block)), (its, place)):
        top = path[shared] if len(path) > shared else end
        ends += state.tree.child_blocks(top)
    places = [flow.position[b] for b in ends]
    return [b for b in flow.blocks[min(places) : max(places) + 1] if b is not block]


def require_quiet(
    state: StepState,
    flow: BlockScope,
    block: ir.Block,
    *,
    writers: Iterable[ir.Block],
    users: Iterable[ir.Block] = (),
) -> None:
    """Require that no block of `writers` writes what the block reads, and that no block of `users`
    accesses what it writes."""
    guilty = state.tree.realize(block)
    for other in writers:
        for read, write in itertools.product(block.reads, other.writes):
            if read.buffer is write.buffer and not flow.apart((block, read), (other, write)):
                state.fail(
                    f"block {other.name} overwrites {read.buffer.name}, which block "
                    f"{block.name} reads",
                    code="BW316",
                    guilty=[state.tree.realize(other), guilty],
                    help="choose a loop on the same side of that block, or let "
                    "the moved block read a copy: cache_read",
                )
    for other in users:
        for mine, touched in itertools.product(block.writes, (*other.reads, *other.writes)):
            if mine.buffer is touched.buffer and not flow.apart((block, mine), (other, touched)):
                state.fail(
                    f"block {other.name} uses {mine.buffer.name}, which block "
                    f"{block.name} would write earlier or later than before",
                    code="BW316",
                    guilty=[state.tree.realize(other), guilty],
                    help="choose a loop on the same side of that block, or let "
                    "the moved block write a copy: cache_write",
                )


def require_final_inputs(
    state: StepState, flow: BlockScope, block: ir.Block, others: Iterable[ir.Block]
) -> None:
    """Require that inputs from earlier blocks in loops that the block leaves are written only once,
    so that the values are the same outside these loops."""
    read = {r.buffer for r in block.reads}
    for other in others:
        result = [w for w in other.writes if w.buffer in read]
        shared = state.tree.common_loops(other, block)
        if not result or not shared or flow.position[other] > flow.position[block]:
            continue
        again = not all(flow.final(other, region, shared) for region in result)
        if again or flow.restart(other) != 0:
            state.fail(
                f"block {other.name} rewrites the input of block {block.name} in iterations "
                "of a loop that the move leaves",
                code="BW316",
                guilty=[state.tree.realize(other), state.tree.realize(block)],
                help="choose a loop inside the one that both blocks share",
            )


def require_straight(state: StepState, scope: ir.Block, nodes: Iterable[ir.Stmt]) -> None:
    """Require that only sequences, and loops without early exit, enclose each node in the scope."""
    for node in nodes:
        for above in state.tree.deciding(node, scope):
            state.fail(
                "a statement other than a loop decides whether it runs",
                code="BW351",
                guilty=[above, node],
                help="write the condition as the block's predicate: T.where(…)",
            )


def run_domains(state: StepState, block: ir.Block) -> Domains:
    """The iterator ranges that loops and predicate execute, if these form a box.

    These are the declared domains or parts of them. A moved block must not execute any other
    instance.
    """
    if runs_everywhere(state, block):
        return {it.var: it.dom for it in block.iter_vars}
    realize = state.tree.realize(block)
    implied = has_implied_predicate(state, block)
    domains = {f.loop_var: f.dom for f in state.tree.loops_above(block)}
    analyzer = state.analyzer(state.scope(block).body)
    result = detect_iter_map(
        realize.iter_values, domains, None if implied else realize.predicate, analyzer
    )
    flow = state.flow_at(block)
    always = flow.always(block, state.analyzer(realize))
    if not implied and not (result.ok and always):
        _fail_predicate(state, block)
    if not result.ok or not all(runs(d, analyzer, flow.sizes) for d in domains.values()):
        _fail_unreached(state, block)
    reached: Domains = {}
    for it, item in zip(block.iter_vars, result.indices, strict=True):
        extent = item.args[0].extent if item.args else ir.const(1, it.var.type)
        rng = ir.Range(ir.cast_to(item.base, it.var.type), ir.cast_to(extent, it.var.type))
        reached[it.var] = it.dom if covers([rng], [it.dom], analyzer) else rng
        if any(ir.uses_var(reached[it.var], loop) for loop in domains):
            _fail_unreached(state, block)  # a range that depends on a loop is not a box
    return reached


def require_implied_predicate(state: StepState, block: ir.Block) -> None:
    """Require that the predicate only bounds iterators by their domains: it can be regenerated."""
    if not has_implied_predicate(state, block) and not runs_everywhere(state, block):
        _fail_predicate(state, block)


def _fail_predicate(state: StepState, block: ir.Block) -> NoReturn:
    state.fail(
        f"block {block.name} has a predicate beyond the domains of its iterators",
        code="BW356",
        guilty=[state.tree.realize(block)],
        help=f"declare in T.axis of block {block.name} the domain that runs, so that "
        "T.where(…) is not needed, or let the block write the other elements "
        "too",
    )


def has_implied_predicate(state: StepState, block: ir.Block) -> bool:
    """Whether the predicate holds wherever the iterators are inside their domains."""
    realize = state.tree.realize(block)
    if ir.is_const_int(realize.predicate, 1):
        return True
    analyzer = state.facts(realize)
    for it, value in zip(block.iter_vars, realize.iter_values, strict=True):
        end = it.dom.min + it.dom.extent
        analyzer.learn(ir.GE(*ir.match_types(value, it.dom.min)))
        analyzer.learn(ir.LT(*ir.match_types(value, end)))
    return analyzer.prove(realize.predicate)


def require_everywhere(state: StepState, block: ir.Block) -> None:
    """Require that the loops execute every instance in the block's domain."""
    if not runs_everywhere(state, block):
        _fail_unreached(state, block)


def _fail_unreached(state: StepState, block: ir.Block) -> NoReturn:
    state.fail(
        f"the loops and the predicate of {block.name} do not reach its whole domain",
        code="BW361",
        guilty=[state.realize(block)],
        help=f"declare in T.axis of block {block.name} the domain that the loops run, "
        "or let the loops run the whole domain",
    )


def require_reads_inside(
    state: StepState, block: ir.Block, buffers: Collection[ir.Buffer], *, partly: bool = False
) -> None:
    """Require that every instance reads these buffers in bounds.

    An instance whose guarded reads, as in padding, are all out of bounds has no corresponding
    producer instance. It would be lost if the producer's domain determines which instances run.

    Args:
        partly: accept an instance that reads any element in bounds.
    """
    analyzer = state.facts(block)
    for it in block.iter_vars:
        analyzer.bind(it.var, it.dom)
    for read in block_access_regions(block, analyzer)[0]:
        if read.buffer not in buffers:
            continue
        for rng, size in zip(read.region, read.buffer.shape, strict=True):
            end = rng.min + rng.extent
            low, high = (end - 1, rng.min + 1) if partly else (rng.min, end)
            inside = (ir.GE(*ir.match_types(low, 0)), ir.LE(*ir.match_types(high, size)))
            if not all(map(analyzer.prove, inside)):
                state.fail(
                    f"block {block.name} may read {read.buffer.name} out of bounds; such "
                    "instances belong to no iteration of the producer",
                    code="BW358",
                    guilty=[state.tree.realize(block)],
                    help=f"pad {read.buffer.name} in a separate block first, so that "
                    "each read is in bounds; or compute_inline the writer of "
                    f"{read.buffer.name}, which keeps the guard",
                )


def runs_everywhere(state: StepState, block: ir.Block) -> bool:
    """Whether the loops of the scope run the block at every point of its domain, at least once."""
    realize = state.tree.realize(block)
    scope = state.scope(block)
    flow, analyzer = state.flow_at(block), state.facts(scope.body)
    if flow.decided(block):
        return False
    domains = {f.loop_var: f.dom for f in state.tree.loops_above(block)}
    implied = has_implied_predicate(state, block)
    if not implied and not flow.always(block, state.analyzer(realize)):
        return False
    predicate = None if implied else realize.predicate
    if not fill_box(realize.iter_values, domains, predicate, analyzer, flow.sizes):
        return False
    shape = tuple(it.dom.min + it.dom.extent for it in block.iter_vars)
    points = ir.Buffer("points", ir.dtype_of("bool"), shape)
    one = tuple(ir.point(it.var) for it in block.iter_vars)
    each = ir.BufferRegion(points, one)
    have = flow.region_under((), block, each, analyzer, tight=not implied)
    return covers(have.region, [it.dom for it in block.iter_vars], analyzer)


def require_sound(
    state: StepState,
    step: StepResult,
    moved: ir.Block,
    guilty: ir.Block,
    consumers: Iterable[ir.Block] = (),
    loop: ir.For | None = None,
    *,
    everywhere: bool = False,
    among: Collection[ir.Buffer] | None = None,
) -> None:
    """Check the new program: reads are covered, reductions add each term once and in a legal order,
    and concurrent loops are free of races.

    Args:
        moved: the block in the new program.
        guilty: the block in the old program, underlined in errors.
        consumers: blocks of the new program that read its output.
        loop: the target loop in the old program, underlined in errors.
        everywhere: require that each instance still runs in some iteration.
        among: the buffers whose reads moved; all reads if not given.
    """
    after = state.following(step.func)
    marks: list[ir.Node] = [state.tree.realize(guilty)]
    if loop is not None:
        marks.append(loop)
    if moved is guilty:
        require_kept_order(state, moved, after)
    flow = after.flow_at(moved)
    for reader in (moved, *consumers):
        problem = flow.uncovered(reader, among)
        if problem:
            before = state.flow_at(guilty)
            near = before.producers(guilty) if reader is moved else before.consumers(guilty)
            marks += map(state.tree.realize, near)
            state.fail(
                problem + " after the move",
                code="BW316",
                guilty=marks,
                help="choose a loop outside the producer's reduction loops, "
                "whose iterations write all elements that they read"
                + _outside_reductions(state, guilty, near),
            )
    if _kind(flow, moved) is BlockKind.OTHER:
        state.fail(
            f"after the move block {moved.name} is neither complete nor a reduction: "
            f"{flow.why_other(moved)}",
            code="BW314",
            guilty=marks,
            help="choose a loop whose iterations produce disjoint parts",
        )
    if flow.kind(moved) is BlockKind.REDUCTION and flow.restart(moved) is None:
        state.fail(
            f"iterations would share terms of the reduction {moved.name}",
            code="BW315",
            guilty=marks,
            help="choose a loop whose iterations produce disjoint parts",
        )
    if everywhere and not runs_everywhere(after, moved):
        state.fail(
            f"some instances of block {moved.name} would belong to no iteration",
            code="BW358",
            guilty=marks,
            help="choose a loop further outside, or one whose iterations cover "
            "all that the block computes",
        )
    loops = after.tree.loops
    left = [loops[f.loop_var] for f in state.tree.loops_above(guilty) if f.loop_var in loops]
    # Also check the loops that the block leaves: a buffer may no longer be private to them.
    for loop in dict.fromkeys([*after.tree.loops_above(moved), *left]):
        require_kind(after, loop)


def _outside_reductions(state: StepState, moved: ir.Block, blocks: Sequence[ir.Block]) -> str:
    """Help text: the loops of a block outside its reduction loops, preferably those to which the
    moved block can be moved legally."""
    for block in blocks:
        realize = state.tree.realize(block)
        sums = [
            v
            for it, v in zip(block.iter_vars, realize.iter_values, strict=True)
            if it.iter_type is ir.IterType.REDUCE
        ]
        free: list[ir.For] = []
        for loop in state.tree.loops_above(block):
            if any(ir.uses_var(v, loop.loop_var) for v in sums):
                steps = {
                    f'{state.step_name}("{moved.name}", {called(state, f)})': f
                    for f in free
                    if state.step_name in ("compute_at", "reverse_compute_at")
                }
                result = [steps[way] for way in legal(state, steps)] or free
                at = (
                    f": {', '.join(f.loop_var.name for f in result)}"
                    if free
                    else f"; reorder loop {loop.loop_var.name} inwards to create one"
                )
                return f"{at} (of block {block.name})"
            free.append(loop)
    return ""

"""The loops of one block: trivially bound nests, whole domains, positions in a scope."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.arith import covers
from blockwright.schedule.engine.state import StepState


def require_reached(state: StepState, block: ir.Block) -> None:
    """Require that the loops run the block at every point of its domain."""
    if not reached(state, block):
        state.fail(
            f"the loops and the predicate of {block.name} do not reach its whole domain",
            code="BW361",
            guilty=[state.realize(block)],
            help=f"declare in T.axis of block {block.name} the domain that the loops run, "
            "or pad the loops to the whole domain",
        )


def reached(state: StepState, block: ir.Block) -> bool:
    """Whether the loops run the block at every point of its domain."""
    iters = block.iter_vars
    shape = tuple(it.dom.min + it.dom.extent for it in iters)
    points = ir.Buffer("points", ir.dtype_of("bool"), shape)
    one = [ir.point(it.var) for it in iters]
    each = ir.BufferRegion(points, tuple(one))
    scope = state.scope(block)
    flow, analyzer = state.flow_at(block), state.analyzer(scope.body)
    if state.tree.child_blocks(block) or not flow.always(block, analyzer):
        return False  # inner blocks are not analyzed
    have = flow.region_under((), block, each, analyzer)
    wanted = tuple(it.dom for it in iters)
    return covers(have.region, wanted, analyzer) and flow.is_exact(
        [], block, each, analyzer, reading=True
    )


def trivial_loops(state: StepState, block: ir.Block, step: str, instead: str = "") -> list[ir.For]:
    """The loops of a trivially bound block: one loop per iterator, in iterator order.

    Fails unless the nest contains only this block and is unsplit, serial, and without predicate or
    annotations: in this form, all iterators can be replaced at once.
    """
    loops, why, hint = own_loops(state, block)
    if why:
        state.fail(
            why,
            code="BW322",
            guilty=[state.realize(block)],
            help=f"{instead}use {step} before loops are {hint}",
        )
    return loops


def own_loops(state: StepState, block: ir.Block) -> tuple[list[ir.For], str, str]:
    """The loops for `trivial_loops`, or the reason why there are none, and a word for the help."""
    realize = state.realize(block)
    own: list[ir.For] = []
    inner: ir.Stmt = realize
    above = state.tree.loops_above(block)
    for loop in reversed(above):
        if loop.body is not inner or loop.kind is not ir.ForKind.SERIAL or loop.annotations:
            break
        own.insert(0, loop)
        inner = loop
    variables = {loop.loop_var: loop for loop in own}
    chosen: list[ir.For] = []
    for it, value in zip(block.iter_vars, realize.iter_values, strict=True):
        loop = variables.get(value) if isinstance(value, ir.Var) else None
        if loop is None or any(c is loop for c in chosen) or not _runs_through(state, loop, it):
            why = f"iterator {it.var.name} of {block.name} is not bound to a plain loop of its own"
            return [], why, "split, fused, shared, marked or annotated"
        chosen.append(loop)
    if not ir.is_const_int(realize.predicate, 1) or len(above) != len(chosen):
        why = f"{block.name} is under loops that bind no iterator, or has a predicate"
        return [], why, "split, fused or shared"
    return chosen, "", ""


def _runs_through(state: StepState, loop: ir.For, it: ir.IterVar) -> bool:
    """Whether a loop and an iterator have the same domain, starting at 0, even if it is empty."""
    from_zero = ir.is_const_int(loop.min, 0) and ir.is_const_int(it.dom.min, 0)
    same = ir.match_types(loop.extent, it.dom.extent)
    return from_zero and state.analyzer(loop).prove_equal(*same)


def nest_of(state: StepState, block: ir.Block, loops: Sequence[ir.For]) -> ir.Stmt:
    """The outermost of a block's own loops, or its `BlockRealize` if it has none."""
    return min(loops, key=lambda n: state.tree.order[n]) if loops else state.realize(block)


def first_of(scope: ir.Block) -> ir.Stmt:
    """The first statement of a block's body."""
    return scope.body.seq[0] if isinstance(scope.body, ir.SeqStmt) else scope.body


def outermost(state: StepState, block: ir.Block, scope: ir.Block | ir.For | ir.AttrStmt) -> ir.Stmt:
    """The direct child statement of a scope or loop that contains the block."""
    stmt: ir.Stmt = state.realize(block)
    for above in state.tree.ancestors(stmt):
        if above is scope or (above is scope.body and isinstance(above, ir.SeqStmt)):
            return stmt
        stmt = above
    return stmt

"""Placement and region of the copies that `cache_read`, `cache_write` and others insert.

Without loops shared by producers and consumers, the whole buffer is copied. Otherwise the copy is
placed in the innermost shared loop and transfers the region that one iteration produces or needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

from blockwright import ir
from blockwright.analysis import clip_region
from blockwright.arith import Analyzer, covers, hull, jointly_cover
from blockwright.schedule.engine.edit import wrap_loops
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.buffers import home, region_of
from blockwright.schedule.legality.checks import require_kind
from blockwright.schedule.legality.guards import may_divide_by_0
from blockwright.schedule.rewrite.move import Domains, merge, nest_for


def anchor(state: StepState, start: ir.Stmt, scope: ir.Block, others: Iterable[ir.Stmt]) -> ir.Stmt:
    """The outermost statement around `start` that contains none of `others`."""
    result = start
    rest = list(others)
    for above in state.tree.ancestors(start):
        if above is scope or any(state.tree.is_below(other, above) for other in rest):
            break
        result = above
    return result


def copied_nest(
    state: StepState,
    scope: ir.Block,
    at: ir.Stmt,
    copy: ir.Block,
    whole: ir.Stmt,
    domain: Sequence[ir.Range],
    needs: list[tuple[ir.Block, ir.BufferRegion]],
    makers: list[tuple[ir.Block, ir.BufferRegion]],
    within: Sequence[ir.Range] | None = None,
) -> tuple[ir.Stmt, Sequence[ir.Range]]:
    """The nest of a copying block at a given position, and the box that it copies there.

    Args:
        at: the statement beside which the nest is inserted.
        copy: the copying block, with an iterator per dimension.
        whole: the nest that copies everything.
        domain: the box that `whole` copies.
        needs: blocks with the regions that determine the copied box.
        makers: blocks with the regions that must cover the copied box, alone or together. If
            empty, writes before the scope must cover it.
        within: a box known to have values; if given, it must contain the copied box, and `makers`
            are not checked.
    """
    fixed, buffer = state.tree.loops_above(at), needs[0][1].buffer
    analyzer = state.analyzer(at)
    for tight in (False, True) if fixed else (False,):
        box, nest = _boxed(state, scope, at, copy, whole, domain, needs or makers, tight)
        given = next(n.predicate for n in ir.walk(nest) if isinstance(n, ir.BlockRealize))
        held = (
            is_held(state, scope, buffer, fixed, box.region, makers, needs, given, analyzer)
            if within is None
            else covers(within, box.region, analyzer)
        )
        if held:
            return nest, box.region
    return fail_unwritten(state, scope, buffer, makers if within is None else needs)


def is_held(
    state: StepState,
    scope: ir.Block,
    buffer: ir.Buffer,
    fixed: list[ir.For],
    box: Sequence[ir.Range],
    makers: list[tuple[ir.Block, ir.BufferRegion]],
    needs: list[tuple[ir.Block, ir.BufferRegion]],
    given: ir.Expr,
    analyzer: Analyzer,
) -> bool:
    """Whether a box of a buffer has values in iterations of the fixed loops where `given` holds.

    Each element must be written by `makers` or unconditionally read by `needs`. Without makers,
    writes before the scope suffice.
    """
    if not makers and written_before(state, scope, buffer)[1]:
        return True
    flow = state.data_flow(scope)
    sure = [(need, True) for need in needs if surely_reads(state, *need)]
    held = [
        flow.region_under(fixed, *place, analyzer).region
        for place, reading in [*((m, False) for m in makers), *sure]
        if flow.is_exact(fixed, *place, analyzer, reading)
        and flow.runs(fixed, place[0], given, analyzer)
    ]
    return jointly_cover(held, box, analyzer)


def written_before(
    state: StepState, scope: ir.Block, buffer: ir.Buffer
) -> tuple[list[tuple[ir.Block, ir.BufferRegion]], bool]:
    """The blocks that write a buffer before a nested scope runs, and whether they cover its reads.

    Returns:
        Blocks with their write regions, and whether these cover the region that the scope declares
        to read. Input parameters are covered, and so is a buffer that the scope does not declare to
        read: the scope initializes it itself.
    """
    owner, around = home(state, buffer), scope
    while owner is not None and around is not owner:
        region = next((r for r in around.reads if r.buffer is buffer), None)
        if region is None:
            return [], True
        outer = state.scope(around)
        flow = state.data_flow(outer)
        makers = flow.writers_before(around, region)
        if makers:
            result = [(m, region_of(m.writes, buffer)) for m in makers]
            return result, flow.covers(makers, around, region)
        around = outer
    return [], owner is None and buffer not in state.func.outputs


def fail_unwritten(
    state: StepState,
    scope: ir.Block,
    buffer: ir.Buffer,
    makers: list[tuple[ir.Block, ir.BufferRegion]],
) -> NoReturn:
    """Reject a copy of elements that may be uninitialized (BW323)."""
    makers = makers or written_before(state, scope, buffer)[0]
    names = " and ".join(f"block {maker.name}" for maker, _ in makers)
    verb = "do" if len(makers) > 1 else "does"
    state.fail(
        f"{names or 'the code before the scope'} {verb} not write every element of "
        f"{buffer.name} that the copy would read",
        code="BW323",
        guilty=[state.tree.realize(maker) for maker, _ in makers],
        help="copy before the buffer is padded, or at another position",
    )


def _boxed(
    state: StepState,
    scope: ir.Block,
    at: ir.Stmt,
    copy: ir.Block,
    whole: ir.Stmt,
    domain: Sequence[ir.Range],
    needs: list[tuple[ir.Block, ir.BufferRegion]],
    tight: bool,
) -> tuple[ir.BufferRegion, ir.Stmt]:
    """The copied box at a position, and its nest. `tight`: predicates narrow the box."""
    fixed = state.tree.loops_above(at)
    buffer = needs[0][1].buffer
    if not fixed:
        return ir.BufferRegion(buffer, tuple(domain)), whole
    flow = state.data_flow(scope)
    analyzer = state.analyzer(at)
    domains: Domains = {}
    for block, region in needs:
        under = flow.region_under(fixed, block, region, analyzer, tight=tight)
        for it, rng in zip(copy.iter_vars, under.region, strict=True):
            merge(domains, it.var, rng, analyzer)
    box = ir.BufferRegion(buffer, tuple(domains[it.var] for it in copy.iter_vars))
    nest = nest_for(state, copy, fixed[-1], domains, False, at)
    return clip_region(box, analyzer), nest


def concurrent(state: StepState, step: StepResult) -> StepResult:
    """The step, checked for races: concurrent loops around the copies, and parallel loops around
    writers of the copied buffer, must still be legal.

    A buffer that was private to an iteration is shared if the copy is placed outside the loop.
    """
    result = [block for block in step.results if isinstance(block, ir.Block)]
    after = state.following(step.func)
    copied = {r.buffer for block in result for r in block.reads}
    writers = [b for b in after.tree.blocks if any(r.buffer in copied for r in b.writes)]
    loops = dict.fromkeys(f for b in result for f in after.tree.loops_above(b))
    for loop in dict.fromkeys(f for b in writers for f in after.tree.loops_above(b)):
        if loop.kind is ir.ForKind.PARALLEL:
            loops[loop] = None
    for loop in loops:
        require_kind(after, loop)
    return step


def surely_reads(state: StepState, block: ir.Block, region: ir.BufferRegion) -> bool:
    """Whether the block unconditionally reads the single element of the region.

    The element then has a value wherever the block runs.
    """
    if any(not ir.is_const_int(r.extent, 1) for r in region.region):
        return False
    if any(
        isinstance(n, _CONDITIONAL) or (isinstance(n, ir.Call) and n.op == "if_then_else")
        for n in ir.walk(block.body)
    ):
        return False
    writes = any(r.buffer is region.buffer for r in block.writes)
    if writes and block.init is not None:
        return False  # it may read its own initial value
    for stmt in block.body.seq if isinstance(block.body, ir.SeqStmt) else (block.body,):
        if any(load.buffer is region.buffer for load in ir.collect(stmt, ir.BufferLoad)):
            return True
        if writes:
            return False  # it may read the value that this statement wrote
    return False


_CONDITIONAL = (ir.Block, ir.For, ir.While, ir.IfThenElse, ir.Select, ir.And, ir.Or)


def accessed_box(
    state: StepState,
    scope: ir.Block,
    regions: Sequence[tuple[ir.Block, ir.BufferRegion]],
    whole: Sequence[ir.Range],
) -> tuple[ir.Range, ...]:
    """The bounding box of accesses over all loops, within `whole`.

    A dimension is narrowed only if the result is provably smaller.
    """
    analyzer = state.analyzer(scope.body)
    flow = state.data_flow(scope)
    box: list[ir.Range] = []
    for block, region in regions:
        part = clip_region(flow.region_under((), block, region, analyzer), analyzer).region
        box = [hull(a, b, analyzer) for a, b in zip(box or part, part, strict=True)]
    result = tuple(
        part
        if covers([full], [part], analyzer)
        and analyzer.prove(ir.LT(*ir.match_types(part.extent, full.extent)))
        else full
        for part, full in zip(_without_division_by_0(box, whole, analyzer), whole, strict=True)
    )
    for part in result:
        if may_divide_by_0([part.min, part.extent], analyzer):
            state.fail(
                f"the accessed part of {regions[0][1].buffer.name} begins at {part.min!r}, a "
                "division by a size that may be 0; the copy is executed even where the loops "
                "around the accesses are empty",
                code="BW363",
                guilty=[regions[0][0]],
                help='declare that the size is not 0 (T.func_attr({"tir_var_lower_bound": ...})), '
                "or compute the index in a block of its own",
            )
    return result


def _without_division_by_0(
    box: Sequence[ir.Range], whole: Sequence[ir.Range], analyzer: Analyzer
) -> list[ir.Range]:
    """Replace ranges that may divide by 0: a copy may be executed where the reading loop is not."""
    return [
        full if may_divide_by_0([part.min, part.extent], analyzer) else part
        for part, full in zip(box, whole, strict=True)
    ]


def _around_lanes(
    state: StepState,
    scope: ir.Block,
    outer: Sequence[ir.For],
    lanes: ir.For,
    regions: Sequence[tuple[ir.Block, ir.BufferRegion]],
) -> str:
    """Help text: where to place a copy that all lanes of a vectorized loop read."""
    if not outer:
        return (
            f"split({lanes.loop_var.name}, …) before the inner part is vectorized, and apply "
            f"{state.step_name} at the outer part: one copy per vector, which all lanes read"
        )
    names = [f.loop_var.name for f in outer]
    box = [ir.const_int(r.extent) for r in box_at(state, scope, outer, regions)]
    size = f" of {' x '.join(map(str, box))} elements" if None not in box else ""
    which = names[-1] if len(names) == 1 else f"{names[-1]}, or one further outside"
    return f"choose loop {which}: one copy{size} per iteration of {names[-1]}, which all lanes read"


def box_at(
    state: StepState,
    scope: ir.Block,
    fixed: Sequence[ir.For],
    regions: Sequence[tuple[ir.Block, ir.BufferRegion]],
) -> tuple[ir.Range, ...]:
    """The bounding box of accesses to a buffer in one iteration of the fixed loops."""
    for loop in fixed:
        if loop.kind is ir.ForKind.VECTORIZED:
            state.fail(
                f"lanes of loop {loop.loop_var.name} would share the copy",
                code="BW317",
                guilty=[loop],
                help=_around_lanes(state, scope, fixed[: fixed.index(loop)], loop, regions),
            )
    analyzer = state.analyzer(fixed[-1].body)
    flow = state.data_flow(scope)
    box: list[ir.Range] = []
    for block, region in regions:
        part = clip_region(flow.region_under(fixed, block, region, analyzer), analyzer).region
        box = [hull(a, b, analyzer) for a, b in zip(box or part, part, strict=True)]
    return tuple(_without_division_by_0(box, ir.full_region(regions[0][1].buffer).region, analyzer))


def box_block(
    state: StepState,
    name: str,
    target: ir.Buffer,
    source: ir.Buffer,
    box: Sequence[ir.Range],
    fixed: Sequence[ir.For],
) -> tuple[ir.BlockRealize, ir.Block]:
    """A single block that copies a box; its iterators are the fixed loops that the box uses."""
    used = [f for f in fixed if any(ir.uses_var(r, f.loop_var) for r in box)]
    variables = {f.loop_var for f in fixed}
    for loop in used:
        if any(ir.uses_var(e, variables) for e in (loop.min, loop.extent)):
            state.fail(
                f"the extent of loop {loop.loop_var.name} depends on another loop around the copy",
                code="BW350",
                guilty=[loop],
                help="choose a loop further outside, around the one that the extent depends on",
            )
    iters = tuple(ir.IterVar(ir.Var(f"v{k}", f.loop_var.type), f.dom) for k, f in enumerate(used))
    inside = {f.loop_var: it.var for f, it in zip(used, iters, strict=True)}
    analyzer = state.analyzer(fixed[0])
    for it in iters:
        analyzer.bind(it.var, it.dom)
    ranges = [ir.substitute(r, inside) for r in box]
    loops = [(ir.Var(f"ax{k}", r.extent.dtype), r.extent) for k, r in enumerate(ranges)]
    known = analyzer.copy()
    for var, extent in loops:
        known.bind(var, ir.Range(ir.const(0, extent.dtype), extent))
    at = tuple(known.simplify(r.min + v) for r, (v, _) in zip(ranges, loops, strict=True))
    body = wrap_loops(ir.BufferStore(target, ir.BufferLoad(source, at), at), loops)
    block = ir.Block(name, iters, (), (), body, annotations={"auto_copy": 1})
    block = with_signature(block, analyzer)
    return ir.BlockRealize(tuple(f.loop_var for f in used), ir.const(True, "bool"), block), block

"""Legality of reductions: recognize them, and check restarts and reordering of their terms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import NoReturn

from blockwright import ir
from blockwright.analysis import NoReduction, Reduction, find_reduction, find_update
from blockwright.arith import Analyzer
from blockwright.schedule.engine.state import StepState


def reduction_of(state: StepState, block: ir.Block) -> Reduction:
    """The reduction that a block computes; fails with the reason if it is not recognized."""
    result = find_reduction(block)
    if isinstance(result, NoReduction):
        several = len(ir.collect(block.body, ir.BufferStore)) > 1
        form = (
            "select value and index by one condition, which also decides ties and NaN"
            if several
            else "write it as B[i] = B[i] + x with an init, as reducer.step"
        )
        declare = (
            f'{form}, or declare the combination: T.block_attr({{"reducer": T.comm_reducer(…)}})'
        )
        state.fail(
            f"{block.name} is not a reduction that can be split up: {result.why}",
            code="BW330",
            guilty=[block],
            help=declare if block.init is not None else _without_init(block),
        )
    results = [element.buffer for element in result.elements]
    memories = {state.roots.get(buffer, buffer) for buffer in results}
    if len(memories) < len(results):
        names = ", ".join(buffer.name for buffer in results)
        state.fail(
            f"the components {names} of the reduction in {block.name} may share memory, so "
            "the result depends on the order of their updates",
            code="BW330",
            guilty=[block],
            help='drop the attribute "tir.noalias": False if calls pass separate arrays, or '
            "reduce the components in separate blocks",
        )
    return result


def require_restart(state: StepState, block: ir.Block, reduction: Reduction) -> None:
    """Require that the initial value is neutral: partial results may each start from it."""
    if not reduction.may_restart:
        shown = ", ".join(repr(e) for e in reduction.initial)
        state.fail(
            f"{block.name} is not a reduction that can be split up: every partial result "
            f"would start from {shown}, which is not known to be neutral and would be combined "
            "repeatedly",
            code="BW330",
            guilty=[block],
            help="start from the neutral value and add the other one in a block after it",
        )


def iterators_at(
    block: ir.Block, indices: Sequence[ir.Expr], values: Sequence[ir.Expr], analyzer: Analyzer
) -> dict[ir.Var, ir.Expr] | None:
    """Solve `indices == values` for the iterators of a block.

    Each iterator must be one of the indices by itself, or have extent 1; all other indices must
    then provably equal their values. None otherwise.
    """
    own = {it.var for it in block.iter_vars}
    result: dict[ir.Var, ir.Expr] = {}
    for index, value in zip(indices, values, strict=True):
        if isinstance(index, ir.Var) and index in own and index not in result:
            result[index] = ir.cast_to(value, index.type)
    for it in block.iter_vars:
        if it.var not in result:
            if not ir.is_const_int(it.dom.extent, 1):
                return None
            result[it.var] = it.dom.min
    for index, value in zip(indices, values, strict=True):
        here = ir.substitute(index, result)
        if here is not value and not analyzer.prove_equal(*ir.match_types(here, value)):
            return None
    return result


def outermost_own(state: StepState, block: ir.Block, other: ir.Block) -> ir.Stmt:
    """The outermost statement around a block that does not contain the other one."""
    common = len(state.tree.common_loops(block, other))
    loops = state.tree.loops_above(block)[common:]
    return loops[0] if loops else state.tree.realize(block)


def require_any_order(
    state: StepState, block: ir.Block, before: Sequence[ir.For], after: Sequence[ir.For]
) -> None:
    """Require that a reordering of reduction loops is legal for the block's combiner.

    Blocks with calls, inner blocks or vector code are not analyzed: their reduction iterators
    assert that the order does not matter.
    """
    realize = state.tree.realize(block)
    values = [
        v
        for it, v in zip(block.iter_vars, realize.iter_values, strict=True)
        if it.iter_type is ir.IterType.REDUCE
    ]
    reducing = {f for f in before if any(ir.uses_var(v, f.loop_var) for v in values)}
    if [f for f in before if f in reducing] == [f for f in after if f in reducing]:
        return
    why = why_ordered(block)
    if why:
        fail_order(state, block, why, reducing)


def require_first_terms(
    state: StepState, block: ir.Block, before: Sequence[ir.For], after: Sequence[ir.For]
) -> None:
    """Require that reordered loops still run the initial value of each element before its terms.

    If one loop drives both spatial and reduction iterators, as a fused loop does, another loop
    order would make a different term the first.
    """
    if block.init is None:
        return
    realize = state.tree.realize(block)
    pairs = list(zip(block.iter_vars, realize.iter_values, strict=True))
    elements = [v for it, v in pairs if it.iter_type is not ir.IterType.REDUCE]
    for it, value in pairs:
        if it.iter_type is not ir.IterType.REDUCE:
            continue
        driving = [f for f in before if ir.uses_var(value, f.loop_var)]
        moved = driving != [f for f in after if f in driving]
        if moved and any(ir.uses_var(v, f.loop_var) for v in elements for f in driving):
            names = ", ".join(f.loop_var.name for f in driving)
            state.fail(
                f"loops {names} drive iterator {it.var.name} of block {block.name} and its "
                "elements: in another order terms would come before the initial value",
                code="BW316",
                guilty=[realize, *driving],
                help="apply the step before these loops are fused",
            )


def require_kept_order(state: StepState, block: ir.Block, after: StepState) -> None:
    """Require that a moved block combines its terms in the original order, unless its combiner
    allows any order."""
    why = why_ordered(block)
    if why and not (terms_in_order(state, block) and terms_in_order(after, block)):
        fail_order(state, block, why)


def fail_order(
    state: StepState, block: ir.Block, why: str, loops: Iterable[ir.For] = ()
) -> NoReturn:
    """Reject a reordering of a reduction's terms (BW330)."""
    state.fail(
        f"the steps of block {block.name} cannot be reordered: {why}",
        code="BW330",
        guilty=[*loops, state.tree.realize(block)],
        help="reorder its spatial loops only, or declare the combination: "
        'T.block_attr({"reducer": T.comm_reducer(…)})',
    )


def why_ordered(block: ir.Block) -> str:
    """Why the terms of a block must be combined in order; empty if they need not."""
    if all(it.iter_type is not ir.IterType.REDUCE for it in block.iter_vars):
        return ""
    result = find_update(block)
    return result.why if isinstance(result, NoReduction) and _is_plain(block.body) else ""


def terms_in_order(state: StepState, block: ir.Block) -> bool:
    """Whether the loops provably run the terms of a reduction in lexicographic order of its
    iterators."""
    realize, loops = state.tree.realize(block), state.tree.loops_above(block)
    analyzer = state.analyzer(realize)
    pairs = [
        (it, v)
        for it, v in zip(block.iter_vars, realize.iter_values, strict=True)
        if it.iter_type is ir.IterType.REDUCE and not ir.is_const_int(it.dom.extent, 1)
    ]
    driving = [[f for f in loops if ir.uses_var(v, f.loop_var)] for _, v in pairs]
    flat = [f for each in driving for f in each]
    if flat == [f for f in loops if f in flat] and all(
        _counts(v, each, analyzer) for (_, v), each in zip(pairs, driving, strict=True)
    ):
        return True
    whole = row_major([(v - it.dom.min, it.dom.extent) for it, v in pairs])
    return _counts(whole, [f for f in loops if f in flat], analyzer)


def row_major(digits: Sequence[tuple[ir.Expr, ir.Expr]]) -> ir.Expr:
    """The mixed-radix number with the given (digit, base) pairs, most significant first."""
    total: ir.Expr = ir.const(0, "int64")
    for digit, base in digits:
        total = total * ir.cast_to(base, "int64") + ir.cast_to(digit, "int64")
    return total


def _counts(value: ir.Expr, loops: Sequence[ir.For], analyzer: Analyzer) -> bool:
    """Whether a value equals the iteration number of nested loops plus a constant."""
    start = ir.substitute(value, {f.loop_var: ir.cast_to(f.min, f.loop_var.type) for f in loops})
    count = row_major([(f.loop_var - f.min, f.extent) for f in loops])
    counted = ir.cast_to(start, "int64") + count
    return analyzer.prove_equal(ir.cast_to(value, "int64"), counted)


def _is_plain(body: ir.Stmt) -> bool:
    """Whether a body consists only of conditionals, lets and scalar stores."""
    plain = (ir.SeqStmt, ir.LetStmt, ir.BufferStore, ir.IfThenElse)
    for node in ir.walk(body):
        if isinstance(node, ir.Stmt) and not isinstance(node, plain):
            return False
        if isinstance(node, (ir.Ramp, ir.Broadcast)):
            return False
    return True


def _without_init(block: ir.Block) -> str:
    """Help text for a block without initial value; only an update has one to restore."""
    if any(it.iter_type is ir.IterType.SCAN for it in block.iter_vars):
        return "a scan reads the previous element: keep its loop serial; others may be parallel"
    if not _accumulates(block):
        return "each iteration depends on the previous one: keep the loop serial"
    return "restore its initial value with merge_reduction first"


def _accumulates(block: ir.Block) -> bool:
    """Whether the stored value is a commutative operator with the written element as operand."""
    store = block.body
    if not isinstance(store, ir.BufferStore) or not isinstance(
        store.value, (ir.Add, ir.Mul, ir.Min, ir.Max)
    ):
        return False
    element = ir.BufferLoad(store.buffer, store.indices)
    return any(ir.structural_equal(side, element) for side in (store.value.a, store.value.b))


def require_initial_values(state: StepState, loop: ir.For, fixed: Sequence[ir.For]) -> None:
    """Require that loops that drive an inner reduction have a positive trip count.

    An empty reduction still stores its initial value, but not inside a block that never runs.
    """
    empty = {
        f.loop_var: f
        for f in fixed
        if not state.facts(f).prove(ir.GT(f.extent, ir.const(0, f.extent.dtype)))
    }
    for realize in ir.collect(loop.body, ir.BlockRealize):
        block = realize.block
        if block.init is None:
            continue
        for it, value in zip(block.iter_vars, realize.iter_values, strict=True):
            driving = [f for f in empty.values() if ir.uses_var(value, f.loop_var)]
            if it.iter_type is ir.IterType.REDUCE and driving:
                name = driving[0].loop_var.name
                state.fail(
                    f"loop {name} drives the reduction of block {block.name} and may not "
                    "run; its initial value would be lost then",
                    code="BW365",
                    guilty=[realize, driving[0]],
                    help=f"decompose_reduction block {block.name} first, or declare that the "
                    f"extent of {name} is positive",
                )


def require_empty_sums(
    state: StepState, loop: ir.For, after: ir.Stmt, running: Set[ir.Var]
) -> None:
    """Require that a reduction over an empty loop still stores its initial value after the step.

    Predicates on reduction loops do not guard the initial value. They guard it once no new loop
    drives the reduction, because the variable of a loop of one iteration was simplified to 0; so
    does an `if` around the block.

    Args:
        loop: the loop that the step replaces.
        after: the new body.
        running: variables of the new loops, which may run although `loop` is empty.

    Raises: ScheduleError BW365.
    """
    guarded = len(ir.collect(after, ir.IfThenElse)) > len(ir.collect(loop.body, ir.IfThenElse))
    pairs = zip(
        ir.collect(loop.body, ir.BlockRealize), ir.collect(after, ir.BlockRealize), strict=True
    )
    for old, new in pairs:
        values = zip(old.block.iter_vars, old.iter_values, new.iter_values, strict=True)
        if old.block.init is not None and any(
            it.iter_type is ir.IterType.REDUCE
            and ir.uses_var(value, loop.loop_var)
            and (guarded or not ir.uses_var(moved, running))
            for it, value, moved in values
        ):
            require_initial_values(state, loop, [loop])

"""Restore independent block iterators after a step has bound several to the same loop.

If a step substitutes an expression for a loop variable, two iterators may come to depend on one
loop, and no longer cover all combinations of their values (TensorIR paper, section 3.3). Examples
are `compute_at` of a diagonal read, and peeling the last iteration of a triangular loop. Such a
value is then bound by a loop of one iteration, `for at in range(i, i + 1)`, whose variable is
independent of the other iterator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from blockwright import ir
from blockwright.analysis.dataflow.contexts import block_contexts
from blockwright.analysis.dataflow.independent_values import independent
from blockwright.analysis.kernels import kernels
from blockwright.analysis.validate.bindings import joined_iterators
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.state import StepResult, StepState

Group = list[tuple[ir.IterVar, ir.Expr]]


def with_independent_iterators(state: StepState, step: StepResult) -> StepResult:
    """The step, with single-iteration loops around blocks whose iterators it made dependent.

    A program that had such blocks before is left unchanged: that may be a user error, which the
    build reports.
    """
    if step.func is state.func:
        return step
    after = state.following(step.func)
    before = {state.tree.realize(block) for block in state.tree.blocks}
    result = [r for b in after.tree.blocks if (r := after.tree.realize(b)) not in before]
    old = state.tree.loops.keys()
    suspects = {r.block for r in result if _share(after, r, old)}
    joined = list(_joined(after, suspects)) if suspects else []
    if not joined or any(_joined(state, set(state.tree.blocks))):
        return step
    edit = Edit(after)
    for realize, groups in joined:
        edit.replace(realize, _apart(after, realize, groups))
    done = edit.finish()
    results = tuple(edit.latest(r) if isinstance(r, ir.Block) else r for r in step.results)
    forward = {**step.forward, **done.forward}
    return StepResult(done.func, forward, results, step.decision)


def _share(state: StepState, realize: ir.BlockRealize, old: Collection[ir.Var]) -> bool:
    """Whether two iterators depend on one loop that existed before the step.

    Iterators may share a loop that the step creates (`fuse`): they use independent digits of it.
    """
    loops = {v for f in state.tree.loops_above(realize) if (v := f.loop_var) in old}
    seen: set[ir.Var] = set()
    for value in realize.iter_values:
        used = loops & set(ir.free_vars(value))
        if seen & used:
            return True
        seen |= used
    return False


def _joined(
    state: StepState, blocks: set[ir.Block]
) -> Iterator[tuple[ir.BlockRealize, list[Group]]]:
    """Blocks with groups of dependent iterators."""
    for context in block_contexts(state.func, kernels(state.func)):
        if context.block in blocks:
            groups = joined_iterators(state.tree, context, state.memo)
            if groups:
                yield context.realize, groups


def _apart(state: StepState, realize: ir.BlockRealize, groups: list[Group]) -> ir.Stmt:
    """The block with a loop for each iterator that depends on the ones before it."""
    domains = {f.loop_var: f.dom for f in state.tree.loops_above(realize)}
    analyzer = state.analyzer(realize)
    moved: dict[ir.IterVar, ir.Var] = {}
    for group in groups:
        kept: list[ir.Expr] = []
        for it, value in group:
            if independent([*kept, value], domains, analyzer):
                kept.append(value)
            else:
                moved[it] = ir.Var(f"{it.var.name}_at", value.dtype)
    pairs = list(zip(realize.block.iter_vars, realize.iter_values, strict=True))
    stmt: ir.Stmt = realize.replace(iter_values=tuple(moved.get(it, v) for it, v in pairs))
    for it, value in reversed(pairs):
        if it in moved:
            one = ir.const(1, value.dtype)
            stmt = ir.For(moved[it], value, one, ir.ForKind.SERIAL, stmt)
    return stmt

"""Legality of cross-thread reductions: binding reduction loops to thread axes, and later steps."""

from __future__ import annotations

from collections.abc import Callable

from blockwright import ir
from blockwright.analysis.reduction.cross_thread import (
    cross_thread_problems,
    has_thread_loops,
    why_threads_race,
)
from blockwright.schedule.engine.state import StepResult, StepState

_KINDS = {
    ir.IterType.REDUCE: "reduction iterator",
    ir.IterType.SCAN: "scan iterator",
    ir.IterType.OPAQUE: "opaque iterator",
}


def driven_terms(state: StepState, loop: ir.For, block: ir.Block) -> ir.IterVar | None:
    """A non-spatial iterator of a block that the loop drives; None if there is none."""
    values = state.tree.realize(block).iter_values
    for it, value in zip(block.iter_vars, values, strict=True):
        if it.iter_type is not ir.IterType.SPATIAL and ir.uses_var(value, loop.loop_var):
            return it
    return None


def require_combining(
    state: StepState, loop: ir.For, block: ir.Block, word: str, tag: str, help: Callable[[], str]
) -> None:
    """Require that the threads of an axis can combine the reduction terms of a loop's iterations.

    Args:
        word: what the loop becomes, for errors.
        tag: the thread axis; "" if the loop is not bound.
        help: computes the help text.
    """
    realize = state.tree.realize(block)
    values = dict(zip((it.var for it in block.iter_vars), realize.iter_values, strict=True))
    why = why_threads_race(block, values, loop.loop_var, tag)
    it = driven_terms(state, loop, block)
    if why and it is not None:
        reason = f": {why}" if tag else ""
        state.fail(
            f"loop {loop.loop_var.name} drives the {_KINDS[it.iter_type]} {it.var.name} of "
            f"block {block.name}, so it cannot be {word}{reason}",
            code="BW317",
            guilty=[loop, it],
            help=help(),
        )


def require_still_combining(state: StepState, step: StepResult) -> StepResult:
    """Require that all cross-thread reductions remain legal after the step; return the step."""
    if step.func is state.func or not has_thread_loops(state.following(step.func).tree):
        return step
    problem = next(cross_thread_problems(step.func), None)
    if problem is not None and next(cross_thread_problems(state.func), None) is None:
        state.fail(
            f"threads could not combine the terms of a reduction after it: {problem.message}",
            code="BW317",
            guilty=[n for n in problem.guilty if n in state.tree.order],
            help="apply the step before the reduction loop is bound, or bind a loop "
            "that drives only spatial iterators",
        )
    return step

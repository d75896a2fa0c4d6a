"""Conditions and iterator values of blocks with effects: no step repeats or skips their evaluation.

    T.where(T.atomic_add(C[0], 1) < 8)

runs once for each visit of the block. A step that joins it with another condition, or evaluates it
for another block, would change how often it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from blockwright import ir
from blockwright.analysis.access.stable_values import is_pure
from blockwright.schedule.engine.state import StepResult, StepState

_realizes: ir.Rare[ir.BlockRealize] = ir.Rare(ir.BlockRealize)


def require_kept_conditions(state: StepState, step: StepResult) -> StepResult:
    """Require that a step keeps the conditions of blocks that have effects; return the step."""
    if step.func is state.func:
        return step
    before = list(_with_effects(state.func))
    if not before:
        return step
    kept = Counter((each.block.name, expr) for each, expr in _with_effects(step.func))
    for realize, expr in before:
        if kept[realize.block.name, expr] != 1:
            state.fail(
                f"the predicate or an iterator value of block {realize.block.name} has an effect, "
                "and the step would change when it is evaluated",
                code="BW314",
                guilty=[realize],
                help="bind the result to a name in a statement before the block, and let the "
                "block use the name",
            )
    return step


def _with_effects(func: ir.PrimFunc) -> Iterator[tuple[ir.BlockRealize, ir.Expr]]:
    """Predicates and iterator values with effects, with their blocks."""
    for realize in _realizes.of(func.body):
        for expr in (realize.predicate, *realize.iter_values):
            if not isinstance(expr, (ir.Var, ir.IntImm)) and not is_pure(expr):
                yield realize, expr

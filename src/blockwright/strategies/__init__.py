"""Zero-tuning schedule rules: one file per program pattern, tried in order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from blockwright import ir
from blockwright.strategies.cpu import attention, elementwise, fallback, gemm, gemv, winograd
from blockwright.strategies.cpu import conv_nchw as planes
from blockwright.strategies.cpu import depthwise_pool as window
from blockwright.strategies.cpu import inner_reduction as rows
from blockwright.strategies.cpu import outer_reduction as columns
from blockwright.strategies.cpu import separable_conv as separable
from blockwright.strategies.match.blocks import AWAY_PARAMS, COLD_PARAMS, CONSTANT_PARAMS
from blockwright.strategies.strategy import Rule, RuleResult, try_rules
from blockwright.support.stack import deep
from blockwright.target import Target

RULES: tuple[Rule, ...] = (
    winograd.RULE,
    gemv.RULE,
    separable.RULE,
    planes.RULE,
    gemm.RULE,
    attention.RULE,
    columns.RULE,
    window.RULE,
    rows.RULE,
    elementwise.RULE,
    fallback.RULE,
)


def apply_rules(func: ir.PrimFunc, target: Target, disabled: Sequence[str] = ()) -> RuleResult:
    """Schedule a program with the first rule that takes it.

    Arguments: `disabled` names rules to leave out.
    """
    return try_rules([r for r in RULES if r.name not in disabled], func, target)


def rule_for(func: ir.PrimFunc, target: Target, disabled: Sequence[str] = ()) -> str:
    """The name of the first rule that takes a program; "" where none does."""
    for rule in RULES:
        if rule.name in disabled:
            continue
        with suppress(Exception):  # a rule that fails takes nothing
            if not deep(rule.refuses)(func, target):
                return rule.name
    return ""


__all__ = [
    "AWAY_PARAMS",
    "COLD_PARAMS",
    "CONSTANT_PARAMS",
    "RULES",
    "Rule",
    "RuleResult",
    "apply_rules",
    "rule_for",
]

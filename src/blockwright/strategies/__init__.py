"""Zero-tuning schedule strategies: one module per program pattern, tried in order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from blockwright import ir
from blockwright.strategies.match.blocks import AWAY_PARAMS, COLD_PARAMS, CONSTANT_PARAMS
from blockwright.strategies.strategy import (
    NoDecision,
    Plan,
    Refused,
    Strategy,
    StrategyResult,
    apply_plan,
    try_strategies,
)
from blockwright.support.registry import load
from blockwright.support.stack import deep
from blockwright.target import Target

_FILES = (
    "cpu.winograd",
    "cpu.gemv",
    "cpu.separable_conv",
    "cpu.conv_nchw",
    "cpu.gemm",
    "cpu.attention",
    "cpu.outer_reduction",
    "cpu.depthwise_pool",
    "cpu.inner_reduction",
    "cpu.recurrence",
    "cpu.elementwise",
    "cpu.fallback",
)
"""Files of the strategies, in the order in which they are tried."""

STRATEGIES: tuple[Strategy[Any, Any], ...] = tuple(
    load("blockwright.strategies", f"{file}.STRATEGY")[1] for file in _FILES
)


def apply_strategies(
    func: ir.PrimFunc, target: Target, disabled: Sequence[str] = ()
) -> StrategyResult:
    """Schedule a program with the first strategy that matches it.

    Arguments: `disabled` names strategies to skip.
    """
    return try_strategies([r for r in STRATEGIES if r.name not in disabled], func, target)


def strategy_for(func: ir.PrimFunc, target: Target, disabled: Sequence[str] = ()) -> str:
    """Name of the first strategy that matches a program; "" if none does."""
    for rule in STRATEGIES:
        if rule.name in disabled:
            continue
        with suppress(Exception):  # a strategy that raises does not match
            if not isinstance(deep(rule.match)(func, target), Refused):
                return rule.name
    return ""


__all__ = [
    "AWAY_PARAMS",
    "COLD_PARAMS",
    "CONSTANT_PARAMS",
    "STRATEGIES",
    "NoDecision",
    "Plan",
    "Refused",
    "Strategy",
    "StrategyResult",
    "apply_plan",
    "apply_strategies",
    "strategy_for",
]

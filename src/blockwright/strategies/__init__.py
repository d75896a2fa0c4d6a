"""Zero-tuning schedule strategies: one module per program pattern, tried in order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from blockwright import ir
from blockwright.strategies.match.blocks import (
    CONSTANT_PARAMS,
    OUTSIDE_PRIVATE_CACHE_PARAMS,
    UNCACHED_PARAMS,
)
from blockwright.strategies.strategy import (
    NoDecision,
    Plan,
    Refused,
    Strategy,
    StrategyResult,
    apply_plan,
    try_strategies,
)
from blockwright.support import ScheduleError
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

STRATEGIES: list[Strategy[Any, Any]] = [
    load("blockwright.strategies", f"{file}.STRATEGY")[1] for file in _FILES
]
"""All strategies in the order in which they are tried; `register` adds to them."""

_OWN = tuple(STRATEGIES)


def register(
    strategy: Strategy[Any, Any], *, before: str = "", override: bool = False
) -> Strategy[Any, Any]:
    """Add a strategy from outside, before the one of a name or before all others.

    Its `match` refuses programs and targets that it is not for.

    Raises: ScheduleError BW341: its name is taken, or there is no strategy `before`.
    """
    own = {each.name for each in _OWN}
    known = [s for s in STRATEGIES if s.name != strategy.name or s.name in own or not override]
    names = [each.name for each in known]
    problem = f"there is no strategy {before!r}" if before and before not in names else ""
    if strategy.name in names:
        problem = f"there is a strategy {strategy.name!r} already"
    if problem:
        raise ScheduleError(
            problem,
            code="BW341",
            help=f"strategies: {', '.join(names)}; override=True replaces a registered one",
        )
    known.insert(names.index(before) if before else 0, strategy)
    STRATEGIES[:] = known
    return strategy


def extended() -> bool:
    """Whether strategies from outside are registered: results then depend on code that neither the
    cache's key covers nor worker processes load."""
    return tuple(STRATEGIES) != _OWN


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
    "CONSTANT_PARAMS",
    "OUTSIDE_PRIVATE_CACHE_PARAMS",
    "STRATEGIES",
    "UNCACHED_PARAMS",
    "NoDecision",
    "Plan",
    "Refused",
    "Strategy",
    "StrategyResult",
    "apply_plan",
    "apply_strategies",
    "extended",
    "register",
    "strategy_for",
]

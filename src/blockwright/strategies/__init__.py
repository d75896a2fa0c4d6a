"""Zero-tuning schedule strategies: one module per program pattern, tried in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from blockwright import ir
from blockwright.ops.implementation import DEFAULT
from blockwright.ops.table import OPERATORS
from blockwright.strategies.match.blocks import (
    CONSTANT_PARAMS,
    OUTSIDE_PRIVATE_CACHE_PARAMS,
    UNCACHED_PARAMS,
)
from blockwright.strategies.offer import Candidate, Offer, OperatorCall
from blockwright.strategies.strategy import (
    FusedTime,
    Fusion,
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
from blockwright.target import Target, target_of

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

_FILES_OF_OFFERS = ("cpu.attention_offers", "cpu.winograd_offers")

OFFERS: list[Offer] = [
    offer
    for file in _FILES_OF_OFFERS
    for offer in load("blockwright.strategies", f"{file}.OFFERS")[1]
]
"""All offers, in the order in which they are compared; `register_offer` adds to them."""


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


def register_offer(offer: Offer, *, override: bool = False) -> Offer:
    """Add an offer from outside, after all others.

    Raises: ScheduleError BW343: there is no such implementation, or there is an offer of it.
    """
    row = OPERATORS.get(offer.operator)
    known = (DEFAULT, *(each.name for each in row.implementations)) if row else ()
    what = (offer.operator, offer.implementation)
    others = [each for each in OFFERS if (each.operator, each.implementation) != what]
    problem, remedy = "", "register it first, by ops.table.register or register_implementation"
    if row is None:
        problem = f"there is no operator {offer.operator!r}"
    elif offer.implementation not in known:
        problem = f"{offer.operator} has no implementation {offer.implementation!r}"
    elif len(others) < len(OFFERS) and not override:
        problem = f"there is an offer of {offer.implementation!r} for {offer.operator} already"
        remedy = "override=True replaces it"
    if problem:
        raise ScheduleError(problem, code="BW343", help=remedy)
    OFFERS[:] = [*others, offer]
    return offer


def offers_for(operator: str, disabled: Iterable[str] = ()) -> list[Offer]:
    """The offers for an operator whose strategies are not disabled."""
    return [each for each in OFFERS if each.operator == operator and each.strategy not in disabled]


def extended() -> bool:
    """Whether strategies from outside are registered: results then depend on code that neither the
    cache's key covers nor worker processes load."""
    return tuple(STRATEGIES) != _OWN


def apply_strategies(
    func: ir.PrimFunc, target: Target, disabled: Sequence[str] = ()
) -> StrategyResult:
    """Schedule a program with the first strategy that matches it.

    Arguments: `target` is that of the module, which the program may replace (see `target_of`);
    `disabled` names strategies to skip.
    """
    machine = target_of(func, target)
    return try_strategies([r for r in STRATEGIES if r.name not in disabled], func, machine)


def strategy_for(
    func: ir.PrimFunc, target: Target, disabled: Sequence[str] = ()
) -> Strategy[Any, Any] | None:
    """The first strategy that matches a program; None if none does."""
    for rule in STRATEGIES:
        if rule.name in disabled:
            continue
        with suppress(Exception):  # a strategy that raises does not match
            if not isinstance(deep(rule.match)(func, target), Refused):
                return rule
    return None


def computes_operand(
    func: ir.PrimFunc, operand: int, target: Target, disabled: Sequence[str] = ()
) -> bool:
    """Whether the strategy of a program computes a producer of an operand while it loads it."""
    rule = strategy_for(func, target, disabled)
    return rule is not None and rule.fusion.computes_operand(func, operand, target)


def joined(
    producer: ir.PrimFunc,
    consumer: ir.PrimFunc,
    operand: int,
    target: Target,
    disabled: Sequence[str] = (),
) -> FusedTime | None:
    """Predicted times in one kernel and in two, from the first strategy that takes both programs.

    Arguments: the consumer reads the producer's result as its buffer `operand`.
    """
    for rule in STRATEGIES:
        if rule.name not in disabled:
            times = rule.fusion.joins(producer, consumer, operand, target)
            if times is not None:
                return times
    return None


__all__ = [
    "CONSTANT_PARAMS",
    "OFFERS",
    "OUTSIDE_PRIVATE_CACHE_PARAMS",
    "STRATEGIES",
    "UNCACHED_PARAMS",
    "Candidate",
    "FusedTime",
    "Fusion",
    "NoDecision",
    "Offer",
    "OperatorCall",
    "Plan",
    "Refused",
    "Strategy",
    "StrategyResult",
    "apply_plan",
    "apply_strategies",
    "computes_operand",
    "extended",
    "joined",
    "offers_for",
    "register",
    "register_offer",
    "strategy_for",
]

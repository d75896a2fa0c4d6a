"""Checks that every rule's schedules go through."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.analysis import check_well_formed
from blockwright.build import build
from blockwright.schedule import RECORDS, Schedule, Trace
from blockwright.strategies import (
    STRATEGIES,
    Refused,
    Strategy,
    StrategyResult,
    apply_strategies,
)
from blockwright.strategies.multiversion import chosen_at_entry
from blockwright.target import Target
from blockwright.testing import assert_same_meaning

MACHINE = Target("x86-64-v3", num_threads=2)


def refusal(rule: str, func: ir.PrimFunc) -> str:
    """Why a rule does not take a program; "" when it does."""
    facts = strategy_named(rule).match(func, MACHINE)
    return facts.reason if isinstance(facts, Refused) else ""


def strategy_named(name: str) -> Strategy[Any, Any]:
    (found,) = (s for s in STRATEGIES if s.name == name)
    return found


def taken_by(rule: str, func: ir.PrimFunc, *sizes: dict[str, int]) -> StrategyResult:
    """The program as that rule schedules it: well formed, replayable, race-free, right."""
    result = apply_strategies(func, MACHINE)
    assert result.strategy == rule, (result.strategy, result.note)
    assert "gave up" not in result.note
    assert not result.faults, result.faults
    assert result.plan is not None
    assert strategy_named(rule).plan_from_json(result.plan.to_json()) == result.plan
    check_well_formed(result.func)
    usual, *others = (replayed(func, t) for t in (result.trace, *(t for _, t in result.variants)))
    conditions = [when for when, _ in result.variants]
    again = chosen_at_entry(usual, list(zip(conditions, others, strict=True)))
    ir.assert_structural_equal(again, result.func)
    for given in sizes:
        assert_same_meaning(func, result.func, sizes=given)
    return result


def replayed(func: ir.PrimFunc, trace: Trace) -> ir.PrimFunc:
    sch = Schedule(func)
    sch.replay(from_json(trace, func))
    return sch.func


def from_json(trace: Trace, func: ir.PrimFunc) -> Trace:
    return Trace.from_json(json.loads(json.dumps(trace.as_json())), RECORDS, func)


def native(func: ir.PrimFunc) -> Callable[..., Any]:
    """The program as the rules schedule it for this machine, built."""
    result = apply_strategies(func, Target("native"))
    assert "gave up" not in result.note
    assert not result.faults, result.faults
    return build(result.func)[func.name]


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def loop_kinds(func: ir.PrimFunc) -> list[str]:
    return [loop.kind.value for loop in ir.loops(func.body)]


class Checks:
    """The helpers above, as tests get them."""

    refusal = staticmethod(refusal)
    taken_by = staticmethod(taken_by)
    native = staticmethod(native)
    normal = staticmethod(normal)
    loop_kinds = staticmethod(loop_kinds)


@pytest.fixture(scope="session")
def checks() -> type[Checks]:
    return Checks

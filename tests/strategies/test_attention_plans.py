"""Plans of the attention strategy: stored, changed and applied; every plan computes the same."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from blockwright import ir
from blockwright.schedule import ScheduleError
from blockwright.script.compute import Program
from blockwright.strategies import apply_plan, apply_strategies
from blockwright.strategies.cpu.attention import STRATEGY, shape_of
from blockwright.strategies.cpu.attention_plan import (
    AttentionPlan,
    HeadSlice,
    predicted_seconds,
)
from blockwright.strategies.cpu.register_tiling import RegisterTile
from blockwright.target import Target
from blockwright.testing import assert_same_meaning

TARGET = Target("x86-64-v3", num_threads=2)


def attention(length: int = 20, head: int = 16, heads: int = 1) -> ir.PrimFunc:
    """softmax(Q K^T) V."""
    p = Program("attention")
    q, k, v = (p.param(name, (heads, length, head), "float32") for name in "QKV")
    square = (heads, length, length)
    s = p.reduce("S", square, (head,), lambda h, i, j, d: q[h, i, d] * k[h, j, d])
    z = p.compute("Z", square, lambda h, i, j: s[h, i, j] * 0.25)
    m = p.reduce("M", square[:2], (length,), lambda h, i, j: z[h, i, j], "max")
    e = p.compute("P", square, lambda h, i, j: ir.call("exp", z[h, i, j] - m[h, i]))
    n = p.reduce("L", square[:2], (length,), lambda h, i, j: e[h, i, j])
    w = p.compute("W", square, lambda h, i, j: e[h, i, j] / n[h, i])
    out = p.reduce(
        "O", (heads, length, head), (length,), lambda h, i, d, j: w[h, i, j] * v[h, j, d]
    )
    return p.finish([out])


def plans(func: ir.PrimFunc, target: Target = TARGET) -> list[AttentionPlan]:
    return list(STRATEGY.plans(func, target))


def changed(plan: AttentionPlan, **fields: Any) -> AttentionPlan:
    return msgspec.structs.replace(plan, **fields)


def test_the_first_plan_is_the_choice_without_tuning() -> None:
    func = attention()
    first, *_ = plans(func)
    result = apply_strategies(func, TARGET)
    assert (result.strategy, result.plan) == ("attention", first)
    assert STRATEGY.plan_from_json(first.to_json()) == first


def test_plans_differ_and_are_ranked() -> None:
    func = attention(length=256, head=64, heads=3)
    for target in (TARGET, Target("x86-64-v4", num_threads=2)):
        found = plans(func, target)
        assert len(set(found)) == len(found) > 20
        shape = shape_of(func)
        seconds = [predicted_seconds(target, shape, plan) for plan in found[1:]]
        assert seconds == sorted(seconds)
        assert len({plan.head.columns for plan in found}) > 1
        assert len({plan.tasks_per_head for plan in found}) > 1


def test_other_plans_compute_the_same() -> None:
    func = attention(length=37, head=24)
    _, *others = plans(func)
    unlike = {(p.head.columns, p.peel_tails, p.tasks_per_head): p for p in others}
    assert len(unlike) > 3
    for plan in unlike.values():
        assert_same_meaning(func, apply_plan(STRATEGY, func, TARGET, plan).func)


def test_a_changed_plan_changes_the_schedule() -> None:
    func = attention(length=40)
    first, *_ = plans(func)
    plan = changed(first, tile=RegisterTile(3, 8, 8), tasks_per_head=4)
    result = apply_plan(STRATEGY, func, TARGET, STRATEGY.plan_from_json(plan.to_json()))
    parallel = next(f for f in ir.loops(result.func.body) if f.kind is ir.ForKind.PARALLEL)
    assert ir.const_int(parallel.extent) == 4
    assert_same_meaning(func, result.func)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tile": RegisterTile(20, 8, 8)}, "covers all of the at most 20 rows"),
        ({"tile": RegisterTile(0, 8, 8)}, "a size is less than one"),
        ({"head": HeadSlice(12, 8, 8)}, "head.lanes=8 does not divide head.columns=12"),
        ({"tasks_per_head": 21}, "tasks_per_head=21 for 20 rows"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(fields: dict[str, Any], message: str) -> None:
    func = attention()
    first, *_ = plans(func)
    with pytest.raises(ScheduleError, match=message) as caught:
        apply_plan(STRATEGY, func, TARGET, changed(first, **fields))
    assert caught.value.code == "BW342"

"""Plans: ranked, stored as JSON, changed and applied; every plan computes the same."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from blockwright import ir
from blockwright.schedule import ScheduleError
from blockwright.script.compute import Program
from blockwright.strategies import STRATEGIES, apply_plan, apply_strategies
from blockwright.strategies.cpu.gemm import STRATEGY as GEMM
from blockwright.strategies.cpu.gemm import shapes_of
from blockwright.strategies.cpu.gemm_cost import plan_seconds
from blockwright.strategies.cpu.gemm_plan import GemmPlan
from blockwright.target import Target
from blockwright.testing import assert_same_meaning

TARGET = Target("x86-64-v3", num_threads=2)


def product(m: int = 48, n: int = 40, k: int = 20, dtype: str = "float32") -> ir.PrimFunc:
    """D = X W^T + 1."""
    p = Program("product")
    sizes = [ir.const(size, "int64") for size in (m, n, k)]
    x, w = p.param("X", (sizes[0], sizes[2]), dtype), p.param("W", (sizes[1], sizes[2]), dtype)
    c = p.reduce("C", tuple(sizes[:2]), (sizes[2],), lambda i, j, k: x[i, k] * w[j, k])
    return p.finish([p.compute("D", tuple(sizes[:2]), lambda i, j: c[i, j] + 1.0)])


def plans(func: ir.PrimFunc, count: int) -> list[GemmPlan]:
    return list(itertools.islice(GEMM.plans(func, TARGET), count))


def test_the_first_plan_is_the_choice_without_tuning() -> None:
    func = product()
    result = apply_strategies(func, TARGET)
    (first,) = plans(func, 1)
    assert result.plan == first
    again = apply_plan(GEMM, func, TARGET, first)
    assert again.trace.as_json() == result.trace.as_json()


def test_other_plans_differ_and_compute_the_same() -> None:
    func = product()
    chosen = plans(func, 12)
    assert len(set(chosen)) == len(chosen) > 6
    for plan in chosen[::3]:
        assert_same_meaning(func, apply_plan(GEMM, func, TARGET, plan).func)


def test_other_plans_are_ranked_by_the_cost_model() -> None:
    func = product(512, 512, 512)
    ((shape, _),) = shapes_of(func, TARGET)
    _, *others = (p.contractions[0] for p in plans(func, 20))
    seconds = [plan_seconds(TARGET, shape, p.tile, p.blocking) for p in others]
    assert seconds == sorted(seconds)


def test_a_changed_plan_changes_the_schedule() -> None:
    func = product()
    (plan,) = plans(func, 1)
    (one,) = plan.contractions
    tile = msgspec.structs.replace(one.tile, rows=2)
    changed = msgspec.structs.replace(plan, contractions=(msgspec.structs.replace(one, tile=tile),))
    stored = GEMM.plan_from_json(changed.to_json())
    assert stored == changed
    result = apply_plan(GEMM, func, TARGET, stored)
    assert "outer_product_2x" in result.trace.as_python()
    assert_same_meaning(func, result.func)


def test_a_plan_for_another_instruction_is_refused() -> None:
    func = product()
    (plan,) = plans(func, 1)
    text = plan.to_json().replace('"dot":""', '"dot":"dot2_bf16"')
    with pytest.raises(ScheduleError, match="does not multiply float32") as caught:
        apply_plan(GEMM, func, TARGET, GEMM.plan_from_json(text))
    assert caught.value.code == "BW340"


@pytest.mark.parametrize("text", ["", "{}", '{"contractions": 3}', "[]"])
def test_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match="not a plan of strategy gemm") as caught:
        GEMM.plan_from_json(text)
    assert caught.value.code == "BW340"


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_plans_of_every_strategy_are_records(strategy: object) -> None:
    plan_type = strategy.plan  # type: ignore[attr-defined]
    assert issubclass(plan_type, msgspec.Struct)
    assert plan_type.__struct_config__.frozen

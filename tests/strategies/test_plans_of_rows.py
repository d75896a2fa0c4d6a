"""Plans of the strategies for rows, columns, elements and recurrences: stored, ranked, applied."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.cost import estimate
from blockwright.schedule import ScheduleError
from blockwright.script.compute import Program
from blockwright.strategies import STRATEGIES, Plan, apply_plan, apply_strategies
from blockwright.strategies.cpu.gemv_plan import Dots, Updates
from blockwright.target import Target
from blockwright.testing import assert_same_meaning
from tests.strategies.row_programs import softmax

TARGET = Target("x86-64-v3", num_threads=2)
BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}


def turned(rows: int, columns: int) -> ir.PrimFunc:
    """B[i, j] = A[j, i] + 1."""
    p = Program("turned")
    a = p.param("A", (columns, rows), "float32")
    return p.finish([p.compute("B", (rows, columns), lambda i, j: a[j, i] + 1.0)])


def total(size: int) -> ir.PrimFunc:
    p = Program("total")
    x = p.param("X", (size,), "float32")
    return p.finish([p.reduce("S", (), (size,), lambda k: x[k])])


def columns_of(rows: int, columns: int) -> ir.PrimFunc:
    p = Program("columns")
    x = p.param("X", (rows, columns), "float32")
    return p.finish([p.reduce("S", (columns,), (rows,), lambda j, i: x[i, j])])


def skinny(rows: int, columns: int, depth: int, *, dots: bool) -> ir.PrimFunc:
    """C = X W^T, or X W, with few rows in X."""
    p = Program("skinny")
    x = p.param("X", (rows, depth), "float32")
    w = p.param("W", (columns, depth) if dots else (depth, columns), "float32")
    return p.finish(
        [
            p.reduce(
                "C",
                (rows, columns),
                (depth,),
                lambda i, j, k: x[i, k] * (w[j, k] if dots else w[k, j]),
            )
        ]
    )


def scan() -> ir.PrimFunc:
    """H[t, d] = H[t - 1, d] / 2 + X[t, d]."""
    source = """
@T.prim_func
def scan(X: T.Buffer((5, 40), "float32"), H: T.Buffer((6, 40), "float32")):
    for t, d in T.grid(5, 40):
        with T.block("H"):
            vt, vd = T.axis.remap("SS", [t, d])
            H[vt + 1, vd] = H[vt, vd] * T.float32(0.5) + X[vt, vd]
"""
    func = bw.from_source(source)
    assert isinstance(func, ir.PrimFunc)
    return func


CASES: dict[str, tuple[str, Callable[[], ir.PrimFunc]]] = {
    "transpose": ("elementwise", partial(turned, 20, 37)),
    "rows": ("inner_reduction", partial(softmax, 24, 40)),
    "total": ("inner_reduction", partial(total, 1 << 16)),
    "columns": ("outer_reduction", partial(columns_of, 70, 37)),
    "dots": ("gemv", partial(skinny, 2, 19, 40, dots=True)),
    "updates": ("gemv", partial(skinny, 2, 50, 21, dots=False)),
    "recurrence": ("recurrence", scan),
}
SMALL = [name for name in CASES if name != "total"]


def plans(name: str) -> tuple[Any, ir.PrimFunc, list[Plan]]:
    strategy, func = CASES[name]
    program = func()
    return BY_NAME[strategy], program, list(BY_NAME[strategy].plans(program, TARGET))


@pytest.mark.parametrize("name", CASES)
def test_the_first_plan_is_the_choice_without_tuning(name: str) -> None:
    strategy, func = CASES[name]
    program = func()
    result = apply_strategies(program, TARGET)
    assert (result.strategy, result.faults) == (strategy, ())
    assert result.plan == next(iter(BY_NAME[strategy].plans(program, TARGET)))


@pytest.mark.parametrize("name", CASES)
def test_plans_are_stored_ranked_and_lead_to_different_schedules(name: str) -> None:
    strategy, func, found = plans(name)
    assert len(found) > 3
    results = [apply_plan(strategy, func, TARGET, plan) for plan in found]
    assert [strategy.plan_from_json(plan.to_json()) for plan in found] == found
    assert len({result.trace.as_python() for result in results}) == len(found)
    seconds = [estimate(result.func, TARGET).seconds for result in results[1:]]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("name", SMALL)
def test_other_plans_compute_the_same(name: str) -> None:
    strategy, func, found = plans(name)
    for plan in found[1 :: max(1, len(found) // 5)]:
        assert_same_meaning(func, apply_plan(strategy, func, TARGET, plan).func)


def test_the_fallback_has_plans_for_any_program() -> None:
    strategy, func = BY_NAME["fallback"], skinny(5, 24, 20, dots=False)
    found = list(strategy.plans(func, TARGET))
    assert len(found) > 5
    for plan in found[:: len(found) // 5]:
        assert strategy.plan_from_json(plan.to_json()) == plan
        assert_same_meaning(func, apply_plan(strategy, func, TARGET, plan).func)


MISFITS = [
    ("transpose", {"task_elements": 0}, "task_elements=0"),
    ("rows", {"rows_together": 0}, "rows_together=0"),
    ("total", {"reduction_tasks": -1}, "reduction_tasks=-1"),
    ("columns", {"columns": 0}, "columns=0"),
    ("columns", {"axes": 2}, "axes=2, but only 1 are the same"),
    ("dots", {"form": Updates(64, 8)}, "use the form Dots"),
    ("dots", {"form": Dots(0, 4, 1)}, "rows=0"),
    ("updates", {"form": Dots(2, 4, 1)}, "use the form Updates"),
    ("recurrence", {"vectors": (2, 2)}, "for 1 ordered blocks"),
]


@pytest.mark.parametrize(("name", "fields", "message"), MISFITS)
def test_a_plan_that_does_not_fit_is_refused(
    name: str, fields: dict[str, Any], message: str
) -> None:
    strategy, func = BY_NAME[CASES[name][0]], CASES[name][1]()
    (first,) = itertools.islice(strategy.plans(func, TARGET), 1)
    with pytest.raises(ScheduleError) as caught:
        apply_plan(strategy, func, TARGET, msgspec.structs.replace(first, **fields))
    assert caught.value.code == "BW342"
    assert message in f"{caught.value.message} {caught.value.help}"


def test_a_plan_of_the_fallback_for_another_program_is_refused() -> None:
    strategy = BY_NAME["fallback"]
    (plan,) = itertools.islice(strategy.plans(softmax(4, 8), TARGET), 1)
    with pytest.raises(ScheduleError, match="ways for 4 blocks") as caught:
        apply_plan(strategy, turned(4, 8), TARGET, plan)
    assert caught.value.code == "BW342"

"""Every operator sample, scheduled by the rules and built, against the row's NumPy meaning."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from blockwright import ir
from blockwright.build import build
from blockwright.ops.row import OpContext
from blockwright.ops.table import OPERATORS
from blockwright.strategies import STRATEGIES, StrategyResult, apply_strategies
from blockwright.target import Target


def _samples() -> ModuleType:
    """The sample tests' helpers: one definition of what "close" means for an operator."""
    path = Path(__file__).parents[1] / "ops" / "test_samples.py"
    spec = importlib.util.spec_from_file_location("ops_samples", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


SAMPLES = _samples()
ROWS = [row for row in OPERATORS.values() if row.samples and row.lower is not None]


OTHERS = [rule.name for rule in STRATEGIES if rule.name != "fallback"]


@cache
def by_rules(name: str) -> list[tuple[Any, StrategyResult]]:
    """Every sample of an operator, and what the rules make of it. Two tests look at it."""
    row = OPERATORS[name]
    cases = [SAMPLES.Case(row, sample, f"s{k}") for k, sample in enumerate(row.samples)]
    return [(case, apply_strategies(case.func, Target("native"))) for case in cases]


@pytest.mark.parametrize("disabled", [[], OTHERS], ids=["rules", "fallback"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_scheduled_operator_matches_its_oracle(row: Any, disabled: list[str]) -> None:
    """By the rule for its pattern, and by the fallback alone where that is another program."""
    found = by_rules(row.name)
    if disabled:
        found = [(case, result) for case, result in found if result.strategy != "fallback"]
        if not found:
            return
    cases = [case for case, _ in found]
    scheduled: dict[str, ir.Node] = {}
    for case, result in found:
        if disabled:
            result = apply_strategies(case.func, Target("native"), disabled)
        assert "gave up" not in result.note, result.note
        assert not result.faults, result.faults
        scheduled[case.func.name] = result.func
    module = build(ir.IRModule(scheduled))
    for case in cases:
        case.check(module[case.func.name])


@pytest.mark.parametrize("left", [(1, 98, 151), (1, 1, 98, 151), (3, 98, 151)])
@pytest.mark.parametrize("right", [(151, 98), (1, 151, 98)])
def test_a_batch_of_one_is_a_product_like_any_other(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    row = OPERATORS["matmul"]
    assert row.lower is not None
    infos = [
        ir.TensorInfo(tuple(ir.const(n, "int64") for n in shape), ir.dtype_of("float32"))
        for shape in (left, right)
    ]
    func = row.lower(OpContext("matmul"), infos, dict(row.attrs))
    assert apply_strategies(func, Target("x86-64-v3")).strategy == "gemm"


def test_no_sample_of_single_precision_is_left_to_the_fallback() -> None:
    left: list[str] = []
    for row in ROWS:
        if row.name.endswith("_positions"):
            continue  # reductions of pairs, a maximum and its position, have no strategy yet
        for case, result in by_rules(row.name):
            dtypes = {array.dtype.name for array in case.arrays}
            if dtypes == {"float32"} and result.strategy == "fallback":
                left.append(f"{row.name} {[array.shape for array in case.arrays]}")
    assert not left

"""GEMV of half precision: dot products of lanes where the target has them, or widening loads."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.intrin import TensorIntrin
from blockwright.schedule import ScheduleError
from blockwright.script.compute import Program
from blockwright.strategies import apply_plan, apply_strategies
from blockwright.strategies.cpu.gemv import STRATEGY
from blockwright.strategies.cpu.gemv_plan import GemvPlan, GemvShape, other_plans
from blockwright.target import Target
from blockwright.testing import assert_same_meaning

BF16 = Target("x86-64-v4+avx512bf16", num_threads=2)
ARM = Target("aarch64+bf16", num_threads=2)
N, K = (ir.var(name, "int64") for name in "nk")


def skinny(
    rows: int,
    columns: Any,
    depth: Any,
    layout: str = "nk",
    types: tuple[str, str] = ("bfloat16", "bfloat16"),
    *,
    rounded: bool = False,
) -> ir.PrimFunc:
    """X W summed in float32, with W stored by columns ("nk") or by steps of the reduction ("kn").

    Products are `rounded` to the narrow type before they are added, or not.
    """
    p = Program("skinny")
    x = p.param("X", (rows, depth), types[0])
    w = p.param("W", (columns, depth) if layout == "nk" else (depth, columns), types[1])

    def term(i: Any, j: Any, k: Any) -> ir.Expr:
        one, other = x[i, k], w[j, k] if layout == "nk" else w[k, j]
        if rounded:
            return ir.cast_to(one * other, "float32")
        return ir.cast_to(one, "float32") * ir.cast_to(other, "float32")

    return p.finish([p.reduce("C", (rows, columns), (depth,), term)])


@pytest.mark.parametrize(
    ("func", "target", "dot"),
    [
        (skinny(1, 40, 70), BF16, "dot2_bf16"),
        (skinny(1, 40, 70), ARM, "dot2_bf16"),
        (skinny(1, 40, 70), Target("x86-64-v4"), ""),
        (skinny(1, 40, 70, types=("float16", "float16")), BF16, ""),
        (skinny(1, 40, 70, types=("float32", "bfloat16")), BF16, ""),
        (skinny(1, 40, 70, rounded=True), BF16, ""),
        (skinny(1, 40, 70, "kn"), BF16, ""),
        (skinny(1, 40, 63), BF16, ""),  # less than two vectors
    ],
)
def test_the_plan_names_the_dot_product(func: ir.PrimFunc, target: Target, dot: str) -> None:
    result = apply_strategies(func, target)
    assert isinstance(result.plan, GemvPlan), result.refusals
    assert (result.plan.dot, "gave up" in result.note) == (dot, False)
    assert ("dot2_bf16_lanes" in result.trace.as_python()) == bool(dot)


@pytest.mark.parametrize(
    ("func", "sizes"),
    [
        (skinny(1, 19, 70), {}),
        (skinny(3, N, K), {"n": 9, "k": 37}),
        (skinny(9, 5, 64), {}),
        (skinny(2, 19, 11, "kn"), {}),
    ],
)
def test_the_schedule_means_the_same(func: ir.PrimFunc, sizes: dict[str, int]) -> None:
    """Sums of any length, in tiles that do not divide."""
    result = apply_strategies(func, BF16)
    assert result.strategy == "gemv"
    assert "gave up" not in result.note
    assert_same_meaning(func, result.func, sizes=sizes)


def test_schedules_are_proved() -> None:
    func = skinny(1, 2, 70)
    for target in (BF16, ARM):
        result = apply_strategies(func, target)
        assert "dot2_bf16_lanes" in result.trace.as_python()
        assert bw.verify(func, result.func).verdict == "proved"


@pytest.mark.parametrize("name", ["dot2_bf16_lanes16", "dot2_bf16_lanes4", "dot4_u8s8_lanes8"])
def test_intrinsics_compute_what_they_mean(name: str) -> None:
    assert TensorIntrin.get(name).verdict


def test_operands_can_be_widened_all_the_same() -> None:
    func = skinny(1, 3, 70)
    best = next(iter(STRATEGY.plans(func, BF16)))
    plan = msgspec.structs.replace(best, dot="")
    assert plan in other_plans(GemvShape(1, 3, 70, 32, 16, "dot2_bf16", 2), best)
    assert_same_meaning(func, apply_plan(STRATEGY, func, BF16, plan).func)


def test_a_dot_product_that_does_not_fit_is_refused() -> None:
    for func, target in ((skinny(1, 40, 70), Target("x86-64-v3")), (skinny(1, 40, 70, "kn"), BF16)):
        plan = msgspec.structs.replace(next(iter(STRATEGY.plans(func, target))), dot="dot2_bf16")
        with pytest.raises(ScheduleError, match="does not multiply the operands") as caught:
            apply_plan(STRATEGY, func, target, plan)
        assert caught.value.code == "BW342"


def whole_numbers(*shape: int, seed: int, dtype: str) -> Any:
    """Small numbers, whose products and sums are exact in float32."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(kind)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_are_exact(dtype: str) -> None:
    """Of whole numbers, in both layouts; the longest are split into pieces."""
    native = Target("native", num_threads=2)
    types = (dtype, dtype)
    layouts = {"nk": [(7, 70), (3, 13000)], "kn": [(33, 7)]}
    for layout, sizes in layouts.items():
        result = apply_strategies(skinny(2, N, K if layout == "nk" else 7, layout, types), native)
        assert result.strategy == "gemv"
        assert "gave up" not in result.note
        run = build(result.func, native)["skinny"]
        for n, k in sizes:
            x = whole_numbers(2, k, seed=k, dtype=dtype)
            w = whole_numbers(*((n, k) if layout == "nk" else (k, n)), seed=n, dtype=dtype)
            out = np.full((2, n), np.nan, "float32")
            run(x, w, out)
            matrix = w.astype("float32")
            want = x.astype("float32") @ (matrix.T if layout == "nk" else matrix)
            np.testing.assert_array_equal(out, want)

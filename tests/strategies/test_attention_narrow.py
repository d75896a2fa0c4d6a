"""Attention of half precision: scores by dot products where the target has them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.schedule import ScheduleError
from blockwright.script.compute import Program
from blockwright.strategies import apply_plan, apply_strategies
from blockwright.strategies.cpu.attention import STRATEGY
from blockwright.strategies.cpu.attention_plan import AttentionPlan
from blockwright.target import Target
from blockwright.testing import assert_same_meaning

BF16 = Target("x86-64-v4+avx512bf16", num_threads=2)
ARM = Target("aarch64+bf16", num_threads=2)


def attention(
    rows: Any, keys: Any, head: int, dtype: str = "bfloat16", *, causal: bool = False
) -> ir.PrimFunc:
    """softmax(Q K^T) V of two heads with sums in float32; Q, K and V have one narrow type."""
    p = Program("attention")
    q, k, v = (
        p.param(name, (2, n, head), dtype)
        for name, n in zip("QKV", (rows, keys, keys), strict=True)
    )

    def wide(x: Any) -> ir.Expr:
        return ir.cast_to(x, "float32")

    def seen(i: Any, j: Any, value: Any, neutral: float) -> Any:
        return ir.select(j <= i, value, ir.const(neutral, "float32")) if causal else value

    square = (2, rows, keys)
    s = p.reduce("S", square, (head,), lambda h, i, j, d: wide(q[h, i, d]) * wide(k[h, j, d]))
    z = p.compute("Z", square, lambda h, i, j: seen(i, j, s[h, i, j] * 0.25, -np.inf))
    m = p.reduce("M", square[:2], (keys,), lambda h, i, j: z[h, i, j], "max")
    e = p.compute(
        "P", square, lambda h, i, j: seen(i, j, ir.call("exp", z[h, i, j] - m[h, i]), 0.0)
    )
    n = p.reduce("L", square[:2], (keys,), lambda h, i, j: e[h, i, j])
    o = p.reduce(
        "O",
        (2, rows, head),
        (keys,),
        lambda h, i, d, j: seen(i, j, e[h, i, j] * wide(v[h, j, d]), -0.0),
    )
    return p.finish([p.compute("Y", (2, rows, head), lambda h, i, d: o[h, i, d] / n[h, i])])


def plan_of(func: ir.PrimFunc, target: Target, dot: str | None = None) -> AttentionPlan:
    """The preferred plan, with another `dot` if it is given."""
    plan = next(iter(STRATEGY.plans(func, target)))
    return plan if dot is None else msgspec.structs.replace(plan, dot=dot)


def whole_numbers(*shape: int, seed: int) -> Any:
    """Small numbers, whose products and sums are exact in float32."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("target", "dtype", "dot"),
    [
        (BF16, "bfloat16", "dot2_bf16"),
        (ARM, "bfloat16", "dot2_bf16"),
        (BF16, "float16", ""),
        (BF16, "float32", ""),
        (Target("x86-64-v4"), "bfloat16", ""),
        (Target("x86-64-v3"), "bfloat16", ""),
    ],
)
def test_the_plan_names_the_dot_product(target: Target, dtype: str, dot: str) -> None:
    func = attention(20, 20, 16, dtype)
    result = apply_strategies(func, target)
    assert isinstance(result.plan, AttentionPlan)
    assert result.plan.dot == dot
    assert ("dot2_bf16_1x" in result.trace.as_python()) == bool(dot)
    assert {p.dot for p in STRATEGY.plans(func, target)} == {"", dot}


def test_a_dot_product_that_the_target_lacks_is_refused() -> None:
    func, target = attention(20, 20, 16), Target("x86-64-v3")
    with pytest.raises(ScheduleError, match="use dot=''") as caught:
        apply_plan(STRATEGY, func, target, plan_of(func, target, "dot2_bf16"))
    assert caught.value.code == "BW342"


@pytest.mark.parametrize(
    ("rows", "keys", "head", "target"), [(3, 19, 9, BF16), (2, 3, 10, BF16), (7, 9, 5, ARM)]
)
def test_the_schedule_means_the_same(rows: int, keys: int, head: int, target: Target) -> None:
    """Odd heads are padded with zeros to whole groups."""
    func = attention(rows, keys, head)
    result = apply_plan(STRATEGY, func, target, plan_of(func, target, "dot2_bf16"))
    assert "dot2_bf16_1x" in result.trace.as_python()
    assert_same_meaning(func, result.func)


def test_a_schedule_of_dot_products_is_proved() -> None:
    func = attention(3, 3, 5, causal=True)
    result = apply_strategies(func, BF16)
    assert "dot2_bf16_1x" in result.trace.as_python()
    assert bw.verify(func, result.func).verdict == "proved"


@pytest.mark.parametrize(
    ("rows", "keys", "head", "causal"), [(15, 21, 7, True), (20, 67, 64, False)]
)
def test_exact_scores_give_the_bits_of_widened_ones(
    rows: int, keys: int, head: int, causal: bool
) -> None:
    """Where scores are exact, the order of their sums has no effect."""
    native = Target("native", num_threads=2)
    func = attention(rows, keys, head, causal=causal)
    if not plan_of(func, native).dot:
        pytest.skip("this machine has no dot product of bfloat16")
    q, k, v = (whole_numbers(2, x, head, seed=s) for s, x in enumerate((rows, keys, keys)))
    if causal:
        k[:, rows:], v[:, rows:] = np.nan, np.nan  # hidden from all rows
    widened, dots = (np.full((2, rows, head), np.nan, "float32") for _ in range(2))
    for dot, out in (("", widened), ("dot2_bf16", dots)):
        scheduled = apply_plan(STRATEGY, func, native, plan_of(func, native, dot)).func
        build(scheduled)[func.name](q, k, v, out)
    assert np.isfinite(dots).all()
    np.testing.assert_array_equal(dots, widened)

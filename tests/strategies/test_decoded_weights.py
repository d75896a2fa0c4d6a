"""A few rows times weights that a program decodes: they are decoded as they are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import blockwright as bw
from benchmarks.decode import Case, arrays, expected, source
from blockwright import ir
from blockwright.script.compute import Program
from blockwright.strategies import apply_plan, apply_strategies
from blockwright.strategies.cpu.gemv import STRATEGY
from blockwright.strategies.cpu.gemv_plan import GemvPlan, GemvShape, Updates, other_plans
from blockwright.target import Target
from blockwright.testing import assert_same_meaning

V3, V4 = Target("x86-64-v3", num_threads=2), Target("x86-64-v4", num_threads=2)
CASES = {
    "four bits": (Case(40, 256, "float32"), 8),
    "in float16": (Case(40, 256, "float16"), 8),
    "long sums and zero points": (Case(900, 256, "float16", zeros=True), 8),
    "bytes in words": (Case(24, 256, "float32", bits=8, group=64), 4),
    "two bits in bytes": (Case(24, 256, "float32", bits=2, word=8, group=128), 4),
    "a part of a vector": (Case(24, 72, "float32", group=24), 1),
}


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("name", CASES)
def test_a_row_times_decoded_weights(name: str, target: str) -> None:
    case, shared = CASES[name]
    exe = bw.compile(bw.from_source(source(case)), target=target)
    (plan,) = (p for p in exe.context.plans.values() if isinstance(p, GemvPlan))
    assert isinstance(plan.form, Updates)
    assert plan.form.shared == shared
    given = arrays(case)
    wanted = expected(case, given)
    tolerance = 1e-5 if case.dtype == "float32" else 2e-3
    np.testing.assert_allclose(exe(*given), wanted, atol=tolerance * np.abs(wanted).max())


def packed(rows: int, columns: int, depth: int, layout: str) -> ir.PrimFunc:
    """x times four bits of each word of eight columns, or of eight steps of the reduction."""
    p = Program("packed")
    x = p.param("X", (rows, depth), "float32")
    inner = columns if layout == "kn" else depth
    outer = depth if layout == "kn" else columns
    data = p.param("D", (outer, -(-inner // 8)), "uint32")
    scale = p.param("S", (outer, -(-inner // 32)), "float16")

    def decode(a: Any, b: Any) -> ir.Expr:
        shift = ir.cast_to(b % 8 * 4, "uint32")
        number = ir.call("bitwise_and", ir.call("shift_right", data[a, b // 8], shift), 15)
        return (ir.cast_to(number, "float32") - 7.0) * ir.cast_to(scale[a, b // 32], "float32")

    w = p.compute("W", (outer, inner), decode)

    def term(i: Any, j: Any, k: Any) -> ir.Expr:
        return x[i, k] * (w[k, j] if layout == "kn" else w[j, k])

    return p.finish([p.reduce("C", (rows, columns), (depth,), term)])


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "layout"),
    [(1, 128, 20, "kn"), (3, 130, 12, "kn"), (1, 10, 72, "nk"), (4, 9, 40, "nk")],
)
def test_the_schedule_means_the_same(rows: int, columns: int, depth: int, layout: str) -> None:
    func = packed(rows, columns, depth, layout)
    for target in (V3, V4):
        result = apply_strategies(func, target)
        assert result.strategy == "gemv", result.note
        assert not any(b.name == "W" for b in ir.blocks(result.func.body))
        assert_same_meaning(func, result.func)


def test_every_plan_means_the_same() -> None:
    func = packed(1, 256, 16, "kn")
    best = apply_strategies(func, V3).plan
    assert isinstance(best, GemvPlan)
    shape = GemvShape(1, 256, 16, 32, 32, shared=8, decoded=2)
    for plan in other_plans(shape, best):
        if plan.piece:
            continue  # longer than the reduction
        assert_same_meaning(func, apply_plan(STRATEGY, func, V3, plan).func)


def test_more_rows_pack_the_decoded_weights() -> None:
    """The listing of the paper: with any number of rows, the matrix is decoded into panels."""
    case = Case(40, 256, "float32")
    text = source(case).replace("x: R.Tensor((1, 40)", 'x: R.Tensor(("n", 40)')
    exe = bw.compile(bw.from_source(text))
    x, *weights = arrays(case)
    rows: NDArray[Any] = np.repeat(x, 5, axis=0)
    wanted = np.repeat(expected(case, [x, *weights]), 5, axis=0)
    np.testing.assert_allclose(exe(rows, *weights), wanted, atol=1e-5 * np.abs(wanted).max())
    called = [name for name in exe.context.plans if name.startswith("fused_decode")]
    assert called == ["fused_decode_matmul"]

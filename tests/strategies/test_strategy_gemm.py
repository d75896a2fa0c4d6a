"""The GEMM rule: shapes of every awkward kind, what it refuses, and life without it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.graph import GraphBuilder, constant
from blockwright.lower import lower
from blockwright.script.compute import Program
from blockwright.strategies import apply_strategies
from blockwright.target import Target
from blockwright.testing import assert_same_meaning

N = ir.var("n", "int64")
B, S = (ir.var(name, "int64") for name in "bs")
F32 = ir.dtype_of("float32")


def linear(rows: ir.Expr | int, columns: int, depth: int, layout: str = "nk") -> ir.PrimFunc:
    """x W^T (or x W) + bias, then x * sigmoid(x), plus a residual."""
    p = Program("linear")
    x = p.param("X", (rows, depth), "float32")
    w = p.param("W", (columns, depth) if layout == "nk" else (depth, columns), "float32")
    bias = p.param("bias", (columns,), "float32")
    r = p.param("R", (rows, columns), "float32")
    c = p.reduce(
        "C",
        (rows, columns),
        (depth,),
        lambda i, j, k: x[i, k] * (w[j, k] if layout == "nk" else w[k, j]),
    )
    d = p.compute("D", (rows, columns), lambda i, j: c[i, j] + bias[j])
    e = p.compute("E", (rows, columns), lambda i, j: d[i, j] * ir.call("sigmoid", d[i, j]))
    return p.finish([p.compute("F", (rows, columns), lambda i, j: e[i, j] + r[i, j])])


def expected(x: Any, w: Any, bias: Any, r: Any, layout: str = "nk") -> Any:
    d = x.astype("float64") @ (w.T if layout == "nk" else w) + bias
    return d / (1 + np.exp(-d)) + r


def product(rows: ir.Expr | int, columns: int, depth: int, dtype: str = "float32") -> ir.PrimFunc:
    """A product that is itself the output."""
    p = Program("product")
    x, w = p.param("X", (rows, depth), dtype), p.param("W", (columns, depth), dtype)
    return p.finish([p.reduce("C", (rows, columns), (depth,), lambda i, j, k: x[i, k] * w[j, k])])


@pytest.mark.parametrize(("columns", "depth"), [(16, 8), (17, 5), (7, 3), (50, 9)])
@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_symbolic_rows_and_odd_columns(checks: Any, columns: int, depth: int, layout: str) -> None:
    result = checks.taken_by("gemm", linear(N, columns, depth, layout), {"n": 1}, {"n": 7})
    kinds = checks.loop_kinds(result.func)
    assert {"parallel", "vectorized", "unrolled"} <= set(kinds)


@pytest.mark.parametrize("rows", [9, 13])
def test_fixed_rows(checks: Any, rows: int) -> None:
    checks.taken_by("gemm", linear(rows, 18, 4), {})


@pytest.mark.parametrize(("columns", "depth"), [(64, 16), (48, 40), (72, 21)])
def test_columns_that_lie_apart_are_packed_without_gathers(
    checks: Any, columns: int, depth: int
) -> None:
    """Rows of W are read, and turned over in registers; only the last panel may gather."""
    lowered = lower(checks.taken_by("gemm", product(120, columns, depth), {}).func, "x86-64-v3")
    loads = [load for load in ir.collect(lowered.body, ir.BufferLoad) if load.dtype.lanes == 8]
    rows = [
        load
        for load in loads
        if load.buffer.name.startswith("W") and ir.const_int(load.indices[0].stride) == 1
    ]
    assert len(rows) >= 8
    assert len(ir.collect(lowered.body, ir.Shuffle)) >= 24


def test_a_product_that_is_the_output(checks: Any) -> None:
    checks.taken_by("gemm", product(N, 19, 6), {"n": 5})


def test_several_row_axes_are_one(checks: Any) -> None:
    p = Program("linear3")
    x, w = p.param("X", (B, S, 6), "float32"), p.param("W", (20, 6), "float32")
    c = p.reduce("C", (B, S, 20), (6,), lambda b, s, j, k: x[b, s, k] * w[j, k])
    func = p.finish([p.compute("D", (B, S, 20), lambda b, s, j: ir.maximum(c[b, s, j], 0.0))])
    checks.taken_by("gemm", func, {"b": 1, "s": 1}, {"b": 2, "s": 5})


def test_heads_split_off_behind_the_product(checks: Any) -> None:
    p = Program("heads")
    x, w = p.param("X", (B, S, 6), "float32"), p.param("W", (2, 8, 6), "float32")
    c = p.reduce("C", (B, S, 2, 8), (6,), lambda b, s, h, d, k: x[b, s, k] * w[h, d, k])
    func = p.finish([p.compute("D", (B, 2, S, 8), lambda b, h, s, d: c[b, s, h, d])])
    result = apply_strategies(func, Target("x86-64-v3"))
    assert_same_meaning(func, result.func, sizes={"b": 2, "s": 3})


def test_the_trace_names_symbols_of_the_program(checks: Any) -> None:
    """Index maps mention sizes; replayed on a copy with symbols of its own they mention those."""
    p = Program("linear3")
    x, w = p.param("X", (B, S, 6), "float32"), p.param("W", (20, 6), "float32")
    func = p.finish([p.reduce("C", (B, S, 20), (6,), lambda b, s, j, k: x[b, s, k] * w[j, k])])
    result = checks.taken_by("gemm", func)
    assert "lambda" in result.trace.as_python()


REFUSED = {
    "an operand is a vector": product(N, 1, 16),
}


def chained() -> ir.PrimFunc:
    p = Program("chained")
    x, w, v = (p.param(name, (8, 8), "float32") for name in "XWV")
    c = p.reduce("C", (8, 8), (8,), lambda i, j, k: x[i, k] * w[j, k])
    return p.finish([p.reduce("D", (8, 8), (8,), lambda i, j, k: c[i, k] * v[j, k])])


def normalised() -> ir.PrimFunc:
    p = Program("normalised")
    x, w = (p.param(name, (8, 8), "float32") for name in "XW")
    c = p.reduce("C", (8, 8), (8,), lambda i, j, k: x[i, k] * w[j, k])
    m = p.reduce("M", (8,), (8,), lambda i, k: c[i, k], "max")
    return p.finish([p.compute("D", (8, 8), lambda i, j: c[i, j] - m[i])])


def squared() -> ir.PrimFunc:
    p = Program("squared")
    x = p.param("X", (8, 8), "float32")
    return p.finish([p.reduce("C", (8, 8), (8,), lambda i, j, k: x[i, k] * x[j, k])])


def unlike() -> ir.PrimFunc:
    p = Program("unlike")
    x, w = p.param("X", (N, 16), "float32"), p.param("W", (24, 16), "float64")

    def term(i: ir.Expr, j: ir.Expr, k: ir.Expr) -> ir.Expr:
        return ir.cast_to(x[i, k], "float64") * w[j, k]

    return p.finish([p.reduce("C", (N, 24), (16,), term)])


REFUSED |= {
    "operand is a vector": product(N, 16, 1),
    "no micro-kernel for float32 x float64 -> float64": unlike(),
    "one contraction reads the result of another": chained(),
    "other blocks reduce too": normalised(),
    "no contraction": squared(),
    "no micro-kernel for int32 x int32 -> int32": product(N, 16, 16, "int32"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused_says_why(checks: Any, reason: str) -> None:
    assert reason in checks.refusal("gemm", REFUSED[reason])


@pytest.mark.parametrize("reason", REFUSED)
def test_another_rule_takes_what_is_refused(checks: Any, reason: str) -> None:
    func = REFUSED[reason]
    other = apply_strategies(func, Target("x86-64-v3")).strategy
    assert other != "gemm"
    checks.taken_by(other, func, {"n": 3, "b": 2})


def test_the_library_agrees_with_numpy(checks: Any) -> None:
    run = checks.native(linear(N, 50, 33))
    for rows in (0, 1, 6, 97):
        x, w = checks.normal(rows, 33), checks.normal(50, 33, seed=1)
        bias, r = checks.normal(50, seed=2), checks.normal(rows, 50, seed=3)
        out = np.full((rows, 50), np.nan, "float32")
        run(x, w, bias, r, out)
        np.testing.assert_allclose(out, expected(x, w, bias, r), rtol=1e-4, atol=1e-4)


def test_infinities_stay_in_their_rows_and_columns(checks: Any) -> None:
    """Padding repeats existing rows; it must not spread what they hold."""
    run = checks.native(product(N, 9, 4))
    x, w = checks.normal(5, 4), checks.normal(9, 4, seed=1)
    x[4, 0], w[8, 1] = np.inf, np.nan
    out = np.empty((5, 9), "float32")
    run(x, w, out)
    assert np.isfinite(out[:4, :8]).all()
    assert not np.isfinite(out[4]).any()
    assert np.isnan(out[:, 8]).all()


def mlp() -> tuple[ir.GraphFunction, list[np.ndarray[Any, Any]]]:
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(s).astype("float32") for s in ((6, 20), (20,), (20, 3))]
    b = GraphBuilder()
    x = b.param("x", ir.TensorInfo((N, ir.const(6, "int64")), F32, 2))
    h = b.op("relu", b.op("add", b.op("matmul", x, constant(weights[0])), constant(weights[1])))
    return b.finish("main", b.op("matmul", h, constant(weights[2]))), weights


@pytest.mark.parametrize("disabled", [(), ("gemm",)])
def test_a_model_is_right_with_and_without_the_rule(checks: Any, disabled: tuple[str, ...]) -> None:
    func, (w1, b1, w2) = mlp()
    model = bw.compile(func, options={"disabled_strategies": disabled})
    used = {
        str(f.attrs.get("schedule_strategy"))
        for f in model.stages["schedule_programs"].functions.values()
    }
    assert ("gemm" in used) == (not disabled)
    for rows in (1, 5):
        x = checks.normal(rows, 6)
        want = np.maximum(x @ w1 + b1, 0) @ w2
        np.testing.assert_allclose(np.asarray(model(x)), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("columns", ["n", "300"])
def test_weights_that_are_computed_without_reading(columns: str) -> None:
    """Packing such a factor has no source whose order matters."""
    module = bw.from_source(f"""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32")):
        n = T.int64()
        return R.matmul(x, R.ones((4, {columns}), "float32"))
""")
    with warnings.catch_warnings():
        warnings.simplefilter("error", bw.BlockwrightWarning)
        compiled = bw.compile(module)
    x = np.random.default_rng(0).standard_normal((37, 4)).astype("float32")
    wanted = x @ np.ones((4, 37 if columns == "n" else 300), "float32")
    np.testing.assert_allclose(compiled(x), wanted, rtol=1e-5, atol=1e-6)

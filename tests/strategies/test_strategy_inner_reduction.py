"""The row rule: reductions over trailing axes with element-wise work around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.script.compute import Program
from blockwright.strategies import apply_strategies
from blockwright.target import Target
from tests.strategies.row_programs import Size, softmax

N, S = (ir.var(name, "int64") for name in "ns")
MACHINE = Target("x86-64-v3", num_threads=2)


def layer_norm(rows: Size, width: int) -> ir.PrimFunc:
    p = Program("layer_norm")
    x = p.param("X", (rows, width), "float32")
    g, b = (p.param(name, (width,), "float32") for name in ("gamma", "beta"))
    mean = p.reduce("mean", (rows,), (width,), lambda i, k: x[i, k] * (1.0 / width))
    var = p.reduce(
        "var",
        (rows,),
        (width,),
        lambda i, k: (x[i, k] - mean[i]) * (x[i, k] - mean[i]) * (1.0 / width),
    )
    y = p.compute(
        "Y",
        (rows, width),
        lambda i, k: (x[i, k] - mean[i]) * ir.call("rsqrt", var[i] + 1e-5) * g[k] + b[k],
    )
    return p.finish([y])


def total(rows: Size, columns: Size, combiner: str, dtype: str = "float32") -> ir.PrimFunc:
    p = Program("total")
    x = p.param("X", (rows, columns), dtype)
    return p.finish([p.reduce("Y", (rows,), (columns,), lambda i, k: x[i, k], combiner)])


def everything() -> ir.PrimFunc:
    p = Program("everything")
    x = p.param("X", (N, 6), "float32")
    return p.finish([p.reduce("Y", (), (N, 6), lambda i, j: x[i, j])])


def shared_sum() -> ir.PrimFunc:
    """One number from so many elements that threads share them."""
    p = Program("shared")
    x = p.param("X", (N, 1 << 16), "float32")
    return p.finish([p.reduce("Y", (), (N, 1 << 16), lambda i, j: x[i, j])])


def dots() -> ir.PrimFunc:
    """A vector meets the rows of a matrix, one matrix per row of the result, and is scaled."""
    p = Program("dots")
    q, k = p.param("Q", (N, 20), "float32"), p.param("K", (N, S, 20), "float32")
    d = p.reduce("d", (N, S), (20,), lambda i, j, c: q[i, c] * k[i, j, c])
    m = p.reduce("m", (N,), (S,), lambda i, j: d[i, j], "max")
    return p.finish([p.compute("Y", (N, S), lambda i, j: d[i, j] - m[i])])


PROGRAMS: dict[str, tuple[ir.PrimFunc, list[dict[str, int]]]] = {
    "softmax": (softmax(N, S), [{"n": 1, "s": 1}, {"n": 3, "s": 9}, {"n": 2, "s": 17}]),
    "softmax of fixed odd size": (softmax(3, 21), [{}]),
    "softmax of one column": (softmax(N, 1), [{"n": 4}]),
    "layer norm": (layer_norm(N, 24), [{"n": 1}, {"n": 5}]),
    "layer norm of odd width": (layer_norm(N, 19), [{"n": 2}]),
    "sum": (total(N, S, "sum"), [{"n": 3, "s": 1}, {"n": 3, "s": 8}, {"n": 2, "s": 9}]),
    "maximum of integers": (total(N, S, "max", "int32"), [{"n": 3, "s": 9}]),
    "minimum": (total(4, 40, "min"), [{}]),
    "one number": (everything(), [{"n": 1}, {"n": 7}]),
    "dot products in a row": (dots(), [{"n": 2, "s": 3}, {"n": 1, "s": 1}]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_schedule_means_the_same(checks: Any, name: str) -> None:
    func, sizes = PROGRAMS[name]
    checks.taken_by("inner_reduction", func, *sizes)


def test_rows_are_parallel_and_their_work_is_in_vectors(checks: Any) -> None:
    func = checks.taken_by("inner_reduction", softmax(N, S)).func
    kinds = checks.loop_kinds(func)
    assert kinds.count("parallel") == 2  # in one schedule for short sums and one for long ones
    assert kinds.index("parallel") == 0
    assert kinds.count("vectorized") >= 4


def elementwise() -> ir.PrimFunc:
    p = Program("twice")
    x = p.param("X", (N,), "float32")
    return p.finish([p.compute("Y", (N,), lambda i: x[i] * 2.0)])


def narrow() -> ir.PrimFunc:
    """The last block has one axis, a reduction before it has two."""
    p = Program("narrow")
    x = p.param("X", (N, S, 4), "float32")
    s = p.reduce("s", (N, S), (4,), lambda i, j, k: x[i, j, k])
    return p.finish([p.compute("Y", (N,), lambda i: s[i, 0])])


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (elementwise(), "no block reduces"),
        (narrow(), "the last block has fewer axes than a reduction has rows"),
    ],
)
def test_what_is_refused_says_why(checks: Any, func: ir.PrimFunc, reason: str) -> None:
    assert checks.refusal("inner_reduction", func) == reason


def test_softmax_agrees_with_numpy(checks: Any) -> None:
    run = checks.native(softmax(N, S))
    for shape in ((1, 1), (3, 7), (5, 64), (2, 131)):
        x = checks.normal(*shape) * 4
        x[0, 0] = -np.inf if shape[1] > 1 else 0
        out = np.full(shape, np.nan, "float32")
        run(x, out)
        e = np.exp(x.astype("float64") - x.max(1, keepdims=True))
        np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)


def test_layer_norm_agrees_with_numpy(checks: Any) -> None:
    run = checks.native(layer_norm(N, 38))
    x, g, b = checks.normal(7, 38), checks.normal(38, seed=1), checks.normal(38, seed=2)
    out = np.empty((7, 38), "float32")
    run(x, g, b, out)
    y = x.astype("float64")
    want = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5) * g + b
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)


def test_an_empty_reduction_gives_the_initial_value(checks: Any) -> None:
    run = checks.native(total(N, S, "sum"))
    out = np.full(3, np.nan, "float32")
    run(np.empty((3, 0), "float32"), out)
    np.testing.assert_array_equal(out, 0)


def test_threads_share_a_long_sum(checks: Any) -> None:
    kinds = checks.loop_kinds(apply_strategies(shared_sum(), MACHINE).func)
    assert kinds.count("parallel") == 2  # in one schedule for short sums and one for long ones
    run = checks.native(shared_sum())
    for rows in (0, 1, 5, 17):
        x, out = checks.normal(rows, 1 << 16), np.full((), np.nan, "float32")
        run(x, out)
        # 16 lanes, 8 pieces: each addition rounds at most at the size of the sum of magnitudes
        bound = np.abs(x).sum(dtype="float64") * (1 << 12) * rows * np.finfo("float32").eps
        assert abs(float(out) - x.sum(dtype="float64")) <= bound


def test_one_number_of_no_rows(checks: Any) -> None:
    run = checks.native(everything())
    out = np.full((), np.nan, "float32")
    run(np.empty((0, 6), "float32"), out)
    assert out == 0


def group_norm(last: bool, groups: int = 3, members: int = 4, side: int = 7) -> ir.PrimFunc:
    """Of channels that are the second axis, or the `last` one."""
    channels = groups * members
    shape = (2, side, side, channels) if last else (2, channels, side, side)
    size = members * side * side
    p = Program("group_norm")
    x = p.param("X", shape, "float32")

    def at(n: Any, g: Any, c: Any, i: Any, j: Any) -> Any:
        channel = g * members + c
        return x[(n, i, j, channel) if last else (n, channel, i, j)]

    within = (members, side, side)
    mean = p.reduce("mean", (2, groups), within, lambda n, g, *r: at(n, g, *r) * (1.0 / size))

    def square(n: Any, g: Any, *r: Any) -> Any:
        return (at(n, g, *r) - mean[n, g]) * (at(n, g, *r) - mean[n, g]) * (1.0 / size)

    var = p.reduce("var", (2, groups), within, square)

    def out(*index: Any) -> Any:
        n, g = index[0], ir.floordiv(index[-1 if last else 1], members)
        return (x[index] - mean[n, g]) * ir.call("rsqrt", var[n, g] + 1e-5)

    return p.finish([p.compute("Y", shape, out)])


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_statistics_of_groups_are_taken_once(checks: Any, last: bool) -> None:
    """Not again for each channel of a group, or for each line of pixels."""
    func = group_norm(last)
    result = checks.taken_by("inner_reduction", func, {})
    (rows,) = [f for f in ir.loops(result.func.body) if f.kind is ir.ForKind.PARALLEL]
    assert ir.const_int(rows.extent) == 2 * 3
    x, got = checks.normal(2, *((7, 7, 12) if last else (12, 7, 7))), np.zeros((2, 12, 7, 7), "f4")
    got = np.ascontiguousarray(got.transpose(0, 2, 3, 1)) if last else got
    checks.native(func)(x, got)
    parts = np.moveaxis(x, -1, 1) if last else x
    parts = parts.reshape(2, 3, -1).astype("float64")
    want = (parts - parts.mean(2, keepdims=True)) / np.sqrt(parts.var(2, keepdims=True) + 1e-5)
    want = want.reshape(2, 12, 7, 7)
    want = np.moveaxis(want, 1, -1) if last else want
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [0, 1])
def test_odd_axes_that_lie_together_are_reduced_by_vectors(checks: Any, rank: int) -> None:
    """None of 13, 5 and 3 holds whole vectors; together they are one stretch of memory."""
    p = Program("total")
    x = p.param("X", (4, 13, 5, 3), "float32")
    over = (4, 13, 5, 3)
    func = p.finish([p.reduce("Y", over[:rank], over[rank:], lambda *i: x[i])])
    result = checks.taken_by("inner_reduction", func, {})
    assert "vectorized" in checks.loop_kinds(result.func)


def test_rows_that_are_taken_together_may_share_a_number(checks: Any) -> None:
    """Made by a block without loops, which no row has for itself."""
    p = Program("scaled")
    x, y = p.param("X", (64, 24), "float32"), p.param("Y", (1,), "float32")
    scale = p.compute("scale", (1,), lambda i: ir.call("exp", y[i]))
    z = p.compute("z", (64, 24), lambda i, k: x[i, k] * scale[0])
    m = p.reduce("m", (64,), (24,), lambda i, k: z[i, k], "max")
    e = p.compute("e", (64, 24), lambda i, k: ir.call("exp", z[i, k] - m[i]))
    s = p.reduce("s", (64,), (24,), lambda i, k: e[i, k])
    func = p.finish([p.compute("o", (64, 24), lambda i, k: e[i, k] / s[i])])
    checks.taken_by("inner_reduction", func, {})


@pytest.mark.parametrize("inner", [7, 9, 33])
def test_vectors_of_a_sum_lie_within_its_last_axis(checks: Any, inner: int) -> None:
    """Where another axis lies between those that are added up, a vector that went from one to the
    next would be loaded element by element."""
    p = Program("total")
    x = p.param("X", (6, 5, inner), "float32")
    func = p.finish([p.reduce("Y", (5,), (6, inner), lambda i, j, k: x[j, i, k])])
    result = checks.taken_by("inner_reduction", func, {})
    assert "vectorized" in checks.loop_kinds(result.func)
    loads = [n for n in ir.collect(result.func.body, ir.BufferLoad) if n.buffer.name == "X"]
    assert loads
    assert not any(
        isinstance(n, ir.FloorMod) for load in loads for i in load.indices for n in ir.walk(i)
    )

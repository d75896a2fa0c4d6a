"""The column rule: reductions over outer axes; neighbours in memory stay side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.script.compute import Program

N, S, B = (ir.var(name, "int64") for name in "nsb")
Size = ir.Expr | int


def sums(rows: Size, columns: Size, combiner: str = "sum", dtype: str = "float32") -> ir.PrimFunc:
    p = Program("sums")
    x = p.param("X", (rows, columns), dtype)
    return p.finish([p.reduce("Y", (columns,), (rows,), lambda j, k: x[k, j], combiner)])


def pooled() -> ir.PrimFunc:
    """Sum over the middle axis, divided by a count: mean pooling."""
    p = Program("pooled")
    x, count = p.param("X", (N, S, 10), "float32"), p.param("count", (N,), "float32")
    s = p.reduce("s", (N, 10), (S,), lambda i, d, k: x[i, k, d])
    return p.finish([p.compute("Y", (N, 10), lambda i, d: s[i, d] / count[i])])


def softmax(batch: Size, rows: Size, columns: Size) -> ir.PrimFunc:
    """Over the middle axis."""
    p = Program("softmax")
    x = p.param("X", (batch, rows, columns), "float32")
    m = p.reduce("m", (batch, columns), (rows,), lambda b, j, k: x[b, k, j], "max")
    e = p.compute("e", (batch, rows, columns), lambda b, k, j: ir.call("exp", x[b, k, j] - m[b, j]))
    s = p.reduce("s", (batch, columns), (rows,), lambda b, j, k: e[b, k, j])
    r = p.compute("r", (batch, columns), lambda b, j: 1.0 / s[b, j])
    out = p.compute("o", (batch, rows, columns), lambda b, k, j: e[b, k, j] * r[b, j])
    return p.finish([out])


def several_axes() -> ir.PrimFunc:
    """Batch statistics of channels that are neighbours: sums over three axes."""
    p = Program("statistics")
    x = p.param("X", (N, 3, S, 12), "float32")
    return p.finish([p.reduce("Y", (12,), (N, 3, S), lambda c, i, y, z: x[i, y, z, c])])


def narrow(batch: int, rows: int, *last: int) -> ir.PrimFunc:
    """Softmax over the second axis, before some short ones."""
    p = Program("narrow")
    shape = (batch, rows, *last)
    x = p.param("X", shape, "float32")
    m = p.reduce("m", (batch, *last), (rows,), lambda b, i, j, k: x[b, k, i, j], "max")
    e = p.compute("e", shape, lambda b, k, i, j: ir.call("exp", x[b, k, i, j] - m[b, i, j]))
    s = p.reduce("s", (batch, *last), (rows,), lambda b, i, j, k: e[b, k, i, j])
    return p.finish([p.compute("o", shape, lambda b, k, i, j: e[b, k, i, j] / s[b, i, j])])


def matrices(*last: int) -> ir.PrimFunc:
    """Sum of five matrices."""
    p = Program("matrices")
    x = p.param("X", (5, *last), "float32")
    return p.finish([p.reduce("Y", last, (5,), lambda i, j, k: x[k, i, j])])


PROGRAMS: dict[str, tuple[ir.PrimFunc, list[dict[str, int]]]] = {
    "column sums": (sums(N, S), [{"n": 1, "s": 1}, {"n": 4, "s": 9}, {"n": 17, "s": 3}]),
    "column sums of fixed size": (sums(5, 20), [{}]),
    "greatest integers": (sums(N, S, "max", "int32"), [{"n": 9, "s": 5}]),
    "any of a column": (sums(N, S, "any", "bool"), [{"n": 9, "s": 5}]),
    "any of a column of fixed size": (sums(5, 20, "any", "bool"), [{}]),
    "mean pooling": (pooled(), [{"n": 2, "s": 3}]),
    "softmax": (softmax(B, N, S), [{"b": 2, "n": 9, "s": 19}, {"b": 1, "n": 1, "s": 1}]),
    "softmax of fixed size": (softmax(2, 9, 20), [{}]),
    "softmax before short axes": (narrow(2, 3, 5, 3), [{}]),
    "softmax of one row": (narrow(2, 1, 5, 3), [{}]),
    "sums over several axes": (several_axes(), [{"n": 2, "s": 9}]),
    "sums of matrices of odd sizes": (matrices(3, 7), [{}]),
    "sums of matrices of even sizes": (matrices(4, 8), [{}]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_schedule_means_the_same(checks: Any, name: str) -> None:
    func, sizes = PROGRAMS[name]
    checks.taken_by("outer_reduction", func, *sizes)


@pytest.mark.parametrize("rows", [5, S])
def test_an_axis_of_at_most_one_element(checks: Any, rows: Size) -> None:
    """`compute_at` leaves no loop of it around the sums."""
    func = softmax(2, rows, N)
    func = func.replace(attrs={**func.attrs, "tir_var_upper_bound": {"n": 1}})
    checks.taken_by("outer_reduction", func, {"n": 0, "s": 3}, {"n": 1, "s": 3})


def test_all_steps_of_a_stretch_of_columns_are_one_task(checks: Any) -> None:
    kinds = checks.loop_kinds(checks.taken_by("outer_reduction", softmax(2, 90, 20)).func)
    assert kinds.count("parallel") == 1
    assert kinds[0] == "parallel"
    assert kinds.count("vectorized") >= 5


def test_short_last_axes_fill_vectors_together(checks: Any) -> None:
    """None of 5 and 3 holds a vector of eight; together they are one stretch of memory."""
    func = checks.taken_by("outer_reduction", narrow(2, 4, 5, 3)).func
    lanes = {ir.const_int(f.extent) for f in ir.loops(func.body) if f.kind is ir.ForKind.VECTORIZED}
    assert lanes == {8}


def test_vectors_that_a_last_task_has_not_are_left_out(checks: Any) -> None:
    """A task takes many vectors of an unknown number of columns, of which there may be one."""
    func = checks.taken_by("outer_reduction", sums(N, S), {"n": 3, "s": 2}).func
    vectors = [
        f
        for f in ir.loops(func.body)
        if ir.const_int(f.extent) not in (None, 1) and f.kind is ir.ForKind.SERIAL
    ]
    assert vectors
    assert all("loop_partition" in f.annotations for f in vectors)


def along_rows() -> ir.PrimFunc:
    p = Program("rows")
    x = p.param("X", (N, S), "float32")
    return p.finish([p.reduce("Y", (N,), (S,), lambda i, k: x[i, k])])


def transposed() -> ir.PrimFunc:
    """What is added up lies side by side, although the result does too."""
    p = Program("transposed")
    x = p.param("X", (N, S), "float32")
    s = p.reduce("s", (N,), (S,), lambda i, k: x[i, k])
    return p.finish([p.compute("Y", (S, N), lambda k, i: x[i, k] - s[i])])


def elementwise() -> ir.PrimFunc:
    p = Program("twice")
    x = p.param("X", (N, S), "float32")
    return p.finish([p.compute("Y", (N, S), lambda i, j: x[i, j] * 2.0)])


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (elementwise(), "no block reduces"),
        (along_rows(), "a block does not keep the last axis"),
        (transposed(), "a block does not keep the last axis"),
        (sums(N, 1), "a block does not keep the last axis"),
    ],
)
def test_what_is_refused_says_why(checks: Any, func: ir.PrimFunc, reason: str) -> None:
    assert checks.refusal("outer_reduction", func) == reason


def test_the_library_agrees_with_numpy(checks: Any) -> None:
    run = checks.native(softmax(B, N, S))
    for shape in ((1, 1, 1), (2, 7, 33), (1, 40, 130), (3, 8, 64)):
        x = checks.normal(*shape) * 4
        out = np.full(shape, np.nan, "float32")
        run(x, out)
        e = np.exp(x.astype("float64") - x.max(1, keepdims=True))
        # x - max rounds at the size of x, here up to 32 in units of the exponent's argument
        np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)

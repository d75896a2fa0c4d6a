"""The GEMV rule: a matrix that meets few rows is read once, where it lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.script.compute import Program
from blockwright.strategies import CONSTANT_PARAMS, apply_strategies
from blockwright.target import Target

N, K, B = (ir.var(name, "int64") for name in "nkb")
Size = ir.Expr | int


def skinny(
    rows: Size,
    columns: Size,
    depth: Size,
    layout: str = "nk",
    batch: tuple[Size, ...] = (),
    bias: bool = True,
    dtype: str = "float32",
    gelu: bool = False,
) -> ir.PrimFunc:
    """X W + bias, with W stored by columns ("nk") or by steps of the reduction ("kn")."""
    p = Program("skinny")
    x = p.param("X", (*batch, rows, depth), dtype)
    w = p.param("W", (*batch, *((columns, depth) if layout == "nk" else (depth, columns))), dtype)
    if gelu:
        given = x
        x = p.compute("E", (*batch, rows, depth), lambda *i: ir.call("exp", given[i]))

    def term(*index: Any) -> Any:
        *lead, i, j, k = index
        return x[(*lead, i, k)] * w[(*lead, *((j, k) if layout == "nk" else (k, j)))]

    c = p.reduce("C", (*batch, rows, columns), (depth,), term)
    if not bias:
        return p.finish([c])
    b = p.param("bias", (columns,), dtype)
    return p.finish([p.compute("D", (*batch, rows, columns), lambda *i: c[i] + b[i[-1]])])


PROGRAMS: dict[str, tuple[ir.PrimFunc, list[dict[str, int]]]] = {
    "dots of one row": (skinny(1, 19, 37), [{}]),
    "dots of symbolic columns": (skinny(2, N, 16), [{"n": 1}, {"n": 9}]),
    "dots of symbolic depth": (skinny(1, 5, K), [{"k": 1}, {"k": 17}, {"k": 8}]),
    "dots of symbolic columns and depth": (skinny(1, N, K, bias=False), [{"n": 5, "k": 19}]),
    "dots in a batch": (skinny(1, 6, 19, batch=(B, 2)), [{"b": 2}]),
    "dots of doubles": (skinny(3, 7, 18, dtype="float64"), [{}]),
    "dots of more rows than registers suit": (skinny(9, 11, 18), [{}]),
    "dots of equal parts of the rows": (skinny(8, N, 16), [{"n": 1}, {"n": 9}]),
    "updates of one row": (skinny(1, 19, 11, "kn"), [{}]),
    "updates of symbolic columns": (skinny(3, N, 9, "kn"), [{"n": 1}, {"n": 21}]),
    "updates of symbolic depth": (skinny(1, 17, K, "kn", bias=False), [{"k": 1}, {"k": 10}]),
    "updates in a batch": (skinny(1, 6, 5, "kn", batch=(B,)), [{"b": 3}]),
    "a row that is computed first": (skinny(1, 9, 20, gelu=True), [{}]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_schedule_means_the_same(checks: Any, name: str) -> None:
    func, sizes = PROGRAMS[name]
    checks.taken_by("gemv", func, *sizes)


def test_few_columns_are_few_rows(checks: Any) -> None:
    p = Program("tall")
    x, w = p.param("X", (N, 24), "float32"), p.param("W", (2, 24), "float32")
    c = p.reduce("C", (N, 2), (24,), lambda i, j, k: x[i, k] * w[j, k])
    checks.taken_by("gemv", p.finish([c]), {"n": 1}, {"n": 7})


def turned(rows: int, columns: int, depth: int) -> ir.PrimFunc:
    """X^T W with few columns: the left operand is the matrix, whose rows are neighbours."""
    p = Program("turned")
    x, w = p.param("X", (depth, rows), "float32"), p.param("W", (depth, columns), "float32")
    c = p.reduce("C", (rows, columns), (depth,), lambda i, j, k: x[k, i] * w[k, j])
    return p.finish([p.compute("D", (rows, columns), lambda i, j: c[i, j] + 1.0)])


def test_sums_of_a_turned_matrix_are_neighbours(checks: Any) -> None:
    """Columns of the result lie in between: vectors would be put there element by element."""
    func = checks.taken_by("gemv", turned(37, 3, 9), {}).func
    written = {s.buffer for s in ir.collect(func.body, ir.BufferStore)}
    (sums,) = written.difference(func.buffers)
    assert [ir.const_int(size) for size in sums.shape] == [3, 37]


def tall(columns: int, layout: str = "nk") -> ir.PrimFunc:
    return skinny(1024, columns, 256, layout, bias=False)


@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64-v4"])
def test_columns_that_fill_vectors_are_no_matter_of_reading_the_matrix(machine: str) -> None:
    """Where many rows meet them: a product then computes, and reads its left operand in place."""
    lanes = Target(machine).lanes("float32")
    taken = {
        n: apply_strategies(tall(n), Target(machine)).strategy
        for n in (lanes // 2, lanes, 4 * lanes)
    }
    assert taken == {lanes // 2: "gemv", lanes: "gemm", 4 * lanes: "gemm"}


@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64-v4"])
def test_rows_whose_elements_are_apart_are_brought_together_for_few_of_them(machine: str) -> None:
    taken = {n: apply_strategies(tall(n, "kn"), Target(machine)).strategy for n in (2, 3, 4)}
    assert taken == {2: "gemv", 3: "gemv", 4: "gemm"}


def test_no_panel_is_written(checks: Any) -> None:
    func = checks.taken_by("gemv", skinny(1, 64, 64)).func
    written = {s.buffer for s in ir.collect(func.body, ir.BufferStore)}
    assert {b.scope for b in written if all(b is not p for p in func.buffers)} == {"local"}


def constant() -> ir.PrimFunc:
    func = skinny(1, 64, 64)
    return func.replace(attrs={**func.attrs, CONSTANT_PARAMS: (1,)})


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (skinny(N, 64, 64), "both operands have more than 4 rows"),
        (skinny(64, 64, 64), "both operands have more than 4 rows"),
        (skinny(1, 64, 1), "there is no matrix"),
        (skinny(1, 64, 9), "the reduction is shorter than two vectors"),
        (constant(), "the matrix is a constant: it is packed into panels at compile time"),
        (
            skinny(1, 64, 64, dtype="int32"),
            "0 contractions instead of one",
        ),
    ],
)
def test_what_is_refused_says_why(checks: Any, func: ir.PrimFunc, reason: str) -> None:
    assert checks.refusal("gemv", func) == reason


@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("shape", [(1, 100, 300), (2, 33, 129), (4, 257, 64), (21, 33, 70)])
def test_the_library_agrees_with_numpy(
    checks: Any, layout: str, shape: tuple[int, int, int]
) -> None:
    rows, columns, depth = shape
    run = checks.native(skinny(rows, N, K, layout))
    x, b = checks.normal(rows, depth), checks.normal(columns, seed=2)
    w = checks.normal(*((columns, depth) if layout == "nk" else (depth, columns)), seed=1)
    out = np.full((rows, columns), np.nan, "float32")
    run(x, w, b, out)
    matrix = w.T if layout == "nk" else w
    want = x.astype("float64") @ matrix + b
    # a sum of n products of unit size in any order is off by at most n eps times their sizes' sum
    bound = depth * np.finfo("float32").eps * (np.abs(x) @ np.abs(matrix) + np.abs(b))
    assert np.all(np.abs(out - want) <= bound)

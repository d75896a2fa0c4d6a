"""The recurrence strategy: ordered axes inside, independent ones in tasks and vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

SCAN = """
@T.prim_func
def scan(a: T.handle, x: T.handle, h: T.handle):
    n = T.int64()
    d = T.int64()
    A = T.match_buffer(a, (n, d), "float32")
    X = T.match_buffer(x, (n, d), "float32")
    H = T.match_buffer(h, (n, d), "float32")
    for i, j in T.grid(n, d):
        with T.block("H"):
            vi = T.axis.opaque(n, i)
            vj = T.axis.spatial(d, j)
            H[vi, vj] = X[vi, vj] + T.if_then_else(
                vi > 0, A[vi, vj] * H[vi - 1, vj], T.float32(0))
"""
SCATTER = """
@T.prim_func
def scatter(I: T.Buffer((9,), "int64"), X: T.Buffer((9, 21), "float32"),
            Y: T.Buffer((5, 21), "float32")):
    for i, j in T.grid(5, 21):
        with T.block("zero"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = 0.0
    for i, j in T.grid(9, 21):
        with T.block("add"):
            vi = T.axis.opaque(9, i)
            vj = T.axis.spatial(21, j)
            Y[I[vi], vj] = Y[I[vi], vj] + X[vi, vj]
"""
ALONG_ROWS = """
@T.prim_func
def rows(X: T.Buffer((6, 7), "float32"), H: T.Buffer((6, 7), "float32")):
    for i, j in T.grid(6, 7):
        with T.block("H"):
            vi = T.axis.spatial(6, i)
            vj = T.axis.opaque(7, j)
            H[vi, vj] = X[vi, vj] + T.if_then_else(vj > 0, H[vi, vj - 1], T.float32(0))
"""


def program(text: str) -> ir.PrimFunc:
    func = bw.from_source(text)
    assert isinstance(func, ir.PrimFunc)
    return func


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (SCAN, [{"n": 5, "d": 3}, {"n": 3, "d": 70}, {"n": 1, "d": 64}]),
        (SCAN.replace("n = T.int64()", "n = 5").replace("d = T.int64()", "d = 20"), [{}]),
        (ALONG_ROWS, [{}]),
        (ALONG_ROWS.replace("T.axis.opaque", "T.axis.spatial"), [{}]),
    ],
    ids=["scan", "scan of fixed size", "along rows", "declared spatial"],
)
def test_the_schedule_means_the_same(checks: Any, text: str, sizes: list[dict[str, int]]) -> None:
    func = checks.taken_by("recurrence", program(text), *sizes).func
    assert "parallel" in checks.loop_kinds(func)


def test_vectors_run_along_the_independent_axis(checks: Any) -> None:
    """The ordered loop is outside the vectors, and inside the tasks."""
    kinds = checks.loop_kinds(checks.taken_by("recurrence", program(SCAN)).func)
    assert kinds == ["parallel", "serial", "unrolled", "vectorized"]


def test_the_library_agrees_with_numpy(checks: Any) -> None:
    run = checks.native(program(SCATTER))
    index = np.array([0, 3, 3, 1, 0, 4, 4, 4, 3])
    x, y = checks.normal(9, 21), np.full((5, 21), np.nan, "float32")
    run(index, x, y)
    want = np.zeros((5, 21))
    np.add.at(want, index, x.astype("float64"))
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SCAN.replace("H[vi - 1, vj]", "X[vi - 1, vj]"),
         "no block depends on its earlier iterations"),
        (ALONG_ROWS.replace("H[vi, vj - 1]", "H[5 - vi, vj - 1]"),
         "a block depends on its earlier iterations along every axis"),
        (SCATTER.replace("Y[vi, vj] = 0.0", "Y[vi, vj] = 0.0", 1)
         .replace("for i, j in T.grid(9, 21):\n        with T.block(\"add\"):\n"
                  "            vi = T.axis.opaque(9, i)",
                  "for i, j in T.grid(5, 21):\n        with T.block(\"add\"):\n"
                  "            vi = T.axis.spatial(5, i)")
         .replace("Y[I[vi], vj] = Y[I[vi], vj] + X[vi, vj]", "Y[vi, vj] = Y[vi, vj] + X[vi, vj]"),
         "no block depends on its earlier iterations"),
    ],
    ids=["reads another buffer", "mirrored rows", "in place"],
)  # fmt: skip
def test_what_is_refused_says_why(checks: Any, text: str, reason: str) -> None:
    assert checks.refusal("recurrence", program(text)) == reason

"""Vectorized loops of any length: leftovers of one lane are no vectors."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw

COUNTS = [1, 2, 3, 5, 7, 17, 33, 95, 97, 98, 127, 193, 289]
FUNCTION = """
    @T.prim_func
    def f{n}(A: T.Buffer(({n},), "{t}"), B: T.Buffer(({n},), "{t}"),
             C: T.Buffer(({n},), "float32"), D: T.Buffer(({n},), "bool"),
             E: T.Buffer(({n},), "int32")):
        for i in T.vectorized({n}):
            with T.block("B"):
                vi = T.axis.spatial({n}, i)
                T.where(i % 3 != 1)
                B[vi] = T.Select(D[vi], A[vi], T.{t}(3))
        for i in T.vectorized({n}):
            with T.block("C"):
                vi = T.axis.spatial({n}, i)
                C[vi] = T.Cast("float32", A[vi]) + T.Cast("float32", vi < 2)
        for i in T.vectorized({n}):
            with T.block("E"):
                vi = T.axis.spatial({n}, i)
                E[vi] = (T.Cast("int32", A[vi] < A[0]) + T.Cast("int32", vi)
                         + T.if_then_else(vi < {half}, E[vi], 5))
"""


@pytest.mark.parametrize("kind", ["int8", "int32", "int64", "float16", "float32", "float64"])
def test_every_length(kind: str) -> None:
    parts = [FUNCTION.format(n=n, t=kind, half=(n + 1) // 2) for n in COUNTS]
    module = bw.build(bw.from_source("@I.ir_module\nclass M:" + "".join(parts)))
    for n in COUNTS:
        rng, i, dtype = np.random.default_rng(n), np.arange(n), np.dtype(kind)
        a, d = rng.integers(0, 9, n).astype(dtype), rng.integers(0, 2, n).astype(bool)
        b, c, e = np.zeros(n, dtype), np.zeros(n, "float32"), i.astype("int32")
        module[f"f{n}"](a, b, c, d, e)
        chosen = np.where(d, a, dtype.type(3))
        np.testing.assert_array_equal(b, np.where(i % 3 != 1, chosen, dtype.type(0)))
        np.testing.assert_array_equal(c, a.astype("float32") + (i < 2))
        rest = np.where(i < (n + 1) // 2, i, 5)
        np.testing.assert_array_equal(e, (a < a[0]) + i + rest)

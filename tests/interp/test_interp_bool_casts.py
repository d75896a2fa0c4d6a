"""Casts from and to bool: of comparisons of indices, of elements, of lanes."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw

TYPES = ["int8", "uint8", "int32", "int64", "float16", "float32", "float64"]
CONDITIONS = {
    "j < 2": lambda j, a: j < 2,
    "not j < 2": lambda j, a: ~(j < 2),
    "j < 2 and A[j] > 1": lambda j, a: (j < 2) & (a > 1),
    "j < 2 or A[j] > 1": lambda j, a: (j < 2) | (a > 1),
    "A[j] > 1": lambda j, a: a > 1,
    "T.Select(A[j] > 1, j < 2, j > 3)": lambda j, a: np.where(a > 1, j < 2, j > 3),
    "T.if_then_else(j > 1, j < 3, j == 0)": lambda j, a: np.where(j > 1, j < 3, j == 0),
    'T.Cast("bool", j)': lambda j, a: j != 0,
    'T.Cast("bool", j % 2)': lambda j, a: j % 2 != 0,
    'T.Cast("bool", A[j])': lambda j, a: a != 0,
    "T.likely(j < 2)": lambda j, a: j < 2,
}


@pytest.mark.parametrize("kind", ["serial", "vectorized"])
@pytest.mark.parametrize("text", CONDITIONS)
def test_cast_of_truth_values(text: str, kind: str) -> None:
    stores = "\n".join(f'        B{k}[j] = T.Cast("{t}", {text})' for k, t in enumerate(TYPES))
    params = ", ".join(f'B{k}: T.Buffer((7,), "{t}")' for k, t in enumerate(TYPES))
    func = bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer((7,), "int32"), {params}):
    for j in T.{kind}(7):
{stores}
""")
    a, j = np.array([0, 1, 2, 0, 3, 1, 2], "int32"), np.arange(7)
    right = CONDITIONS[text](j, a)
    found = [np.full(7, 9, t) for t in TYPES]
    bw.interpret(func, a, *found)
    for x in found:
        np.testing.assert_array_equal(x, right.astype(x.dtype))

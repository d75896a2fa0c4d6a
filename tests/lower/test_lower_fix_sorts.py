"""Scalar parameters that are indices, since a domain uses them, remain so in all passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright.build import build
from blockwright.ir.attributes import INDEX_PARAMS
from blockwright.lower import lower

HEAD = """
@T.prim_func
def main(A: T.Buffer((12,), "int32"), B: T.Buffer((8,), "int32"), k: T.int32, m: T.int32):
    """
ELEMENT = "A[(k << 7) % 12]"
CASES = {
    "a bound that gets a name": (
        f"for i in range(T.min({ELEMENT}, 8)):\n        A[8] = 2\n        B[i] = 1 + A[i]"
    ),
    "a loop without iterations": (
        f"for i in range(T.min(k, 0)):\n        B[i] = 7\n    B[0] = {ELEMENT}"
    ),
    "a bound without its load": (
        f"for i in range(T.min(A[0] * 0 + k, 2)):\n        A[0] = 7\n        B[i] = {ELEMENT}"
    ),
    "a condition that becomes a bound": (
        'for i in T.serial(8, annotations={"loop_partition": True}):\n'
        f"        if i < k:\n            B[i] = 1\n        else:\n            B[i] = {ELEMENT}"
    ),
    "the domain of an iterator": (
        f'with T.block("b"):\n        v = T.axis.opaque(T.max(k, 1), 0)\n        B[v] = {ELEMENT}'
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_indices_remain_indices(case: str) -> None:
    """As an index, `k << 7` is exact; as a value, it is the number modulo 2**32."""
    func: Any = bw.from_source(HEAD + CASES[case] + "\n")
    run = build(func)["main"]
    for k in (2**31 - 1, 1, 5, -(2**31)):
        wanted, found = _arrays(), _arrays()
        bw.interpret(func, *wanted, k, 0)
        run(*found, k, 0)
        for x, y in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(y, x)


def test_numbers() -> None:
    func: Any = bw.from_source(HEAD + CASES["a loop without iterations"] + "\n")
    a, b = _arrays()
    build(func)["main"](a, b, 2**31 - 1, 0)
    assert b[0] == (2**31 - 1) * 2**7 % 12 == 8


def test_the_attribute_names_those_that_are() -> None:
    func: Any = bw.from_source(f"{HEAD}for i in range(T.min(k, 8)):\n        B[i] = A[m % 12]\n")
    assert lower(func).attrs[INDEX_PARAMS] == ("k",)
    plain: Any = bw.from_source(
        "@T.prim_func\ndef main(B: T.Buffer((8,), 'int32')):\n    B[0] = 1\n"
    )
    assert INDEX_PARAMS not in lower(plain).attrs


def _arrays() -> list[Any]:
    return [np.arange(12, dtype="int32"), np.zeros(8, "int32")]

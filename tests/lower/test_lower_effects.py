"""Operations with effects inside of expressions run once each and in order, whatever becomes of the
expressions around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright.build import build

HEAD = """
@T.prim_func
def main(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32"), n: T.int32):
    """

CASES: dict[str, tuple[str, list[int], list[int]]] = {
    # statements, A and B afterwards; before, A is 1 … 8 and B is 0
    "a load before it": ("B[0] = A[0] * 10 + T.atomic_add(A[0], 5)", [6], [11]),
    "loads around it": (
        "B[0] = A[0] * 100 + T.atomic_add(A[0], 5) * 10 + A[0]", [6], [116],
    ),
    "the value before the index": ("B[A[0]] = T.atomic_add(A[0], 5)", [6], [0, 0, 0, 0, 0, 0, 1]),
    "an index": ("B[T.atomic_add(A[0], 1)] = A[0]", [2], [0, 1]),
    "an operand of another": (
        "B[0] = T.atomic_add(A[T.atomic_add(A[1], 1)], A[1])", [1, 3, 5], [3],
    ),
    "a condition that always holds": (
        "B[0] = T.if_then_else(T.atomic_add(A[0], 1) % 2 < 2, 3, 4)", [2], [3],
    ),
    "a condition that never holds": (
        "if T.atomic_add(A[0], 1) % 2 > 5:\n        B[0] = 9", [2], [],
    ),
    "a condition of nothing": (
        "if T.atomic_add(A[0], 1) > 0:\n        for i in range(0):\n            B[0] = 9", [2], [],
    ),
    "a selection": ("B[0] = T.Select(T.atomic_add(A[0], 1) % 2 < 2, 3, 4)", [2], [3]),
    "the branch taken": (
        "B[0] = T.if_then_else(n > 3, T.atomic_add(A[0], 1), T.atomic_add(A[1], 1)) + A[0]",
        [2], [3],
    ),
    "the second operand of and": (
        "for i in range(4):\n"
        "        if i > n - 3 and T.atomic_add(A[i], 5) > 3:\n            B[i] = 9",
        [1, 2, 8, 9], [0, 0, 0, 9],
    ),
    "the second operand of or": (
        "for i in range(4):\n"
        "        if i > n - 3 or T.atomic_add(A[i], 5) > 1:\n            B[i] = 9",
        [6, 7], [0, 9, 9, 9],
    ),
    "a loop condition": (
        "while T.atomic_add(A[0], 1) < 4:\n"
        "        if A[0] == 3:\n            continue\n        B[A[0]] = 7",
        [5], [0, 0, 7, 0, 7],
    ),
    "an assertion": ("assert T.atomic_add(A[0], 1) < 4, \"few\"\n    B[0] = A[0]", [2], [2]),
    "in lanes": (
        "for i in T.vectorized(4):\n"
        "        B[i] = T.if_then_else(i < n - 2, T.atomic_add(A[i], 1), 0) + A[i]",
        [2, 3], [3, 5, 3, 4],
    ),
}  # fmt: skip


def _arrays() -> list[Any]:
    return [np.arange(1, 9, dtype="int32"), np.zeros(8, "int32")]


@pytest.mark.parametrize("sanitize", [(), ("bounds",)])
@pytest.mark.parametrize("case", CASES)
def test_effects_take_place_once_and_in_order(case: str, sanitize: tuple[str, ...]) -> None:
    statements, a, b = CASES[case]
    func = bw.from_source(HEAD + statements + "\n")
    first, zeros = _arrays()
    wanted = [np.r_[a, first[len(a) :]], np.r_[b, zeros[len(b) :]]]
    ours, theirs = _arrays(), _arrays()
    bw.interpret(func, *ours, 4)
    build(func, sanitize=sanitize)["main"](*theirs, 4)
    np.testing.assert_array_equal(ours, wanted)
    np.testing.assert_array_equal(theirs, wanted)


def test_a_checked_result_is_computed_once() -> None:
    """The check repeats the index, but not the update that the index is the result of."""
    func = bw.from_source(
        HEAD + "for i in range(8):\n"
        "        if A[i] > n:\n"
        "            B[T.checked_index(T.atomic_add(A[0], 1), 8)] = A[i]\n"
    )
    a, b = _arrays()
    build(func)["main"](a, b, 4)
    np.testing.assert_array_equal(a, [5, 2, 3, 4, 5, 6, 7, 8])
    np.testing.assert_array_equal(b, [0, 5, 6, 7, 8, 0, 0, 0])

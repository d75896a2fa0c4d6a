"""What a script writes once is evaluated once, where it is written: in Python's order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

HEAD = """
@T.prim_func
def main(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")):
    """
NEXT = "T.atomic_add(A[0], 1)"
CASES = {
    # statements, and the elements at the beginning of A and B afterwards; A is 1 … 8 and B is 0
    "a start": (f"for i in range({NEXT}, 4):\n        B[i] = 7", [2], [0, 7, 7, 7]),
    "a start and the stop after it": (
        "for i in range(A[0], T.atomic_add(A[0], 1) + 3):\n        B[i] = 7", [2], [0, 7, 7, 7],
    ),
    "a start with a step": (
        f"for i in range({NEXT}, 6, 2):\n        B[i] = i", [2], [0, 1, 0, 3, 0, 5],
    ),
    "a start that the body changes": (
        "for i in range(A[0], 6, 2):\n        A[0] = A[0] + 1\n        B[i] = i",
        [4], [0, 1, 0, 3, 0, 5],
    ),
    "a start with a step back": (
        "for i in range(A[4], A[0], -2):\n        A[4] = 0\n        A[0] = 0\n        B[i] = i",
        [0, 2, 3, 4, 0], [0, 0, 0, 3, 0, 5],
    ),
    "a start in a block": (
        "for i in range(A[0], 6, 2):\n        with T.block(\"b\"):\n"
        "            v = T.axis.opaque(8, i)\n            A[0] = A[0] + 1\n            B[v] = v",
        [4], [0, 1, 0, 3, 0, 5],
    ),
    "a start with a named value": (
        "for i in range(T.Let(q + q, where={q: A[0]}), 4):\n        B[i] = 7", [1], [0, 0, 7, 7],
    ),
    "a loop that is left": (
        f"for i in range({NEXT}, 8, 2):\n        if i > 4:\n            break\n        B[i] = 7",
        [2], [0, 7, 0, 7],
    ),
    "the index of an update": (f"B[{NEXT}] += 5", [2], [0, 5]),
    "an index that the added value changes": (f"B[A[0]] += {NEXT} * 5", [2], [0, 5]),
    "the element before the added value": (f"A[0] += {NEXT}", [2], []),
    "a middle operand": (f"if 0 < {NEXT} < 5:\n        B[0] = 7", [2], [7]),
    "the operand before the middle one": (
        f"if A[0] <= {NEXT} < A[0]:\n        B[0] = 7", [2], [7],
    ),
    "an operand of three": (f"if 0 < 1 < {NEXT} + 1 < 3:\n        B[0] = 7", [2], [7]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_once_is_evaluated_once(case: str) -> None:
    statements, a, b = CASES[case]
    func: Any = bw.from_source(HEAD + statements + "\n")
    again: Any = bw.from_source(func.script())
    first = np.arange(1, 9, dtype="int32")
    wanted = [np.r_[a, first[len(a) :]], np.r_[b, np.zeros(8 - len(b), "int32")]]
    for run in (
        lambda *arrays: bw.interpret(func, *arrays),
        lambda *arrays: bw.interpret(again, *arrays),
        bw.build(func)["main"],
    ):
        found = [first.copy(), np.zeros(8, "int32")]
        run(*found)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("loop", ["range(A[0], 8)", "range(2, A[0], 2)", "range(A[0], A[0] + 3)"])
def test_starts_that_are_evaluated_once_anyway_have_no_name(loop: str) -> None:
    func: Any = bw.from_source(f"{HEAD}for i in {loop}:\n        B[i] = i\n")
    assert not ir.collect(func.body, ir.LetStmt)

"""Loops that are left early keep their meaning through every pass that copies or splits loops."""

from __future__ import annotations

import numpy as np
import pytest

from blockwright.build import build
from blockwright.interp import interpret
from blockwright.script.ir import from_source

LOOPS = [
    "range(1)",
    "range(6)",
    "T.unroll(6)",
    "T.unroll(1)",
    'T.serial(6, annotations={"loop_partition": 1})',
    'T.serial(6, annotations={"pragma_auto_unroll_max_step": 64})',
]
BODIES = {
    "break after": "A[i] = 1\n        if n <= i:\n            break\n        A[i] += 2",
    "continue": "if i % 2 == n:\n            continue\n        A[i] = 7",
    "break first": "if i == 0:\n            if n == 0:\n                break\n        A[i] = 5",
    "inner only": "for j in range(3):\n            if j == n:\n                break\n"
                  "            A[i] += j",
    "partition": "if i < n:\n            A[i] = 3\n        if A[i] == 3 and i == 1:\n"
                 "            break",
}  # fmt: skip


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("body", BODIES)
def test_early_exit(loop: str, body: str) -> None:
    func = from_source(
        '@T.prim_func\ndef f(A: T.Buffer((6,), "int32"), B: T.Buffer((1,), "int32"), n: T.int32):\n'
        f"    for i in {loop}:\n        {BODIES[body]}\n    B[0] = A[0] + 1\n"
    )
    run = build(func)["f"]
    for n in range(4):
        mine, theirs = np.zeros(6, "int32"), np.zeros(6, "int32")
        b, c = np.zeros(1, "int32"), np.zeros(1, "int32")
        interpret(func, mine, b, n)
        run(theirs, c, n)
        np.testing.assert_array_equal(mine, theirs, err_msg=f"n = {n}")
        assert b == c

"""One error lists all violations of a program."""

from __future__ import annotations

import pytest

import blockwright as bw
from tests.analysis.validated import codes, message, program

ALLOCATED = 'C = T.alloc_buffer((32, 32), "float32")'


def test_all_problems_come_at_once_with_the_program_marked() -> None:
    func = program("""
for i in range(32):
    with T.block("first"):
        v1 = T.axis.spatial(32, i)
        v2 = T.axis.spatial(64, i * 2)
        T.reads()
        T.writes(B[0:32, 0:32])
        B[v1, v2 % 32] = T.float32(1)
for i in range(33):
    with T.block("second"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = C[vi, 0]
""", allocate=ALLOCATED)  # fmt: skip
    assert codes(func) == ["BW233", "BW232", "BW235"]
    text = message(func)
    assert text.count("def main(") == 1
    assert "^" * 4 in text.split("def main(")[1]
    with pytest.raises(bw.ValidationError):
        bw.build(func)

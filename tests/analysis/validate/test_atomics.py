"""Atomic updates that are not valid."""

from __future__ import annotations

import pytest

from tests.analysis.validated import problems, program


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("T.atomic_add(B[0, 0], 1)", "combines a int32"),
        ("T.atomic_and(B[0, 0], T.float32(1))", "only integers and booleans"),
        ("T.atomic_add(A[0, 0] + T.float32(1), T.float32(1))", "takes an element"),
        ("T.atomic_add(L[0], T.float32(1))", "which no other thread sees"),
    ],
)
def test_atomic_updates_that_have_no_meaning(call: str, why: str) -> None:
    found = problems(program(f"""
with T.block("B"):
    T.reads(A[0, 0], B[0, 0], L[0])
    T.writes(B[0, 0], L[0])
    {call}
""", allocate='L = T.alloc_buffer((1,), "float32", scope="local")'))  # fmt: skip
    assert found[0][0] == "BW217"
    assert why in found[0][1]

"""Accesses that happen for certain."""

from __future__ import annotations

from tests.analysis.validated import codes, program


def test_values_with_names_are_reads_like_others() -> None:
    """Iteration i reads what iteration i + 1 writes."""
    body = """
for i in T.parallel(31):
    with T.block("B"):
        vi = T.axis.spatial(31, i)
        next: T.float32 = B[vi + 1, 0]
        B[vi, 0] = next * 2.0
"""
    assert codes(program(body)) == ["BW240"]
    assert codes(program(body.replace("T.parallel", "T.serial"))) == []


def test_what_stands_behind_a_jump_may_not_happen() -> None:
    """Elements from the tenth on have no value; the loop is left before it reads them."""
    body = """
for i in range(10):
    with T.block("C"):
        vi = T.axis.spatial(10, i)
        C[vi] = A[vi, 0]
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        for j in range(32):
            if j >= 10:
                break
            B[vi, j] = C[j]
"""
    allocate = 'C = T.alloc_buffer((32,), "float32")'
    assert codes(program(body, allocate=allocate)) == []
    assert codes(
        program(body.replace("j >= 10", "j >= 40").replace("break", "pass"), allocate=allocate)
    ) == ["BW235"]

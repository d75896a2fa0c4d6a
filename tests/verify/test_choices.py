"""Programs that choose by their sizes how to go on."""

from __future__ import annotations

import pytest

pytest.importorskip("islpy")

import blockwright as bw
from blockwright import ir

BEFORE = """
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    for i in range(n):
        with T.block("B"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi] * 2.0
"""
HEAD = BEFORE[: BEFORE.index("    for i")]


def after(condition: str, few: str, many: str = "A[n - 1 - vi] * 2.0") -> ir.PrimFunc:
    return bw.from_source(f"""{HEAD}
    if {condition}:
        for i in range(n):
            with T.block("few"):
                vi = T.axis.spatial(n, i)
                B[vi] = {few}
    else:
        for i in T.parallel(n):
            with T.block("many"):
                vi = T.axis.spatial(n, n - 1 - i)
                B[n - 1 - vi] = {many}
""")


def test_each_choice_is_proved_alone() -> None:
    found = bw.verify(bw.from_source(BEFORE), after("n * n * n < 9", "A[vi] * 2.0"))
    assert found.verdict == "proved"


def test_a_choice_that_is_right_where_it_is_made() -> None:
    """Alone it is not: the condition counts."""
    found = bw.verify(bw.from_source(BEFORE), after("n < 2", "A[0] * 2.0"))
    assert found.verdict == "proved"


@pytest.mark.parametrize("sides", [("A[vi] * 3.0",), ("A[vi] * 2.0", "A[vi] * 2.0")])
def test_a_wrong_choice_is_refuted(sides: tuple[str, ...]) -> None:
    found = bw.verify(bw.from_source(BEFORE), after("n < 3", *sides))
    assert found.verdict == "refuted"

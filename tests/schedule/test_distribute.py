"""distribute: one loop per statement, and the exchanges between statements that forbid it."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import Schedule, ScheduleError
from blockwright.testing import assert_same_meaning

HEAD = """
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32"),
         C: T.Buffer((8,), "float32"), N: T.Buffer((1,), "int64")):
"""
ROW_SUMS = """
    for i in range(8):
        for j in range(8):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * 2.0
        for j in range(8):
            with T.block("C"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    C[vi] = 0.0
                C[vi] = C[vi] + B[vi, vj]
"""


def schedule(body: str) -> Schedule:
    func = bw.from_source(HEAD + body)
    assert isinstance(func, ir.PrimFunc)
    return Schedule(func, verify="full")


def test_each_statement_gets_its_loop() -> None:
    sch = schedule(ROW_SUMS)
    first, second = sch.distribute(sch.get_loops("B")[0])
    assert sch.get(sch.get_loops("B")[0]) is sch.get(first)
    assert sch.get(sch.get_loops("C")[0]) is sch.get(second)
    assert_same_meaning(schedule(ROW_SUMS).func, sch.func)
    assert bw.verify(schedule(ROW_SUMS).func, sch.func)


def test_the_inverse_of_merge() -> None:
    """The parts have the bounds of the loop, whatever it starts at."""
    for low in (0, 3):
        sch = schedule(ROW_SUMS.replace("for i in range(8)", f"for i in range({low}, 8)"))
        before = sch.func
        sch.merge(*sch.distribute(sch.get_loops("B")[0]))
        ir.assert_structural_equal(sch.func, before)


def test_statements_under_conditions_and_symbols() -> None:
    text = """
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, 4), "float32")
    B = T.match_buffer(b, (n, 4), "float32")
    for i in range(n):
        if i > 2:
            with T.block("first"):
                vi = T.axis.spatial(n, i)
                B[vi, 0] = A[vi, 0]
        for j in range(3):
            with T.block("rest"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj + 1] = A[vi, vj] + A[vi, vj + 1]
"""
    func = bw.from_source(text)
    sch = Schedule(func, verify="full")
    sch.distribute(sch.get_loops("rest")[0])
    above = {name: len(sch.get_loops(name)) for name in ("first", "rest")}
    assert above == {"first": 1, "rest": 2}
    assert sch.get(sch.get_loops("first")[0]) is not sch.get(sch.get_loops("rest")[0])
    for n in (1, 5):
        assert_same_meaning(func, sch.func, sizes={"n": n})


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (ROW_SUMS.replace("for i in range(8)", "for i in T.parallel(8)"), "BW312"),
        (ROW_SUMS.split("        for j in range(8):\n            with T.block(\"C\")")[0], "BW310"),
        (ROW_SUMS.replace("B[vi, vj]\n", "B[7 - vi, vj]\n", 1), "BW316"),
        (ROW_SUMS.replace("range(8):\n        for j", "range(N[0]):\n        for j", 1)
         + "        with T.block(\"N\"):\n            N[0] = T.int64(1)\n", "BW350"),
    ],
    ids=["parallel", "one statement", "read in other iterations", "bounds that it writes"],
)  # fmt: skip
def test_what_is_refused(body: str, code: str) -> None:
    sch = schedule(body)
    before = sch.func
    with pytest.raises(ScheduleError) as caught:
        sch.distribute(sch.get_loops("B")[0])
    assert caught.value.code == code, caught.value
    assert sch.func is before

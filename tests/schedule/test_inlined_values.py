"""Inlining an index into a reader of values: arithmetic in the reader goes on wrapping around."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

MOST = 2147483647
A = np.array([MOST, -MOST - 1, 0, 5, -3, MOST - 1, 1, 2], "int32")

CASES = {
    "a constant": ("2147483647", "B[vi] + vi > vi"),
    "an iterator": ("vi", "B[vi] + 2147483647 > B[vi]"),
    "a sum": ("vi + 2147483640", "B[vi] + 3 > 3"),
    "a product": ("vi * 268435456", "B[vi] * 2 < B[vi] * 3"),
    "a choice": ("T.Select(vi < 3, 2147483647, 0)", "B[vi] + 1 > B[vi]"),
    "in a condition": ("vi", "T.Select(B[vi] < 3, 2147483647, 0) + 1 > 0"),
    "an extremum": ("T.max(vi, 2147483647)", "T.max(B[vi], vi) + 1 > 0"),
    "nested": ("vi + 2147483600", "(B[vi] + B[vi]) // 2 == B[vi]"),
}


def program(stored: str, read: str) -> ir.PrimFunc:
    func = bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "bool")):
    B = T.alloc_buffer((8,), "int32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = {stored}
    for i in range(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = {read}
""")
    assert isinstance(func, ir.PrimFunc)
    return func


def results(func: ir.PrimFunc) -> list[np.ndarray]:
    interpreted, built = np.zeros(8, "bool"), np.zeros(8, "bool")
    bw.interpret(func, A.copy(), interpreted)
    bw.build(func)["main"](A.copy(), built)
    return [interpreted, built]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("reverse", [False, True])
def test_inlined_indices_wrap_as_the_loads_did(case: tuple[str, str], reverse: bool) -> None:
    func = program(*case)
    schedule = bw.Schedule(func)
    if reverse:
        schedule.reverse_compute_inline("C")
    else:
        schedule.compute_inline("B")
    before, after = results(func), results(schedule.func)
    for found in (*before[1:], *after):
        np.testing.assert_array_equal(found, before[0])
    again = bw.from_source(schedule.func.script())
    assert isinstance(again, ir.PrimFunc)
    np.testing.assert_array_equal(results(again)[0], before[0])


def test_what_cannot_wrap_is_inlined_as_an_index() -> None:
    schedule = bw.Schedule(program("vi * 2", "A[(B[vi] + 1) // 3] > B[vi] + 5"))
    schedule.compute_inline("B")
    assert "reinterpret" not in schedule.func.script()


DIFFERENCES = {
    "a sum": "(A[vi] - A[vi] + 2147483647) + vi > vi",
    "a shift": "T.shift_left(A[vi] - A[vi] + 1, vi + 24) < 0",
    "an extremum": "T.max(A[vi] - A[vi] + 2147483647, vi) + 1 > 0",
    "a choice of equals": "T.Select(A[vi] > 0, vi, vi) + 2147483647 > vi",
}


@pytest.mark.parametrize("text", DIFFERENCES.values(), ids=DIFFERENCES.keys())
def test_a_value_that_folds_to_a_constant_goes_on_wrapping(text: str) -> None:
    interpreted, built = results(program("0", f"B[vi] == 0 and {text}"))
    np.testing.assert_array_equal(built, interpreted)


def test_a_name_of_a_value_that_folds_to_a_constant_wraps() -> None:
    func = bw.from_source("""
@T.prim_func
def main(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "bool")):
    for i in range(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            v: T.int32 = A[vi] - A[vi] + 2147483647
            C[vi] = v + vi > vi
""")
    assert isinstance(func, ir.PrimFunc)
    for found in results(func):
        np.testing.assert_array_equal(found, [True] + 7 * [False])


VECTORS = """
@T.prim_func
def main(A: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")):
    B = T.alloc_buffer((16,), "float32")
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            B[vi * 4:vi * 4 + 4] = A[vi * 4:vi * 4 + 4] * T.Broadcast(T.float32(2), 4)
    for i in range(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[T.Ramp(vi * 4, 1, 4)] = B[T.Ramp(vi * 4, 1, 4)]
"""


def test_stores_of_vectors_are_not_inlined() -> None:
    schedule = bw.Schedule(bw.from_source(VECTORS))
    with pytest.raises(bw.ScheduleError, match=r"BW359.*stores vectors to B"):
        schedule.compute_inline("B")
    with pytest.raises(bw.ScheduleError, match=r"BW359.*stores vectors to B"):
        schedule.reverse_compute_inline("C")
    schedule.sample_compute_location("B")

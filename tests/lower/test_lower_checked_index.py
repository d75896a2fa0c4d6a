"""`checked_index`: one assertion in front of the loops that the index does not depend on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.interp import interpret
from blockwright.ir import PrimFunc
from blockwright.ir import stmt as S
from blockwright.lower import lower
from blockwright.script import tir as T
from blockwright.support import ArgumentError, InterpretError

Check = Callable[..., PrimFunc]


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype("float32")


def ids(*values: int) -> np.ndarray:
    return np.array(values, "int32")


def depth(func: PrimFunc, wanted: type[ir.Node]) -> list[int]:
    """How many loops stand around each node of a type."""
    found: list[int] = []

    def visit(node: ir.Node, loops: int) -> None:
        if isinstance(node, wanted):
            found.append(loops)
        for child in node.children():
            visit(child, loops + isinstance(node, ir.For))

    visit(func.body, 0)
    return found


@T.prim_func
def rows(W: T.Buffer((5, 32)), index: T.Buffer((3,), "int32"), B: T.Buffer((3, 32))):
    for i in T.parallel(3):
        for j0 in range(2):
            for j in T.vectorized(16):
                B[i, j0 * 16 + j] = W[T.checked_index(index[i], 5), j0 * 16 + j]


def test_a_row_is_checked_once_and_its_loop_stays_a_vector(same_result: Check) -> None:
    lowered = same_result(rows, floats(5, 32), ids(4, 0, 2), floats(3, 32))
    assert depth(lowered, S.AssertStmt) == [1]
    (store,) = ir.collect(lowered.body, ir.BufferStore)
    assert store.value.dtype.lanes == 16
    assert "lower.notes" not in lowered.attrs
    (check,) = ir.collect(lowered.body, S.AssertStmt)
    assert check.message == (
        "BW708: rows: an index read from index is out of range: it must be at "
        "least 0 and less than 5"
    )


@pytest.mark.parametrize("bad", [5, -1, 2**31 - 1, -(2**31)])
def test_both_sides_are_checked(bad: int, run: Callable[..., Any]) -> None:
    arrays = floats(5, 32), ids(4, bad, 2), floats(3, 32)
    with pytest.raises(Exception, match="BW708: rows: an index read from index"):
        run(lower(rows, "x86-64"), *arrays)
    with pytest.raises(InterpretError, match=f"index {bad} is out of range") as caught:
        interpret(rows, *arrays)
    assert caught.value.code == "BW708"


def test_an_index_that_changes_with_the_lane_is_checked_in_front(same_result: Check) -> None:
    @T.prim_func
    def pick(A: T.Buffer((9,)), index: T.Buffer((24,), "int32"), B: T.Buffer((24,))):
        for i in range(3):
            for j in T.vectorized(8):
                B[i * 8 + j] = A[T.checked_index(index[i * 8 + j], 9)]

    index = np.arange(24, dtype="int32") % 9
    lowered = same_result(pick, floats(9), index, floats(24))
    assert depth(lowered, S.AssertStmt) == [2]
    (store,) = ir.collect(lowered.body, ir.BufferStore)
    assert store.value.dtype.lanes == 8


def test_what_a_choice_does_not_take_is_not_checked(same_result: Check, run: Any) -> None:
    @T.prim_func
    def guarded(A: T.Buffer((4,)), index: T.Buffer((6,), "int32"), B: T.Buffer((6,))):
        for i in range(6):
            B[i] = T.if_then_else(index[i] >= 0, A[T.checked_index(index[i], 4)], T.float32(0))

    lowered = same_result(guarded, floats(4), ids(0, -1, 3, -7, 2, 1), floats(6))
    with pytest.raises(Exception, match="BW708"):
        run(lowered, floats(4), ids(0, -1, 4, -7, 2, 1), floats(6))


def test_tails_and_empty_loops_check_what_they_use(same_result: Check, run: Any) -> None:
    @T.prim_func
    def tails(w: T.handle, index: T.Buffer((4,), "int32"), b: T.handle):
        n = T.int64()
        W = T.match_buffer(w, (5, n))
        B = T.match_buffer(b, (4, n))
        for i in range(4):
            for j0 in range((n + 7) // 8):
                for j in T.vectorized(8):
                    if j0 * 8 + j < n:
                        B[i, j0 * 8 + j] = W[T.checked_index(index[i], 5), j0 * 8 + j]

    good, bad = ids(4, 0, 2, 1), ids(4, 0, 9, 1)
    for n in (1, 8, 13, 0):
        lowered = same_result(tails, floats(5, n), good, floats(4, n))
    assert depth(lowered, S.AssertStmt) == [1]
    run(lowered, floats(5, 0), bad, floats(4, 0))  # no element is read, so no index counts
    with pytest.raises(Exception, match="BW708"):
        run(lowered, floats(5, 3), bad, floats(4, 3))


def test_indices_made_in_the_same_loop_are_checked_after_they_are_made(same_result: Check) -> None:
    @T.prim_func
    def made(A: T.Buffer((4,)), key: T.Buffer((6,), "int32"), B: T.Buffer((6, 3))):
        t = T.alloc_buffer((1,), "int32")
        for i in range(6):
            t[0] = key[i] // 2
            for j in range(3):
                B[i, j] = A[T.checked_index(t[0], 4)]

    lowered = same_result(made, floats(4), ids(0, 2, 7, 5, 3, 1), floats(6, 3))
    assert depth(lowered, S.AssertStmt) == [1]


def test_an_index_of_an_index_is_checked_from_inside_out(run: Callable[..., Any]) -> None:
    @T.prim_func
    def twice(
        A: T.Buffer((4,)), f: T.Buffer((3,), "int32"), g: T.Buffer((2,), "int32"), B: T.Buffer((2,))
    ):
        for i in range(2):
            B[i] = A[T.checked_index(f[T.checked_index(g[i], 3)], 4)]

    lowered = lower(twice, "x86-64")
    run(lowered, floats(4), ids(3, 2, 1), ids(0, 2), floats(2))
    with pytest.raises(Exception, match="read from g is"):
        run(lowered, floats(4), ids(3, 2, 9), ids(0, 3), floats(2))
    with pytest.raises(Exception, match="read from f, g is"):
        run(lowered, floats(4), ids(3, 2, 9), ids(0, 2), floats(2))


def test_a_loop_condition_is_checked_at_every_turn(run: Callable[..., Any]) -> None:
    @T.prim_func
    def chase(next_: T.Buffer((5,), "int32"), at: T.Buffer((1,), "int32")):
        while next_[T.checked_index(at[0], 5)] != at[0]:
            at[0] = next_[at[0]]

    lowered = lower(chase, "x86-64")
    _, at = run(lowered, ids(2, 1, 4, 1, 3), ids(0))
    assert at[0] == 1
    with pytest.raises(Exception, match="BW708"):
        run(lowered, ids(2, 1, 4, 1, 5), ids(0))


def test_surely_valid_indices_need_no_assertion() -> None:
    @T.prim_func
    def sure(A: T.Buffer((12,)), B: T.Buffer((3, 4))):
        for i, j in T.grid(3, 4):
            B[i, j] = A[T.checked_index(i * 4 + j, 12)]

    assert not ir.collect(lower(sure, "x86-64").body, S.AssertStmt)


BETWEEN = {
    "an update whose result is named": "old: T.int32 = T.atomic_add(index[0], STEP)\n    LOAD",
    "an update whose result is stored": "B[1] = T.atomic_add(index[0], STEP)\n    LOAD",
    "a view of another type": (
        'V = T.decl_buffer((4,), "uint32", data=index.data)\n'
        '    for i in range(2):\n        LOAD\n        V[0] = T.Cast("uint32", index[0] + STEP)'
    ),
    "a view declared in the loop": (
        "for i in range(2):\n        LOAD\n"
        '        V = T.decl_buffer((4,), "uint32", data=index.data)\n'
        '        V[0] = T.Cast("uint32", index[0] + STEP)'
    ),
    "an update in the loop": (
        "for i in range(2):\n        LOAD\n        B[1] = T.atomic_add(index[0], STEP)"
    ),
}


@pytest.mark.parametrize("step", [-5, 5])
@pytest.mark.parametrize("between", BETWEEN)
def test_an_index_that_changes_is_checked_when_it_is_used(between: str, step: int) -> None:
    """Its element is changed by an atomic update, or through a view."""
    statements = BETWEEN[between].replace("LOAD", "B[0] = W[T.checked_index(index[0], 10)]")
    func = bw.from_source(
        "@T.prim_func\ndef main(W: T.Buffer((10,), 'int32'), index: T.Buffer((4,), 'int32'), "
        f"B: T.Buffer((2,), 'int32')):\n    {statements.replace('STEP', str(step))}\n"
    )
    run = build(func)["main"]
    late = "for i" in statements  # the first iteration comes before the change
    for start in range(10) if late else range(-6, 16):
        last = start + step
        arrays = np.arange(10, dtype="int32"), ids(start, 0, 0, 0), ids(0, 0)
        if 0 <= last < 10:
            run(*arrays)
            assert arrays[2][0] == last
        else:
            with pytest.raises(ArgumentError, match="BW708"):
                run(*arrays)


def test_loops_without_iterations_check_nothing() -> None:
    """As rows of different lengths have them: the index of an empty row need not exist."""
    func = bw.from_source("""
@T.prim_func
def main(
    n: T.Buffer((3,), "int32"), index: T.Buffer((3,), "int32"), W: T.Buffer((5,), "int32"),
    B: T.Buffer((3, 4), "int32"),
):
    for i in range(3):
        for j in range(n[i]):
            B[i, j] = W[T.checked_index(index[i], 5)]
""")
    b = np.zeros((3, 4), "int32")
    build(func)["main"](ids(2, 0, 1), ids(4, -1, 3), ids(0, 10, 20, 30, 40), b)
    np.testing.assert_array_equal(b, [[40, 40, 0, 0], [0, 0, 0, 0], [30, 0, 0, 0]])


@pytest.mark.parametrize("leave", ["break", "T.ret()"])
def test_iterations_after_an_exit_check_nothing(leave: str) -> None:
    func = bw.from_source(f"""
@T.prim_func
def main(
    A: T.Buffer((8,), "int32"), index: T.Buffer((1,), "int32"), W: T.Buffer((5,), "int32"),
    B: T.Buffer((8,), "int32"),
):
    for i in range(8):
        if i >= 4:
            B[i] = W[T.checked_index(index[0], 5)]
        if A[i] > 0:
            {leave}
""")
    run, w, b = build(func)["main"], ids(0, 10, 20, 30, 40), ids(*[0] * 8)
    run(ids(0, 0, 1, 0, 0, 0, 0, 0), ids(-1), w, b)
    run(ids(0, 0, 0, 0, 1, 0, 0, 0), ids(3), w, b)
    np.testing.assert_array_equal(b, [0, 0, 0, 0, 30, 0, 0, 0])
    with pytest.raises(ArgumentError, match="BW708"):
        run(ids(0, 0, 0, 0, 1, 0, 0, 0), ids(-1), w, b)

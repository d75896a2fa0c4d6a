"""What an iteration finds in a buffer may not be all that is written there: where places are data,
or a state changes from one iteration to the next, later ones write the same elements again. Who
would read them there, and did not, reads too early; who did, and would not, too late."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.testing import assert_same_meaning

_HEAD = """
@T.prim_func
def main(A: T.Buffer((4, 4), "float32"), rows: T.Buffer((4,), "int64"),
         D: T.Buffer((4,), "float32")):
    B = T.alloc_buffer((4, 4), "float32")
    C = T.alloc_buffer((4, 4), "float32")
    for i, j in T.grid(4, 4):
        with T.block("frame"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.float32(0)
    for i in range(4):
        for j in range(4):
            with T.block("put"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[PLACE, vj] = A[vi, vj]
"""
_COPY = """
for i, j in T.grid(4, 4):
    with T.block("copy"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = B[vi, vj]
"""
_READ = """
    for i in range(4):
        with T.block("read"):
            vi = T.axis.spatial(4, i)
            D[vi] = C[vi, 0] + C[vi, 3]
"""


def _indented(text: str, by: int) -> str:
    return "".join(" " * by + line + "\n" for line in text.strip().split("\n"))


def program(place: str, *, within: bool) -> ir.PrimFunc:
    """Rows of A put in B at `place`, copied to C behind all of them or behind each, and read."""
    text = _HEAD.replace("PLACE", place) + _indented(_COPY, 8 if within else 4) + _READ
    func = bw.from_source(text)
    assert isinstance(func, ir.PrimFunc)
    return func


def outer(sch: bw.Schedule, block: str) -> bw.Loop:
    return sch.get_loops(sch.get_block(block))[0]


def test_a_copy_does_not_move_to_where_rows_are_still_put() -> None:
    sch = bw.Schedule(program("rows[vi]", within=False))
    with pytest.raises(bw.ScheduleError, match="is not all that it writes to the same") as caught:
        sch.reverse_compute_at(sch.get_block("copy"), outer(sch, "put"))
    assert caught.value.code == "BW316"


def test_a_copy_moves_to_rows_that_are_put_once() -> None:
    func = program("vi", within=False)
    sch = bw.Schedule(func, verify="full")
    sch.reverse_compute_at(sch.get_block("copy"), outer(sch, "put"))
    assert_same_meaning(func, sch.func, exact=True)


def test_a_reader_of_copies_made_again_and_again_stays_behind_the_last() -> None:
    """The copies of every iteration hold all rows, and only those of the last hold what stays."""
    func = program("rows[vi]", within=True)
    assert_same_meaning(func, func)
    sch = bw.Schedule(func)
    with pytest.raises(bw.ScheduleError) as caught:
        sch.merge(outer(sch, "copy"), outer(sch, "read"))
    assert caught.value.code == "BW316"
    with pytest.raises(bw.ScheduleError) as caught:
        sch.reverse_compute_at(sch.get_block("read"), outer(sch, "copy"))
    assert caught.value.code == "BW316"


RUNNING = """
@T.prim_func
def main(A: T.Buffer((4, 4), "float32"), D: T.Buffer((4, 4), "float32")):
    S = T.alloc_buffer((4,), "float32")
    R = T.alloc_buffer((4, 4), "float32")
    for i, j in T.grid(4, 4):
        with T.block("change"):
            vi = T.axis.spatial(4, i)
            vj = T.axis.opaque(4, j)
            S[vi] = T.if_then_else(vj > 0, S[vi] * 0.5, T.float32(0)) + A[vi, vj]
        with T.block("take"):
            vi, vj = T.axis.remap("SS", [i, j])
            R[vi, vj] = S[vi] * 0.5
    for i, j in T.grid(4, 4):
        with T.block("use"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = R[vi, vj] + 1.0
"""


@pytest.mark.parametrize("order", ["opaque", "reduce"])
def test_what_is_taken_of_a_running_state_is_taken_there(order: str) -> None:
    func = bw.from_source(RUNNING.replace("opaque", order))
    assert isinstance(func, ir.PrimFunc)
    sch = bw.Schedule(func, verify="full")
    with pytest.raises(bw.ScheduleError, match="rewrites the input of block take") as caught:
        sch.compute_inline(sch.get_block("take"))
    assert caught.value.code == "BW316"
    sch.reverse_compute_inline(sch.get_block("use"))
    assert_same_meaning(func, sch.func, exact=True)


@pytest.mark.parametrize("outputs", [0, 1])
def test_a_copy_in_place_of_what_holds_values_alone(outputs: int) -> None:
    """An output holds nothing at first; there is nothing to copy in."""
    text = """
@T.prim_func
def main(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
    T.func_attr({"num_outputs": OUTPUTS})
    for i in range(4):
        with T.block("B"):
            vi = T.axis.opaque(4, i)
            B[vi] = A[vi] + T.if_then_else(vi > 0, B[T.max(vi - 1, 0)], T.float32(0))
"""
    func = bw.from_source(text.replace("OUTPUTS", str(outputs)))
    assert isinstance(func, ir.PrimFunc)
    sch = bw.Schedule(func, verify="full")
    if outputs:
        with pytest.raises(bw.ScheduleError, match="nothing writes B before") as caught:
            sch.cache_inplace(sch.get_block("B"), "B", "global")
        assert caught.value.code == "BW322"
    else:
        sch.cache_inplace(sch.get_block("B"), "B", "global")
        assert_same_meaning(func, sch.func, exact=True)


def test_what_is_read_between_two_makings_is_not_made_with_them() -> None:
    """Each iteration copies the whole state; "take" takes one element of it."""
    text = """
@T.prim_func
def main(A: T.Buffer((4,), "float32"), rows: T.Buffer((4,), "int64"),
         R: T.Buffer((4,), "float32")):
    S, C = T.alloc_buffer((4,), "float32"), T.alloc_buffer((4,), "float32")
    for i in range(4):
        with T.block("begin"):
            vi = T.axis.spatial(4, i)
            S[vi] = T.float32(0)
    for i in range(4):
        with T.block("change"):
            vi = T.axis.opaque(4, i)
            S[rows[vi]] = A[vi]
        for j in range(4):
            with T.block("copy"):
                vj = T.axis.spatial(4, j)
                C[vj] = S[vj]
        with T.block("take"):
            vi = T.axis.spatial(4, i)
            R[vi] = C[vi] * 2.0
"""
    sch = bw.Schedule(bw.from_source(text))
    with pytest.raises(bw.ScheduleError, match="is not all that it writes") as caught:
        sch.reverse_compute_inline(sch.get_block("take"))
    assert caught.value.code == "BW316"


def test_a_copy_in_place_stores_no_more_than_was_copied_in() -> None:
    """Five values in two rows of four: in the second iteration of rows three have none."""
    text = """
@T.prim_func
def main(A: T.Buffer((5,), "float32"), D: T.Buffer((5,), "float32")):
    B = T.alloc_buffer((2, 4), "float32")
    for o in range(5):
        for i in range(4):
            with T.block("begin"):
                vi = T.axis.spatial(5, o // 4 * 4 + i)
                T.where(o // 4 * 4 + i < 5)
                B[vi // 4, vi % 4] = A[vi]
        for i in range(4):
            with T.block("double"):
                vi = T.axis.spatial(5, o // 4 * 4 + i)
                T.where(o // 4 * 4 + i < 5)
                B[vi // 4, vi % 4] = B[vi // 4, vi % 4] * 2.0
        with T.block("D"):
            vo = T.axis.spatial(5, o)
            D[vo] = B[vo // 4, vo % 4]
"""
    func = bw.from_source(text)
    assert isinstance(func, ir.PrimFunc)
    sch = bw.Schedule(func, verify="full")
    sch.cache_inplace(sch.get_block("double"), "B", "global")
    assert_same_meaning(func, sch.func, exact=True)

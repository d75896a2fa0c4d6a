"""Loops whose extent depends on another loop: triangles, and what steps leave of them."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.support import ScriptError
from blockwright.testing import assert_same_meaning

TRIANGLE = """
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32")):
    for i in range(8):
        for j in range(i + 1):
            with T.block("B"):
                vi = T.axis.spatial(8, i)
                vj = T.axis.spatial(8, j)
                B[vi, vj] = A[vi, vj] * 2.0
"""


def triangle() -> ir.PrimFunc:
    func = bw.from_source(TRIANGLE)
    assert isinstance(func, ir.PrimFunc)
    return func


@pytest.mark.parametrize("preserve", [True, False])
def test_a_block_around_both_loops_keeps_the_domains(preserve: bool) -> None:
    sch = bw.Schedule(triangle(), verify="full")
    i, _ = sch.get_loops(sch.get_block("B"))
    sch.blockize(i, preserve_unit_iters=preserve)
    inner = sch.get(sch.get_block("B"))
    assert [ir.const_int(it.dom.extent) for it in inner.iter_vars] == [8, 8]
    assert_same_meaning(triangle(), sch.func, exact=True)


def test_no_block_takes_a_loop_and_leaves_the_one_that_it_depends_on() -> None:
    sch = bw.Schedule(triangle())
    with pytest.raises(bw.ScheduleError, match="extent of loop j depends on a loop") as caught:
        sch.blockize(sch.get_loops(sch.get_block("B"))[1])
    assert caught.value.code == "BW350"


def test_a_block_inside_of_both_has_no_loop_in_its_domains() -> None:
    sch = bw.Schedule(triangle(), verify="full")
    _, j = sch.get_loops(sch.get_block("B"))
    _, one = sch.split(j, [None, 1])
    sch.blockize(one)
    assert_same_meaning(triangle(), sch.func, exact=True)


def test_axes_over_such_loops_state_a_domain_of_their_own() -> None:
    text = TRIANGLE.replace("vi = T.axis.spatial(8, i)", 'vi, vj = T.axis.remap("SS", [i, j])')
    with pytest.raises(ScriptError, match="loop j depends on loop i") as caught:
        bw.from_source(text.replace("                vj = T.axis.spatial(8, j)\n", ""))
    assert caught.value.code == "BW107"


def test_what_is_not_well_formed_is_no_fault_of_the_first_step() -> None:
    func = bw.from_source(TRIANGLE.replace("T.axis.spatial(8, j)", "T.axis.spatial(i + 1, j)"))
    assert isinstance(func, ir.PrimFunc)
    with pytest.raises(bw.ValidationError, match="uses the loop variable i") as caught:
        bw.Schedule(func, verify="full")
    assert caught.value.code == "BW212"


def test_buffers_of_a_block_follow_its_iterators() -> None:
    """The size of T is the length of the row, which the iterator tells."""
    text = """
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("row"):
            vi = T.axis.spatial(8, i)
            T.reads(A[vi, 0:vi + 1])
            T.writes(B[vi])
            S = T.alloc_buffer((vi + 1,), "float32")
            for j in range(vi + 1):
                S[j] = A[vi, j] * 2.0
            B[vi] = S[vi]
"""
    func = bw.from_source(text)
    assert isinstance(func, ir.PrimFunc)
    sch = bw.Schedule(func, verify="full")
    sch.transform_block_layout(sch.get_block("row"), lambda i: (i // 4, i % 4))
    assert_same_meaning(func, sch.func, exact=True)
    sch = bw.Schedule(func, verify="full")
    loop = sch.split(sch.get_loops(sch.get_block("row"))[0], [None, 4])[1]
    sch.blockize(loop)
    assert_same_meaning(func, sch.func, exact=True)


def test_no_block_is_made_around_several_where_a_loop_has_no_iteration() -> None:
    """How many times nothing goes into an iterator has no answer."""
    text = """
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32")):
    C = T.alloc_buffer((8, 8), "float32")
    for r in range(8):
        for i, j in T.grid(0, 2):
            with T.block("C"):
                vr = T.axis.spatial(8, r)
                vc = T.axis.spatial(0, i * 2 + j)
                C[vr, vc] = A[vr, vc]
        for k in range(1):
            with T.block("B"):
                vr = T.axis.spatial(8, r)
                vk = T.axis.spatial(1, k)
                B[vr, vk] = A[vr, vk]
"""
    sch = bw.Schedule(bw.from_source(text), verify="full")
    with pytest.raises(bw.ScheduleError) as caught:
        sch.blockize([sch.get_block("C"), sch.get_block("B")])
    assert caught.value.code == "BW315"


LATE = """
@T.prim_func
def main(
    A: T.Buffer((8, 8, 8), "float32"), B: T.Buffer((8, 8, 8), "float32"),
    C: T.Buffer((8, 8), "float32"),
):
    for i, j, k in T.grid(8, 8, 8):
        with T.block("Z"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            B[vi, vj, vk] = 0.0
    for i, j in T.grid(8, 8):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = 0.0
    for i in range(8):
        for j in range(i - 3):
            for k in range(i - 4):
                with T.block("B"):
                    vi = T.axis.spatial(8, i)
                    vj = T.axis.spatial(8, j)
                    vk = T.axis.spatial(8, k)
                    B[vi, vj, vk] = A[vi, vj, vk] * 2.0
        for l in range(i):
            with T.block("C"):
                vi = T.axis.spatial(8, i)
                vl = T.axis.spatial(8, l)
                C[vi, vl] = A[vi, vl, 0]
"""


def test_two_loops_of_less_than_no_iterations_fuse_to_one_of_none() -> None:
    """In the first rows both extents are negative, and their product is not."""
    func = bw.from_source(LATE)
    assert isinstance(func, ir.PrimFunc)
    sch = bw.Schedule(func, verify="full")
    _, j, k = sch.get_loops(sch.get_block("B"))
    sch.fuse(j, k)
    assert_same_meaning(func, sch.func, exact=True)


def test_a_range_of_less_than_no_iterations_takes_none_from_the_next() -> None:
    func = bw.from_source(LATE)
    assert isinstance(func, ir.PrimFunc)
    sch = bw.Schedule(func, verify="full")
    j, row = sch.get_loops(sch.get_block("B"))[1], sch.get_loops(sch.get_block("C"))[1]
    sch.horizontal_fuse(j, row)
    assert_same_meaning(func, sch.func, exact=True)

"""Steps on nests that are no boxes: rows of different lengths, interiors that may be empty, blocks
in blocks, diagonals."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
import blockwright.testing.moves
from blockwright import ir
from blockwright.interp import interpret
from blockwright.ir.printer import script
from blockwright.testing import assert_same_meaning


def parsed(text: str) -> ir.PrimFunc:
    func = bw.from_source(text)
    assert isinstance(func, ir.PrimFunc)
    return func


TURNS = """
@T.prim_func
def main(A: T.Buffer((4, 4), "float32"), B: T.Buffer((4, 4), "float32"),
         C: T.Buffer((4, 4), "float32")):
    for i, j in T.grid(4, 4):
        with T.block("frame"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj]
            C[vi, vj] = 0.0
    for i in range(4):
        for j in range(ROW):
            with T.block("half"):
                vi = T.axis.spatial(4, i)
                vj = T.axis.spatial(4, j)
                B[vi, vj] = A[vi, vj] * 0.5
            with T.block("follow"):
                vi = T.axis.spatial(4, i)
                vj = T.axis.spatial(4, j)
                C[vi, vj] = B[vi, vj]
"""


def test_a_copy_in_a_loop_that_may_not_run_does_not_hold_what_outputs_hold() -> None:
    """Below the diagonal of four rows there is a row of no elements: B keeps the frame there."""
    sch = bw.Schedule(parsed(TURNS.replace("ROW", "i - 3")), verify="full")
    with pytest.raises(bw.ScheduleError, match="may run no iteration") as caught:
        sch.cache_write(sch.get_block("half"), 0, "global")
    assert caught.value.code == "BW323"


@pytest.mark.parametrize("orders", [None, [1, 0]])
@pytest.mark.parametrize("row", ["i", "i - 1", "T.min(i, 2)"])
def test_a_pipeline_of_rows_of_different_lengths_builds(row: str, orders: list[int] | None) -> None:
    """The last element of a row is at a place that depends on the row, in a loop of its own."""
    func = parsed(TURNS.replace("ROW", row))
    sch = bw.Schedule(func, verify="full")
    loop = sch.get_loops(sch.get_block("half"))[1]
    sch.software_pipeline(loop, [0, 1], orders=orders)
    assert_same_meaning(func, sch.func, exact=True)
    bw.build(sch.func)


def test_a_loop_of_no_iterations_has_nothing_to_pipeline() -> None:
    sch = bw.Schedule(parsed(TURNS.replace("ROW", "0")))
    with pytest.raises(bw.ScheduleError, match="has no iterations") as caught:
        sch.software_pipeline(sch.get_loops(sch.get_block("half"))[1], [0, 1])
    assert caught.value.code == "BW349"


DIAGONAL = """
@T.prim_func
def main(X: T.Buffer((8, 8), "float32"), B: T.Buffer((8,), "float32")):
    A = T.alloc_buffer((8, 8), "float32")
    for i, j in T.grid(8, 8):
        with T.block("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = X[vi, vj] + 1.0
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi, vi] * 2.0
"""


def test_what_is_read_along_a_diagonal_is_made_where_it_is_read() -> None:
    func = parsed(DIAGONAL)
    sch = bw.Schedule(func, verify="prove")
    sch.compute_at(sch.get_block("A"), sch.get_loops(sch.get_block("B"))[0])
    assert len(sch.get_loops(sch.get_block("A"))) == 2
    assert_same_meaning(func, sch.func, exact=True)
    bw.build(sch.func)


def test_iterators_that_a_program_joins_itself_stay_a_mistake() -> None:
    """No step hides it: the build says so."""
    text = DIAGONAL.replace("for i, j in T.grid(8, 8):", "for i in range(8):")
    sch = bw.Schedule(parsed(text.replace('"SS", [i, j]', '"SS", [i, i]')))
    sch.split(sch.get_loops(sch.get_block("A"))[0], [None, 4])
    with pytest.raises(bw.ValidationError, match="are not independent"):
        bw.build(sch.func)


def test_a_loop_may_begin_where_another_one_stands() -> None:
    """`vj = i + j` with j from 0, and `vj = j` with j from i: one program, written in two ways."""
    text = """
@T.prim_func
def main(A: T.Buffer((4, 8), "float32"), B: T.Buffer((4, 8), "float32")):
    for i, j in T.grid(4, 4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            vj = T.axis.spatial(8, i + j)
            B[vi, vj] = A[vi, vj]
"""
    bw.build(parsed(text))
    with pytest.raises(bw.ValidationError, match="are not independent"):
        bw.build(parsed(text.replace("8, i + j", "8, i + i % 2")))


def test_the_pieces_of_a_loop_around_rows_print_and_parse() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((3, 1), "float32"), B: T.Buffer((3, 1), "float32")):
    for i in range(3):
        for j in T.serial(i, 1):
            with T.block("B"):
                vi = T.axis.spatial(3, i)
                vj = T.axis.spatial(1, j)
                B[vi, vj] = A[vi, vj]
"""
    func = parsed(text)
    sch = bw.Schedule(func, verify="full")
    sch.loop_partition(sch.get_loops(sch.get_block("B"))[0], [None, 1], preserve_unit_iters=False)
    assert ir.structural_equal(parsed(script(sch.func)), sch.func)


ROWS = """
@T.prim_func
def main(A: T.Buffer((2, 3), "float32"), B: T.Buffer((2, 3), "float32")):
    for i in range(2):
        with T.block("rows"):
            vi = T.axis.spatial(2, i)
            R = T.alloc_buffer((3,), "float32")
            for j in range(3):
                with T.block("make"):
                    vj = T.axis.spatial(3, j)
                    R[vj] = A[vi, vj]
            for j in range(3):
                with T.block("take"):
                    vj = T.axis.spatial(3, j)
                    B[vi, vj] = R[vj]
"""


def test_a_padded_copy_is_not_made_of_rows_that_are_still_to_come() -> None:
    """Of the copy of A only the row of this iteration is there."""
    sch = bw.Schedule(parsed(ROWS), verify="full")
    block = sch.get_block("rows")
    sch.read_at(sch.get_loops(block)[0], block, 0, "global")
    with pytest.raises(bw.ScheduleError, match="does not write every element") as caught:
        sch.pad_einsum(sch.get_block("make"), [4])
    assert caught.value.code == "BW323"


def test_a_part_of_a_tile_that_is_cut_off_writes_nothing() -> None:
    """Of two parts of four the second one is beyond the only element: nothing to copy there."""
    text = """
@T.prim_func
def main(A: T.Buffer((1,), "float32")):
    for i in range(1):
        with T.block("A"):
            vi = T.axis.spatial(1, i)
            A[vi] = 1.0
"""
    sch = bw.Schedule(parsed(text), verify="full")
    (i,) = sch.get_loops(sch.get_block("A"))
    outer, _, _ = sch.split(i, [None, 2, 4])
    sch.blockize(outer)
    loop = sch.get_loops(sch.get_block("A"))[1]
    with pytest.raises(bw.ScheduleError, match="does not write every element"):
        sch.write_at(loop, sch.get_block("A"), 0, "global")


def test_the_view_of_an_intrinsic_follows_its_buffer_into_another_scope() -> None:
    """The intrinsic takes any memory: what it looked at first is no demand."""
    text = """
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32")):
    for i, j in T.grid(8, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj]
"""
    func = parsed(text)
    sch = bw.Schedule(func, verify="full")
    sch.cache_write(sch.get_block("B"), 0, "local")
    copy = sch.get_block("B_local")
    sch.tensorize(sch.get_loops(copy)[1], "random_copy_8_float32")
    sch.cache_read(sch.get_block("B_local_o"), 0, "global")
    assert_same_meaning(func, sch.func, exact=True)
    bw.build(sch.func)


def test_what_divides_by_no_columns_stays_behind_its_condition() -> None:
    """The first range of the fused loop has no iteration where there are no columns; the second
    one has, and must not ask in which row it is."""
    text = """
@T.prim_func
def main(a: T.handle, b: T.handle, c: T.handle, d: T.handle):
    n = T.int64()
    m = T.int64()
    k = T.int64()
    A = T.match_buffer(a, (n, m), "float32")
    B = T.match_buffer(b, (n, m), "float32")
    C = T.match_buffer(c, (k,), "float32")
    D = T.match_buffer(d, (k,), "float32")
    for i, j in T.grid(n, m):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i in range(k):
        with T.block("D"):
            vi = T.axis.spatial(k, i)
            D[vi] = C[vi] + 1.0
"""
    sch = bw.Schedule(parsed(text), verify="full")
    i, j = sch.get_loops(sch.get_block("B"))
    outer, inner = sch.split(i, [None, 4])
    sch.reorder(inner, outer)
    rows = sch.fuse(outer, j)
    sch.reorder(rows, inner)
    sch.horizontal_fuse(rows, *sch.get_loops(sch.get_block("D")))
    empty, out = np.zeros((3, 0), np.float32), np.zeros(5, np.float32)
    for run in (bw.build(sch.func), lambda *args: interpret(sch.func, *args)):
        out[:] = 0
        run(empty, empty, np.ones(5, np.float32), out)
        np.testing.assert_array_equal(out, 2)


def test_rows_that_may_be_empty_are_not_padded() -> None:
    """Where the inner loop runs, it runs through its axis; in the first row it does not run."""
    text = TURNS.replace("(4, 4)", "(4, 1)").replace("spatial(4, j)", "spatial(1, j)")
    text = text.replace("T.grid(4, 4)", "T.grid(4, 1)").replace("ROW", "T.min(i, 1)")
    follow = text.index('            with T.block("follow")')
    sch = bw.Schedule(parsed(text[:follow]), verify="full")
    with pytest.raises(bw.ScheduleError, match="not bound to a plain loop") as caught:
        sch.pad_einsum(sch.get_block("half"), [8, 1])
    assert caught.value.code == "BW322"


def test_a_piece_beside_a_buffer_takes_no_part_in_its_copy() -> None:
    """Columns 0 and 1 of A are asked for, of which the first one alone is there."""
    text = """
@T.prim_func
def main(A: T.Buffer((2, 1), "float32"), B: T.Buffer((2, 3), "float32")):
    for i in range(2):
        for j in range(2):
            with T.block("B"):
                vi = T.axis.spatial(2, i)
                vj = T.axis.spatial(3, j)
                T.reads(A[vi, vj])
                T.writes(B[vi, vj])
                B[vi, vj] = T.if_then_else(vj < 1, A[vi, vj], 0.0)
        for j in T.serial(2, 3):
            with T.block("C"):
                vi = T.axis.spatial(2, i)
                vj = T.axis.spatial(3, 2)
                T.reads(A[vi, vj])
                T.writes(B[vi, vj])
                B[vi, vj] = T.if_then_else(vj < 1, A[vi, vj], 0.0)
"""
    func = parsed(text)
    sch = bw.Schedule(func, verify="full")
    sch.read_at(sch.get_loops(sch.get_block("B"))[0], sch.get_block("B"), 0, "global")
    assert_same_meaning(func, sch.func, exact=True)


def test_the_ends_of_a_pipeline_do_not_share_what_was_the_own_of_parallel_iterations() -> None:
    """S is each iteration's own while one parallel loop uses it; a prologue would be another."""
    text = """
@T.prim_func
def main(A: T.Buffer((4, 8), "float32"), B: T.Buffer((4, 8), "float32"),
         C: T.Buffer((4, 8), "float32")):
    S = T.alloc_buffer((1,), "float32")
    for i in range(4):
        for j in T.parallel(8):
            with T.block("S"):
                vi = T.axis.opaque(4, i)
                vj = T.axis.spatial(8, j)
                S[0] = A[vi, vj] * 2.0
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = S[0] + 1.0
        for j in range(8):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[vi, vj]
"""
    sch = bw.Schedule(parsed(text), verify="full")
    loop = sch.get_loops(sch.get_block("C"))[0]
    with pytest.raises(bw.ScheduleError, match="block S also writes S") as caught:
        sch.software_pipeline(loop, [0, 1])
    assert caught.value.code == "BW314"


def test_nothing_is_copied_in_before_there_is_something_also_from_a_block_inside() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((2, 4), "float32")):
    R = T.alloc_buffer((2, 4), "float32")
    for i in range(2):
        with T.block("row"):
            vi = T.axis.spatial(2, i)
            for j in range(4):
                with T.block("recur"):
                    vj = T.axis.opaque(4, j)
                    R[vi, vj] = A[vi, vj] + T.if_then_else(vj >= 1, R[vi, T.max(vj - 1, 0)], 0.0)
"""
    sch = bw.Schedule(parsed(text), verify="full")
    with pytest.raises(bw.ScheduleError, match="nothing writes R before") as caught:
        sch.cache_inplace(sch.get_block("recur"), "R", "global")
    assert caught.value.code == "BW322"


def test_what_a_predicate_cuts_off_counts_for_no_signature() -> None:
    """Rows of n elements in a line: of a tile of 4 rows there are 2."""
    text = """
@T.prim_func
def main(a: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (2, n), "float32")
    R = T.alloc_buffer((2, n), "float32")
    for i in range(2):
        with T.block("row"):
            vi = T.axis.spatial(2, i)
            for j in range((n + 1) // 2):
                R[vi, j * 2] = A[vi, j * 2]
"""
    func = parsed(text)
    sch = bw.Schedule(func, verify="full")
    outer = sch.blockize(sch.get_loops(sch.get_block("row"))[0])
    n = sch.symbol("n")
    sch.transform_layout(outer, ["write", 0], lambda i, j: (i * n + j,), pad_value=1.5)
    sch.split(sch.get_loops(sch.get_block("row"))[0], [None, 4])
    assert_same_meaning(func, sch.func, exact=True)


def test_no_copy_is_made_before_the_block_that_fills_it() -> None:
    """No element of the row is below the diagonal: its reader may stand before its writer."""
    text = """
@T.prim_func
def main(A: T.Buffer((1, 1), "float32"), B: T.Buffer((1, 1), "float32")):
    R = T.alloc_buffer((1, 1), "float32")
    for i, j in T.grid(1, 1):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.if_then_else(vj < vi, R[vi, vj], 0.0)
    for i in range(1):
        with T.block("R"):
            vi = T.axis.spatial(1, i)
            for j in range(vi):
                R[vi, j] = A[vi, j]
"""
    sch = bw.Schedule(parsed(text), verify="full")
    block = sch.get_block("B")
    with pytest.raises(bw.ScheduleError, match="the code before the scope does not") as caught:
        sch.read_at(sch.get_loops(block)[0], block, "R", "global")
    assert caught.value.code == "BW323"


BESIDE_NOTHING = """
@T.prim_func
def main(A: T.Buffer((2, 4), "float32"), B: T.Buffer((2, 4), "float32"),
         C: T.Buffer((2, 4), "float32")):
    for i in T.serial(2, 0):
        for j in T.serial(2, 2):
            with T.block("none"):
                vi = T.axis.spatial(2, i)
                vj = T.axis.spatial(4, j)
                B[vi, vj] = A[vi, vj]
    for i in range(2):
        for j in range(4):
            with T.block("rows"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj]
"""


def test_a_copy_for_rows_that_do_not_run_does_not_divide_by_their_number() -> None:
    """Both nests share a loop in the end; in its iterations the first one has nothing to do."""
    func = parsed(BESIDE_NOTHING)
    sch = bw.Schedule(func, verify="full")
    fused = sch.fuse(*sch.get_loops("none"))
    sch.horizontal_fuse(fused, sch.get_loops("rows")[0])
    sch.read_at(sch.get_loops("none")[0], "none", 0, "local")
    assert_same_meaning(func, sch.func, exact=True)


SUMS_INSIDE = """
@T.prim_func
def main(A: T.Buffer((4, 2), "float32"), C: T.Buffer((4,), "float32")):
    S = T.alloc_buffer((4,), "float32")
    for i in range(4):
        for k in range(2):
            with T.block("part"):
                vi = T.axis.spatial(4, i)
                vk = T.axis.opaque(2, k)
                with T.block("sum"):
                    at = T.axis.spatial(4, vi)
                    term = T.axis.reduce(2, vk)
                    with T.init():
                        S[at] = T.float32(0)
                    S[at] = S[at] + A[at, term]
            with T.block("store"):
                vi = T.axis.spatial(4, i)
                C[vi] = S[vi]
"""


def test_sums_that_go_on_inside_of_blocks_keep_one_buffer() -> None:
    """The second half of a sum goes on from the first one, which lies in the other version."""
    func = parsed(SUMS_INSIDE)
    sch = bw.Schedule(func, verify="full")
    with pytest.raises(bw.ScheduleError, match="has not written"):
        sch.double_buffer("part", 0)
    with pytest.raises(bw.ScheduleError, match="has not written"):
        sch.software_pipeline(sch.get_loops("part")[1], [0, 1])

"""Blocks whose stores may not happen: under conditions on data, in loops that may run no iteration
or end early. What a signature states is a box around them, and no copy of that box has a value in
every element; nor do instances belong to a place where the box is empty."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw

Step = Callable[[bw.Schedule], object]

_READER = """
    for i, j in T.grid(4, 4):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.if_then_else({holds}, B[vi, vj], T.float32(0.0))
"""

_HEAD = """
@T.prim_func
def main(A: T.Buffer((4, 4), "float32"), M: T.Buffer((4, 4), "int32"),
         C: T.Buffer((4, 4), "float32")):
    B = T.alloc_buffer((4, 4), "float32")
"""

MASKED = f"""{_HEAD}
    for i, j in T.grid(4, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(A[vi, vj], M[vi, vj])
            T.writes(B[vi, vj])
            if M[vi, vj] > 0:
                B[vi, vj] = A[vi, vj]
{_READER.format(holds="M[vi, vj] > 0")}"""

SHORT_ROWS = f"""{_HEAD}
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            T.reads(A[vi, 0:vi])
            T.writes(B[vi, 0:vi])
            for k in range(vi):
                B[vi, k] = A[vi, k]
{_READER.format(holds="vj < vi")}"""

TRIANGLE = f"""{_HEAD}
    for o in range(1):
        with T.block("B"):
            vo = T.axis.spatial(1, o)
            T.reads(A[0:4, 0:4])
            T.writes(B[0:4, 0:4])
            for k in range(4):
                for l in range(k + 1):
                    B[k, l] = A[k, l]
{_READER.format(holds="vj <= vi")}"""

PROGRAMS = {"masked": MASKED, "short rows": SHORT_ROWS, "triangle": TRIANGLE}

COPIES: dict[str, Step] = {
    "cache_read": lambda s: s.cache_read("C", "B", "global"),
    "cache_write": lambda s: s.cache_write("B", 0, "global"),
    "read_at": lambda s: s.read_at(s.get_loops("C")[0], "C", "B", "global"),
    "write_at": lambda s: s.write_at(s.get_loops("B")[0], "B", 0, "global"),
    "reindex read": lambda s: s.reindex("C", ("read", "B")),
    "reindex write": lambda s: s.reindex("B", ("write", 0)),
    "reindex_cache_read": lambda s: s.reindex_cache_read("C", "B", "global", lambda i, j: (j, i)),
    "reindex_cache_write": lambda s: s.reindex_cache_write("B", 0, "global", lambda i, j: (j, i)),
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_may_not_be_written_is_not_copied(program: str, copy: str) -> None:
    sch = bw.Schedule(bw.from_source(PROGRAMS[program]), verify="full")
    if (program, copy) == ("short rows", "write_at"):
        before = sch.func
        COPIES[copy](sch)  # row by row, of what each row has
        assert bw.verify(before, sch.func).verdict == "proved"
        return
    with pytest.raises(bw.ScheduleError, match=r"BW323|BW325|BW363"):
        COPIES[copy](sch)


def test_both_sides_of_a_choice_write_it_all() -> None:
    both = MASKED.replace(
        "B[vi, vj] = A[vi, vj]\n",
        "B[vi, vj] = A[vi, vj]\n            else:\n                B[vi, vj] = A[vi, vj] * 0.5\n",
    )
    sch = bw.Schedule(bw.from_source(both), verify="full")
    before = sch.func
    for copy in ("cache_read", "cache_write"):
        COPIES[copy](sch)
    assert bw.verify(before, sch.func).verdict != "refuted"


@pytest.mark.parametrize("program", ["short rows", "triangle"])
def test_readers_keep_instances_that_read_nothing(program: str) -> None:
    """Moved into the producer's loop, the reader would run where the producer wrote: the other
    elements of C would keep what they hold."""
    sch = bw.Schedule(bw.from_source(PROGRAMS[program]), verify="full")
    with pytest.raises(bw.ScheduleError, match=r"BW316|BW358"):
        sch.reverse_compute_at("C", sch.get_loops("B")[0])


def test_a_copy_of_a_clipped_window_may_be_empty() -> None:
    """`read_at` at the border of a padding copies nothing there; in a flat layout its signature
    still states an element."""
    sch = bw.Schedule(bw.from_source("""
@T.prim_func
def main(A: T.Buffer((2, 2), "float32"), B: T.Buffer((2, 4), "float32")):
    for i, j in T.grid(2, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(A[vi, vj - 1])
            T.writes(B[vi, vj])
            B[vi, vj] = T.if_then_else(1 <= vj and vj < 3, A[vi, vj - 1], T.float32(0.0))
"""), verify="full")  # fmt: skip
    window = sch.read_at(sch.get_loops("B")[1], "B", 0, "global")
    sch.transform_layout(window, ("write", 0), lambda i, j: (i * 2 + j,), pad_value=1.5)
    with pytest.raises(bw.ScheduleError, match="BW323"):
        sch.cache_write(window, 0, "global")


def nested(step: Step) -> bw.ScheduleError:
    """What a step says to blocks in a block that hold only behind a condition on its iterator."""
    sch = bw.Schedule(bw.from_source("""
@T.prim_func
def main(A: T.Buffer((4, 8), "float32"), C: T.Buffer((4, 8), "float32")):
    for o in range(4):
        with T.block("outer"):
            vo = T.axis.spatial(4, o)
            T.reads(A[vo, 0:8])
            T.writes(C[vo, 0:8])
            t = T.alloc_buffer((8,), "float32")
            for i in range(8):
                with T.block("make"):
                    vi = T.axis.spatial(8, i)
                    T.where(vo >= 2)
                    t[vi] = A[vo, vi] * 2.0
            for i in range(8):
                with T.block("zero"):
                    vi = T.axis.spatial(8, i)
                    C[vo, vi] = 0.0
            for i in range(8):
                with T.block("use"):
                    vi = T.axis.spatial(8, i)
                    T.where(vo >= 2)
                    C[vo, vi] = t[vi]
"""), verify="full")  # fmt: skip
    with pytest.raises(bw.ScheduleError) as found:
        step(sch)
    return found.value


@pytest.mark.parametrize(
    "step",
    [
        lambda s: s.cache_read("use", "t", "global"),
        lambda s: s.cache_write("make", 0, "global"),
        lambda s: s.reindex("make", ("write", 0)),
    ],
)
def test_conditions_on_the_block_around_decide_whether_all_is_written(step: Step) -> None:
    assert nested(step).code in ("BW323", "BW361")


def test_a_block_in_loops_that_may_run_no_iteration_is_not_run_elsewhere() -> None:
    """The loop over `a` keeps the copy inside of A: elsewhere nothing would."""
    sch = bw.Schedule(bw.from_source("""
@T.prim_func
def main(A: T.Buffer((2,), "float32"), C: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.block("outer"):
            vi = T.axis.spatial(4, i)
            T.reads(A[vi - 1])
            T.writes(C[vi])
            t = T.alloc_buffer((2,), "float32")
            for a in range(T.min(vi, 1) - T.max(vi - 2, 0)):
                with T.block("copy"):
                    T.reads(A[vi - 1])
                    T.writes(t[vi - 1])
                    t[vi - 1] = A[vi - 1]
            for j in range(1):
                with T.block("use"):
                    vj = T.axis.spatial(1, j)
                    T.reads(t[vi - 1])
                    T.writes(C[vi])
                    C[vi] = T.if_then_else(1 <= vi and vi < 3, t[vi - 1], T.float32(0.0))
"""), verify="full")  # fmt: skip
    with pytest.raises(bw.ScheduleError, match="BW361"):
        sch.compute_at("copy", sch.get_loops("use")[0])


def test_the_box_of_short_rows_stays_when_their_loop_is_split() -> None:
    """The predicate of the split bounds the row, the length of the row is a minimum of it."""
    text = """
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int64()
    A, B = T.match_buffer(a, (n, 2), "float32"), T.match_buffer(b, (n, 2), "float32")
    for i in range(n):
        with T.block("row"):
            vi = T.axis.spatial(n, i)
            for k in range(T.min(vi, T.int64(1))):
                B[vi, k] = A[vi, k]
"""
    sch = bw.Schedule(bw.from_source(text), verify="full")
    sch.blockize(sch.get_loops(sch.get_block("row"))[0])
    sch.split(sch.get_loops(sch.get_block("row"))[0], [None, 4])


def test_a_reader_that_never_runs_says_nothing_of_what_it_would_read() -> None:
    """One row of one element: no element lies before the first."""
    text = """
@T.prim_func
def main(A: T.Buffer((1, 1), "float32"), C: T.Buffer((1, 1), "float32")):
    B = T.alloc_buffer((1, 1), "float32")
    for i in range(1):
        with T.block("B"):
            vi = T.axis.spatial(1, i)
            for k in range(vi):
                B[vi, k] = A[vi, k]
    for i, j in T.grid(1, 1):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(j < i)
            C[vi, vj] = B[vi, vj]
"""
    sch = bw.Schedule(bw.from_source(text))
    with pytest.raises(bw.ScheduleError) as caught:
        sch.cache_read(sch.get_block("C"), "B", "global")
    assert caught.value.code == "BW323"


def test_padding_reads_no_gaps_of_what_was_written_before_the_scope() -> None:
    """Five values in two rows of four; padded to eight, the loop would read the other three."""
    text = """
@T.prim_func
def main(A: T.Buffer((5,), "float32"), C: T.Buffer((5,), "float32")):
    B = T.alloc_buffer((2, 4), "float32")
    for i in range(5):
        with T.block("B"):
            vi = T.axis.spatial(5, i)
            B[vi // 4, vi % 4] = A[vi]
    for i in range(5):
        with T.block("C"):
            vi = T.axis.spatial(5, i)
            C[vi] = B[vi // 4, vi % 4]
"""
    sch = bw.Schedule(bw.from_source(text))
    sch.blockize(sch.get_loops(sch.get_block("C"))[0], preserve_unit_iters=False)
    with pytest.raises(bw.ScheduleError, match="does not write every element") as caught:
        sch.pad_einsum(sch.get_block("C"), [4])
    assert caught.value.code == "BW323"


SUMS = """
@T.prim_func
def main(a: T.handle, M: T.Buffer((4,), "int32"), C: T.Buffer((4,), "float32"),
         D: T.Buffer((), "float32")):
    n = T.int32()
    A = T.match_buffer(a, (n,), "float32")
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            {body}
"""


@pytest.mark.parametrize(
    ("body", "buffer"),
    [
        ("for k in range(n - 3):\n                D[()] = A[k]", "D"),
        ("T.where(n * 2 == i)\n            D[()] = A[vi]", "D"),
        ("T.where(i < M[3])\n            C[vi] = A[vi]", "C"),
    ],
    ids=["loop over what sizes leave", "condition on sizes", "condition on data"],
)
def test_what_sizes_or_data_decide_need_not_be_written(body: str, buffer: str) -> None:
    """The argument keeps its elements where nothing is written; a copy would store others."""
    sch = bw.Schedule(bw.from_source(SUMS.format(body=body)))
    with pytest.raises(bw.ScheduleError) as caught:
        sch.cache_write(sch.get_block("B"), buffer, "global")
    assert caught.value.code == "BW323"


def test_copies_in_place_hold_what_a_block_may_leave_as_it_is() -> None:
    """The block around reads one element of the row and may write any."""
    text = """
@T.prim_func
def main(M: T.Buffer((4,), "int32"), C: T.Buffer((4, 8), "float32")):
    for o in range(4):
        with T.block("row"):
            vo = T.axis.spatial(4, o)
            for i in range(8):
                with T.block("B"):
                    vi = T.axis.spatial(8, i)
                    T.reads(M[vo], C[vo, 0])
                    T.writes(C[vo, vi])
                    if M[vo] < vi:
                        C[vo, vi] = C[vo, 0] + T.float32(1)
"""
    before = bw.from_source(text)
    sch = bw.Schedule(before)
    sch.cache_inplace(sch.get_block("B"), "C", "global")
    chosen = np.array([0, 3, 7, 9], "int32")
    results = [np.arange(32, dtype="float32").reshape(4, 8) for _ in range(2)]
    bw.interpret(before, chosen, results[0])
    bw.interpret(sch.func, chosen, results[1])
    np.testing.assert_array_equal(*results)


OWN_VALUES = """
@T.prim_func
def main(A: T.Buffer((4, 3), "float32"), B: T.Buffer((4,), "float32")):
    C = T.alloc_buffer((5, 2), "float32")
    with T.block("first"):
        v = T.axis.spatial(5, 4)
        C[v, 0] = T.float32(7)
    for i, j, k in T.grid(4, 1, 3):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            vj = T.axis.spatial(2, j)
            vk = T.axis.reduce(3, k)
            T.reads(C[vi, vj], A[vi, vk])
            T.writes(C[vi, 0])
            {body}
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            B[vi] = C[vi, 0]
"""


@pytest.mark.parametrize(
    "body",
    [
        """with T.init():
                C[vi, 0] = T.float32(0)
            C[vi, 0] = C[vi, vj] + A[vi, vk]""",
        """C[vi, 0] = A[vi, 0]
            C[vi, 0] = C[vi, vj] + A[vi, vk]""",
    ],
    ids=["initial value", "statement before"],
)
def test_what_a_block_reads_of_its_own_was_not_written_before(body: str) -> None:
    """vj is 0, so each element that is read is one that the block itself wrote."""
    sch = bw.Schedule(bw.from_source(OWN_VALUES.format(body=body)))
    with pytest.raises(bw.ScheduleError) as caught:
        sch.cache_inplace(sch.get_block("C"), "C", "global")
    assert caught.value.code == "BW323"


COPIED_OUTSIDE: list[Step] = [
    lambda s: s.cache_write("B", 0, "global"),
    lambda s: s.cache_inplace("B", "B", "global"),
    lambda s: s.reindex("B", ("write", 0)),
]


@pytest.mark.parametrize("act", COPIED_OUTSIDE, ids=["cache_write", "cache_inplace", "reindex"])
def test_what_each_parallel_iteration_has_for_itself_is_not_copied_outside(act: Step) -> None:
    """Nobody reads B: a copy of it stands outside of the loop, which all iterations fill."""
    sch = bw.Schedule(
        bw.from_source("""
@T.prim_func
def main(A: T.Buffer((4,), "float32"), C: T.Buffer((4,), "float32")):
    B = T.alloc_buffer((4,), "float32")
    for i in T.parallel(4):
        for j in range(4):
            with T.block("first"):
                vj = T.axis.spatial(4, j)
                B[vj] = A[vj]
        for j in range(4):
            with T.block("B"):
                vj = T.axis.spatial(4, j)
                B[vj] = B[vj] + T.float32(1)
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = A[vi]
""")
    )
    with pytest.raises(bw.ScheduleError):
        act(sch)


FIRST_STEP = """
@T.prim_func
def main(A: T.Buffer((4, 4), "float32"), C: T.Buffer((4,), "float32"),
         D: T.Buffer((8,), "float32")):
    for i, k in T.grid(4, 4):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = A[vi, vk]
                {more}
            C[vi] = C[vi] + A[vi, vk]
"""


def test_an_initial_value_is_not_given_in_each_step() -> None:
    """`D` has one element of each row, not those of the later steps."""
    text = FIRST_STEP.format(more="D[vi + vk] = T.float32(1)")
    sch = bw.Schedule(bw.from_source(text))
    with pytest.raises(bw.ScheduleError) as caught:
        sch.write_at(sch.get_loops(sch.get_block("B"))[1], sch.get_block("B"), "D", "global")
    assert caught.value.code in ("BW314", "BW323")


def test_an_initial_value_that_names_the_step_is_that_of_the_first() -> None:
    before = bw.from_source(FIRST_STEP.format(more="D[vi] = T.float32(2)"))
    sch = bw.Schedule(before)
    block = sch.get_block("B")
    sch.decompose_reduction(block, sch.get_loops(block)[1])
    bw.validate(sch.func)
    a = np.arange(16, dtype="float32").reshape(4, 4)
    results = [(np.zeros(4, "float32"), np.zeros(8, "float32")) for _ in range(2)]
    for func, (c, d) in zip((before, sch.func), results, strict=True):
        bw.interpret(func, a, c, d)
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])

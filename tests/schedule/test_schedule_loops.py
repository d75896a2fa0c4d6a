"""Loops on real programs: merge, loop_partition, blocks inside blocks, and what they refuse."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import pytest

from blockwright import ir
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.script.ir import from_source
from blockwright.support import ScheduleError
from blockwright.testing.check import assert_same_meaning


def program(text: str) -> ir.PrimFunc:
    found = from_source(text)
    assert isinstance(found, ir.PrimFunc)
    return found


def block_of(sch: Schedule, handle: BlockRV) -> ir.Block:
    found = sch.get(handle)
    assert isinstance(found, ir.Block)
    return found


def loop_of(sch: Schedule, handle: LoopRV) -> ir.For:
    found = sch.get(handle)
    assert isinstance(found, ir.For)
    return found


ROW_NORM = program("""
@T.prim_func
def row_norm(A: T.Buffer((20, 30), "float32"), D: T.Buffer((20, 30), "float32")):
    B = T.alloc_buffer((20, 30), "float32")
    C = T.alloc_buffer((20,), "float32")
    for i, j in T.grid(20, 30):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * A[vi, vj]
    for i, j in T.grid(20, 30):
        with T.block("C"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + B[vi, vj]
    for i, j in T.grid(20, 30):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = A[vi, vj] / T.sqrt(C[vi] + 1.0)
""")


def refused(code: str, match: str, step: Callable[[], object]) -> None:
    with pytest.raises(ScheduleError, match=match) as caught:
        step()
    assert caught.value.code == code


# ------------------------------------------------------------------------------ merge
def test_rows_of_a_chain_are_merged() -> None:
    """All three nests run row by row; the reduction of a row is complete before it is used."""
    sch = Schedule(ROW_NORM, verify="full")
    row = sch.merge(*(sch.get_loops(sch.get_block(name))[0] for name in "BCD"))
    assert [block_of(sch, b).name for b in sch.get_child_blocks(row)] == ["B", "C", "D"]
    sch.parallel(row)
    assert_same_meaning(ROW_NORM, sch.func)


def test_merge_takes_several_levels_at_once() -> None:
    sch = Schedule(ROW_NORM, verify="full")
    inner = sch.merge(sch.get_loops(sch.get_block("B"))[1], sch.get_loops(sch.get_block("C"))[1])
    assert loop_of(sch, inner).loop_var.name == "j_m"
    assert len(sch.get_loops(sch.get_block("C"))) == 2
    assert_same_meaning(ROW_NORM, sch.func)


def test_merge_past_an_independent_nest() -> None:
    """C stands between B and an independent copy of A; it reads B and stays behind it."""
    text = ROW_NORM.script().replace("A[vi, vj] / T.sqrt(C[vi] + T.float32(1.0))", "A[vi, vj]")
    before = program(text.replace("T.reads(A[vi, vj], C[vi])", "T.reads(A[vi, vj])"))
    sch = Schedule(before, verify="full")
    sch.merge(sch.get_loops(sch.get_block("B"))[0], sch.get_loops(sch.get_block("D"))[0])
    order = [block_of(sch, b).name for b in sch.get_child_blocks(sch.get_block("root"))]
    assert order == ["B", "D", "C"]
    assert_same_meaning(before, sch.func)


def test_merge_refuses_a_reduction_that_is_not_complete() -> None:
    """In the merged inner loop D would use sums of which terms are missing."""
    sch = Schedule(ROW_NORM)
    c, d = (sch.get_loops(sch.get_block(name)) for name in "CD")
    refused("BW316", "block D reads what block C writes", lambda: sch.merge(c[1], d[1]))


IN_PLACE = """
@T.prim_func
def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
    for i in range(15):
        with T.block("B"):
            vi = T.axis.spatial(15, i)
            B[vi] = A[vi + {shift}] * 2.0
    for i in range(15):
        with T.block("A"):
            vi = T.axis.spatial(15, i)
            A[vi] = T.Cast("float32", vi)
"""


def test_merge_keeps_a_value_that_is_read_before_it_is_overwritten() -> None:
    before = program(IN_PLACE.format(shift=0))
    sch = Schedule(before, verify="full")
    sch.merge(*(sch.get_loops(sch.get_block(name))[0] for name in "BA"))
    assert_same_meaning(before, sch.func, exact=True)


def test_merge_refuses_to_overwrite_what_is_read_later() -> None:
    """The first nest at iteration i reads element i + 1, the second has it overwritten by then."""
    sch = Schedule(program(IN_PLACE.format(shift=1)))
    tops = [sch.get_loops(sch.get_block(name))[0] for name in "BA"]
    refused("BW316", "block A writes what block B reads", lambda: sch.merge(*tops))


@pytest.mark.parametrize("cut", [[7, None], [10, None]])
def test_pieces_of_two_nests_are_merged(cut: list[int | None]) -> None:
    """The first pieces of B and C stand apart from the second ones, which touch other rows."""
    sch = Schedule(ROW_NORM, verify="full")
    first, second = (
        sch.loop_partition(sch.get_loops(sch.get_block(name))[0], cut) for name in "BC"
    )
    for pair in zip(first, second, strict=True):
        row = sch.merge(*pair)
        assert len(sch.get_child_blocks(row)) == 2
        sch.parallel(row)
    assert_same_meaning(ROW_NORM, sch.func, exact=True)


def test_pieces_that_run_equally_often_are_merged_with_each_other() -> None:
    """Rows 0 and 10, 1 and 11 and so on: each piece keeps its distance."""
    sch = Schedule(ROW_NORM, verify="full")
    row = sch.merge(*sch.loop_partition(sch.get_loops(sch.get_block("C"))[0], [10, None]))
    assert [block_of(sch, b).name for b in sch.get_child_blocks(row)] == ["C_i0", "C_i1"]
    assert_same_meaning(ROW_NORM, sch.func, exact=True)


def test_merged_inner_loops_may_depend_on_merged_outer_ones() -> None:
    before = program("""
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32"),
         C: T.Buffer((8, 8), "float32")):
    for i in range(8):
        for j in range(i, 8):
            with T.block("B"):
                vi = T.axis.spatial(8, i)
                vj = T.axis.spatial(8, j)
                B[vi, vj] = A[vi, vj] + 1.0
    for i in range(8):
        for j in range(8 - i):
            with T.block("C"):
                vi = T.axis.spatial(8, i)
                vj = T.axis.spatial(8, j)
                C[vi, vj] = A[vi, vj] * 2.0
""")
    sch = Schedule(before, verify="full")
    sch.merge(*(sch.get_loops(sch.get_block(name))[1] for name in "BC"))
    assert_same_meaning(before, sch.func, exact=True)


def test_merge_refuses_loops_that_do_not_match() -> None:
    sch = Schedule(ROW_NORM)
    b, c, d = (sch.get_loops(sch.get_block(name)) for name in "BCD")
    refused("BW304", "at least two", lambda: sch.merge(b[0]))
    refused("BW310", "at depth 2 of its nest", lambda: sch.merge(b[0], c[1]))
    refused("BW310", "program order", lambda: sch.merge(c[0], b[0]))
    refused("BW310", "one of each nest", lambda: sch.merge(b[0], b[1]))
    refused("BW316", "between the nests", lambda: sch.merge(b[0], d[0]))
    outer, _ = sch.split(c[0], [None, 5])
    refused("BW355", "equally often", lambda: sch.merge(b[0], outer))
    sch.parallel(b[0])
    refused("BW312", "parallel already", lambda: sch.merge(b[0], d[0]))


# ------------------------------------------------------------------------------ loop_partition
PADDED = """
@T.prim_func
def main(A: T.Buffer((14, 9), "float32"), B: T.Buffer((16, 9), "float32")):
    for i, j in T.grid(16, 9):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.if_then_else(1 <= vi and vi < 15, A[vi - 1, vj], 0.0)
"""


def test_a_border_is_cut_off() -> None:
    before = program(PADDED)
    sch = Schedule(before, verify="full")
    i, j = sch.get_loops(sch.get_block("B"))
    top, middle, bottom = sch.loop_partition(i, [1, None, 1])
    assert [ir.const_int(loop_of(sch, f).extent) for f in (top, middle, bottom)] == [1, 14, 1]
    assert not any(sch.alive(f) for f in (i, j))
    sch.parallel(middle)
    assert_same_meaning(before, sch.func, exact=True)


def test_pieces_of_an_imperfect_loop_lose_the_predicate() -> None:
    sch = Schedule(program(PADDED), verify="full")
    outer, _ = sch.split(sch.get_loops(sch.get_block("B"))[0], [None, 5])
    whole, rest = sch.loop_partition(outer, [None, 1])
    inside, ragged = (sch.get_child_blocks(f)[0] for f in (whole, rest))
    texts = {
        name: sch.func.script().split(name)[1].split("T.reads")[0]
        for name in (block_of(sch, inside).name, block_of(sch, ragged).name)
    }
    assert "T.where" not in texts[block_of(sch, inside).name]
    assert "T.where" in texts[block_of(sch, ragged).name]
    assert_same_meaning(program(PADDED), sch.func, exact=True)


@pytest.mark.parametrize("level", [0, 1])
def test_pieces_of_a_reduction_start_once(level: int) -> None:
    """Pieces of the reduction loop after the first go on with the sum."""
    sch = Schedule(ROW_NORM, verify="full")
    pieces = sch.loop_partition(sch.get_loops(sch.get_block("C"))[level], [1, None, 2])
    assert len(pieces) == 3
    blocks = [sch.get_child_blocks(piece)[0] for piece in pieces]
    started = [block_of(sch, block).init is not None for block in blocks]
    assert started == ([True, True, True] if level == 0 else [True, False, False])
    assert_same_meaning(ROW_NORM, sch.func, exact=True)


def test_loop_partition_refuses_what_may_not_fit() -> None:
    sch = Schedule(program(PADDED))
    i, j = sch.get_loops(sch.get_block("B"))
    refused("BW318", "more iterations", lambda: sch.loop_partition(i, [10, 10]))
    refused("BW318", "more iterations", lambda: sch.loop_partition(i, [16, None]))
    refused("BW304", "more than one", lambda: sch.loop_partition(i, [None, None]))
    refused("BW304", "no factors", lambda: sch.loop_partition(i, []))
    sch.vectorize(j)
    refused("BW312", "vectorized already", lambda: sch.loop_partition(j, [1]))


# ------------------------------------------------------------------------------ iterators
def test_iterators_change_places() -> None:
    sch = Schedule(ROW_NORM, verify="full")
    block = sch.get_block("C")
    sch.reorder_block_iter_var(block, [1, 0])
    assert [it.var.name for it in block_of(sch, block).iter_vars] == ["vj", "vi"]
    assert_same_meaning(ROW_NORM, sch.func, exact=True)
    refused("BW304", "once", lambda: sch.reorder_block_iter_var(block, [0, 0]))
    refused("BW304", "once", lambda: sch.reorder_block_iter_var(block, [0]))


# ------------------------------------------------------------------------------ fuse, kinds
def test_loops_that_start_late_are_fused_and_split() -> None:
    nest = "for i in range(2, 14):\n      for j in range(3, 9):"
    text = PADDED.replace("for i, j in T.grid(16, 9):", nest)
    before = program(text)
    sch = Schedule(before, verify="full")
    whole = sch.fuse(*sch.get_loops(sch.get_block("B")))
    sch.split(whole, [None, 7])
    assert_same_meaning(before, sch.func, exact=True)


def test_a_spatial_loop_must_move_what_is_written() -> None:
    """Two instances write one element, so their order matters although both are spatial."""
    before = program("""
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), X: T.Buffer((8,), "float32")):
    for i, k in T.grid(8, 8):
        with T.block("X"):
            vi, vk = T.axis.remap("SS", [i, k])
            X[vi] = A[vi, vk]
""")
    sch = Schedule(before)
    i, k = sch.get_loops(sch.get_block("X"))
    for step in (sch.parallel, sch.vectorize):
        refused("BW314", "may write the same element of X", partial(step, k))
    outer, inner = sch.split(k, [None, 2])
    refused("BW314", "no index depends on vk", lambda: sch.reorder(inner, outer))
    sch.reorder(outer, inner, i)  # the last of each row is written last
    assert_same_meaning(before, sch.func)


def test_iterations_that_run_one_instance_twice_are_not_concurrent() -> None:
    before = program("""
@T.prim_func
def main(A: T.Buffer((4,), "float32"), X: T.Buffer((4,), "float32")):
    for i in range(8):
        with T.block("X"):
            vi = T.axis.spatial(4, i // 2)
            X[vi] = A[vi]
""")
    sch = Schedule(before)
    (i,) = sch.get_loops(sch.get_block("X"))
    refused("BW317", "may write the same elements", lambda: sch.parallel(i))


@pytest.mark.parametrize("factors", [(16,), (8,), (4, 2), (3, 5)], ids=str)
@pytest.mark.parametrize(
    "extents",
    [
        "T.int64(3), n, T.int64(7), T.int64(4)",
        "3, n, 7, 4",  # the fused loop is as wide as n, what it binds is not
        "3, n, T.int64(8), 4",
        "3, 5, 7, 4",
    ],
)
def test_all_axes_fused_and_split_unevenly_run_in_parallel(
    extents: str, factors: tuple[int, ...]
) -> None:
    rows, columns = "n" if "n" in extents else 5, 8 if "8" in extents else 7
    before = program(f"""
@T.prim_func
def main(x: T.handle, o: T.handle):
    {"n = T.int64()" if rows == "n" else "pass"}
    X = T.match_buffer(x, (3, {rows}, {columns}, 4), "float32")
    C = T.match_buffer(o, (3, {rows}, {columns}, 4), "float32")
    for b, i, j, k in T.grid({extents}):
        with T.block("C"):
            vb, vi, vj, vk = T.axis.remap("SSSS", [b, i, j, k])
            C[vb, vi, vj, vk] = X[vb, vi, vj, vk] * 2.0
""")
    sch = Schedule(before, verify="full")
    block = sch.get_block("C")
    outer, *_, inner = sch.split(sch.fuse(*sch.get_loops(block)), [None, *factors])
    sch.parallel(outer)
    sch.vectorize(inner)
    for n in (1, 4, 9):
        assert_same_meaning(before, sch.func, sizes={"n": n})


# ------------------------------------------------------------------------------ inside blocks
@pytest.mark.parametrize("factor", [5, 7])
def test_scheduling_goes_on_inside_a_block_of_several(factor: int) -> None:
    """Rows in groups, also ragged ones: moved, split, staged and vectorized inside the group."""
    sch = Schedule(ROW_NORM, verify="full")
    b, c, d = (sch.get_block(name) for name in "BCD")
    group, _ = sch.split(sch.get_loops(d)[0], [None, factor])
    sch.compute_at(c, group)
    sch.compute_at(b, group)
    tile = sch.blockize([b, c, d])
    assert {buffer.name for buffer in block_of(sch, tile).alloc_buffers} == {"B", "C"}
    sch.parallel(group)
    row, column = sch.get_loops(d)
    sch.compute_at(b, sch.get_loops(c)[0])
    sch.compute_at(sch.cache_read(d, 0, "local", consumer_blocks=[d]), row)
    sch.decompose_reduction(c, sch.get_loops(c)[1])
    sch.vectorize(sch.split(column, [None, 4])[1])
    sch.unroll(sch.split(sch.get_loops(c)[-1], [None, 2])[1])
    assert_same_meaning(ROW_NORM, sch.func)
    for name in "BCD":
        assert len(sch.get_loops(sch.get_block(name))) > 0


def test_blocks_that_bind_outer_loops_alike_share_iterators() -> None:
    sch = Schedule(ROW_NORM, verify="full")
    row = sch.merge(*(sch.get_loops(sch.get_block(name))[0] for name in "BCD"))
    tile = sch.blockize(sch.get_child_blocks(row), preserve_unit_iters=False)
    assert [it.var.name for it in block_of(sch, tile).iter_vars] == ["vi_o"]
    assert_same_meaning(ROW_NORM, sch.func)


def test_a_loop_around_several_blocks_becomes_a_block() -> None:
    """What the rows exchange moves into the block with them."""
    sch = Schedule(ROW_NORM, verify="full")
    row = sch.merge(*(sch.get_loops(sch.get_block(name))[0] for name in "BCD"))
    outer, inner = sch.split(row, [None, 6])
    tile = block_of(sch, sch.blockize(inner))
    assert {buffer.name for buffer in tile.alloc_buffers} == {"B", "C"}
    assert len(sch.get_loops(sch.get_block("D"))) == 2
    sch.parallel(outer)
    assert_same_meaning(ROW_NORM, sch.func)


def test_a_block_of_which_one_iteration_counts_keeps_its_predicate() -> None:
    """Without it, both iterations of i would write the row, at once when they are lanes."""
    before = program("""
@T.prim_func
def main(A: T.Buffer((1, 16), "float32"), B: T.Buffer((1, 16), "float32")):
    for i, j in T.grid(2, 16):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(i < 1)
            B[vi, vj] = A[vi, vj] * 2.0
""")
    sch = Schedule(before, verify="full")
    rows = sch.get_loops("B")[0]
    sch.blockize(rows)
    assert_same_meaning(before, sch.func)
    realizes = ir.collect(sch.func.body, ir.BlockRealize)
    inner = next(r for r in realizes if r.block is block_of(sch, sch.get_block("B")))
    assert ir.uses_var(inner.predicate, loop_of(sch, rows).loop_var)
    sch.vectorize(rows)
    assert_same_meaning(before, sch.func)


def test_grouping_is_refused_where_it_would_cut_something() -> None:
    sch = Schedule(ROW_NORM)
    b, c, d = (sch.get_block(name) for name in "BCD")
    refused("BW310", "is between", lambda: sch.blockize([b, d]))
    refused("BW304", "twice", lambda: sch.blockize([b, b]))
    refused("BW304", "a loop handle or a list", lambda: sch.blockize(b))  # type: ignore[arg-type]
    inner = sch.merge(sch.get_loops(b)[1], sch.get_loops(c)[1])
    refused("BW365", "not complete inside", lambda: sch.blockize(sch.get_child_blocks(inner)))
    part = sch.split(inner, [None, 5])[1]
    refused("BW365", "not complete inside", lambda: sch.blockize(part))


def test_handles_live_on_inside_a_new_block() -> None:
    sch = Schedule(ROW_NORM, verify="full")
    block = sch.get_block("D")
    outer, inner = sch.split(sch.get_loops(block)[1], [None, 5])
    first = sch.blockize(inner)
    second = sch.blockize(outer)
    names = [block_of(sch, b).name for b in (second, first, block)]
    assert names == ["D_o_o", "D_o", "D"]
    assert all(sch.alive(h) for h in (outer, inner))
    assert_same_meaning(ROW_NORM, sch.func, exact=True)


def test_random_merges_and_pieces_keep_the_meaning() -> None:
    """Every pair of nests and every cut of a small chain."""
    accepted = 0
    for (a, b), depth, cut in itertools.product([("B", "C"), ("C", "D")], [0, 1], [1, 7, 19]):
        sch = Schedule(ROW_NORM, verify="full")
        try:
            merged = sch.merge(*(sch.get_loops(sch.get_block(n))[depth] for n in (a, b)))
            sch.loop_partition(merged, [cut])
            accepted += 1
        except ScheduleError:
            continue
        assert_same_meaning(ROW_NORM, sch.func)
    assert accepted == 9


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("step", ["parallel", "bind"])
def test_a_loop_keeps_what_its_visit_before_left(step: str, count: int) -> None:
    """B is the loop's own: given anew to each iteration, it would lose the element before."""
    func = program(f"""
@T.prim_func
def main(A: T.Buffer(({count}, 8), "float32"), C: T.Buffer(({count}, 8), "float32")):
    B = T.alloc_buffer(({count}, 8), "float32", scope="local")
    for o in range(8):
        for p in range({count}):
            with T.block("B"):
                vp, vo = T.axis.remap("SS", [p, o])
                B[vp, vo] = A[vp, vo] * T.float32(2)
            with T.block("C"):
                vp, vo = T.axis.remap("SS", [p, o])
                C[vp, vo] = B[vp, vo] + B[vp, T.max(vo - 1, 0)]
""")
    sch = Schedule(func)
    loop = sch.get_loops("B")[1]
    take = (
        partial(sch.parallel, loop)
        if step == "parallel"
        else partial(sch.bind, loop, "threadIdx.x")
    )
    with pytest.raises(ScheduleError, match="an earlier execution of loop p wrote") as caught:
        take()
    assert caught.value.code == "BW316"

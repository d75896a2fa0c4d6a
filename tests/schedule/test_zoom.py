"""Zooming into the inner problem of a block or loop, and composite rules of one's own."""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.schedule import BlockRV, LoopRV, Schedule, ScheduleError, Zoom, composite
from blockwright.script.ir import from_source
from blockwright.testing.check import assert_same_meaning

MATMUL = """
@T.prim_func
def main(A: T.Buffer((32, 16), "float32"), B: T.Buffer((16, 24), "float32"),
         D: T.Buffer((32, 24), "float32")):
    C = T.alloc_buffer((32, 24), "float32")
    for i, j, k in T.grid(32, 24, 16):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(32, 24):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, vj] * T.float32(2)
"""
SAME_NAMES = """
@T.prim_func
def main(A: T.Buffer((8, 4), "float32"), B: T.Buffer((8, 4), "float32")):
    for i in range(4):
        with T.block("outer"):
            vi = T.axis.spatial(4, i)
            for j, k in T.grid(2, 4):
                with T.block("B"):
                    vj, vk = T.axis.remap("SS", [j, k])
                    B[vi * 2 + vj, vk] = A[vi * 2 + vj, vk] + T.float32(1)
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi, 0] = A[vi, 0]
"""


def program(source: str = MATMUL) -> ir.PrimFunc:
    parsed = from_source(source)
    assert isinstance(parsed, ir.PrimFunc)
    return parsed


@pytest.fixture
def sch() -> Schedule:
    return Schedule(program(), verify="full")


def names(sch: Schedule | Zoom, block: str) -> list[str]:
    return [sch.get(loop).loop_var.name for loop in sch.get_loops(block)]


def test_inside_a_loop_only_the_inner_axes_are_in_sight(sch: Schedule) -> None:
    tile = sch.tile("C", "i j k -> i0 j0 i1 j1 k", i1=8, j1=8)
    with sch.zoom(tile.j0) as inner:
        assert names(inner, "C") == ["i1", "j1", "k"]
        inner.tile("C", "i1 j1 k -> k j1 i1")
        assert "D[" not in inner.text()
        assert inner.text().startswith("for j0, k, j1, i1 in T.grid(3, 16, 8, 8):")
    assert names(sch, "C") == ["i0", "j0", "k", "j1", "i1"]
    assert_same_meaning(program(), sch.func, exact=True)


def test_copies_inside_a_loop_are_made_there(sch: Schedule) -> None:
    tile = sch.tile("C", "i j k -> i0 j0 i1 j1 k", i1=8, j1=8)
    with sch.zoom(tile.j0) as inner:
        a = inner.cache_read("C", "A", "local")
        c = inner.cache_write("C", 0, "local")
        assert names(inner, "A_local") == ["ax0", "ax1"]
    for copy in (a, c):
        around = [sch.get(loop) for loop in sch.get_loops(copy)]
        assert around[:2] == [sch.get(tile.i0), sch.get(tile.j0)]
    assert "# sch.cache_read(b" in sch.trace.as_python()
    assert_same_meaning(program(), sch.func, exact=True)
    again = Schedule(program())
    exec(sch.trace.as_python(), {"sch": again})
    ir.assert_structural_equal(again.func, sch.func)


def test_what_lies_outside_is_refused(sch: Schedule) -> None:
    tile = sch.tile("C", "i j k -> i0 j0 i1 j1 k", i1=8, j1=8)
    d = sch.get_block("D")
    inner = sch.zoom(tile.j0)
    with pytest.raises(ScheduleError, match="split: loop i0 lies outside") as caught:
        inner.split(tile.i0, [None, 2])
    assert caught.value.code == "BW308"
    with pytest.raises(ScheduleError, match="block D lies outside") as caught:
        inner.get_loops(d)
    assert caught.value.code == "BW308"
    with pytest.raises(ScheduleError, match="no block inside is named 'D'") as caught:
        inner.get_block("D")
    assert caught.value.code == "BW302"
    assert "blocks inside: C" in str(caught.value)
    with pytest.raises(ScheduleError, match="lies outside the zoomed part"):
        inner.zoom(tile.i0)


def test_a_block_is_zoomed_into_when_it_holds_blocks(sch: Schedule) -> None:
    with pytest.raises(ScheduleError, match="block C contains no blocks") as caught:
        sch.zoom("C")
    assert caught.value.code == "BW307"
    tile = sch.tile("C", "i j k -> i0 j0 i1 j1 k", i1=8, j1=8)
    outer = sch.blockize(tile.i1)
    inner = sch.zoom(outer)
    found = inner.get_child_blocks(outer)
    assert "C" in [sch.get(b).name for b in found]
    inner.tile("C", "i1 -> i2 i3", i3=2)
    assert_same_meaning(program(), sch.func, exact=True)


def test_names_need_be_unique_only_inside() -> None:
    sch = Schedule(program(SAME_NAMES), verify="full")
    with pytest.raises(ScheduleError, match="2 blocks are named 'B'"):
        sch.get_block("B")
    inner = sch.zoom("outer")
    assert names(inner, "B") == ["j", "k"]
    inner.vectorize(inner.axis("B", "k"))
    again = Schedule(program(SAME_NAMES))
    exec(sch.trace.as_python(), {"sch": again})
    ir.assert_structural_equal(again.func, sch.func)


def test_parts_of_parts_and_their_steps(sch: Schedule) -> None:
    tile = sch.tile("C", "i j k -> i0 j0 i1 j1 k", i1=8, j1=8)
    with sch.zoom(tile.i0) as outer, outer.zoom(tile.j0) as inner:
        inner.unroll(inner.axis("C", "k"))
        assert [step.record.method for step in inner.steps][-1] == "unroll"
    sch.fuse(tile.i0, tile.j0)
    with pytest.raises(ScheduleError, match="is gone"):
        inner.show()


def test_a_rule_of_ones_own_is_one_call(sch: Schedule) -> None:
    @composite
    def stage(sch: Schedule, block: BlockRV, buffer: str, at: LoopRV) -> BlockRV:
        copy = sch.cache_read(block, buffer, "shared")
        sch.compute_at(copy, at)
        return copy

    tile = sch.tile("C", "i j k -> i0 j0 k0 i1 j1 k1", i1=8, j1=8, k1=4)
    c = sch.get_block("C")
    copy = stage(sch, c, "A", tile.k0)
    assert sch.get(sch.get_loops(copy)[2]) is sch.get(tile.k0)
    text = sch.trace.as_python().splitlines()
    at = text.index(f"# sch.stage({c!r}, 'A', {tile.k0!r}):")
    assert text[at + 1].endswith(f"= sch.cache_read({c!r}, 'A', 'shared')")
    assert text[at + 2].startswith("sch.compute_at(")
    assert text[at + 3] == "# end of stage"
    assert [stage.call for stage in sch.history][-1] == f"stage({c!r}, 'A', {tile.k0!r})"
    before = sch.func
    with pytest.raises(ScheduleError, match="stage: compute_at: "):
        stage(sch, c, "B", sch.get_loops("D")[0])
    assert sch.func is before


def test_a_consumer_is_moved_by_a_name_that_says_so(sch: Schedule) -> None:
    tile = sch.tile("C", "i j k -> i0 j0 i1 j1 k", i1=8, j1=8)
    sch.consume_at("D", tile.j0)
    assert "sch.reverse_compute_at(" in sch.trace.as_python()
    assert names(sch, "D")[:2] == ["i0", "j0"]
    assert_same_meaning(program(), sch.func, exact=True)

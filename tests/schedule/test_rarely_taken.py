"""Steps whose details no other test looks at, found by the mutation test: just what comes out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.ir.printer import script
from blockwright.testing import assert_same_meaning

TILES = """
@T.prim_func
def main(A: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")):
    B = T.alloc_buffer((16,), "float32")
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            for j in range(4):
                with T.block("element"):
                    vj = T.axis.spatial(4, j)
                    B[vi * 4 + vj] = A[vi * 4 + vj] * T.float32(2)
    for o, i in T.grid(2, 8):
        with T.block("C"):
            vi = T.axis.spatial(16, o * 8 + i)
            C[vi] = B[vi] + T.float32(1)
"""
WHOLE_TILES = """
@T.prim_func
def main(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] * T.float32(2)
    for o, i in T.grid(3, 4):
        with T.block("C"):
            vi = T.axis.spatial(8, o * 4 + i)
            T.where(o < 2)
            C[vi] = B[vi] + T.float32(1)
"""
SUM = """
@T.prim_func
def main(A: T.Buffer((7, 2, 3, 4, 5), "float32"), C: T.Buffer((7, 2, 3, 4), "float32")):
    for o, i, j, l, k in T.grid(7, 2, 3, 4, 5):
        with T.block("C"):
            vo, vi, vj, vl, vk = T.axis.remap("SSSSR", [o, i, j, l, k])
            T.where(o < 5 and l >= 1)
            with T.init():
                C[vo, vi, vj, vl] = T.float32(0)
            C[vo, vi, vj, vl] = C[vo, vi, vj, vl] + A[vo, vi, vj, vl, vk]
"""
PAIR = """
@T.prim_func
def main(A: T.Buffer((6, 2, 3, 4), "float32"), B: T.Buffer((6, 2, 3, 4), "float32"),
         C: T.Buffer((6, 2, 3), "float32")):
    for o in range(6):
        for i, j, l in T.grid(2, 3, 4):
            with T.block("B"):
                vo, vi, vj, vl = T.axis.remap("SSSS", [o, i, j, l])
                T.where(o < 5)
                B[vo, vi, vj, vl] = A[vo, vi, vj, vl] * T.float32(2)
        for i, j, k in T.grid(2, 3, 4):
            with T.block("C"):
                vo, vi, vj, vk = T.axis.remap("SSSR", [o, i, j, k])
                T.where(o < 5)
                with T.init():
                    C[vo, vi, vj] = T.float32(0)
                C[vo, vi, vj] = C[vo, vi, vj] + A[vo, vi, vj, vk]
"""
STAGES = """
@T.prim_func
def main(A: T.Buffer((2, 3, 4, 6), "float32"), C: T.Buffer((2, 3, 4, 6), "float32")):
    B = T.alloc_buffer((2, 3, 4, 6), "float32")
    for i, j, l in T.grid(2, 3, 4):
        for k in range(6):
            with T.block("B"):
                vi, vj, vl, vk = T.axis.remap("SSSS", [i, j, l, k])
                B[vi, vj, vl, vk] = A[vi, vj, vl, vk] * T.float32(2)
            with T.block("C"):
                vi, vj, vl, vk = T.axis.remap("SSSS", [i, j, l, k])
                C[vi, vj, vl, vk] = B[vi, vj, vl, vk] + T.float32(1)
"""
DIAGONAL = """
@T.prim_func
def main(A: T.Buffer((6, 6), "float32"), C: T.Buffer((6, 3), "float32")):
    B = T.alloc_buffer((6, 6, 3), "float32")
    for i, j, k in T.grid(6, 6, 3):
        with T.block("B"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            B[vi, vj, vk] = A[vi, vj] * T.float32(2)
    for i, k in T.grid(6, 3):
        with T.block("C"):
            vi, vk = T.axis.remap("SS", [i, k])
            C[vi, vk] = B[vi, vi, vk] + T.float32(1)
"""
NEIGHBOURS = """
@T.prim_func
def main(A: T.Buffer((8,), "float32"), C: T.Buffer((6,), "float32")):
    B = T.alloc_buffer((7,), "float32")
    for i in range(6):
        with T.block("B"):
            vi = T.axis.spatial(6, i)
            B[vi] = A[vi] * T.float32(2)
            B[vi + 1] = A[vi + 1] * T.float32(3)
        with T.block("C"):
            vi = T.axis.spatial(6, i)
            C[vi] = B[vi] + B[vi + 1]
"""
BEGUN = """
@T.prim_func
def main(A: T.Buffer((6, 8), "float32"), C: T.Buffer((6,), "float32")):
    for o in range(2):
        with T.block("O"):
            vo = T.axis.reduce(2, o)
            with T.init():
                for i in range(6):
                    with T.block("begin"):
                        vi = T.axis.spatial(6, i)
                        C[vi] = T.float32(0)
            for i, k in T.grid(6, 4):
                with T.block("C"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    C[vi] = C[vi] + A[vi, vo * 4 + vk]
"""
KERNELS = """
@T.prim_func
def main(A: T.Buffer((6, 8), "float32"), B: T.Buffer((6, 8), "float32"),
         C: T.Buffer((6, 8), "float32")):
    for b in T.thread_binding(6, thread="blockIdx.x"):
        for t in T.thread_binding(8, thread="threadIdx.x"):
            with T.block("B"):
                vb, vt = T.axis.remap("SS", [b, t])
                B[vb, vt] = A[vb, vt] * T.float32(2)
    for b in T.thread_binding(6, thread="blockIdx.x"):
        for t in T.thread_binding(8, thread="threadIdx.x"):
            with T.block("C"):
                vb, vt = T.axis.remap("SS", [b, t])
                C[vb, vt] = A[vb, vt] * T.float32(3)
"""


def after(program: str, step: Callable[[bw.Schedule], object]) -> str:
    """The program that the step makes, which means the same, as text."""
    func = bw.from_source(program)
    assert isinstance(func, ir.PrimFunc)
    sch = bw.Schedule(func, verify="full")
    step(sch)
    assert_same_meaning(func, sch.func)
    return script(sch.func)


def test_a_block_that_writes_tiles_runs_just_for_the_tiles_that_are_needed() -> None:
    text = after(TILES, lambda s: s.compute_at("B", s.get_loops("C")[0]))
    assert "for ax0 in range(2):" in text
    assert "vi = T.axis.spatial(4, o * 2 + ax0)" in text
    assert "T.where" not in text


def test_a_producer_moved_into_a_guarded_tile_runs_whole_tiles() -> None:
    """That the tile runs at all says that its elements exist: they are not asked for one by one."""
    text = after(WHOLE_TILES, lambda s: s.compute_at("B", s.get_loops("C")[0]))
    assert text.count("T.where(o < 2)") == text.count("T.where") == 2


def test_blockize_of_a_reduction_begins_every_element_of_the_new_block() -> None:
    """Three iterators of different extents, one of which begins at 1, under a condition outside."""
    text = after(SUM, lambda s: s.blockize(s.get_loops("C")[1]))
    assert text.count("T.where(o < 5)") == 1
    begin = text[text.index("with T.init():") :]
    assert "for vi_i_loop, vj_i_loop, vl_i_loop in T.grid(2, 3, 3):" in begin
    assert 'vi_i, vj_i = T.axis.remap("SS", [vi_i_loop, vj_i_loop])' in begin
    assert "vl_i = T.axis.spatial((1, 4), vl_i_loop + 1)" in begin
    assert "T.where" not in begin[: begin.index("for i, j, l, k in")]


def test_blocks_grouped_keep_their_condition_and_their_initial_values() -> None:
    text = after(PAIR, lambda s: s.blockize([s.get_block("B"), s.get_block("C")]))
    assert text.count("T.where(o < 5)") == text.count("T.where") == 1
    assert "vo_o = T.axis.spatial(5, o)" in text
    assert 'vi_i, vj_i, vl_i = T.axis.remap("SSS", [i, j, l])' in text
    assert 'vi_i, vj_i, vk_i = T.axis.remap("SSR", [i, j, k])' in text
    assert text.count("with T.init():") == 1


def test_a_pipeline_inside_of_loops_is_a_block_over_all_of_them() -> None:
    text = after(STAGES, lambda s: s.software_pipeline(s.get_loops("B")[3], [0, 1]))
    assert 'vi, vj, vl = T.axis.remap("SSS", [i, j, l])' in text


@pytest.mark.parametrize("at", [0, 1])
def test_what_is_read_along_a_diagonal_keeps_its_other_iterators(at: int) -> None:
    """The second of two iterators on one loop gets a loop of its own, the third one its loop."""
    text = after(DIAGONAL, lambda s: s.compute_at("B", s.get_loops("C")[at]))
    assert "for vj_at in T.serial(i, i + 1):" in text
    assert "vj = T.axis.spatial(6, vj_at)" in text
    assert f"vk = T.axis.spatial(3, {('ax2', 'k')[at]})" in text


def test_versions_are_no_smaller_than_what_a_block_says_it_touches() -> None:
    """An iteration touches two neighbours; modulo two they would be the last and the first, which
    no region can say."""
    text = after(NEIGHBOURS, lambda s: s.software_pipeline(s.get_loops("B")[0], [0, 1]))
    assert 'B = T.alloc_buffer((2, 7), "float32")' in text


def test_a_step_inside_of_a_block_keeps_its_initial_value() -> None:
    text = after(BEGUN, lambda s: s.split(s.get_loops("C")[0], [2, 3]))
    assert text.count("with T.init():") == 1
    text = after(BEGUN, lambda s: s.split(s.get_loops("begin")[0], [2, 3]))
    assert "for i_0, i_1 in T.grid(2, 3):" in text[: text.index('T.block("begin")')]


def test_kernels_side_by_side_run_in_one_grid() -> None:
    """The thread axis is as long as the loop that is bound to it."""
    text = after(KERNELS, lambda s: s.horizontal_fuse(s.get_loops("B")[0], s.get_loops("C")[0]))
    assert 'for b_b_fused in T.thread_binding(12, thread="blockIdx.x"):' in text


RUNNING = """
@T.prim_func
def main(A: T.Buffer((4, 8), "float32"), C: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(1)
            C[vi] = C[vi] * T.float32(0.5) + A[vi, vk]
"""


def test_terms_in_order_stay_so_where_a_map_only_looks_different() -> None:
    """`k % 8` is `k` for the eight there are."""
    text = after(RUNNING, lambda s: s.transform_block_layout("C", lambda i, k: (i, k % 8)))
    assert "for ax0, ax1 in T.grid(4, 8):" in text

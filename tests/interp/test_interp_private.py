"""Buffers used inside one parallel loop: private to its iterations, or shared by its rounds."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.interp import interpret
from blockwright.script.ir import from_source
from blockwright.support import InterpretError

X = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")


RUNNING_TOTAL = from_source("""
@T.prim_func
def running_total(x: T.Buffer((4, 8), "float32"), out: T.Buffer((4, 8), "float32")):
    total = T.alloc_buffer((4,), "float32")
    for k in range(8):
        for i in T.parallel(4):
            with T.block("total"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    total[vi] = T.float32(0)
                total[vi] = total[vi] + x[vi, vk]
            with T.block("out"):
                vi, vk = T.axis.remap("SS", [i, k])
                out[vi, vk] = total[vi]
""")

TOTAL_NOBODY_READS = from_source("""
@T.prim_func
def total_nobody_reads(x: T.Buffer((4, 8), "float32"), out: T.Buffer((4, 8), "float32")):
    total = T.alloc_buffer((4,), "float32")
    for k in range(8):
        for i in T.parallel(4):
            with T.block("total"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    total[vi] = T.float32(0)
                total[vi] = total[vi] + x[vi, vk]
    for i, k in T.grid(4, 8):
        with T.block("out"):
            vi, vk = T.axis.remap("SS", [i, k])
            out[vi, vk] = x[vi, vk]
""")

ROW_OF_ITS_OWN = from_source("""
@T.prim_func
def row_of_its_own(x: T.Buffer((4, 8), "float32"), out: T.Buffer((4, 8), "float32")):
    row = T.alloc_buffer((2,), "float32")
    for half in range(4):
        for i in T.parallel(4):
            for k in range(2):
                with T.block("row"):
                    vi, vh, vk = T.axis.remap("SSS", [i, half, k])
                    row[vk] = x[vi, vh * 2 + vk] * T.float32(2)
            for k in range(2):
                with T.block("out"):
                    vi, vh, vk = T.axis.remap("SSS", [i, half, k])
                    out[vi, vh * 2 + vk] = row[vk]
""")

ROW_OF_A_RAGGED_ROUND = from_source("""
@T.prim_func
def row_of_a_ragged_round(x: T.Buffer((4, 8), "float32"), out: T.Buffer((4, 8), "float32")):
    row = T.alloc_buffer((8,), "float32")
    for part in range(4):
        for i in T.parallel(4):
            for k in range(3):
                with T.block("row"):
                    vi = T.axis.spatial(4, i)
                    vk = T.axis.spatial(8, part * 3 + k)
                    T.where(part * 3 + k < 8)
                    row[vk] = x[vi, vk] * T.float32(2)
            for a, k in T.grid(1, 3):
                with T.block("out"):
                    vi = T.axis.spatial(4, i)
                    vk = T.axis.spatial(8, part * 3 + a * 3 + k)
                    T.where(part * 3 + a * 3 + k < 8)
                    out[vi, vk] = row[vk]
""")

ONE_TOTAL_FOR_ALL = from_source("""
@T.prim_func
def one_total_for_all(x: T.Buffer((4, 8), "float32"), out: T.Buffer((4, 8), "float32")):
    total = T.alloc_buffer((1,), "float32")
    for k in range(8):
        for i in T.parallel(4):
            with T.block("total"):
                T.reads(total[0], x[i, k])
                T.writes(total[0], out[i, k])
                total[0] = total[0] + x[i, k]
                out[i, k] = total[0]
""")

CUMULATED = X.cumsum(axis=1, dtype="float32")


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (RUNNING_TOTAL, CUMULATED),
        (TOTAL_NOBODY_READS, X),
        (ROW_OF_ITS_OWN, X * 2),
        (ROW_OF_A_RAGGED_ROUND, X * 2),
    ],
)
def test_values_outlive_an_iteration_where_another_loop_repeats_it(
    program: ir.PrimFunc, expected: np.ndarray
) -> None:
    for order in (None, "reverse"):
        out = np.zeros_like(X)
        interpret(program, X, out, order=order)
        np.testing.assert_array_equal(out, expected)
    native = np.zeros_like(X)
    bw.build(program)[program.name](X, native)
    np.testing.assert_array_equal(native, expected)


def test_a_shared_total_that_all_iterations_update_is_no_memory_of_theirs() -> None:
    with pytest.raises(InterpretError):
        interpret(ONE_TOTAL_FOR_ALL, X, np.zeros_like(X))


RAGGED_TILES = """
@T.prim_func
def ragged_tiles(A: T.Buffer((12, 9), "float32"), C: T.Buffer((10, 8), "float32")):
    B = T.alloc_buffer((12, 9), "float32", scope="SCOPE")
    for i_0 in range(3):
        for j in LOOP:
            for ax0, ax1 in T.grid(6, 2):
                with T.block("B"):
                    vi = T.axis.spatial(12, i_0 * 4 + ax0)
                    vj = T.axis.spatial(9, j + ax1)
                    T.where(i_0 * 4 + ax0 < 12)
                    B[vi, vj] = A[vi, vj] * T.float32(2)
            for i_1 in range(4):
                with T.block("C"):
                    vi = T.axis.spatial(10, i_0 * 4 + i_1)
                    vj = T.axis.spatial(8, j)
                    T.where(i_0 * 4 + i_1 < 10)
                    C[vi, vj] = B[vi, vj] + B[vi + 2, vj + 1]
"""


@pytest.mark.parametrize(
    ("scope", "loop"),
    [("global", "T.parallel(8)"), ("local", 'T.thread_binding(8, thread="threadIdx.x")')],
)
def test_ragged_tiles_belong_to_their_iteration(scope: str, loop: str) -> None:
    """The conditions of writer and reader differ in their inner loops, and leave both something to
    do in every round: halos of neighbouring iterations overlap, and are memory of each."""
    func = from_source(RAGGED_TILES.replace("SCOPE", scope).replace("LOOP", loop))
    a = np.random.default_rng(1).standard_normal((12, 9)).astype("float32")
    out = np.zeros((10, 8), "float32")
    interpret(func, a, out)
    np.testing.assert_array_equal(out, a[:10, :8] * 2 + a[2:, 1:] * 2)


def test_an_initial_value_of_one_round_is_no_beginning_of_the_others() -> None:
    """`k == 0` holds in one round, whatever the inner loops do: the sums are handed on."""
    func = from_source("""
@T.prim_func
def rounds(x: T.Buffer((4, 8), "float32"), out: T.Buffer((4, 8), "float32")):
    total = T.alloc_buffer((4, 2), "float32")
    for k in range(8):
        for i in T.parallel(4):
            for u in range(2):
                with T.block("zero"):
                    vi, vu = T.axis.remap("SS", [i, u])
                    T.where(k + u < 1 + u)
                    total[vi, vu] = T.float32(0)
            with T.block("total"):
                vi, vk = T.axis.remap("SS", [i, k])
                T.reads(total[vi, 0], x[vi, vk])
                T.writes(total[vi, 0], out[vi, vk])
                total[vi, 0] = total[vi, 0] + x[vi, vk]
                out[vi, vk] = total[vi, 0]
""")
    out = np.zeros_like(X)
    interpret(func, X, out)
    np.testing.assert_array_equal(out, CUMULATED)


def test_a_loop_over_one_thread_adds_no_owner() -> None:
    """What the only member of an inner axis leaves is there for the thread around it."""
    func = from_source("""
@T.prim_func
def one_thread(x: T.Buffer((4, 8), "float32"), out: T.Buffer((4, 8), "float32")):
    row = T.alloc_buffer((8,), "float32", scope="local")
    for i in T.thread_binding(4, thread="threadIdx.x"):
        for u in T.thread_binding(1, thread="threadIdx.y"):
            for j in range(8):
                with T.block("row"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    row[vj] = x[vi, vj] * T.float32(2)
        for j in range(8):
            with T.block("out"):
                vi, vj = T.axis.remap("SS", [i, j])
                out[vi, vj] = row[vj]
""")
    out = np.zeros_like(X)
    interpret(func, X, out)
    np.testing.assert_array_equal(out, X * 2)


CONDITIONS = """
@T.prim_func
def halos(x: T.Buffer((4, 9), "float32"), out: T.Buffer((4, 8), "float32")):
    tile = T.alloc_buffer((4, 9), "float32")
    for k in range(8):
        for i in T.parallel(8):
            for a in range(2):
                with T.block("tile"):
                    vk, vi = T.axis.spatial(4, k - 4), T.axis.spatial(9, i + a)
                    T.where(k - 4 >= 0)
                    tile[vk, vi] = x[vk, vi] * 2.0
            with T.block("out"):
                vk, vi = T.axis.spatial(4, k - 4), T.axis.spatial(8, i)
                T.where(k >= 4)
                out[vk, vi] = tile[vk, vi] + tile[vk, vi + 1]
"""


def test_conditions_that_mean_the_same_may_be_written_in_two_ways() -> None:
    x = np.random.default_rng(2).standard_normal((4, 9)).astype("float32")
    out = np.zeros((4, 8), "float32")
    interpret(from_source(CONDITIONS), x, out)
    np.testing.assert_array_equal(out, x[:, :8] * 2 + x[:, 1:] * 2)


def test_rounds_in_which_nobody_reads_need_no_beginning() -> None:
    """The last tile has an iteration that lies outside, for the writer and for the reader: a
    condition that cuts it off, and keeps the halo inside, leaves values to no later round."""
    func = from_source("""
@T.prim_func
def outside(C: T.Buffer((3,), "float32")):
    B = T.alloc_buffer((5,), "float32")
    for o in range(3):
        for i in T.parallel(2):
            for a in range(3):
                with T.block("B"):
                    v = T.axis.spatial(5, o * 2 + i + a)
                    T.where(o * 2 + i + a < 5)
                    B[v] = T.float32(2)
            with T.block("C"):
                v = T.axis.spatial(3, o * 2 + i)
                T.where(o * 2 + i < 3)
                C[v] = B[v] + B[v + 2]
""")
    out = np.zeros(3, "float32")
    interpret(func, out)
    np.testing.assert_array_equal(out, 4.0)


def test_a_condition_around_all_uses_leaves_out_whole_iterations() -> None:
    """As `merge_guards` writes it: iterations outside of the last tile do not use the buffer."""
    func = from_source("""
@T.prim_func
def one_guard(x: T.Buffer((3,), "float32"), C: T.Buffer((5, 3), "float32")):
    B = T.allocate((3,), "float32")
    for o in range(2):
        for i in T.parallel(4):
            if o * 4 + i < 5:
                for j in range(3):
                    B[j] = x[j]
                    C[o * 4 + i, j] = B[j] * T.float32(2)
""")
    x, out = np.arange(3, dtype="float32"), np.zeros((5, 3), "float32")
    interpret(func, x, out)
    np.testing.assert_array_equal(out, np.tile(2 * x, (5, 1)))


def test_a_condition_around_some_uses_does_not() -> None:
    func = from_source("""
@T.prim_func
def two_guards(x: T.Buffer((3,), "float32"), C: T.Buffer((5, 3), "float32")):
    B = T.allocate((3,), "float32")
    for o in range(2):
        for i in T.parallel(4):
            if o * 4 + i < 5:
                for j in range(3):
                    B[j] = x[j]
            if i < 1:
                for j in range(3):
                    C[o * 4 + i, j] = B[j] * T.float32(2)
""")
    with pytest.raises(InterpretError) as caught:
        interpret(func, np.zeros(3, "float32"), np.zeros((5, 3), "float32"))
    assert caught.value.code == "BW756"

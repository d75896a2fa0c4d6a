"""bind: what it makes of loops, and which loops it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import BlockRV, Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.testing.check import assert_same_meaning

MATMUL = """
@T.prim_func
def main(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32"),
         C: T.Buffer((64, 64), "float32")):
    for i, j, k in T.grid(64, 64, 64):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""

SMALL = MATMUL.replace("64", "8")


HALO = """
@T.prim_func
def main(A: T.Buffer((33,), "float32"), B: T.Buffer((32,), "float32")):
    C = T.alloc_buffer((33,), "float32")
    for i in range(8):
        for j in range(5):
            with T.block("C"):
                vj = T.axis.spatial(33, i * 4 + j)
                C[vj] = A[vj] * T.float32(2)
        for j in range(4):
            with T.block("B"):
                vj = T.axis.spatial(32, i * 4 + j)
                B[vj] = C[vj] + C[vj + 1]
"""


def schedule(text: str) -> Schedule:
    func = from_source(text)
    assert isinstance(func, ir.PrimFunc)
    return Schedule(func, verify="full")


def tiled_matmul() -> tuple[Schedule, BlockRV]:
    """A 16 × 16 tile per block of threads; shared copies of the operands, fetched together."""
    sch = schedule(MATMUL)
    c = sch.get_block("C")
    i, j, k = sch.get_loops(c)
    bi, ti = sch.split(i, [None, 16])
    bj, tj = sch.split(j, [None, 16])
    ko, ki = sch.split(k, [None, 16])
    sch.reorder(bi, bj, ti, tj, ko, ki)
    sch.bind(bi, "blockIdx.y")
    sch.bind(bj, "blockIdx.x")
    sch.bind(ti, "threadIdx.y")
    sch.bind(tj, "threadIdx.x")
    for operand in (0, 1):
        copy = sch.cache_read(c, operand, "shared")
        sch.compute_at(copy, ko)
        y, x = sch.get_loops(copy)[-2:]
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
    return sch, c


def test_a_tiled_matmul_with_a_cooperative_fetch_is_valid_for_a_gpu() -> None:
    sch, _ = tiled_matmul()
    bw.validate(sch.func, "cuda-sm_90a")
    ir.assert_structural_equal(from_source(sch.func.script()), sch.func)
    replayed = schedule(MATMUL)
    replayed.replay(sch.trace)
    ir.assert_structural_equal(replayed.func, sch.func)


def test_its_threads_fetch_for_each_other_and_compute_the_same() -> None:
    sch, _ = tiled_matmul()
    assert_same_meaning(from_source(MATMUL), sch.func, exact=True)


def test_without_the_fetch_it_computes_the_same() -> None:
    sch = schedule(MATMUL)
    i, j, _ = sch.get_loops(sch.get_block("C"))
    bi, ti = sch.split(i, [None, 24])  # imperfect: a condition guards the last threads
    sch.bind(bi, "blockIdx.x")
    sch.bind(ti, "threadIdx.x")
    sch.bind(j, "vthread.x")
    assert_same_meaning(from_source(MATMUL), sch.func, exact=True)
    bw.validate(sch.func, "cuda-sm_80")


def test_each_member_has_its_own_copy_of_private_memory() -> None:
    """Two threads fill one element of the halo: of their own copies, not of one for all."""
    sch = schedule(HALO)
    i, _ = sch.get_loops(sch.get_block("B"))
    refused("BW317", lambda: sch.bind(i, "threadIdx.x"))
    sch.set_scope(sch.get_block("C"), 0, "local")
    sch.bind(i, "threadIdx.x")
    assert_same_meaning(from_source(HALO), sch.func, exact=True)
    bw.validate(sch.func, "cuda-sm_80")


# ------------------------------------------------------------------------------ refusals
def refused(code: str, step: Callable[[], object]) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        step()
    assert caught.value.code == code, caught.value
    assert caught.value.message.startswith("bind: ")
    return caught.value


def test_an_axis_that_does_not_exist_is_named() -> None:
    sch = schedule(MATMUL)
    (i, *_) = sch.get_loops(sch.get_block("C"))
    error = refused("BW304", lambda: sch.bind(i, "threadIdx.w"))
    assert "did you mean 'threadIdx." in (error.help or "")


def test_a_reduction_over_blocks_must_be_atomic() -> None:
    sch = schedule(SMALL)
    c = sch.get_block("C")
    i, _, k = sch.get_loops(c)
    refused("BW317", lambda: sch.bind(k, "blockIdx.x"))
    sch.decompose_reduction(c, i)
    sch.atomic_update(c)
    _, _, k = sch.get_loops(c)
    sch.bind(k, "blockIdx.x")
    assert_same_meaning(from_source(SMALL), sch.func)
    bw.validate(sch.func, "cuda-sm_80")


def test_loops_that_run_in_another_way_already() -> None:
    sch = schedule(MATMUL)
    i, j, _ = sch.get_loops(sch.get_block("C"))
    sch.parallel(i)
    refused("BW312", lambda: sch.bind(i, "threadIdx.x"))
    sch.annotate(j, "note", 1)
    refused("BW312", lambda: sch.bind(j, "threadIdx.x"))


@pytest.mark.parametrize("step", ["parallel", "vectorize", "unroll"])
def test_a_bound_loop_keeps_its_axis(step: str) -> None:
    sch = schedule(MATMUL)
    (i, *_) = sch.get_loops(sch.get_block("C"))
    sch.bind(i, "threadIdx.x")
    with pytest.raises(ScheduleError, match=r"bound to threadIdx\.x already") as caught:
        getattr(sch, step)(i)
    assert caught.value.code == "BW312"


def test_one_axis_has_one_extent_in_a_kernel() -> None:
    sch = schedule(MATMUL)
    c = sch.get_block("C")
    i, j, _ = sch.get_loops(c)
    bi, ti = sch.split(i, [None, 16])
    sch.bind(bi, "blockIdx.x")
    sch.bind(ti, "threadIdx.x")
    copy = sch.cache_read(c, 1, "shared")
    sch.compute_at(copy, j)
    refused("BW380", lambda: sch.bind(sch.get_loops(copy)[-1], "threadIdx.x"))


PAIR = """
@T.prim_func
def main(A: T.Buffer((32, 32), "float32"), B: T.Buffer((32, 32), "float32")):
    for i in range(32):
        for j in range(32):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * T.float32(2)
"""


def test_work_that_depends_on_the_member_cannot_be_shared_out() -> None:
    sch = schedule(PAIR)
    i, j = sch.get_loops(sch.get_block("B"))
    sch.bind(i, "threadIdx.x")
    refused("BW381", lambda: sch.bind(j, "threadIdx.x"))
    sch.bind(j, "threadIdx.y")
    other = schedule(PAIR)
    i, j = other.get_loops(other.get_block("B"))
    other.bind(j, "threadIdx.x")  # the other way round
    refused("BW381", lambda: other.bind(i, "threadIdx.x"))
    assert_same_meaning(from_source(PAIR), sch.func, exact=True)


def test_private_memory_cannot_be_filled_together() -> None:
    sch = schedule(MATMUL)
    c = sch.get_block("C")
    i, j, _ = sch.get_loops(c)
    sch.bind(i, "threadIdx.x")
    copy = sch.cache_read(c, 1, "local")
    sch.compute_at(copy, j)
    refused("BW381", lambda: sch.bind(sch.get_loops(copy)[-1], "threadIdx.x"))


def test_partial_results_of_a_bound_loop_are_combined_by_a_loop_of_no_thread() -> None:
    func = from_source("""
@T.prim_func
def total(x: T.Buffer((1,), "float32"), s: T.Buffer((1,), "float32")):
    for k in T.thread_binding(1, thread="threadIdx.y"):
        with T.block("s"):
            vk = T.axis.reduce(1, k)
            with T.init():
                s[0] = T.float32(0)
            s[0] = s[0] + x[vk]
""")
    sch = Schedule(func)
    sch.rfactor(sch.get_loops("s")[0], 0)
    ir.assert_structural_equal(from_source(sch.func.script()), sch.func)


HISTOGRAM = """
@T.prim_func
def main(I: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    for i in {loop}:
        with T.block("C"):
            vi = T.axis.reduce(8, i)
            {update}
"""


@pytest.mark.parametrize(
    "update",
    ["C[I[vi]] = C[I[vi]] + 1", "C[vi // 2] = C[vi // 2] + I[vi]",
     "x: T.int32 = I[vi]\n            C[x] = C[x] + 1"],
)  # fmt: skip
def test_terms_of_elements_that_the_iterator_chooses_are_not_combined(update: str) -> None:
    sch = Schedule(from_source(HISTOGRAM.format(loop="range(8)", update=update)))
    with pytest.raises(ScheduleError):
        sch.bind(sch.get_loops("C")[0], "threadIdx.x")
    for loop in ('T.thread_binding(8, "threadIdx.x")', "T.vectorized(8)", "T.parallel(8)"):
        with pytest.raises(bw.ValidationError) as caught:
            bw.validate(from_source(HISTOGRAM.format(loop=loop, update=update)), target=None)
        assert caught.value.code == "BW240"

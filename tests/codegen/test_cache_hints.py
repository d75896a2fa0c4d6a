"""Stores past the caches: which results they are taken for, that all values arrive, refusals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.arith import simplify
from blockwright.codegen.function import emit_function
from blockwright.codegen.llvm import nontemporal
from blockwright.codegen.llvm.context import FunctionContext
from blockwright.ir import structural_equal
from blockwright.lower import lower
from blockwright.support import BuildError, ScheduleError

N = 1 << 14
COPY = """
@T.prim_func
def main(A: T.Buffer((SIZE,), "float32"), B: T.Buffer((SIZE,), "float32")):
    for i in range(SIZE):
        with T.block("B"):
            vi = T.axis.spatial(SIZE, i)
            B[vi] = A[vi] * T.float32(2)
"""
SYMBOLIC = """
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    for i in range(n):
        with T.block("B"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi] * T.float32(2)
"""
PLAIN_STORE, STREAMED_STORE = "vmovups", "vmovntps"


def scheduled(text: str, least: int, *, parallel: bool = True, lanes: int = 8) -> bw.Schedule:
    sch = bw.Schedule(bw.from_source(text))
    (i,) = sch.get_loops(sch.get_block("B"))
    i, _, lane = sch.split(i, [None, 16, lanes])
    sch.vectorize(lane)
    if parallel:
        sch.parallel(i)
    sch.annotate(i, "nontemporal_stores", least)
    return sch


def assembly(sch: bw.Schedule, target: str = "x86-64-v3") -> str:
    return bw.build(sch.func, target).source("asm")


def at(offset: int, count: int) -> np.ndarray:
    """Zeros that begin `offset` bytes behind a line of memory."""
    room = np.zeros(count + 64, "float32")
    start = (offset - room.ctypes.data) % 64 // 4
    return room[start : start + count]


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("size", [N, N + 3])
def test_values_arrive_wherever_the_result_lies(size: int, parallel: bool) -> None:
    """At the beginning of a line or not; from any thread, many times over."""
    run = bw.build(scheduled(COPY.replace("SIZE", str(size)), 0, parallel=parallel).func)["main"]
    a = np.arange(size, dtype="float32")
    for offset in (0, 4, 16, 32, 60):
        for _ in range(20):
            b = at(offset, size)
            run(a, b)
            np.testing.assert_array_equal(b, 2 * a)


def test_the_size_of_a_symbolic_result_decides_at_the_call() -> None:
    module = bw.build(scheduled(SYMBOLIC, 4 * N).func)
    for size in (0, 1, 100, N - 1, N, N + 5):
        a, b = np.arange(size, dtype="float32"), at(0, size)
        module["main"](a, b)
        np.testing.assert_array_equal(b, 2 * a)


def test_only_results_of_that_size_pass_the_caches_by() -> None:
    text = COPY.replace("SIZE", str(N))
    assert STREAMED_STORE in assembly(scheduled(text, 4 * N))
    assert STREAMED_STORE not in assembly(scheduled(text, 4 * N + 1))


def test_each_thread_waits_for_its_stores() -> None:
    assert "sfence" in assembly(scheduled(COPY.replace("SIZE", str(N)), 0))


def test_what_is_read_again_stays_in_the_caches() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((16384,), "float32"), B: T.Buffer((16384,), "float32")):
    for i in range(16384):
        with T.block("B"):
            vi = T.axis.spatial(16384, i)
            B[vi] = B[vi] + A[vi]
"""
    assert STREAMED_STORE not in assembly(scheduled(text, 0, parallel=False))


def test_rows_that_begin_anywhere_are_stored_plainly() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((64, 1001), "float32"), B: T.Buffer((64, 1001), "float32")):
    for i, j in T.grid(64, 1001):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
"""
    sch = bw.Schedule(bw.from_source(text))
    i, j = sch.get_loops(sch.get_block("B"))
    j, lane = sch.split(j, [None, 8])
    sch.vectorize(lane)
    sch.annotate(i, "nontemporal_stores", 0)
    assert STREAMED_STORE not in assembly(sch)
    a, b = np.random.rand(64, 1001).astype("float32"), at(0, 64 * 1001).reshape(64, 1001)
    bw.build(sch.func)["main"](a, b)
    np.testing.assert_array_equal(b, 2 * a)


def test_the_interpreter_and_the_trace_know_the_annotation() -> None:
    sch = scheduled(COPY.replace("SIZE", "64"), 0)
    assert '"nontemporal_stores": 0' in sch.func.script()
    a, b = np.arange(64, dtype="float32"), np.zeros(64, "float32")
    bw.interpret(sch.func, a, b)
    np.testing.assert_array_equal(b, 2 * a)
    program = bw.from_source(COPY.replace("SIZE", "64"))
    again = sch.trace.apply_to(program)
    assert structural_equal(sch.func, again)


ROWS = """
@T.prim_func
def main(A: T.Buffer((5, 64), "float32"), B: T.Buffer((5, 64), "float32")):
    for i, j in T.grid(5, 64):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * A[vi, vj]
"""


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("key", ["prefetch_read", "prefetch_write"])
def test_lines_are_fetched_for_later_rows(key: str, parallel: bool) -> None:
    """One fetch for both reads of an element, or for what is written; rows beyond the last one are
    neither read nor written."""
    sch = bw.Schedule(bw.from_source(ROWS))
    i, j = sch.get_loops(sch.get_block("B"))
    j, lane = sch.split(j, [None, 8])
    sch.vectorize(lane)
    sch.annotate(j, key, 2)
    if parallel:
        sch.parallel(i)
    text = bw.build(sch.func).source("llvm")
    assert text.count("call void @llvm.prefetch") == 1
    a = np.random.default_rng(0).random((5, 64), dtype="f4")
    memory = np.full((8, 64), 7, "f4")
    bw.build(sch.func)["main"](a, memory[:5])
    np.testing.assert_array_equal(memory[:5], a * a)
    assert (memory[5:] == 7).all()


WINDOW = """
@T.prim_func
def main(A: T.Buffer((9, 64), "float32"), B: T.Buffer((6, 64), "float32")):
    for i, j in T.grid(6, 64):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + A[vi + 1, vj] + A[vi + 2, vj]
"""


@pytest.mark.parametrize(("lanes", "fetches"), [(8, 2), (16, 2)])
def test_what_is_loaded_anyway_and_lines_on_their_way_are_not_fetched(
    lanes: int, fetches: int
) -> None:
    """Of three rows two are loaded now; of a line's two vectors one fetches it."""
    sch = bw.Schedule(bw.from_source(WINDOW))
    _, j = sch.get_loops(sch.get_block("B"))
    j, parts, lane = sch.split(j, [None, 32 // lanes, lanes])
    sch.vectorize(lane)
    sch.unroll(parts)
    sch.annotate(j, "prefetch_read", 1)
    text = bw.build(sch.func, target="x86-64-v4").source("llvm")
    assert text.count("call void @llvm.prefetch") == fetches


PANELS = """
@T.prim_func
def main(A: T.Buffer((4, 32), "float32"), B: T.Buffer((3, 32, 8), "float32"),
         C: T.Buffer((3, 4, 8), "float32")):
    for p, r, d, j in T.grid(3, 4, 32, 8):
        with T.block("C"):
            vp, vr, vj, vd = T.axis.remap("SSSR", [p, r, j, d])
            with T.init():
                C[vp, vr, vj] = T.float32(0)
            C[vp, vr, vj] += A[vr, vd] * B[vp, vd, vj]
"""

ANY_ROWS = """
@T.prim_func
def main(a: T.handle, B: T.Buffer((3, 32, 48), "float32"), c: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, 32))
    C = T.match_buffer(c, (3, n, 48))
    for p, r, d, j in T.grid(3, n, 32, 48):
        with T.block("C"):
            vp, vr, vj, vd = T.axis.remap("SSSR", [p, r, j, d])
            with T.init():
                C[vp, vr, vj] = T.float32(0)
            C[vp, vr, vj] += A[vr, vd] * B[vp, vd, vj]
"""


@pytest.mark.parametrize("distance", [1, 2])
def test_what_a_loop_reads_again_is_fetched_in_shares_for_the_next_one(distance: int) -> None:
    """The next panel of B, in four shares; A is there anyway. Beyond the last one lies nothing."""
    sch = bw.Schedule(bw.from_source(PANELS))
    _, r, d, j = sch.get_loops(sch.get_block("C"))
    sch.vectorize(j)
    sch.decompose_reduction("C", d)
    sch.annotate(r, "prefetch_shared", distance)
    module = bw.build(sch.func)
    assert module.source("llvm").count("call void @llvm.prefetch") == 1
    rng = np.random.default_rng(0)
    a, b = rng.random((4, 32), "f4"), rng.random((3, 32, 8), "f4")
    c = np.zeros((3, 4, 8), "f4")
    module["main"](a, b, c)
    np.testing.assert_allclose(c, np.einsum("rd,pdj->prj", a, b), rtol=1e-5)


@pytest.mark.parametrize(("columns", "lines"), [(16, 1), (32, 1), (48, 2), (96, 3)])
def test_a_share_that_is_longer_than_a_line_is_fetched_line_by_line(
    columns: int, lines: int
) -> None:
    """Two rows share the fetching: each step fetches half of a step of the next panel."""
    text = PANELS.replace("8", str(columns)).replace("(4, 32)", "(2, 32)")
    text = text.replace("grid(3, 4", "grid(3, 2").replace("(3, 4", "(3, 2")
    sch = bw.Schedule(bw.from_source(text))
    _, r, d, j = sch.get_loops(sch.get_block("C"))
    sch.vectorize(j)
    sch.decompose_reduction("C", d)
    sch.annotate(r, "prefetch_shared", 1)
    assert bw.build(sch.func).source("llvm").count("call void @llvm.prefetch") == lines


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_shares_are_of_as_many_iterations_as_there_are(rows: int) -> None:
    """Where calls decide how many, one may have to fetch all: three lines of a step, with each."""
    sch = bw.Schedule(bw.from_source(ANY_ROWS))
    _, r, d, j = sch.get_loops(sch.get_block("C"))
    sch.vectorize(j)
    sch.decompose_reduction("C", d)
    sch.annotate(r, "prefetch_shared", 1)
    module = bw.build(sch.func)
    assert module.source("llvm").count("call void @llvm.prefetch") == 3
    rng = np.random.default_rng(0)
    a, b = rng.random((rows, 32), "f4"), rng.random((3, 32, 48), "f4")
    c = np.zeros((3, rows, 48), "f4")
    module["main"](a, b, c)
    np.testing.assert_allclose(c, np.einsum("rd,pdj->prj", a, b), rtol=1e-5)


@pytest.mark.parametrize("pieces", [2, 8])
def test_shares_are_contiguous_when_the_sum_is_in_pieces(
    pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four rows fetch the next panel's 256 elements front to back, however the sum is split."""
    fetched: list[tuple[ir.Expr, list[ir.Var]]] = []
    share = nontemporal.prefetch_for_load

    def spy(context: FunctionContext, buffer: ir.Buffer, index: ir.Expr) -> Sequence[ir.Expr]:
        found = share(context, buffer, index)
        fetched.extend((place, list(context.loops)) for place in found)
        return found

    monkeypatch.setattr(nontemporal, "prefetch_for_load", spy)
    sch = bw.Schedule(bw.from_source(PANELS))
    _, r, d, j = sch.get_loops(sch.get_block("C"))
    sch.split(d, [pieces, None])
    sch.vectorize(j)
    sch.annotate(r, "prefetch_shared", 1)
    bw.build(sch.func)
    ((place, (panel, row, *steps)),) = fetched
    visited: list[int | None] = []
    for at in itertools.product([1], range(4), range(pieces), range(32 // pieces)):
        counts = (ir.const(n, "int64") for n in at)
        here = dict(zip([panel, row, *steps], counts, strict=True))
        visited.append(ir.const_int(simplify(ir.substitute(place, here))))
    assert visited == list(range(2 * 256, 3 * 256, 2))


def test_a_loop_that_is_not_inside_of_another_shares_nothing() -> None:
    sch = bw.Schedule(bw.from_source(PANELS))
    p, *_, j = sch.get_loops(sch.get_block("C"))
    sch.vectorize(j)
    sch.annotate(p, "prefetch_shared", 1)
    assert "prefetch" not in assembly(sch)


def test_an_outermost_loop_has_nothing_to_fetch_for() -> None:
    sch = bw.Schedule(bw.from_source(COPY.replace("SIZE", "64")))
    (i,) = sch.get_loops(sch.get_block("B"))
    sch.annotate(i, "prefetch_read", 1)
    assert "prefetch" not in assembly(sch)


@pytest.mark.parametrize("value", [-1, "all", True, 1.5])
def test_a_number_of_bytes_is_wanted(value: object) -> None:
    sch = bw.Schedule(bw.from_source(COPY.replace("SIZE", "64")))
    (i,) = sch.get_loops(sch.get_block("B"))
    with pytest.raises(ScheduleError, match="number of bytes") as caught:
        sch.annotate(i, "nontemporal_stores", value)
    assert caught.value.code == "BW304"


def test_a_block_or_an_unrolled_loop_is_refused() -> None:
    sch = bw.Schedule(bw.from_source(COPY.replace("SIZE", "64")))
    block = sch.get_block("B")
    with pytest.raises(ScheduleError, match="belongs on a loop"):
        sch.annotate(block, "nontemporal_stores", 0)
    (i,) = sch.get_loops(block)
    sch.unroll(i)
    with pytest.raises(ScheduleError, match="this one is unrolled"):
        sch.annotate(i, "nontemporal_stores", 0)


def test_a_build_refuses_what_no_step_has_checked() -> None:
    text = COPY.replace("SIZE", "64").replace(
        "range(64)", 'T.serial(64, annotations={"nontemporal_stores": -5})'
    )
    with pytest.raises(BuildError) as caught:
        bw.build(bw.from_source(text))
    assert caught.value.code == "BW636"


def test_another_architecture_has_no_fence() -> None:
    target = bw.Target("aarch64")
    func = lower(scheduled(COPY.replace("SIZE", str(N)), 0, lanes=4).func, target)
    text = emit_function(func, "main", target).text
    assert "!nontemporal" in text
    assert "sfence" not in text

"""Thread-bound programs: which threads there are, what each has for itself, who waits for whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright.interp import Report, interpret
from blockwright.schedule import Schedule
from blockwright.support import InterpretError
from tests.schedule import programs_gemm

Array = np.ndarray[Any, Any]


def run(body: str, allocate: str = "pass", **options: Any) -> tuple[Array, Array]:
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    func = bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    {allocate}
{lines}
""")
    a = np.arange(64, dtype=np.float32)
    b = np.zeros(64, np.float32)
    interpret(func, a, b, **options)
    return a, b


PHASES = """
for bx in T.thread_binding(4, thread="blockIdx.x"):
    for tx in T.thread_binding(16, thread="threadIdx.x"):
        with T.block("S"):
            vb, vt = T.axis.remap("SS", [bx, tx])
            S[{mine}] = A[vb * 16 + vt]
    for tx in T.thread_binding(16, thread="threadIdx.x"):
        with T.block("B"):
            vb, vt = T.axis.remap("SS", [bx, tx])
            B[vb * 16 + vt] = S[{other}]
"""


@pytest.mark.parametrize("order", [None, "reverse", 7])
def test_phases_exchange_values_through_shared_memory(order: Any) -> None:
    """Every block has its own S; all threads have written theirs before the second loop."""
    shared = 'S = T.alloc_buffer((16,), "float32", scope="shared")'
    a, b = run(PHASES.format(mine="vt", other="15 - vt"), shared, order=order)
    assert np.array_equal(b, a.reshape(4, 16)[:, ::-1].reshape(-1))


def test_private_memory_stays_with_its_thread() -> None:
    """Each thread finds in the second loop what it wrote in the first."""
    local = 'S = T.alloc_buffer((1,), "float32", scope="local")'
    a, b = run(PHASES.format(mine="0", other="0"), local)
    assert np.array_equal(a, b)


def test_memory_on_the_chip_does_not_outlive_its_kernel() -> None:
    """Blocks begin two kernels here: nothing that lies on the chip goes from one to the other."""
    shared = 'S = T.alloc_buffer((16,), "float32", scope="shared")'
    first, second = PHASES.format(mine="vt", other="15 - vt").split("    for tx", 2)[1:]
    kernel = 'for bx in T.thread_binding(4, thread="blockIdx.x"):\n    for tx'
    with pytest.raises(InterpretError, match="ends with its kernel") as caught:
        run(kernel + first + kernel + second, shared)
    assert caught.value.code == "BW757"


FILLED_IN_PIECES = """
for k in range(4):
    for tx in T.thread_binding(16, thread="threadIdx.x"):
        with T.block("S"):
            vk, vt = T.axis.remap("SS", [k, tx])
            {condition}
            S[vk * 16 + vt] = A[vk * 16 + vt]
"""
USED_AT_ONCE = """
for tx in T.thread_binding(16, thread="threadIdx.x"):
    for k in range(4):
        with T.block("B"):
            vk, vt = T.axis.remap("SS", [k, tx])
            B[vk * 16 + vt] = S[63 - vk * 16 - vt]
"""


def test_a_kernel_of_several_nests_begins_where_all_of_them_do() -> None:
    """The first nest fills shared memory piece by piece; each piece is there for the second."""
    shared = 'S = T.alloc_buffer((64,), "float32", scope="shared")'
    a, b = run(FILLED_IN_PIECES.format(condition="T.where(True)") + USED_AT_ONCE, shared)
    assert np.array_equal(b, a[::-1])


def test_a_kernel_that_is_launched_again_finds_nothing_there() -> None:
    shared = 'S = T.alloc_buffer((64,), "float32", scope="shared")'
    once = FILLED_IN_PIECES.format(condition="T.where(again == 0)") + USED_AT_ONCE
    lines = "\n".join("    " + line for line in once.strip("\n").splitlines())
    with pytest.raises(InterpretError, match="read before it is written") as caught:
        run("for again in range(2):\n" + lines, shared)
    assert caught.value.code == "BW752"


def test_nor_does_a_view_take_it_out_of_its_kernel() -> None:
    shared = 'S = T.alloc_buffer((16,), "float32", scope="shared")'
    with pytest.raises(InterpretError, match="ends with its kernel"):
        run(
            """
for tx in T.thread_binding(16, thread="threadIdx.x"):
    with T.block("S"):
        vt = T.axis.spatial(16, tx)
        S[vt] = A[vt]
for i in range(16):
    with T.block("B"):
        vi = T.axis.spatial(16, i)
        T.reads(S[vi])
        T.writes(B[vi])
        V = T.match_buffer(S[vi], (1,), "float32", scope="shared", offset_factor=1)
        B[vi] = V[0]
""",
            shared,
        )


TOGETHER = """
for tx in T.thread_binding(64, thread="threadIdx.x"):
    with T.block("S"):
        vt = T.axis.spatial(64, tx)
        S[vt] = A[vt]
    with T.block("B"):
        vt = T.axis.spatial(64, tx)
        T.reads(S[0:64])
        T.writes(B[vt])
        T.evaluate(T.tvm_storage_sync("shared"))
        B[vt] = S[{other}]
"""


@pytest.mark.parametrize("other", ["vt", "63 - vt"])
def test_threads_wait_for_each_other_at_a_barrier(other: str) -> None:
    shared = 'S = T.alloc_buffer((64,), "float32", scope="shared")'
    a, b = run(TOGETHER.format(other=other), shared)
    assert np.array_equal(b, a if other == "vt" else a[::-1])


def test_a_loop_inside_one_on_the_same_axis_is_the_same_thread() -> None:
    """16 threads, each of which does its part of the inner loop: not 16 × 16 iterations."""
    a, b = run("""
for ty in T.thread_binding(16, thread="threadIdx.y"):
    for k in range(4):
        for f in T.thread_binding(16, thread="threadIdx.y"):
            with T.block("B"):
                vk, vf = T.axis.remap("SS", [k, f])
                B[vk * 16 + vf] = B[vk * 16 + vf] + A[vk * 16 + vf]
""")
    assert np.array_equal(a, b)


def test_blocks_that_meet_race() -> None:
    body = """
for bx in T.thread_binding(4, thread="blockIdx.x"):
    with T.block("B"):
        vb = T.axis.spatial(4, bx)
        T.reads(A[vb])
        T.writes(B[0])
        {update}
"""
    with pytest.raises(InterpretError) as caught:
        run(body.format(update="B[0] = A[vb]"))
    assert caught.value.code == "BW756"
    _, b = run(
        body.format(update="T.atomic_add(B[0], A[vb])").replace(
            "A[vb])\n        T.w", "A[vb], B[0])\n        T.w"
        )
    )
    assert b[0] == 6


def test_atomic_updates_race_with_plain_accesses_only() -> None:
    body = """
for i in T.parallel(4):
    with T.block("B"):
        vi = T.axis.spatial(4, i)
        T.reads(A[vi], B[0:2])
        T.writes(B[0:2])
        {first}
        {second}
"""
    update, read = "T.atomic_add(B[0], A[vi])", "T.atomic_add(B[1], B[0])"
    _, b = run(body.format(first=update, second="T.atomic_max(B[1], A[vi])"))
    assert b[:2].tolist() == [6, 3]
    for parts in ((update, read), (read, update)):
        with pytest.raises(InterpretError) as caught:
            run(body.format(first=parts[0], second=parts[1]))
        assert caught.value.code == "BW756"


def test_launch_thread_is_a_loop_too() -> None:
    func = bw.from_source("""
@T.prim_func
def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    bx = T.launch_thread("blockIdx.x", 4)
    tx = T.launch_thread("threadIdx.x", 16)
    B[bx * 16 + tx] = A[bx * 16 + tx] * T.float32(2)
""")
    a, b = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    interpret(func, a, b)
    assert np.array_equal(b, 2 * a)


# -------------------------------------------------------------------------- programs of blocks
def test_threads_wait_between_blocks_that_hand_over() -> None:
    """No barrier is written: one stands where a block reads what another one wrote."""
    shared = 'S = T.alloc_buffer((64,), "float32", scope="shared")'
    a, b = run("""
for tx in T.thread_binding(64, thread="threadIdx.x"):
    for k in range(4):
        with T.block("S"):
            vk, vt = T.axis.remap("SS", [k, tx])
            S[vt] = A[vt] + T.Cast("float32", vk)
        with T.block("B"):
            vk, vt = T.axis.remap("SS", [k, tx])
            B[vt] = B[vt] + S[63 - vt]
""", shared)  # fmt: skip
    assert np.array_equal(b, 4 * a[::-1] + 6)


def test_no_barrier_can_stand_where_threads_part() -> None:
    shared = 'S = T.alloc_buffer((64,), "float32", scope="shared")'
    with pytest.raises(InterpretError) as caught:
        run("""
for tx in T.thread_binding(64, thread="threadIdx.x"):
    if tx < 48:
        with T.block("S"):
            vt = T.axis.spatial(64, tx)
            T.where(tx < 48)
            S[vt] = A[vt]
        with T.block("B"):
            vt = T.axis.spatial(64, tx)
            B[vt] = S[47 - vt]
""", shared)  # fmt: skip
    assert caught.value.code == "BW761"
    assert "in block 'B'" in str(caught.value)
    assert "in block 'S'" in str(caught.value)


def test_a_block_does_not_wait_for_itself() -> None:
    """What one block does in step k of a thread's loop races with its step k + 1 elsewhere."""
    shared = 'S = T.alloc_buffer((64,), "float32", scope="shared")'
    with pytest.raises(InterpretError) as caught:
        run("""
for tx in T.thread_binding(64, thread="threadIdx.x"):
    for k in range(4):
        with T.block("S"):
            vk, vt = T.axis.remap("SS", [k, tx])
            T.writes(S[0:64])
            S[(vt + vk) % 64] = A[vt]
""", shared)  # fmt: skip
    assert caught.value.code == "BW761"


def test_outside_the_loops_of_an_axis_all_threads_run_what_is_their_own() -> None:
    """Only one loop is bound to y; each of its threads still has a copy of L, and S is set once."""
    func = bw.from_source("""
@T.prim_func
def main(A: T.Buffer((16,), "int32"), B: T.Buffer((4, 16), "int32")):
    L = T.alloc_buffer((1,), "int32", scope="local")
    S = T.alloc_buffer((16,), "int32", scope="shared")
    for tx in T.thread_binding(16, thread="threadIdx.x"):
        with T.block("own"):
            vt = T.axis.spatial(16, tx)
            L[0] = A[vt]
        with T.block("shared"):
            vt = T.axis.spatial(16, tx)
            T.reads(A[vt])
            T.writes(S[vt])
            S[vt] = 0
            T.atomic_add(S[vt], A[vt])
    for ty in T.thread_binding(4, thread="threadIdx.y"):
        for tx in T.thread_binding(16, thread="threadIdx.x"):
            with T.block("B"):
                vy, vt = T.axis.remap("SS", [ty, tx])
                B[vy, vt] = L[0] * 100 + S[15 - vt]
""")
    a, b = np.arange(16, dtype=np.int32), np.zeros((4, 16), np.int32)
    interpret(func, a, b)
    assert np.array_equal(b, np.tile(a * 100 + a[::-1], (4, 1)))


def test_virtual_threads_have_registers_of_their_own() -> None:
    local = 'S = T.alloc_buffer((1,), "float32", scope="local")'
    a, b = run("""
for v in T.thread_binding(4, thread="vthread.x"):
    for tx in T.thread_binding(16, thread="threadIdx.x"):
        with T.block("S"):
            vi = T.axis.spatial(64, v * 16 + tx)
            S[0] = A[vi] * T.float32(3)
for v in T.thread_binding(4, thread="vthread.x"):
    for tx in T.thread_binding(16, thread="threadIdx.x"):
        with T.block("B"):
            vi = T.axis.spatial(64, v * 16 + tx)
            B[vi] = S[0]
""", local)  # fmt: skip
    assert np.array_equal(b, 3 * a)


def test_blocks_of_a_kernel_do_not_wait_for_each_other() -> None:
    func = bw.from_source("""
@T.prim_func
def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    bx = T.launch_thread("blockIdx.x", 4)
    tx = T.launch_thread("threadIdx.x", 16)
    A[bx * 16 + tx] = T.float32(1)
    T.tvm_storage_sync("shared")
    B[bx * 16 + tx] = A[63 - bx * 16 - tx]
""")
    with pytest.raises(InterpretError, match="loop bx") as caught:
        interpret(func, np.zeros(64, np.float32), np.zeros(64, np.float32))
    assert caught.value.code == "BW756"
    spans = [d.span for d in caught.value.diagnostics]
    assert [s.line for s in spans if s is not None] == [6, 8]  # written here, read there


@pytest.mark.parametrize("schedule", [programs_gemm.twenty_variables, programs_gemm.readable])
def test_a_scheduled_product_runs_as_threads(schedule: Any) -> None:
    """Tiles fetched together into shared memory, registers, and a copy back by all threads."""
    sch = Schedule(programs_gemm.matmul)
    schedule(sch)
    rng = np.random.default_rng(1)
    a, b = rng.random((32, 16), np.float32), rng.random((16, 32), np.float32)
    c = np.zeros((32, 32), np.float32)
    interpret(sch.func, a, b, c, outputs=1)
    assert np.allclose(c, a @ b, rtol=1e-5)


# --------------------------------------------------------------------------------- bank conflicts
@pytest.mark.parametrize(("row", "conflicts"), [(32, 31), (33, 0), (34, 1), (36, 3)])
def test_conflicts_of_a_column_by_the_length_of_its_rows(row: int, conflicts: int) -> None:
    func = bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer((32,), "float32"), B: T.Buffer((32,), "float32")):
    tx = T.launch_thread("threadIdx.x", 32)
    S = T.allocate((32, {row}), "float32", "shared")
    S[tx, 0] = A[tx]
    T.tvm_storage_sync("shared")
    B[tx] = S[0, 0] + S[tx, 0]
""")
    report = Report()
    interpret(func, np.zeros(32, np.float32), np.zeros(32, np.float32), report=report)
    assert [r.conflicts for r in report.banks] == [conflicts, 0, conflicts]
    assert [r.how for r in report.banks] == ["write", "read", "read"]
    assert report.conflicts == 2 * conflicts
    spans = [r.span for r in report.banks]
    assert [s.line for s in spans if s is not None] == [6, 8, 8]


@pytest.mark.parametrize(("lanes", "requests"), [(1, 1), (2, 2), (4, 4)])
def test_wide_accesses_are_made_by_parts_of_a_warp(lanes: int, requests: int) -> None:
    func = bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer((32,), "float32")):
    tx = T.launch_thread("threadIdx.x", 32)
    S = T.allocate(({32 * lanes},), "float32", "shared")
    S[T.ramp(tx * {lanes}, 1, {lanes})] = T.broadcast(A[tx], {lanes})
""")
    report = Report()
    interpret(func, np.zeros(32, np.float32), report=report)
    assert [(r.requests, r.conflicts) for r in report.banks] == [(requests, 0)]


# ----------------------------------------------------------------------------------------- jumps
LEAVING = """
S = T.alloc_buffer((64,), "float32", scope="shared")
with T.launch_thread("threadIdx.x", 64) as tx:
    S[tx] = A[tx]
    T.tvm_storage_sync("shared")
    for k in range(10):
        if {condition}:
            break
        S[(tx + k) % 64] = S[(tx + k) % 64] + T.float32(1)
        T.tvm_storage_sync("shared")
    B[tx] = S[tx]
"""


def test_all_threads_leave_a_loop_with_barriers_together() -> None:
    a, b = run(LEAVING.format(condition="k * k > 30"))
    assert np.array_equal(b, a + 6)


def test_some_threads_leave_a_loop_in_which_others_wait() -> None:
    with pytest.raises(InterpretError, match="some threads leave the loop") as caught:
        run(LEAVING.format(condition="k > tx"))
    assert caught.value.code == "BW757"


def test_a_block_outside_all_thread_loops_runs_once() -> None:
    """It reads what it wrote itself a step before: no other thread takes part in it."""
    func = bw.from_source("""
@T.prim_func
def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
    best = T.alloc_buffer((1,), "float32", scope="shared")
    at = T.alloc_buffer((1,), "int64", scope="shared")
    for bx in T.thread_binding(1, thread="blockIdx.x"):
        for k in range(T.int64(16)):
            with T.block("best"):
                vk = T.axis.reduce(T.int64(16), k)
                T.reads(A[vk])
                T.writes(best[0], at[0])
                with T.init():
                    best[0] = T.min_value("float32")
                    at[0] = T.int64(-1)
                if A[vk] > best[0]:
                    best[0] = A[vk]
                    at[0] = vk
        for tx in T.thread_binding(16, thread="threadIdx.x"):
            with T.block("B"):
                vt = T.axis.spatial(16, tx)
                B[vt] = A[at[0]] - A[vt]
""")
    a, b = np.random.default_rng(0).random(16, np.float32), np.zeros(16, np.float32)
    interpret(func, a, b)
    assert np.array_equal(b, a.max() - a)


SAME_VECTOR = """
for tx in T.thread_binding({threads}, thread="threadIdx.x"):
    with T.block("B"):
        vt = T.axis.spatial({threads}, tx)
        B[T.ramp({to}, 1, 4)] = A[T.ramp(8, 1, 4)]
"""


@pytest.mark.parametrize("threads", [1, 4, 8])
def test_threads_may_read_one_vector(threads: int) -> None:
    a, b = run(SAME_VECTOR.format(threads=threads, to="vt * 4"))
    assert np.array_equal(b[: threads * 4], np.tile(a[8:12], threads))


@pytest.mark.parametrize("threads", [4, 8])
def test_threads_that_write_one_vector_race(threads: int) -> None:
    with pytest.raises(InterpretError, match="race") as caught:
        run(SAME_VECTOR.format(threads=threads, to="0"))
    assert caught.value.code == "BW761"


OWN_SIZES = """
@T.prim_func
def main(N: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    for i in T.thread_binding(8, thread="threadIdx.x"):
        with T.block("U"):
            vi = T.axis.spatial(8, i)
            t = T.alloc_buffer((N[7 - vi] + 1,), "int32", scope="local")
            for j in range(N[7 - vi] + 1):
                t[j] = vi * 10 + j
            C[vi] = t[N[7 - vi]]
"""


def test_buffers_of_threads_have_sizes_of_their_own() -> None:
    counts = np.array([3, 1, 4, 1, 5, 0, 2, 6], "int32")
    found = np.zeros(8, "int32")
    bw.interpret(bw.from_source(OWN_SIZES), counts, found)
    np.testing.assert_array_equal(found, np.arange(8) * 10 + counts[::-1])


def test_a_thread_stays_inside_of_its_own_size() -> None:
    func = bw.from_source(OWN_SIZES.replace("= t[N[7 - vi]]", "= t[3]"))
    with pytest.raises(bw.InterpretError, match=r"BW751.*t\[3\] is outside"):
        bw.interpret(func, np.array([3, 3, 3, 3, 2, 3, 3, 3], "int32"), np.zeros(8, "int32"))

"""Thread-bound programs: which threads there are, what each has for itself, who waits for whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright.interp import interpret
from blockwright.support import InterpretError

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
    _, b = run(body.format(update="T.atomic_add(B[0], A[vb])").replace("A[vb])\n        T.w",
               "A[vb], B[0])\n        T.w"))  # fmt: skip
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

"""Which writes of other threads and kernels a read sees."""

from __future__ import annotations

import pytest

from tests.analysis.validated import GPU, KERNEL, codes, problems, program


@pytest.mark.parametrize(
    ("scope", "index", "expected"),
    [
        ("shared", "31 - vj", []),
        ("local", "vj", []),  # C[vi, vj] is written and read by the same thread
        ("local", "31 - vj", ["BW238"]),
        ("warp", "31 - vj", []),
        ("global", "31 - vj", []),
    ],
)
def test_threads_see_what_their_memory_shares(scope: str, index: str, expected: list[str]) -> None:
    text = KERNEL.format(blocks=4, threads=32, others=32)
    text = text.replace("B[0, 0] = C[vi, vj]", f"B[vi, vj] = C[vi, {index}]")
    func = program(text, allocate=f'C = T.alloc_buffer((4, 32), "float32", scope="{scope}")')
    assert codes(func, GPU) == expected


@pytest.mark.parametrize(
    ("reader", "expected"),
    [
        ('t in T.thread_binding(32, thread="threadIdx.x")', []),
        ('t in T.thread_binding(32, thread="threadIdx.y")', ["BW238"]),
        ("t in range(32)", ["BW238"]),  # every thread reads what all of them wrote
    ],
)
def test_what_runs_on_all_threads_of_an_axis_sees_one_copy(
    reader: str, expected: list[str]
) -> None:
    func = program(
        f"""
for b in T.thread_binding(32, thread="blockIdx.x"):
    for t in T.thread_binding(32, thread="threadIdx.x"):
        with T.block("L"):
            vb, vt = T.axis.remap("SS", [b, t])
            L[vb, vt] = A[vb, vt]
    for {reader}:
        with T.block("B"):
            vb, vt = T.axis.remap("SS", [b, t])
            B[vb, vt] = L[vb, vt]
""",
        allocate='L = T.alloc_buffer((32, 32), "float32", scope="local")',
    )
    assert codes(func) == expected


@pytest.mark.parametrize("scope", ["shared", "global"])
def test_blocks_do_not_see_each_other(scope: str) -> None:
    text = KERNEL.format(blocks=4, threads=32, others=32)
    text = text.replace("B[0, 0] = C[vi, vj]", "B[vi, vj] = C[3 - vi, vj]")
    func = program(text, allocate=f'C = T.alloc_buffer((4, 32), "float32", scope="{scope}")')
    assert "BW238" in codes(func, GPU)


def test_shared_memory_ends_with_its_kernel() -> None:
    text = """
for bx in T.thread_binding(4, thread="blockIdx.x"):
    with T.block("C"):
        vi = T.axis.spatial(4, bx)
        C[vi] = A[vi, 0]
for bx in T.thread_binding(4, thread="blockIdx.x"):
    with T.block("B"):
        vi = T.axis.spatial(4, bx)
        B[vi, 0] = C[vi]
"""
    allocate = 'C = T.alloc_buffer((4,), "float32", scope="{}")'
    assert codes(program(text, allocate=allocate.format("global")), GPU) == []
    found = problems(program(text, allocate=allocate.format("shared")), GPU)
    assert found[0][0] == "BW238"
    assert "ends with its kernel" in found[0][1]


COOPERATIVE = """
for ty in T.thread_binding(8, thread="threadIdx.y"):
    for k in range(4):
        for f in {fetch}:
            with T.block("S"):
                vk = T.axis.spatial(4, k)
                vf = T.axis.spatial({part}, f)
                S[vk, vf] = A[vk, vf]
        for j in range(8):
            with T.block("B"):
                vy, vk, vj = T.axis.remap("SSS", [ty, k, j])
                B[vy, vk * 8 + vj] = S[vk, vj]
"""


SHARED = 'S = T.alloc_buffer((4, 8), "float32", scope="shared")'


def test_threads_fetch_together_what_all_of_them_read() -> None:
    fetch = 'T.thread_binding(8, thread="threadIdx.y")'
    assert codes(program(COOPERATIVE.format(fetch=fetch, part=8), allocate=SHARED), GPU) == []


def test_a_cooperative_fetch_must_fetch_everything() -> None:
    """With both loops on one axis, a thread fetches one element; seven are too few for eight."""
    text = COOPERATIVE.format(fetch='T.thread_binding(8, thread="threadIdx.y")', part=8)
    part = text.replace(
        "vf = T.axis.spatial(8, f)", "vf = T.axis.spatial(8, f)\n                T.where(f < 7)"
    )
    assert codes(program(part, allocate=SHARED), GPU) == ["BW235"]


def test_every_thread_for_itself_meets_in_shared_memory() -> None:
    assert codes(program(COOPERATIVE.format(fetch="range(8)", part=8), allocate=SHARED)) == [
        "BW240"
    ]


def test_a_barrier_needs_all_threads() -> None:
    text = """
for tx in T.thread_binding(32, thread="threadIdx.x"):
    if tx < 16:
        with T.block("S"):
            vi = T.axis.spatial(32, tx)
            S[vi] = A[vi, 0]
        with T.block("B"):
            vi = T.axis.spatial(32, tx)
            B[vi, 0] = S[{index}]
"""
    allocate = 'S = T.alloc_buffer((32,), "float32", scope="shared")'
    assert codes(program(text.format(index="15 - vi"), allocate=allocate), GPU) == ["BW239"]
    assert codes(program(text.format(index="vi"), allocate=allocate), GPU) == []


@pytest.mark.parametrize(
    ("write", "read", "expected"),
    [
        ("range(8)", 'T.thread_binding(8, thread="threadIdx.z")', ["BW239"]),
        ('T.thread_binding(8, thread="threadIdx.z")', "range(8)", ["BW239"]),
        ("range(8)", "range(8)", []),
    ],
)
@pytest.mark.parametrize("scope", ["shared", "global"])
def test_the_first_thread_alone_does_what_stands_outside_of_an_axis(
    write: str, read: str, expected: list[str], scope: str
) -> None:
    """Under a condition on another axis no barrier can stand between it and the threads of `z`."""
    func = program(f"""
for tx in T.thread_binding(32, thread="threadIdx.x"):
    with T.block("some"):
        vx = T.axis.spatial(1, tx)
        T.where(tx < 1)
        S = T.alloc_buffer((8,), "float32", scope="{scope}")
        for i in {write}:
            with T.block("S"):
                vi = T.axis.spatial(8, i)
                S[vi] = A[vx, vi]
        for j in {read}:
            with T.block("B"):
                vj = T.axis.spatial(8, j)
                B[vx, vj] = S[vj]
""")
    assert codes(func, GPU) == expected

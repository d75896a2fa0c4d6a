"""Kernel launches: axes, limits of the target, execution scopes."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from tests.analysis.validated import GPU, KERNEL, codes, problems, program


def kernel(
    blocks: object = 4,
    threads: int = 32,
    others: int = 32,
    scope: str = "shared",
    shape: str = "4, 2048",
) -> ir.PrimFunc:
    """Two phases of one kernel; races on B are beside the point."""
    text = KERNEL.format(blocks=blocks, threads=threads, others=others)
    text = text.replace("B[0, 0] = C[vi, vj]", "T.atomic_max(B[0, 0], C[vi, vj])")
    return program(text, allocate=f'C = T.alloc_buffer(({shape}), "float32", scope="{scope}")')


def test_loops_on_one_axis_of_a_kernel_have_one_extent() -> None:
    assert codes(kernel(), GPU) == []
    found = problems(kernel(others=16))
    assert [code for code, _ in found] == ["BW236"]
    assert "32 and 16" in found[0][1]


def test_launches_stay_within_the_limits_of_the_machine() -> None:
    assert codes(kernel(threads=1024, others=1024), GPU) == []
    found = problems(kernel(threads=2048, others=2048), GPU)
    assert {code for code, _ in found} == {"BW237"}
    assert "2048; the machine allows 1024" in found[0][1]
    assert codes(kernel(threads=2048, others=2048)) == []  # no machine, no limit
    assert codes(kernel(blocks=2**31, shape="2147483648, 32"), GPU) == ["BW237"]


def test_the_threads_of_all_axes_count_together() -> None:
    text = """
for ty in T.thread_binding(64, thread="threadIdx.y"):
    for tx in T.thread_binding(32, thread="threadIdx.x"):
        with T.block("B"):
            vy, vx = T.axis.remap("SS", [ty, tx])
            B[vy // 2, vx] = A[vy // 2, vx]
"""
    fewer = text.replace("[vy // 2, vx] =", "[vy, vx] =").replace("(64", "(32")
    assert problems(program(fewer), GPU) == []
    found = problems(program(text), GPU)
    assert any("2048 threads" in text for _, text in found)


def test_shared_memory_is_counted_per_block_and_as_far_as_it_is_used() -> None:
    """C is as large as all blocks together; one block uses one row of it."""
    assert codes(kernel(blocks=30_000, threads=1024, others=1024, shape="30000, 1024"), GPU) == []
    big = program("""
for bx in T.thread_binding(4, thread="blockIdx.x"):
    for tx in T.thread_binding(32, thread="threadIdx.x"):
        for k in range(2048):
            with T.block("C"):
                vi, vk = T.axis.remap("SS", [tx, k])
                C[vi, vk] = A[0, 0]
        with T.block("B"):
            vi = T.axis.spatial(32, tx)
            T.atomic_max(B[vi, 0], C[31 - vi, 5])
""", allocate='C = T.alloc_buffer((32, 2048), "float32", scope="shared.dyn")')  # fmt: skip
    found = [text for code, text in problems(big, GPU) if code == "BW237"]
    assert "262144 bytes of shared memory" in found[0]


SCOPED = """
for bx in T.thread_binding(4, thread="blockIdx.x"):
    with T.block("group", exec_scope="gpu_block"):
        vb = T.axis.spatial(4, bx)
        for ty in T.thread_binding(8, thread="threadIdx.y"):
            with T.block("warp", exec_scope="gpu_warp"):
                vy = T.axis.spatial(8, ty)
                for tx in T.thread_binding({lanes}, thread="threadIdx.x"):
                    with T.block("thread", exec_scope="gpu_thread"):
                        vx = T.axis.spatial({lanes}, tx)
                        B[vb * 8 + vy, vx] = A[vb * 8 + vy, vx]
"""


def test_memory_and_execution_scopes_of_the_rfc() -> None:
    assert codes(program(SCOPED.format(lanes=32)), GPU) == []
    found = problems(program(SCOPED.format(lanes=16)), GPU)
    assert [code for code, _ in found] == ["BW239"]
    assert "needs a full warp of 32 threads" in found[0][1]


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        (
            ('exec_scope="gpu_thread"', 'exec_scope="gpu_warp"'),
            "BW239",
            "differ between its threads",
        ),
        (
            ('"group", exec_scope="gpu_block"', '"group", exec_scope="gpu_thread"'),
            "BW239",
            "single threads",
        ),
        (('exec_scope="gpu_warp"', 'exec_scope="gpu_team"'), "BW231", "not an execution scope"),
    ],
)
def test_execution_scopes_that_do_not_fit(change: tuple[str, str], code: str, why: str) -> None:
    found = problems(program(SCOPED.format(lanes=32).replace(*change)))
    assert found[0][0] == code
    assert any(why in text for _, text in found)


def test_no_loop_of_a_kernel_is_parallel() -> None:
    text = """
for tx in T.thread_binding(4, thread="threadIdx.x"):
    for i in T.{kind}(8):
        with T.block("B"):
            vi = T.axis.spatial(32, tx * 8 + i)
            B[vi, 0] = A[vi, 0]
"""
    assert codes(program(text.format(kind="serial")), GPU) == []
    assert codes(program(text.format(kind="parallel")), GPU) == ["BW231"]


def test_operations_of_a_whole_block_are_reached_by_all_threads() -> None:
    text = """
for tx in T.thread_binding(32, thread="threadIdx.x"):
    with T.block("B"):
        vi = T.axis.spatial(32, tx)
        T.where({condition})
        T.reads(A[vi, 0])
        T.writes(B[vi, 0])
        T.evaluate(T.tvm_storage_sync("shared"))
        B[vi, 0] = A[vi, 0]
"""
    assert codes(program(text.format(condition="True")), GPU) == []
    assert codes(program(text.format(condition="tx < 16")), GPU) == ["BW239"]


@pytest.mark.parametrize(("lanes", "expected"), [(32, []), (16, ["BW239"])])
def test_matrix_operations_of_a_warp_need_a_full_one(lanes: int, expected: list[str]) -> None:
    func = program(f"""
for tx in T.thread_binding({lanes}, thread="threadIdx.x"):
    with T.block("mma"):
        T.reads(A[0:16, 0:16])
        T.writes(C[0:16, 0:16])
        T.evaluate(T.tvm_fill_fragment(C.data, 16, 16, 16, 0, T.float32(0)))
""", allocate='C = T.alloc_buffer((16, 16), "float32", scope="wmma.accumulator")')  # fmt: skip
    assert codes(func, GPU) == expected


LAUNCHED = """
@T.prim_func
def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    {axis}
    tx = T.launch_thread("threadIdx.x", 32)
    B[bx * 32 + tx] = A[bx * 32 + tx]
"""


@pytest.mark.parametrize(
    "axis",
    [
        'bx = T.launch_thread("blockIdx.x", 2)',
        'bx = T.env_thread("blockIdx.x"); T.launch_thread(bx, 2)',
        'bx = T.env_thread("blockIdx.x"); T.attr('
        'T.iter_var(bx, (0, 2), "ThreadIndex", "blockIdx.x"), "thread_extent", 2)',
    ],
)
def test_launched_axes_are_not_those_of_a_processor(axis: str) -> None:
    func = bw.from_source(LAUNCHED.format(axis=axis))
    assert codes(func, GPU) == []
    assert codes(func, "x86-64-v3") == ["BW231", "BW231"]
    with pytest.raises(bw.ValidationError, match=r"launched on blockIdx\.x, which native does"):
        bw.build(func)


def test_a_processor_has_no_axes_and_no_execution_scopes() -> None:
    assert set(codes(program(SCOPED.format(lanes=32)), "x86-64-v3")) == {"BW231"}

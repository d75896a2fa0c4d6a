"""What the interpreter reports about kernels: the code, the line, and the other access.

In each program `# 2` marks the line that the report is to name, `# 1` the line of the access that
it meets. Reports do not depend on what the values happen to be.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.interp import interpret
from blockwright.support import InterpretError
from tests.interp.programs_blocks import CASES as BLOCKS
from tests.interp.programs_warps import CASES as WARPS

HEAD = """
@T.prim_func
def main(A: T.Buffer((256,), "float32"), B: T.Buffer((256,), "float32")):
    tx = T.launch_thread("threadIdx.x", {threads})
"""


def report(body: str, threads: int = 64, head: str = HEAD, **options: Any) -> InterpretError:
    """The error of a kernel, whose lines are checked against the marks."""
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    source = head.format(threads=threads) + lines + "\n"
    with pytest.raises(InterpretError) as caught:
        interpret(
            bw.from_source(source), np.ones(256, np.float32), np.zeros(256, np.float32), **options
        )
    error = caught.value
    marked = {
        mark: [n for n, line in enumerate(source.splitlines(), 1) if line.endswith(mark)]
        for mark in ("# 1", "# 2")
    }
    found = dict.fromkeys(d.span.line for d in error.diagnostics if d.span is not None)
    assert list(found) == marked["# 2"] + marked["# 1"], error
    return error


# --------------------------------------------------------------------------------- the classics
def test_missing_barrier_after_a_shared_store() -> None:
    error = report("""
S = T.allocate((64,), "float32", "shared")
S[tx] = A[tx]  # 1
B[tx] = S[63 - tx]  # 2
""")
    assert error.code == "BW761"
    assert "S[63] is read here by thread threadIdx.x = 0" in str(error)
    assert "written by thread threadIdx.x = 63" in str(error)
    assert "without a barrier between them" in str(error)


def test_missing_barrier_before_the_next_store() -> None:
    """The other direction: an element is overwritten that somebody may still read."""
    error = report("""
S = T.allocate((64,), "float32", "shared")
for k in range(2):
    S[tx] = A[k * 64 + tx]  # 2
    T.tvm_storage_sync("shared")
    B[k * 64 + tx] = S[63 - tx]  # 1
""")
    assert error.code == "BW761"
    assert "is written here" in str(error)
    assert "k = 1" in str(error)


def test_barrier_in_a_divergent_branch() -> None:
    error = report("""
S = T.allocate((64,), "float32", "shared")
S[tx] = A[tx]
if tx < 32:
    T.tvm_storage_sync("shared")  # 2
    B[tx] = S[63 - tx]
""")
    assert error.code == "BW762"
    assert "32 of 64 threads reach this barrier" in str(error)
    assert "threadIdx.x = 32 does not" in str(error)


def test_barrier_in_a_loop_of_different_lengths() -> None:
    error = report("""
for k in range(tx % 4):
    T.tvm_storage_sync("shared")  # 2
B[tx] = A[tx]
""")
    assert error.code == "BW762"


def test_read_before_the_wait_for_an_asynchronous_copy() -> None:
    error = report("""
S = T.allocate((64,), "float32", "shared")
T.ptx_cp_async("float32", S.data, tx, A.data, tx, 4)  # 1
T.ptx_commit_group()
T.tvm_storage_sync("shared")
B[tx] = S[63 - tx]  # 2
T.ptx_wait_group(0)
""")
    assert error.code == "BW763"
    assert "while the asynchronous copy begun by thread" in str(error)


def test_waiting_for_too_few_groups() -> None:
    error = report("""
S = T.allocate((128,), "float32", "shared")
T.ptx_cp_async("float32", S.data, tx, A.data, tx, 4)
T.ptx_commit_group()
T.ptx_cp_async("float32", S.data, 64 + tx, A.data, 64 + tx, 4)  # 1
T.ptx_commit_group()
T.ptx_wait_group(1)
T.tvm_storage_sync("shared")
B[tx] = S[63 - tx]
B[64 + tx] = S[127 - tx]  # 2
""")
    assert error.code == "BW763"


def test_own_wait_does_not_make_others_wait() -> None:
    """A thread knows when its own copies have ended; those of others take a barrier."""
    error = report("""
S = T.allocate((64,), "float32", "shared")
T.ptx_cp_async("float32", S.data, tx, A.data, tx, 4)  # 1
T.ptx_commit_group()
T.ptx_wait_group(0)
B[tx] = S[63 - tx]  # 2
""")
    assert error.code == "BW761"


def test_what_is_copied_from_stays_as_it_is() -> None:
    error = report("""
S = T.allocate((64,), "float32", "shared")
T.ptx_cp_async("float32", S.data, tx, A.data, tx, 4)  # 1
T.ptx_commit_group()
A[tx] = T.float32(1)  # 2
T.ptx_wait_group(0)
B[tx] = S[tx]
""")
    assert error.code == "BW763"


def test_double_buffer_with_an_index_off_by_one() -> None:
    """The tile is fetched into the buffer that is being read."""
    error = report("""
S = T.allocate((2, 64), "float32", "shared")
S[0, tx] = A[tx]
T.tvm_storage_sync("shared")
for k in range(3):
    S[k % 2, tx] = A[(k + 1) * 64 + tx]  # 1
    B[k * 64 + tx] = S[k % 2, 63 - tx]  # 2
    T.tvm_storage_sync("shared")
""")
    assert error.code == "BW761"


def test_double_buffer_of_copies_with_an_index_off_by_one() -> None:
    error = report("""
S = T.allocate((2, 64), "float32", "shared")
T.ptx_cp_async("float32", S.data, tx, A.data, tx, 4)
T.ptx_commit_group()
for k in range(3):
    T.ptx_cp_async("float32", S.data, (k + 1) % 2 * 64 + tx, A.data, (k + 1) * 64 + tx, 4)  # 1
    T.ptx_commit_group()
    T.ptx_wait_group(1)
    T.tvm_storage_sync("shared")
    B[k * 64 + tx] = S[(k + 1) % 2, 63 - tx]  # 2
    T.tvm_storage_sync("shared")
""")
    assert error.code == "BW763"


def test_warps_do_not_run_in_step() -> None:
    """The last steps of a tree within one warp, as written for machines of the past."""
    error = report("""
S = T.allocate((64,), "float32", "shared")
S[tx] = A[tx]
T.tvm_storage_sync("shared")
if tx < 32:
    for step in range(6):
        if tx < T.shift_right(32, step):
            S[tx] = S[tx] + S[tx + T.shift_right(32, step)]  # 2
B[tx] = A[tx]
""")
    assert error.code == "BW761"
    assert "S[16] is read here by thread threadIdx.x = 0" in str(error)


# --------------------------------------------------------------------------------- other races
def test_two_threads_write_one_element() -> None:
    error = report("""
S = T.allocate((32,), "float32", "shared")
S[tx // 2] = A[tx]  # 2
""")
    assert error.code == "BW761"
    assert "S[0] is written here" in str(error)
    assert "at the same place" in str(error)


def test_threads_meet_in_global_memory() -> None:
    error = report("""
B[tx] = A[tx]  # 1
B[64 + tx] = B[(tx + 1) % 64]  # 2
""")
    assert error.code == "BW761"


def test_atomic_updates_meet_plain_reads() -> None:
    error = report("""
T.atomic_add(B[0], A[tx])  # 1
B[tx + 64] = B[0]  # 2
""")
    assert error.code == "BW761"
    assert "updated atomically" in str(error)


def test_a_barrier_of_warps_does_not_order_other_warps() -> None:
    error = report("""
S = T.allocate((64,), "float32", "shared")
S[tx] = A[tx]  # 1
T.tvm_storage_sync("warp")
B[tx] = S[63 - tx]  # 2
""")
    assert error.code == "BW761"


def test_readers_of_several_warps_are_all_remembered() -> None:
    """Only the warp of the writer has waited since everybody read the element."""
    error = report("""
S = T.allocate((1,), "float32", "shared")
if tx == 0:
    S[0] = A[0]
T.tvm_storage_sync("shared")
B[tx] = S[0]  # 1
T.tvm_storage_sync("warp")
if tx == 63:
    S[0] = A[1]  # 2
""")
    assert error.code == "BW761"


@pytest.mark.parametrize("width", ["float32x4", "float32x2"])
def test_vectors_race_in_each_element(width: str) -> None:
    lanes = int(width[-1])
    error = report(f"""
S = T.allocate((256,), "float32", "shared")
S[T.ramp(tx * {lanes}, 1, {lanes})] = T.broadcast(A[tx], {lanes})  # 1
B[tx] = S[(tx * {lanes} + {lanes}) % ({lanes} * 32)]  # 2
""", threads=32)  # fmt: skip
    assert error.code == "BW761"


def test_no_check_for_races_on_request() -> None:
    func = bw.from_source(
        HEAD.format(threads=64)
        + """
    S = T.allocate((64,), "float32", "shared")
    S[tx] = A[tx]
    B[tx] = S[63 - tx]
"""
    )
    a, b = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    interpret(func, a, b, races=False)
    assert np.array_equal(b[:64], a[:64][::-1])


def test_lanes_write_different_elements_of_their_warp() -> None:
    error = report("""
W = T.allocate((32,), "float32", "warp")
W[tx % 16] = A[tx] + T.Cast("float32", tx)  # 2
""")
    assert error.code == "BW761"


# --------------------------------------------------------------------------------- bounds, values
def test_out_of_bounds_names_the_thread() -> None:
    error = report("""
S = T.allocate((64,), "float32", "shared")
S[tx + 1] = A[tx]  # 2
""")
    assert error.code == "BW751"
    assert "S[64] is outside the buffer's shape (64)" in str(error)
    assert "tx = 63" in str(error)


def test_shared_memory_is_not_initialised() -> None:
    error = report("""
S = T.allocate((64,), "float32", "shared")
if tx > 0:
    S[tx] = A[tx]
T.tvm_storage_sync("shared")
B[tx] = S[tx]  # 2
""")
    assert error.code == "BW752"
    assert "S[0]" in str(error)


def test_shared_memory_does_not_outlive_its_block() -> None:
    error = report("""
tx = T.launch_thread("threadIdx.x", 32)
S = T.allocate((32,), "float32", "shared")
if bx == 0:
    S[tx] = A[tx]
T.tvm_storage_sync("shared")
B[bx * 32 + tx] = S[tx]  # 2
""", head=HEAD.replace("tx =", "bx =").replace("threadIdx.x", "blockIdx.x"), threads=2)  # fmt: skip
    assert error.code == "BW752"


def test_registers_belong_to_one_thread() -> None:
    error = report("""
r = T.allocate((64,), "float32", "local")
r[tx] = A[tx]
B[tx] = r[63 - tx]  # 2
""")
    assert error.code == "BW752"


# --------------------------------------------------------------------------------- warps
def test_shuffle_from_a_lane_that_is_not_there() -> None:
    error = report("""
if tx < 16:
    B[tx] = T.tvm_warp_shuffle_down(T.tvm_warp_activemask(), A[tx], 1, 32, 32)  # 2
""")
    assert error.code == "BW764"
    assert "takes the value of lane 16" in str(error)


def test_mask_that_names_a_lane_that_is_not_there() -> None:
    error = report("""
if tx % 2 == 0:
    B[tx] = T.tvm_warp_shuffle_xor(T.uint32(0xFFFFFFFF), A[tx], 2, 32, 32)  # 2
""")
    assert error.code == "BW764"
    assert "names lane 1" in str(error)


def test_part_of_a_warp_multiplies_matrices() -> None:
    error = report("""
c = T.allocate((4,), "float32", "local")
a = T.allocate((4,), "float16", "local")
b = T.allocate((2,), "float16", "local")
if tx < 16:
    T.ptx_mma("float32", "m16n8k8", "row", "col", "fp16", "fp16", "fp32", a.data, 0, b.data, 0, c.data, 0, False)  # 2
""")  # noqa: E501
    assert error.code == "BW764"
    assert "is run by 16 threads of a warp" in str(error)


def test_registers_of_a_product_are_filled_before() -> None:
    error = report("""
c = T.allocate((4,), "float32", "local")
a = T.allocate((4,), "float16", "local")
b = T.allocate((2,), "float16", "local")
T.mma_fill("float32", 4, c.data, 0)
T.mma_fill("float16", 4, a.data, 0)
T.ptx_mma("float32", "m16n8k8", "row", "col", "fp16", "fp16", "fp32", a.data, 0, b.data, 0, c.data, 0, False)  # 2
""")  # noqa: E501
    assert error.code == "BW752"


def test_matrix_rows_for_ldmatrix_are_aligned_and_inside() -> None:
    body = """
S = T.allocate((32, 10), "float16", "shared")
a = T.allocate((2,), "float16", "local")
for i in range(10):
    S[tx, i] = T.Cast("float16", A[tx])
T.tvm_storage_sync("shared")
T.ptx_ldmatrix("float16", False, 1, ".b16", a.data, 0, T.address_of(S[tx, 0]), {offset})  # 2
"""
    assert report(body.format(offset=0), threads=32).code == "BW758"
    assert report(
        body.format(offset="T.if_then_else(tx < 8, 320 - tx * 10, 0)"), threads=32
    ).code in ("BW751", "BW758")


def test_wait_that_nothing_ends() -> None:
    error = report("""
T.create_barriers(1)
if tx == 0:
    T.ptx_init_barrier_thread_count(0, 64)
T.tvm_storage_sync("shared")
if tx < 63:
    T.ptx_arrive_barrier(0)
T.ptx_wait_barrier(0)  # 2
""")
    assert error.code == "BW765"
    assert "63 of 64 threads have arrived" in str(error)


def test_both_branches_wait() -> None:
    error = report("""
T.create_barriers(1)
if tx == 0:
    T.ptx_init_barrier_thread_count(0, 32)
T.tvm_storage_sync("shared")
if tx < 32:
    T.ptx_wait_barrier(0)  # 2
    T.ptx_arrive_barrier(0)
else:
    T.ptx_wait_barrier(0)
    T.ptx_arrive_barrier(0)
""")
    assert error.code == "BW765"


def test_a_consumer_in_its_own_branch_has_to_wait_too() -> None:
    error = report("""
T.create_barriers(1)
S = T.allocate((32,), "float32", "shared")
if tx == 0:
    T.ptx_init_barrier_thread_count(0, 32)
T.tvm_storage_sync("shared")
if tx < 32:
    S[tx] = A[tx]  # 1
    T.ptx_arrive_barrier(0)
else:
    B[tx] = S[tx - 32]  # 2
    T.ptx_wait_barrier(0)
""")
    assert error.code == "BW761"


def test_barrier_that_is_used_before_it_is_set_up() -> None:
    error = report("""
T.create_barriers(1)
if tx == 0:
    T.ptx_init_barrier_thread_count(0, 64)  # 1
T.ptx_arrive_barrier(0)  # 2
T.ptx_wait_barrier(0)
""")
    assert error.code == "BW761"


# --------------------------------------------------------------------------------- mechanically
WAITS = (
    "tvm_storage_sync",
    "ptx_wait_group",
    "ptx_commit_group",
    "ptx_arrive_barrier",
    "ptx_wait_barrier",
    "ptx_cp_async_barrier",
)
NOT_NEEDED = {
    ("up and down scan", 2),  # the thread that clears the root is the one that goes down from it
    ("odd-even sort", 0),  # the first turn compares what each thread has written itself
}


class _Without(ir.Mutator):
    def __init__(self, dropped: ir.Stmt) -> None:
        super().__init__()
        self.dropped = dropped

    def rewrite_Evaluate(self, node: ir.Evaluate) -> ir.Stmt:
        return ir.Evaluate(ir.const(0, "int32")) if node is self.dropped else node


@pytest.mark.parametrize("name", [*BLOCKS, *WARPS])
def test_every_wait_is_needed(name: str) -> None:
    """Right kernels with one barrier or wait taken out, whatever the values: each is reported."""
    case = {**BLOCKS, **WARPS}[name]
    func = case.program
    waits = [
        n
        for n in ir.walk(func.body)
        if isinstance(n, ir.Evaluate) and isinstance(n.value, ir.Call) and n.value.op in WAITS
    ]
    for position, wait in enumerate(waits):
        inputs = case.inputs(np.random.default_rng(0))
        shape = tuple(n.value for n in func.buffers[-1].shape)
        out = np.zeros(shape, func.buffers[-1].dtype.numpy())
        broken = func.replace(body=_Without(wait)(func.body))
        if (name, position) in NOT_NEEDED:
            interpret(broken, *inputs, out)
            continue
        with pytest.raises(InterpretError) as caught:
            interpret(broken, *inputs, out)
        assert caught.value.code in ("BW752", "BW761", "BW763", "BW765")

"""Kernels whose threads hand values over through shared memory, as they are written by hand.

Each is right: no order in which its threads may run gives anything else. `CASES` says what each one
computes, in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from blockwright.script import tir as T

Array = Any


class Case(NamedTuple):
    """A program, the inputs that it is run with, and what its last parameter holds afterwards."""

    program: Any
    inputs: Callable[[np.random.Generator], list[Array]]
    expected: Callable[..., Array]


def floats(*shape: int) -> Callable[[np.random.Generator], Array]:
    return lambda rng: rng.standard_normal(shape, np.float32)


def ints(high: int, *shape: int) -> Callable[[np.random.Generator], Array]:
    return lambda rng: rng.integers(0, high, shape).astype(np.int32)


def take(*makers: Callable[[np.random.Generator], Array]) -> Callable[..., list[Array]]:
    return lambda rng: [make(rng) for make in makers]


# ------------------------------------------------------------------------------------- exchange
@T.prim_func
def reverse(A: T.Buffer((256,), "float32"), B: T.Buffer((256,), "float32")):
    bx = T.launch_thread("blockIdx.x", 4)
    tx = T.launch_thread("threadIdx.x", 64)
    S = T.allocate((64,), "float32", "shared")
    S[tx] = A[bx * 64 + tx]
    T.tvm_storage_sync("shared")
    B[bx * 64 + tx] = S[63 - tx]


@T.prim_func
def padded_transpose(A: T.Buffer((64, 48), "float32"), B: T.Buffer((48, 64), "float32")):
    by = T.launch_thread("blockIdx.y", 4)
    bx = T.launch_thread("blockIdx.x", 3)
    ty = T.launch_thread("threadIdx.y", 16)
    tx = T.launch_thread("threadIdx.x", 16)
    S = T.allocate((16, 17), "float32", "shared")
    S[ty, tx] = A[by * 16 + ty, bx * 16 + tx]
    T.tvm_storage_sync("shared")
    B[bx * 16 + ty, by * 16 + tx] = S[tx, ty]


@T.prim_func
def transpose_by_fewer_threads(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32")):
    """A tile of 32 × 32 by 32 × 8 threads, four rows each."""
    by = T.launch_thread("blockIdx.y", 2)
    bx = T.launch_thread("blockIdx.x", 2)
    ty = T.launch_thread("threadIdx.y", 8)
    tx = T.launch_thread("threadIdx.x", 32)
    S = T.allocate((32, 33), "float32", "shared")
    for j in range(4):
        S[ty + j * 8, tx] = A[by * 32 + ty + j * 8, bx * 32 + tx]
    T.tvm_storage_sync("shared")
    for j in range(4):
        B[bx * 32 + ty + j * 8, by * 32 + tx] = S[tx, ty + j * 8]


@T.prim_func
def transpose_in_place(A: T.Buffer((32, 32), "float32")):
    """Both tiles of a pair are read before either is written."""
    tx = T.launch_thread("threadIdx.x", 32)
    S = T.allocate((32, 32), "float32", "shared")
    for i in range(32):
        S[i, tx] = A[i, tx]
    T.tvm_storage_sync("shared")
    for i in range(32):
        A[i, tx] = S[tx, i]


@T.prim_func
def shared_bytes_under_two_names(
    A: T.Buffer((64,), "float32"), H: T.Buffer((64,), "float16"), B: T.Buffer((64,), "float32")
):
    """One allocation of bytes, cut up by hand, as one dynamic allocation is."""
    tx = T.launch_thread("threadIdx.x", 64)
    raw = T.allocate((384,), "uint8", "shared.dyn")
    S = T.decl_buffer((64,), "float32", data=raw.data, scope="shared.dyn")
    D = T.decl_buffer((64,), "float16", data=T.address_of(raw[256]), scope="shared.dyn")
    S[tx] = A[tx]
    D[tx] = H[tx]
    T.tvm_storage_sync("shared.dyn")
    B[tx] = S[63 - tx] + T.Cast("float32", D[(tx + 1) % 64])


@T.prim_func
def registers_as_a_window(A: T.Buffer((64, 8), "float32"), B: T.Buffer((64,), "float32")):
    """A name for a part of each thread's registers that begins where the thread says."""
    tx = T.launch_thread("threadIdx.x", 64)
    r = T.allocate((8,), "float32", "local")
    for i in range(8):
        r[i] = A[tx, i]
    half = T.decl_buffer((4,), "float32", data=T.address_of(r[tx % 5]), scope="local")
    B[tx] = half[0] + half[3]


# ------------------------------------------------------------------------------------- reductions
@T.prim_func
def tree_sum(A: T.Buffer((1024,), "float32"), B: T.Buffer((4,), "float32")):
    """Halves are added until one element is left."""
    bx = T.launch_thread("blockIdx.x", 4)
    tx = T.launch_thread("threadIdx.x", 256)
    S = T.allocate((256,), "float32", "shared")
    S[tx] = A[bx * 256 + tx]
    T.tvm_storage_sync("shared")
    for step in range(8):
        if tx < T.shift_right(128, step):
            S[tx] = S[tx] + S[tx + T.shift_right(128, step)]
        T.tvm_storage_sync("shared")
    if tx == 0:
        B[bx] = S[0]


@T.prim_func
def interleaved_sum(A: T.Buffer((512,), "int32"), B: T.Buffer((1,), "int32")):
    """Neighbours first; blocks add their sums atomically."""
    bx = T.launch_thread("blockIdx.x", 8)
    tx = T.launch_thread("threadIdx.x", 64)
    S = T.allocate((64,), "int32", "shared")
    S[tx] = A[bx * 64 + tx]
    T.tvm_storage_sync("shared")
    for step in range(6):
        if tx % T.shift_left(2, step) == 0:
            S[tx] = S[tx] + S[tx + T.shift_left(1, step)]
        T.tvm_storage_sync("shared")
    if tx == 0:
        T.atomic_add(B[0], S[0])


@T.prim_func
def two_step_maximum(A: T.Buffer((4096,), "float32"), B: T.Buffer((1,), "float32")):
    """Each thread takes every 128th element, then one thread takes the partial results."""
    tx = T.launch_thread("threadIdx.x", 128)
    best = T.allocate((1,), "float32", "local")
    S = T.allocate((128,), "float32", "shared")
    best[0] = A[tx]
    for i in range(31):
        best[0] = T.max(best[0], A[(i + 1) * 128 + tx])
    S[tx] = best[0]
    T.tvm_storage_sync("shared")
    if tx == 0:
        for i in range(127):
            best[0] = T.max(best[0], S[i + 1])
        B[0] = best[0]


@T.prim_func
def row_softmax(A: T.Buffer((12, 64), "float32"), B: T.Buffer((12, 64), "float32")):
    bx = T.launch_thread("blockIdx.x", 12)
    tx = T.launch_thread("threadIdx.x", 64)
    S = T.allocate((64,), "float32", "shared")
    top = T.allocate((1,), "float32", "local")
    S[tx] = A[bx, tx]
    T.tvm_storage_sync("shared")
    for step in range(6):
        if tx < T.shift_right(32, step):
            S[tx] = T.max(S[tx], S[tx + T.shift_right(32, step)])
        T.tvm_storage_sync("shared")
    top[0] = S[0]
    T.tvm_storage_sync("shared")
    S[tx] = T.exp(A[bx, tx] - top[0])
    T.tvm_storage_sync("shared")
    for step in range(6):
        if tx < T.shift_right(32, step):
            S[tx] = S[tx] + S[tx + T.shift_right(32, step)]
        T.tvm_storage_sync("shared")
    B[bx, tx] = T.exp(A[bx, tx] - top[0]) / S[0]


# ------------------------------------------------------------------------------------- scans, sorts
@T.prim_func
def double_buffered_scan(A: T.Buffer((128,), "int32"), B: T.Buffer((128,), "int32")):
    """Each step reads one copy and writes the other, so that one barrier is enough."""
    tx = T.launch_thread("threadIdx.x", 128)
    S = T.allocate((2, 128), "int32", "shared")
    S[0, tx] = A[tx]
    T.tvm_storage_sync("shared")
    for step in range(7):
        if tx >= T.shift_left(1, step):
            S[(step + 1) % 2, tx] = S[step % 2, tx] + S[step % 2, tx - T.shift_left(1, step)]
        else:
            S[(step + 1) % 2, tx] = S[step % 2, tx]
        T.tvm_storage_sync("shared")
    B[tx] = S[1, tx]


@T.prim_func
def up_and_down_scan(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    """Sums up a tree, then down again: what stands before each element."""
    tx = T.launch_thread("threadIdx.x", 32)
    S = T.allocate((64,), "int32", "shared")
    S[tx] = A[tx]
    S[tx + 32] = A[tx + 32]
    T.tvm_storage_sync("shared")
    for step in range(6):
        if tx < T.shift_right(32, step):
            high: T.int32 = (tx * 2 + 2) * T.shift_left(1, step) - 1
            S[high] = S[high] + S[high - T.shift_left(1, step)]
        T.tvm_storage_sync("shared")
    if tx == 0:
        S[63] = 0
    T.tvm_storage_sync("shared")
    for back in range(6):
        if tx < T.shift_left(1, back):
            high: T.int32 = (tx * 2 + 2) * T.shift_right(32, back) - 1
            low: T.int32 = high - T.shift_right(32, back)
            left: T.int32 = S[low]
            right: T.int32 = S[high]
            S[low] = right
            S[high] = left + right
        T.tvm_storage_sync("shared")
    B[tx] = S[tx]
    B[tx + 32] = S[tx + 32]


@T.prim_func
def bitonic_sort(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    tx = T.launch_thread("threadIdx.x", 64)
    S = T.allocate((64,), "int32", "shared")
    S[tx] = A[tx]
    T.tvm_storage_sync("shared")
    for size in range(6):
        for step in range(size + 1):
            other: T.int32 = T.bitwise_xor(tx, T.shift_left(1, size - step))
            if other > tx:
                first: T.int32 = S[tx]
                second: T.int32 = S[other]
                if (T.bitwise_and(tx, T.shift_left(2, size)) == 0) == (first > second):
                    S[tx] = second
                    S[other] = first
            T.tvm_storage_sync("shared")
    B[tx] = S[tx]


@T.prim_func
def odd_even_sort(A: T.Buffer((32,), "int32"), B: T.Buffer((32,), "int32")):
    """Pairs of neighbours, one thread for each."""
    tx = T.launch_thread("threadIdx.x", 16)
    S = T.allocate((32,), "int32", "shared")
    S[tx * 2] = A[tx * 2]
    S[tx * 2 + 1] = A[tx * 2 + 1]
    T.tvm_storage_sync("shared")
    for turn in range(32):
        if tx * 2 + turn % 2 + 1 < 32:
            at: T.int32 = tx * 2 + turn % 2
            low: T.int32 = T.min(S[at], S[at + 1])
            high: T.int32 = T.max(S[at], S[at + 1])
            S[at] = low
            S[at + 1] = high
        T.tvm_storage_sync("shared")
    B[tx] = S[tx]
    B[tx + 16] = S[tx + 16]


# ------------------------------------------------------------------------------------- stencils
@T.prim_func
def line_stencil(A: T.Buffer((256,), "float32"), B: T.Buffer((256,), "float32")):
    """Sums of seven neighbours; the first threads fetch the halo on both sides."""
    bx = T.launch_thread("blockIdx.x", 4)
    tx = T.launch_thread("threadIdx.x", 64)
    S = T.allocate((70,), "float32", "shared")
    total = T.allocate((1,), "float32", "local")
    S[tx + 3] = A[bx * 64 + tx]
    if tx < 3:
        S[tx] = T.if_then_else(bx * 64 + tx >= 3, A[bx * 64 + tx - 3], T.float32(0))
        S[tx + 67] = T.if_then_else(bx * 64 + tx + 64 < 256, A[bx * 64 + tx + 64], T.float32(0))
    T.tvm_storage_sync("shared")
    total[0] = T.float32(0)
    for d in range(7):
        total[0] = total[0] + S[tx + d]
    B[bx * 64 + tx] = total[0]


@T.prim_func
def plane_stencil(A: T.Buffer((34, 34), "float32"), B: T.Buffer((32, 32), "float32")):
    """Five points of a plane; 18 × 18 elements are fetched by 256 threads."""
    by = T.launch_thread("blockIdx.y", 2)
    bx = T.launch_thread("blockIdx.x", 2)
    ty = T.launch_thread("threadIdx.y", 16)
    tx = T.launch_thread("threadIdx.x", 16)
    S = T.allocate((18, 18), "float32", "shared")
    for part in range(2):
        if part * 256 + ty * 16 + tx < 324:
            at: T.int32 = part * 256 + ty * 16 + tx
            S[at // 18, at % 18] = A[by * 16 + at // 18, bx * 16 + at % 18]
    T.tvm_storage_sync("shared")
    B[by * 16 + ty, bx * 16 + tx] = (
        S[ty, tx + 1]
        + S[ty + 2, tx + 1]
        + S[ty + 1, tx]
        + S[ty + 1, tx + 2]
        - T.float32(4) * S[ty + 1, tx + 1]
    )


@T.prim_func
def repeated_stencil(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    """Ten smoothing steps in shared memory: all read, wait, write, wait."""
    tx = T.launch_thread("threadIdx.x", 64)
    S = T.allocate((66,), "float32", "shared")
    mine = T.allocate((1,), "float32", "local")
    S[tx + 1] = A[tx]
    if tx == 0:
        S[0] = T.float32(0)
        S[65] = T.float32(0)
    T.tvm_storage_sync("shared")
    for step in range(10):
        mine[0] = (S[tx] + S[tx + 1] + S[tx + 2]) / T.float32(3)
        T.tvm_storage_sync("shared")
        S[tx + 1] = mine[0]
        T.tvm_storage_sync("shared")
    B[tx] = S[tx + 1]


@T.prim_func
def filter_with_window(
    A: T.Buffer((135,), "float32"), W: T.Buffer((8,), "float32"), B: T.Buffer((128,), "float32")
):
    """Each thread keeps a window of its own in registers."""
    tx = T.launch_thread("threadIdx.x", 16)
    window = T.allocate((8,), "float32", "local")
    for k in range(7):
        window[k + 1] = A[tx * 8 + k]
    for i in range(8):
        for k in range(7):
            window[k] = window[k + 1]
        window[7] = A[tx * 8 + i + 7]
        B[tx * 8 + i] = T.float32(0)
        for k in range(8):
            B[tx * 8 + i] = B[tx * 8 + i] + window[k] * W[k]


# ------------------------------------------------------------------------------------- counting
@T.prim_func
def histogram(A: T.Buffer((2048,), "int32"), B: T.Buffer((16,), "int32")):
    """Bins of a block in shared memory, then added to those of all."""
    bx = T.launch_thread("blockIdx.x", 4)
    tx = T.launch_thread("threadIdx.x", 64)
    S = T.allocate((16,), "int32", "shared")
    if tx < 16:
        S[tx] = 0
    T.tvm_storage_sync("shared")
    for i in range(8):
        T.atomic_add(S[A[bx * 512 + i * 64 + tx]], 1)
    T.tvm_storage_sync("shared")
    if tx < 16:
        T.atomic_add(B[tx], S[tx])


@T.prim_func
def private_histogram(A: T.Buffer((1024,), "int32"), B: T.Buffer((8,), "int32")):
    """Each thread counts for itself; a thread per bin adds the counts up."""
    tx = T.launch_thread("threadIdx.x", 32)
    S = T.allocate((8, 33), "int32", "shared")
    for b in range(8):
        S[b, tx] = 0
    for i in range(32):
        S[A[i * 32 + tx], tx] = S[A[i * 32 + tx], tx] + 1
    T.tvm_storage_sync("shared")
    if tx < 8:
        B[tx] = 0
        for i in range(32):
            B[tx] = B[tx] + S[tx, i]


@T.prim_func
def places_by_ticket(A: T.Buffer((256,), "int32"), B: T.Buffer((1,), "int32")):
    """Every thread draws a number; the numbers are all different, so their sum is known."""
    tx = T.launch_thread("threadIdx.x", 256)
    ticket = T.allocate((1,), "int32", "shared")
    drawn = T.allocate((1,), "int32", "local")
    if tx == 0:
        ticket[0] = 0
    T.tvm_storage_sync("shared")
    drawn[0] = T.atomic_add(ticket[0], 1)
    T.atomic_add(B[0], drawn[0] * A[0] + T.int32(0) * A[drawn[0]])


# ------------------------------------------------------------------------------------- products
@T.prim_func
def tiled_product(
    A: T.Buffer((32, 48), "float32"),
    B: T.Buffer((48, 32), "float32"),
    C: T.Buffer((32, 32), "float32"),
):
    by = T.launch_thread("blockIdx.y", 2)
    bx = T.launch_thread("blockIdx.x", 2)
    ty = T.launch_thread("threadIdx.y", 16)
    tx = T.launch_thread("threadIdx.x", 16)
    SA = T.allocate((16, 16), "float32", "shared")
    SB = T.allocate((16, 16), "float32", "shared")
    total = T.allocate((1,), "float32", "local")
    total[0] = T.float32(0)
    for k in range(3):
        SA[ty, tx] = A[by * 16 + ty, k * 16 + tx]
        SB[ty, tx] = B[k * 16 + ty, bx * 16 + tx]
        T.tvm_storage_sync("shared")
        for i in range(16):
            total[0] = total[0] + SA[ty, i] * SB[i, tx]
        T.tvm_storage_sync("shared")
    C[by * 16 + ty, bx * 16 + tx] = total[0]


@T.prim_func
def double_buffered_product(
    A: T.Buffer((32, 64), "float32"),
    B: T.Buffer((64, 32), "float32"),
    C: T.Buffer((32, 32), "float32"),
):
    """The next tile is fetched while the current one is used: one barrier per step."""
    ty = T.launch_thread("threadIdx.y", 8)
    tx = T.launch_thread("threadIdx.x", 8)
    SA = T.allocate((2, 32, 8), "float32", "shared.dyn")
    SB = T.allocate((2, 8, 32), "float32", "shared.dyn")
    total = T.allocate((4, 4), "float32", "local")
    for i, j in T.grid(4, 4):
        total[i, j] = T.float32(0)
    for i in range(4):
        SA[0, i * 8 + ty, tx] = A[i * 8 + ty, tx]
        SB[0, ty, i * 8 + tx] = B[ty, i * 8 + tx]
    T.tvm_storage_sync("shared.dyn")
    for k in range(8):
        if k < 7:
            for i in range(4):
                SA[(k + 1) % 2, i * 8 + ty, tx] = A[i * 8 + ty, k * 8 + 8 + tx]
                SB[(k + 1) % 2, ty, i * 8 + tx] = B[k * 8 + 8 + ty, i * 8 + tx]
        for kk in range(8):
            for i, j in T.grid(4, 4):
                total[i, j] = total[i, j] + SA[k % 2, ty * 4 + i, kk] * SB[k % 2, kk, tx * 4 + j]
        T.tvm_storage_sync("shared.dyn")
    for i, j in T.grid(4, 4):
        C[ty * 4 + i, tx * 4 + j] = total[i, j]


@T.prim_func
def product_with_ragged_edges(
    A: T.Buffer((19, 21), "float32"),
    B: T.Buffer((21, 13), "float32"),
    C: T.Buffer((19, 13), "float32"),
):
    """Tiles of 8 that stick out are filled with zeros; all threads reach every barrier."""
    by = T.launch_thread("blockIdx.y", 3)
    bx = T.launch_thread("blockIdx.x", 2)
    ty = T.launch_thread("threadIdx.y", 8)
    tx = T.launch_thread("threadIdx.x", 8)
    SA = T.allocate((8, 8), "float32", "shared")
    SB = T.allocate((8, 8), "float32", "shared")
    total = T.allocate((1,), "float32", "local")
    total[0] = T.float32(0)
    for k in range(3):
        SA[ty, tx] = T.if_then_else(
            by * 8 + ty < 19 and k * 8 + tx < 21, A[by * 8 + ty, k * 8 + tx], T.float32(0)
        )
        SB[ty, tx] = T.if_then_else(
            k * 8 + ty < 21 and bx * 8 + tx < 13, B[k * 8 + ty, bx * 8 + tx], T.float32(0)
        )
        T.tvm_storage_sync("shared")
        for i in range(8):
            total[0] = total[0] + SA[ty, i] * SB[i, tx]
        T.tvm_storage_sync("shared")
    if by * 8 + ty < 19 and bx * 8 + tx < 13:
        C[by * 8 + ty, bx * 8 + tx] = total[0]


@T.prim_func
def vector_in_shared_memory(
    A: T.Buffer((64, 32), "float32"), X: T.Buffer((32,), "float32"), B: T.Buffer((64,), "float32")
):
    """A row per thread; all read the same element of the vector at a time."""
    tx = T.launch_thread("threadIdx.x", 64)
    S = T.allocate((32,), "float32", "shared")
    total = T.allocate((1,), "float32", "local")
    if tx < 32:
        S[tx] = X[tx]
    T.tvm_storage_sync("shared")
    total[0] = T.float32(0)
    for k in range(32):
        total[0] = total[0] + A[tx, k] * S[k]
    B[tx] = total[0]


# ------------------------------------------------------------------------------------- control flow
@T.prim_func
def steps_to_one(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    """Threads leave the loop one by one."""
    tx = T.launch_thread("threadIdx.x", 64)
    n = T.allocate((1,), "int32", "local")
    steps = T.allocate((1,), "int32", "local")
    n[0] = A[tx] + 1
    steps[0] = 0
    while n[0] > 1:
        if n[0] % 2 == 0:
            n[0] = n[0] // 2
        else:
            n[0] = n[0] * 3 + 1
        steps[0] = steps[0] + 1
    B[tx] = steps[0]


@T.prim_func
def first_zero(A: T.Buffer((16, 32), "int32"), B: T.Buffer((16,), "int32")):
    """A search that each thread breaks off where it finds something."""
    tx = T.launch_thread("threadIdx.x", 16)
    B[tx] = 32
    for i in range(32):
        if A[tx, i] == 0:
            B[tx] = i
            break


@T.prim_func
def scan_of_blocks(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    """Two kernels: blocks for themselves, then what stands before each block is added."""
    ends = T.alloc_buffer((4,), "int32")
    with T.launch_thread("blockIdx.x", 4) as bx:
        with T.launch_thread("threadIdx.x", 16) as tx:
            S = T.allocate((16,), "int32", "shared")
            S[tx] = A[bx * 16 + tx]
            T.tvm_storage_sync("shared")
            B[bx * 16 + tx] = 0
            for i in range(tx + 1):
                B[bx * 16 + tx] = B[bx * 16 + tx] + S[i]
            if tx == 15:
                ends[bx] = B[bx * 16 + 15]
    with T.launch_thread("blockIdx.x", 4) as bx:
        with T.launch_thread("threadIdx.x", 16) as tx:
            for i in range(bx):
                B[bx * 16 + tx] = B[bx * 16 + tx] + ends[i]


def _stencil(a: Array) -> Array:
    padded = np.pad(a, 3)
    return sum(padded[d : d + len(a)] for d in range(7))


def _smooth(a: Array) -> Array:
    for _ in range(10):
        p = np.pad(a, 1)
        a = (p[:-2] + p[1:-1] + p[2:]) / np.float32(3)
    return a


def _softmax(a: Array) -> Array:
    e = np.exp(a - a.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def _collatz(n: int) -> int:
    steps = 0
    while n > 1:
        n, steps = n // 2 if n % 2 == 0 else 3 * n + 1, steps + 1
    return steps


CASES: dict[str, Case] = {
    "reverse": Case(reverse, take(floats(256)), lambda a: a.reshape(4, 64)[:, ::-1].ravel()),
    "padded transpose": Case(padded_transpose, take(floats(64, 48)), lambda a: a.T),
    "transpose by fewer threads": Case(transpose_by_fewer_threads, take(floats(64, 64)),
                                       lambda a: a.T),
    "shared bytes under two names": Case(
        shared_bytes_under_two_names,
        take(floats(64), lambda rng: rng.standard_normal(64).astype(np.float16)),
        lambda a, h: a[::-1] + np.roll(h, -1)),
    "registers as a window": Case(
        registers_as_a_window, take(floats(64, 8)),
        lambda a: a[np.arange(64), np.arange(64) % 5] + a[np.arange(64), np.arange(64) % 5 + 3]),
    "transpose in place": Case(transpose_in_place, take(), lambda a: a.T),
    "tree sum": Case(tree_sum, take(floats(1024)), lambda a: a.reshape(4, 256).sum(1)),
    "interleaved sum": Case(interleaved_sum, take(ints(100, 512)), lambda a: a.sum(keepdims=True)),
    "two-step maximum": Case(two_step_maximum, take(floats(4096)),
                             lambda a: a.max(keepdims=True)),
    "row softmax": Case(row_softmax, take(floats(12, 64)), _softmax),
    "double-buffered scan": Case(double_buffered_scan, take(ints(100, 128)), np.cumsum),
    "up and down scan": Case(up_and_down_scan, take(ints(100, 64)),
                             lambda a: np.cumsum(a) - a),
    "bitonic sort": Case(bitonic_sort, take(ints(1000, 64)), np.sort),
    "odd-even sort": Case(odd_even_sort, take(ints(1000, 32)), np.sort),
    "line stencil": Case(line_stencil, take(floats(256)), _stencil),
    "plane stencil": Case(plane_stencil, take(floats(34, 34)),
                          lambda a: a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:]
                          - 4 * a[1:-1, 1:-1]),
    "repeated stencil": Case(repeated_stencil, take(floats(64)), _smooth),
    "filter with window": Case(filter_with_window, take(floats(135), floats(8)),
                               lambda a, w: np.correlate(a, w, "valid")),
    "histogram": Case(histogram, take(ints(16, 2048)), lambda a: np.bincount(a, minlength=16)),
    "private histogram": Case(private_histogram, take(ints(8, 1024)),
                              lambda a: np.bincount(a, minlength=8)),
    "places by ticket": Case(places_by_ticket, take(ints(9, 256)),
                             lambda a: np.array([a[0] * 255 * 128])),
    "tiled product": Case(tiled_product, take(floats(32, 48), floats(48, 32)),
                          lambda a, b: a @ b),
    "double-buffered product": Case(double_buffered_product,
                                    take(floats(32, 64), floats(64, 32)), lambda a, b: a @ b),
    "product with ragged edges": Case(product_with_ragged_edges,
                                      take(floats(19, 21), floats(21, 13)), lambda a, b: a @ b),
    "vector in shared memory": Case(vector_in_shared_memory, take(floats(64, 32), floats(32)),
                                    lambda a, x: a @ x),
    "steps to one": Case(steps_to_one, take(ints(40, 64)),
                         lambda a: np.array([_collatz(int(n) + 1) for n in a])),
    "first zero": Case(first_zero, take(ints(20, 16, 32)),
                       lambda a: np.where((a == 0).any(1), (a == 0).argmax(1), 32)),
    "scan of blocks": Case(scan_of_blocks, take(ints(100, 64)), np.cumsum),
}  # fmt: skip

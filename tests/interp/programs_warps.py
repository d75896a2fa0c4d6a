"""Kernels whose warps work as one: shuffles, votes, matrix fragments; and asynchronous copies.

Each is right; `CASES` says what each one computes, in NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blockwright.script import tir as T
from tests.interp.programs_blocks import Case, floats, ints, take

Array = Any
FULL = 0xFFFFFFFF


def halves(*shape: int) -> Any:
    return lambda rng: rng.standard_normal(shape, np.float32).astype(np.float16)


# ------------------------------------------------------------------------------------- shuffles
@T.prim_func
def warp_sums(A: T.Buffer((128,), "float32"), B: T.Buffer((4,), "float32")):
    tx = T.launch_thread("threadIdx.x", 128)
    x = T.allocate((1,), "float32", "local")
    x[0] = A[tx]
    for step in T.unroll(5):
        x[0] = x[0] + T.tvm_warp_shuffle_down(
            T.tvm_warp_activemask(), x[0], T.shift_right(16, step), 32, 32
        )
    if tx % 32 == 0:
        B[tx // 32] = x[0]


@T.prim_func
def block_sum_by_warps(A: T.Buffer((2, 256), "float32"), B: T.Buffer((2,), "float32")):
    """Warps first, through shared memory, then the first warp."""
    bx = T.launch_thread("blockIdx.x", 2)
    tx = T.launch_thread("threadIdx.x", 256)
    x = T.allocate((1,), "float32", "local")
    S = T.allocate((8,), "float32", "shared")
    x[0] = A[bx, tx]
    for step in range(5):
        x[0] = x[0] + T.tvm_warp_shuffle_xor(T.uint32(FULL), x[0], T.shift_left(1, step), 32, 32)
    if tx % 32 == 0:
        S[tx // 32] = x[0]
    T.tvm_storage_sync("shared")
    if tx < 32:
        x[0] = T.if_then_else(tx < 8, S[tx % 8], T.float32(0))
        for step in range(3):
            x[0] = x[0] + T.tvm_warp_shuffle_down(
                T.uint32(FULL), x[0], T.shift_right(4, step), 32, 32
            )
        if tx == 0:
            B[bx] = x[0]


@T.prim_func
def warp_scan(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    tx = T.launch_thread("threadIdx.x", 64)
    x = T.allocate((1,), "int32", "local")
    below = T.allocate((1,), "int32", "local")
    x[0] = A[tx]
    for step in range(5):
        below[0] = T.tvm_warp_shuffle_up(T.uint32(FULL), x[0], T.shift_left(1, step), 32, 32)
        if tx % 32 >= T.shift_left(1, step):
            x[0] = x[0] + below[0]
    B[tx] = x[0]


@T.prim_func
def turned_within_eights(A: T.Buffer((32,), "int32"), B: T.Buffer((32,), "int32")):
    """Each lane takes the value three further on, within groups of eight lanes."""
    tx = T.launch_thread("threadIdx.x", 32)
    B[tx] = T.tvm_warp_shuffle(T.uint32(FULL), A[tx], tx + 3, 8, 32)


@T.prim_func
def half_of_a_warp(A: T.Buffer((32,), "int32"), B: T.Buffer((32,), "int32")):
    """The mask names those lanes alone that take part."""
    tx = T.launch_thread("threadIdx.x", 32)
    B[tx] = 0
    if tx < 16:
        B[tx] = T.tvm_warp_shuffle_xor(T.uint32(0xFFFF), A[tx], 1, 16, 32)


@T.prim_func
def warp_softmax(A: T.Buffer((8, 32), "float32"), B: T.Buffer((8, 32), "float32")):
    """A warp per row."""
    ty = T.launch_thread("threadIdx.y", 8)
    tx = T.launch_thread("threadIdx.x", 32)
    top = T.allocate((1,), "float32", "local")
    total = T.allocate((1,), "float32", "local")
    top[0] = A[ty, tx]
    for step in range(5):
        top[0] = T.max(
            top[0], T.tvm_warp_shuffle_xor(T.uint32(FULL), top[0], T.shift_left(1, step), 32, 32)
        )
    total[0] = T.exp(A[ty, tx] - top[0])
    for step in range(5):
        total[0] = total[0] + T.tvm_warp_shuffle_xor(
            T.uint32(FULL), total[0], T.shift_left(1, step), 32, 32
        )
    B[ty, tx] = T.exp(A[ty, tx] - top[0]) / total[0]


@T.prim_func
def warp_layer_norm(A: T.Buffer((4, 128), "float32"), B: T.Buffer((4, 128), "float32")):
    """Four elements per lane, mean and variance by shuffles."""
    ty = T.launch_thread("threadIdx.y", 4)
    tx = T.launch_thread("threadIdx.x", 32)
    s = T.allocate((2,), "float32", "local")
    s[0] = T.float32(0)
    s[1] = T.float32(0)
    for i in range(4):
        s[0] = s[0] + A[ty, i * 32 + tx]
        s[1] = s[1] + A[ty, i * 32 + tx] * A[ty, i * 32 + tx]
    for step in range(5):
        for v in range(2):
            s[v] = s[v] + T.tvm_warp_shuffle_xor(
                T.uint32(FULL), s[v], T.shift_left(1, step), 32, 32
            )
    for i in range(4):
        B[ty, i * 32 + tx] = (A[ty, i * 32 + tx] - s[0] / T.float32(128)) * T.rsqrt(
            s[1] / T.float32(128)
            - s[0] / T.float32(128) * (s[0] / T.float32(128))
            + T.float32(1e-5)
        )


@T.prim_func
def position_of_maximum(A: T.Buffer((32,), "int32"), B: T.Buffer((1,), "int32")):
    """Pairs of value and position travel together."""
    tx = T.launch_thread("threadIdx.x", 32)
    best = T.allocate((2,), "int32", "local")
    other = T.allocate((2,), "int32", "local")
    best[0] = A[tx]
    best[1] = tx
    for step in range(5):
        for v in range(2):
            other[v] = T.tvm_warp_shuffle_down(
                T.uint32(FULL), best[v], T.shift_right(16, step), 32, 32
            )
        if other[0] > best[0] or (other[0] == best[0] and other[1] < best[1]):
            best[0] = other[0]
            best[1] = other[1]
    if tx == 0:
        B[0] = best[1]


@T.prim_func
def product_with_vector(
    A: T.Buffer((16, 96), "float32"), X: T.Buffer((96,), "float32"), B: T.Buffer((16,), "float32")
):
    """A warp per row."""
    bx = T.launch_thread("blockIdx.x", 4)
    ty = T.launch_thread("threadIdx.y", 4)
    tx = T.launch_thread("threadIdx.x", 32)
    total = T.allocate((1,), "float32", "local")
    total[0] = T.float32(0)
    for i in range(3):
        total[0] = total[0] + A[bx * 4 + ty, i * 32 + tx] * X[i * 32 + tx]
    for step in range(5):
        total[0] = total[0] + T.tvm_warp_shuffle_down(
            T.uint32(FULL), total[0], T.shift_right(16, step), 32, 32
        )
    if tx == 0:
        B[bx * 4 + ty] = total[0]


# ------------------------------------------------------------------------------------- votes
@T.prim_func
def kept_in_order(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    """Even numbers move to the front of their warp; the rest is -1."""
    tx = T.launch_thread("threadIdx.x", 64)
    votes = T.allocate((1,), "uint32", "local")
    B[tx] = -1
    T.tvm_storage_sync("warp")
    votes[0] = T.tvm_warp_ballot(T.uint32(FULL), A[tx] % 2 == 0)
    if A[tx] % 2 == 0:
        lower: T.uint32 = T.shift_left(T.uint32(1), T.Cast("uint32", tx % 32)) - T.uint32(1)
        B[tx // 32 * 32 + T.Cast("int32", T.popcount(T.bitwise_and(votes[0], lower)))] = A[tx]


@T.prim_func
def votes(A: T.Buffer((96,), "int32"), B: T.Buffer((96,), "int32")):
    """Two for all of a warp, one for some, zero for none."""
    tx = T.launch_thread("threadIdx.x", 96)
    B[tx] = T.Cast("int32", T.tvm_warp_any(T.uint32(FULL), A[tx] > 50)) + T.Cast(
        "int32", T.tvm_warp_all(T.uint32(FULL), A[tx] > 50)
    )


@T.prim_func
def neighbours_of_a_warp(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
    """Warps exchange through shared memory and wait for themselves only."""
    tx = T.launch_thread("threadIdx.x", 128)
    S = T.allocate((128,), "float32", "shared")
    for turn in range(2):
        S[tx] = A[tx] + T.Cast("float32", turn)
        T.tvm_storage_sync("warp")
        B[tx] = S[tx // 32 * 32 + (tx + 5) % 32]
        T.tvm_storage_sync("warp")


@T.prim_func
def registers_of_a_warp(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    """Memory that a warp shares: its lanes run in step on it, each warp has a copy."""
    tx = T.launch_thread("threadIdx.x", 64)
    W = T.allocate((32, 2), "float32", "warp")
    W[tx % 32, 0] = A[tx]
    W[tx % 32, 1] = A[tx] * T.float32(2)
    B[tx] = W[31 - tx % 32, 0] + W[(tx + 1) % 32, 1]


# ------------------------------------------------------------------------------------- fragments
@T.prim_func
def one_product_of_depth_8(
    A: T.Buffer((16, 8), "float16"), B: T.Buffer((8, 8), "float16"), C: T.Buffer((16, 8), "float32")
):
    """Registers filled by hand, as the machine lays them out."""
    tx = T.launch_thread("threadIdx.x", 32)
    a = T.allocate((4,), "float16", "local")
    b = T.allocate((2,), "float16", "local")
    c = T.allocate((4,), "float32", "local")
    for i in range(4):
        a[i] = A[i // 2 * 8 + tx // 4, tx % 4 * 2 + i % 2]
        c[i] = T.float32(0)
    for i in range(2):
        b[i] = B[tx % 4 * 2 + i, tx // 4]
    T.ptx_mma(
        "float32",
        "m16n8k8",
        "row",
        "col",
        "fp16",
        "fp16",
        "fp32",
        a.data,
        0,
        b.data,
        0,
        c.data,
        0,
        False,
    )
    for i in range(4):
        C[i // 2 * 8 + tx // 4, tx % 4 * 2 + i % 2] = c[i]


@T.prim_func
def loaded_product_of_depth_16(
    A: T.Buffer((16, 16), "float16"),
    B: T.Buffer((16, 16), "float16"),
    C: T.Buffer((16, 16), "float32"),
):
    """Both operands through shared memory and ldmatrix, the right one transposed on the way."""
    tx = T.launch_thread("threadIdx.x", 32)
    SA = T.allocate((16, 16), "float16", "shared")
    SB = T.allocate((16, 16), "float16", "shared")
    a = T.allocate((8,), "float16", "local")
    b = T.allocate((8,), "float16", "local")
    c = T.allocate((8,), "float32", "local")
    for i in range(8):
        SA[i * 2 + tx // 16, tx % 16] = A[i * 2 + tx // 16, tx % 16]
        SB[i * 2 + tx // 16, tx % 16] = B[i * 2 + tx // 16, tx % 16]
    T.tvm_storage_sync("shared")
    T.mma_fill("float32", 8, c.data, 0)
    T.ptx_ldmatrix(
        "float16", False, 4, ".b16", a.data, 0, T.address_of(SA[tx % 16, tx // 16 * 8]), 0
    )
    T.ptx_ldmatrix(
        "float16", True, 4, ".b16", b.data, 0, T.address_of(SB[tx % 16, tx // 16 * 8]), 0
    )
    for half in range(2):
        T.ptx_mma(
            "float32",
            "m16n8k16",
            "row",
            "col",
            "fp16",
            "fp16",
            "fp32",
            a.data,
            0,
            b.data,
            half * 4,
            c.data,
            half * 4,
            False,
        )
    T.mma_store("float32", 16, 16, C.data, c.data, 0, 16)


@T.prim_func
def product_of_bytes(
    A: T.Buffer((16, 32), "int8"), B: T.Buffer((8, 32), "int8"), C: T.Buffer((16, 8), "int32")
):
    """The right operand lies column by column."""
    tx = T.launch_thread("threadIdx.x", 32)
    a = T.allocate((16,), "int8", "local")
    b = T.allocate((8,), "int8", "local")
    c = T.allocate((4,), "int32", "local")
    for i in range(16):
        a[i] = A[tx // 4 + i // 4 % 2 * 8, tx % 4 * 4 + i % 4 + i // 8 * 16]
    for i in range(8):
        b[i] = B[tx // 4, tx % 4 * 4 + i % 4 + i // 4 * 16]
    for i in range(4):
        c[i] = 0
    T.ptx_mma(
        "int32",
        "m16n8k32",
        "row",
        "col",
        "int8",
        "int8",
        "int32",
        a.data,
        0,
        b.data,
        0,
        c.data,
        0,
        False,
    )
    for i in range(4):
        C[i // 2 * 8 + tx // 4, tx % 4 * 2 + i % 2] = c[i]


@T.prim_func
def fragments_of_a_warp(
    A: T.Buffer((32, 32), "float16"),
    B: T.Buffer((32, 32), "float16"),
    C: T.Buffer((32, 32), "float32"),
):
    """Four warps with a fragment of the result each; where its elements lie nobody says."""
    ty = T.launch_thread("threadIdx.y", 4)
    tx = T.launch_thread("threadIdx.x", 32)
    a = T.allocate((16, 16), "float16", "wmma.matrix_a")
    b = T.allocate((16, 16), "float16", "wmma.matrix_b")
    c = T.allocate((16, 16), "float32", "wmma.accumulator")
    T.tvm_fill_fragment(c.data, 16, 16, 16, 0, T.float32(0))
    for k in range(2):
        T.tvm_load_matrix_sync(
            a.data, 16, 16, 16, 0, T.address_of(A[ty // 2 * 16, k * 16]), 32, "row_major"
        )
        T.tvm_load_matrix_sync(
            b.data, 16, 16, 16, 0, T.address_of(B[k * 16, ty % 2 * 16]), 32, "row_major"
        )
        T.tvm_mma_sync(c.data, 0, a.data, 0, b.data, 0, c.data, 0)
    T.tvm_store_matrix_sync(
        c.data, 16, 16, 16, 0, T.address_of(C[ty // 2 * 16, ty % 2 * 16]), 32, "row_major"
    )


@T.prim_func
def tiled_fragments(
    A: T.Buffer((128, 64), "float16"),
    B: T.Buffer((64, 128), "float16"),
    C: T.Buffer((128, 128), "float32"),
):
    """Four blocks of four warps; 64 × 64 of the result per block, 32 × 32 per warp."""
    by = T.launch_thread("blockIdx.y", 2)
    bx = T.launch_thread("blockIdx.x", 2)
    ty = T.launch_thread("threadIdx.y", 4)
    tx = T.launch_thread("threadIdx.x", 32)
    SA = T.allocate((64, 40), "float16", "shared.dyn")
    SB = T.allocate((32, 72), "float16", "shared.dyn")
    a = T.allocate((2, 8), "float16", "local")
    b = T.allocate((2, 8), "float16", "local")
    c = T.allocate((2, 2, 8), "float32", "local")
    for i, j in T.grid(2, 2):
        T.mma_fill("float32", 8, T.address_of(c[i, j, 0]), 0)
    for k in range(2):
        for i in range(16):
            SA[i * 4 + ty, tx] = A[by * 64 + i * 4 + ty, k * 32 + tx]
            SB[i * 2 + ty // 2, ty % 2 * 32 + tx] = B[
                k * 32 + i * 2 + ty // 2, bx * 64 + ty % 2 * 32 + tx
            ]
        T.tvm_storage_sync("shared.dyn")
        for kk in range(2):
            for i in range(2):
                T.ptx_ldmatrix(
                    "float16",
                    False,
                    4,
                    ".b16",
                    T.address_of(a[i, 0]),
                    0,
                    T.address_of(SA[ty // 2 * 32 + i * 16 + tx % 16, kk * 16 + tx // 16 * 8]),
                    0,
                )
                column: T.int32 = ty % 2 * 32 + i * 16 + tx // 16 * 8
                T.ptx_ldmatrix(
                    "float16",
                    True,
                    4,
                    ".b16",
                    T.address_of(b[i, 0]),
                    0,
                    T.address_of(SB[kk * 16 + tx % 16, column]),
                    0,
                )
            for i, j, half in T.grid(2, 2, 2):
                T.ptx_mma(
                    "float32",
                    "m16n8k16",
                    "row",
                    "col",
                    "fp16",
                    "fp16",
                    "fp32",
                    T.address_of(a[i, 0]),
                    0,
                    T.address_of(b[j, 0]),
                    half * 4,
                    T.address_of(c[i, j, 0]),
                    half * 4,
                    False,
                )
        T.tvm_storage_sync("shared.dyn")
    for i, j in T.grid(2, 2):
        T.mma_store(
            "float32",
            16,
            16,
            T.address_of(C[by * 64 + ty // 2 * 32 + i * 16, bx * 64 + ty % 2 * 32 + j * 16]),
            T.address_of(c[i, j, 0]),
            0,
            128,
        )


@T.prim_func
def fragments_in_views(
    A: T.Buffer((32, 32), "float16"),
    B: T.Buffer((32, 32), "float16"),
    C: T.Buffer((32, 32), "float32"),
):
    """Blocks that a warp runs as one, on views of fragments: as tensorized programs are written."""
    FA = T.alloc_buffer((32, 32), "float16", scope="wmma.matrix_a")
    FB = T.alloc_buffer((32, 32), "float16", scope="wmma.matrix_b")
    FC = T.alloc_buffer((32, 32), "float32", scope="wmma.accumulator")
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            for j in range(2):
                with T.block("zero"):
                    vi, vj = T.axis.remap("SS", [bx, j])
                    T.reads()
                    T.writes(FC[vi * 16 : vi * 16 + 16, vj * 16 : vj * 16 + 16])
                    c_off, c_pitch, c_one = T.int32(), T.int32(), T.int32()
                    c = T.match_buffer(
                        FC[vi * 16 : vi * 16 + 16, vj * 16 : vj * 16 + 16],
                        (16, 16),
                        "float32",
                        strides=[c_pitch, c_one],
                        scope="wmma.accumulator",
                        elem_offset=c_off,
                        offset_factor=16,
                    )
                    T.tvm_fill_fragment(
                        c.data,
                        16,
                        16,
                        16,
                        c.elem_offset // c_pitch // 16 * (c_pitch // 16)
                        + c.elem_offset % c_pitch // 16,
                        T.float32(0),
                    )
                for k in range(2):
                    with T.block("load_a"):
                        vi, vk = T.axis.remap("SS", [bx, k])
                        T.reads(A[vi * 16 : vi * 16 + 16, vk * 16 : vk * 16 + 16])
                        T.writes(FA[vi * 16 : vi * 16 + 16, vk * 16 : vk * 16 + 16])
                        T.tvm_load_matrix_sync(
                            FA.data,
                            16,
                            16,
                            16,
                            vi * 2 + vk,
                            T.address_of(A[vi * 16, vk * 16]),
                            32,
                            "row_major",
                        )
                    with T.block("load_b"):
                        vk, vj = T.axis.remap("SS", [k, j])
                        T.reads(B[vk * 16 : vk * 16 + 16, vj * 16 : vj * 16 + 16])
                        T.writes(FB[vk * 16 : vk * 16 + 16, vj * 16 : vj * 16 + 16])
                        T.tvm_load_matrix_sync(
                            FB.data,
                            16,
                            16,
                            16,
                            vk * 2 + vj,
                            T.address_of(B[vk * 16, vj * 16]),
                            32,
                            "row_major",
                        )
                    with T.block("product"):
                        vi, vj, vk = T.axis.remap("SSR", [bx, j, k])
                        T.reads(
                            FC[vi * 16 : vi * 16 + 16, vj * 16 : vj * 16 + 16],
                            FA[vi * 16 : vi * 16 + 16, vk * 16 : vk * 16 + 16],
                            FB[vk * 16 : vk * 16 + 16, vj * 16 : vj * 16 + 16],
                        )
                        T.writes(FC[vi * 16 : vi * 16 + 16, vj * 16 : vj * 16 + 16])
                        T.tvm_mma_sync(
                            FC.data,
                            vi * 2 + vj,
                            FA.data,
                            vi * 2 + vk,
                            FB.data,
                            vk * 2 + vj,
                            FC.data,
                            vi * 2 + vj,
                        )
                with T.block("store"):
                    vi, vj = T.axis.remap("SS", [bx, j])
                    T.reads(FC[vi * 16 : vi * 16 + 16, vj * 16 : vj * 16 + 16])
                    T.writes(C[vi * 16 : vi * 16 + 16, vj * 16 : vj * 16 + 16])
                    T.tvm_store_matrix_sync(
                        FC.data,
                        16,
                        16,
                        16,
                        vi * 2 + vj,
                        T.address_of(C[vi * 16, vj * 16]),
                        32,
                        "row_major",
                    )


# --------------------------------------------------------------------------------- asynchronous
@T.prim_func
def copied_ahead(A: T.Buffer((8, 128), "float32"), B: T.Buffer((8, 128), "float32")):
    """Two buffers: the next row comes while this one is used."""
    tx = T.launch_thread("threadIdx.x", 32)
    S = T.allocate((2, 128), "float32", "shared")
    T.ptx_cp_async("float32", S.data, tx * 4, T.address_of(A[0, tx * 4]), 0, 16)
    T.ptx_commit_group()
    for row in range(8):
        if row < 7:
            T.ptx_cp_async(
                "float32",
                S.data,
                (row + 1) % 2 * 128 + tx * 4,
                T.address_of(A[row + 1, tx * 4]),
                0,
                16,
            )
        T.ptx_commit_group()
        T.ptx_wait_group(1)
        T.tvm_storage_sync("shared")
        for i in range(4):
            B[row, i * 32 + tx] = S[row % 2, 127 - i * 32 - tx]
        T.tvm_storage_sync("shared")


@T.prim_func
def copied_far_ahead(A: T.Buffer((16, 64), "float32"), B: T.Buffer((16, 64), "float32")):
    """Four buffers, three of them under way."""
    tx = T.launch_thread("threadIdx.x", 64)
    S = T.allocate((4, 64), "float32", "shared")
    for row in range(3):
        T.ptx_cp_async("float32", S.data, row * 64 + tx, T.address_of(A[row, tx]), 0, 4)
        T.ptx_commit_group()
    for row in range(16):
        T.ptx_wait_group(2)
        T.tvm_storage_sync("shared")
        B[row, tx] = S[row % 4, (tx + 1) % 64] * T.float32(2)
        if row < 13:
            T.ptx_cp_async(
                "float32", S.data, (row + 3) % 4 * 64 + tx, T.address_of(A[row + 3, tx]), 0, 4
            )
        T.ptx_commit_group()


@T.prim_func
def copies_arrive_at_a_barrier(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    tx = T.launch_thread("threadIdx.x", 64)
    S = T.allocate((64,), "float32", "shared")
    T.create_barriers(1)
    if tx == 0:
        T.ptx_init_barrier_thread_count(0, 64)
    T.tvm_storage_sync("shared")
    T.ptx_cp_async("float32", S.data, tx, A.data, tx, 4)
    T.ptx_cp_async_barrier(0)
    T.ptx_arrive_barrier(0)
    T.ptx_wait_barrier(0)
    B[tx] = S[63 - tx]


@T.prim_func
def one_thread_copies_for_all(A: T.Buffer((4, 64), "float32"), B: T.Buffer((4, 64), "float32")):
    """The barrier counts one thread and the bytes that it has announced, once per row."""
    tx = T.launch_thread("threadIdx.x", 64)
    S = T.allocate((64,), "float32", "shared")
    T.create_barriers(1)
    if tx == 0:
        T.ptx_init_barrier_thread_count(0, 1)
    T.tvm_storage_sync("shared")
    for row in range(4):
        if tx == 0:
            T.ptx_arrive_barrier_expect_tx(0, 256)
            T.ptx_cp_async_bulk("float32", S.data, 0, T.address_of(A[row, 0]), 0, 256, 0)
        T.ptx_wait_barrier(0)
        B[row, tx] = S[63 - tx]
        T.tvm_storage_sync("shared")


@T.prim_func
def handed_over_at_a_barrier(A: T.Buffer((128,), "int32"), B: T.Buffer((128,), "int32")):
    """Counting barriers alone order writes and reads, phase after phase."""
    tx = T.launch_thread("threadIdx.x", 128)
    S = T.allocate((128,), "int32", "shared")
    T.create_barriers(2)
    if tx == 0:
        T.ptx_init_barrier_thread_count(0, 128)
        T.ptx_init_barrier_thread_count(1, 128)
    T.tvm_storage_sync("shared")
    B[tx] = 0
    for turn in range(3):
        S[tx] = A[tx] * (turn + 1)
        T.ptx_arrive_barrier(0)
        T.ptx_wait_barrier(0)
        B[tx] = B[tx] + S[127 - tx]
        T.ptx_arrive_barrier(1)
        T.ptx_wait_barrier(1)


@T.prim_func
def producers_and_consumers(A: T.Buffer((6, 32), "float32"), B: T.Buffer((6, 32), "float32")):
    """One warp fetches, one works; barriers 0 and 1 say that a buffer is full, 2 and 3 empty."""
    tx = T.launch_thread("threadIdx.x", 64)
    S = T.allocate((2, 32), "float32", "shared")
    T.create_barriers(4)
    if tx == 0:
        for b in T.unroll(4):
            T.ptx_init_barrier_thread_count(b, 32)
    T.tvm_storage_sync("shared")
    if tx < 32:
        for row in range(6):
            if row >= 2:
                T.ptx_wait_barrier(row % 2 + 2)
            S[row % 2, tx] = A[row, tx]
            T.ptx_arrive_barrier(row % 2)
    else:
        for row in range(6):
            T.ptx_wait_barrier(row % 2)
            B[row, tx - 32] = S[row % 2, 63 - tx]
            T.ptx_arrive_barrier(row % 2 + 2)


@T.prim_func
def three_stages(A: T.Buffer((4, 32), "float32"), B: T.Buffer((4, 32), "float32")):
    """A warp hands over to the next one, which hands over to a third: branches inside branches."""
    tx = T.launch_thread("threadIdx.x", 96)
    S = T.allocate((4, 32), "float32", "shared")
    R = T.allocate((4, 32), "float32", "shared")
    T.create_barriers(2)
    if tx == 0:
        T.ptx_init_barrier_thread_count(0, 32)
        T.ptx_init_barrier_thread_count(1, 32)
    T.tvm_storage_sync("shared")
    if tx < 32:
        for row in range(4):
            T.ptx_wait_barrier(1)
            B[row, tx] = R[row, 31 - tx] + T.float32(1)
    elif tx < 64:
        for row in range(4):
            T.ptx_wait_barrier(0)
            R[row, tx - 32] = S[row, tx - 32] * T.float32(2)
            T.ptx_arrive_barrier(1)
    else:
        for row in range(4):
            S[row, tx - 64] = A[row, tx - 64]
            T.ptx_arrive_barrier(0)


def _wide(a: Array, b: Array) -> Array:
    return a.astype(np.float32) @ b.astype(np.float32)


def _softmax(a: Array) -> Array:
    e = np.exp(a - a.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def _layer_norm(a: Array) -> Array:
    return (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 1e-5)


def _kept(a: Array) -> Array:
    parts = [[x for x in part if x % 2 == 0] for part in a.reshape(2, 32)]
    return np.concatenate([np.array([*p, *[-1] * (32 - len(p))]) for p in parts])


def _half(a: Array) -> Array:
    return np.where(np.arange(32) < 16, a[np.arange(32) ^ 1], 0)


def _votes(a: Array) -> Array:
    high = a.reshape(3, 32) > 50
    return np.repeat(high.any(1).astype(int) + high.all(1), 32)


CASES: dict[str, Case] = {
    "warp sums": Case(warp_sums, take(floats(128)), lambda a: a.reshape(4, 32).sum(1)),
    "block sum by warps": Case(block_sum_by_warps, take(floats(2, 256)), lambda a: a.sum(1)),
    "warp scan": Case(warp_scan, take(ints(100, 64)),
                      lambda a: np.cumsum(a.reshape(2, 32), axis=1).ravel()),
    "turned within eights": Case(turned_within_eights, take(ints(100, 32)),
                                 lambda a: np.roll(a.reshape(4, 8), -3, 1).ravel()),
    "half of a warp": Case(half_of_a_warp, take(ints(100, 32)), _half),
    "warp softmax": Case(warp_softmax, take(floats(8, 32)), _softmax),
    "warp layer norm": Case(warp_layer_norm, take(floats(4, 128)), _layer_norm),
    "position of maximum": Case(position_of_maximum, take(ints(20, 32)),
                                lambda a: a.argmax(keepdims=True)),
    "product with vector": Case(product_with_vector, take(floats(16, 96), floats(96)),
                                lambda a, x: a @ x),
    "kept in order": Case(kept_in_order, take(ints(100, 64)), _kept),
    "votes": Case(votes, take(lambda rng: np.array([*[20] * 32, *[60] * 32, *range(40, 72)],
                                                   np.int32)), _votes),
    "neighbours of a warp": Case(neighbours_of_a_warp, take(floats(128)),
                                 lambda a: np.roll(a.reshape(4, 32), -5, 1).ravel() + 1),
    "registers of a warp": Case(registers_of_a_warp, take(floats(64)),
                                lambda a: (a.reshape(2, 32)[:, ::-1]
                                           + 2 * np.roll(a.reshape(2, 32), -1, 1)).ravel()),
    "one product of depth 8": Case(one_product_of_depth_8, take(halves(16, 8), halves(8, 8)),
                                   _wide),
    "loaded product of depth 16": Case(loaded_product_of_depth_16,
                                       take(halves(16, 16), halves(16, 16)), _wide),
    "product of bytes": Case(product_of_bytes,
                             take(*(lambda rng, s=s: rng.integers(-128, 128, s).astype(np.int8)
                                    for s in ((16, 32), (8, 32)))),
                             lambda a, b: a.astype(np.int32) @ b.T.astype(np.int32)),
    "fragments of a warp": Case(fragments_of_a_warp, take(halves(32, 32), halves(32, 32)), _wide),
    "fragments in views": Case(fragments_in_views, take(halves(32, 32), halves(32, 32)), _wide),
    "tiled fragments": Case(tiled_fragments, take(halves(128, 64), halves(64, 128)), _wide),
    "copied ahead": Case(copied_ahead, take(floats(8, 128)), lambda a: a[:, ::-1]),
    "copied far ahead": Case(copied_far_ahead, take(floats(16, 64)),
                             lambda a: np.roll(a, -1, 1) * 2),
    "copies arrive at a barrier": Case(copies_arrive_at_a_barrier, take(floats(64)),
                                       lambda a: a[::-1]),
    "one thread copies for all": Case(one_thread_copies_for_all, take(floats(4, 64)),
                                      lambda a: a[:, ::-1]),
    "producers and consumers": Case(producers_and_consumers, take(floats(6, 32)),
                                    lambda a: a[:, ::-1]),
    "three stages": Case(three_stages, take(floats(4, 32)), lambda a: a[:, ::-1] * 2 + 1),
    "handed over at a barrier": Case(handed_over_at_a_barrier, take(ints(100, 128)),
                                     lambda a: a[::-1] * 6),
}  # fmt: skip

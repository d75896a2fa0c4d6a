"""Blocks, initial values, predicates, views, allocation placement and compaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.ir import Allocate, PrimFunc
from blockwright.lower import lower
from blockwright.script import tir as T
from blockwright.script.ir import from_source
from blockwright.support import BuildError

Check = Callable[..., PrimFunc]
RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def sizes(func: PrimFunc) -> dict[str, Any]:
    """Allocated buffers: name → number of elements (None when symbolic)."""
    return {a.buffer.name: ir.const_int(a.buffer.shape[0]) for a in ir.collect(func.body, Allocate)}


def test_reduction_starts_from_its_initial_value(same_result: Check) -> None:
    @T.prim_func
    def matmul(A: T.Buffer((5, 7)), B: T.Buffer((7, 4)), C: T.Buffer((5, 4))):
        for i, j, k in T.grid(5, 4, 7):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]

    a, b, c = normal(5, 7), normal(7, 4), normal(5, 4)
    lowered = same_result(matmul, a, b, c)
    assert "if" not in lowered.script()  # the initial value is stored before the loop over k


def test_predicates_of_uneven_splits(same_result: Check) -> None:
    @T.prim_func
    def double(A: T.Buffer((30,)), B: T.Buffer((30,))):
        for i0, i1 in T.grid(4, 8):
            with T.block("B"):
                vi = T.axis.spatial(30, i0 * 8 + i1)
                T.where(i0 * 8 + i1 < 30)
                B[vi] = A[vi] * T.float32(2)

    same_result(double, normal(30), normal(30))


def test_provable_predicates_vanish(same_result: Check) -> None:
    @T.prim_func
    def double(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n, 32))
        B = T.match_buffer(b, (n, 32))
        for i, j0, j1 in T.grid(n, T.int64(4), T.int64(8)):
            with T.block("B"):
                vi = T.axis.spatial(n, i)
                vj = T.axis.spatial(32, j0 * T.int64(8) + j1)
                T.where(j0 * T.int64(8) + j1 < T.int64(32))
                B[vi, vj] = A[vi, vj] * T.float32(2)

    lowered = same_result(double, normal(3, 32), normal(3, 32))
    assert "if" not in lowered.script()


def test_a_tile_of_an_intermediate_shrinks_to_what_one_iteration_needs(same_result: Check) -> None:
    @T.prim_func
    def chain(A: T.Buffer((64, 64)), C: T.Buffer((64, 64))):
        B = T.alloc_buffer((64, 64))
        for i0 in T.parallel(8):
            for i1, j in T.grid(8, 64):
                with T.block("B"):
                    vi = T.axis.spatial(64, i0 * 8 + i1)
                    vj = T.axis.spatial(64, j)
                    B[vi, vj] = A[vi, vj] + T.float32(1)
            for i1, j in T.grid(8, 64):
                with T.block("C"):
                    vi = T.axis.spatial(64, i0 * 8 + i1)
                    vj = T.axis.spatial(64, j)
                    C[vi, vj] = B[vi, 63 - vj] * T.float32(2)

    lowered = same_result(chain, normal(64, 64), normal(64, 64))
    assert sizes(lowered) == {"B": 8 * 64}
    (loop,) = [n for n in ir.loops(lowered.body) if n.kind is ir.ForKind.PARALLEL]
    assert isinstance(loop.body, Allocate)


def test_overlapping_tiles_are_recomputed_and_compacted(same_result: Check) -> None:
    @T.prim_func
    def stencil(A: T.Buffer((34,)), C: T.Buffer((32,))):
        B = T.alloc_buffer((34,))
        for i0 in range(8):
            for i1 in range(6):
                with T.block("B"):
                    vi = T.axis.spatial(34, i0 * 4 + i1)
                    B[vi] = A[vi] * A[vi]
            for i1 in range(4):
                with T.block("C"):
                    vi = T.axis.spatial(32, i0 * 4 + i1)
                    C[vi] = B[vi] + B[vi + 1] + B[vi + 2]

    assert sizes(same_result(stencil, normal(34), normal(32))) == {"B": 6}


def test_values_carried_from_one_iteration_to_the_next_stay(same_result: Check) -> None:
    @T.prim_func
    def rolling(A: T.Buffer((32,)), C: T.Buffer((32,))):
        B = T.alloc_buffer((32,))
        for i in range(32):
            with T.block("B"):
                vi = T.axis.spatial(32, i)
                B[vi] = A[vi] * T.float32(3)
            with T.block("C"):
                vi = T.axis.spatial(32, i)
                C[vi] = B[vi] + T.if_then_else(vi > 0, B[vi - 1], T.float32(0))

    assert sizes(same_result(rolling, normal(32), normal(32))) == {"B": 32}

    @T.prim_func
    def running_sum(A: T.Buffer((32,)), C: T.Buffer((32,))):
        s = T.alloc_buffer((1,))
        for i in range(32):
            if i == 0:
                s[0] = T.float32(0)
            s[0] = s[0] + A[i]
            C[i] = s[0]

    same_result(running_sum, normal(32), normal(32))


def test_accumulators_in_registers(same_result: Check) -> None:
    @T.prim_func
    def gemm(a: T.handle, B: T.Buffer((16, 32)), c: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n, 16))
        C = T.match_buffer(c, (n, 32))
        acc = T.alloc_buffer((n, 32), scope="local")
        for i0 in T.parallel((n + T.int64(3)) // T.int64(4)):
            for j0 in range(2):
                for i, j in T.grid(T.int64(4), 16):
                    with T.block("init"):
                        vi = T.axis.spatial(n, i0 * T.int64(4) + i)
                        vj = T.axis.spatial(32, j0 * 16 + j)
                        T.where(i0 * T.int64(4) + i < n)
                        acc[vi, vj] = T.float32(0)
                for k in range(16):
                    for i in T.unroll(T.int64(4)):
                        for j in T.vectorized(16):
                            with T.block("update"):
                                vi = T.axis.spatial(n, i0 * T.int64(4) + i)
                                vj = T.axis.spatial(32, j0 * 16 + j)
                                vk = T.axis.reduce(16, k)
                                T.where(i0 * T.int64(4) + i < n)
                                acc[vi, vj] = T.fma(A[vi, vk], B[vk, vj], acc[vi, vj])
                for i, j in T.grid(T.int64(4), 16):
                    with T.block("write"):
                        vi = T.axis.spatial(n, i0 * T.int64(4) + i)
                        vj = T.axis.spatial(32, j0 * 16 + j)
                        T.where(i0 * T.int64(4) + i < n)
                        C[vi, vj] = acc[vi, vj]

    for rows in (4, 6, 1):
        lowered = same_result(gemm, normal(rows, 16), normal(16, 32), normal(rows, 32))
        assert sizes(lowered) == {"acc": 64}
        assert "lower.notes" not in lowered.attrs


def test_accumulators_of_reductions_of_unknown_length(same_result: Check) -> None:
    @T.prim_func
    def row_sums(a: T.handle, B: T.Buffer((12,))):
        n = T.int64()
        A = T.match_buffer(a, (12, n))
        acc = T.alloc_buffer((12,), scope="local")
        for i0 in T.parallel(3):
            for k in range(n):
                for i in T.vectorized(4):
                    with T.block("sum"):
                        vi = T.axis.spatial(12, i0 * 4 + i)
                        vk = T.axis.reduce(n, k)
                        with T.init():
                            acc[vi] = T.float32(0)
                        acc[vi] = acc[vi] + A[vi, vk]
            for i in T.vectorized(4):
                with T.block("out"):
                    vi = T.axis.spatial(12, i0 * 4 + i)
                    B[vi] = acc[vi] * T.float32(2)

    lowered = same_result(row_sums, normal(12, 7), normal(12))
    assert sizes(lowered) == {"acc": 4}
    assert "lower.notes" not in lowered.attrs

    @T.prim_func
    def one_accumulator(a: T.handle, B: T.Buffer((12,))):
        n = T.int64()
        A = T.match_buffer(a, (12, n))
        acc = T.alloc_buffer((1,), scope="local")
        for i in T.parallel(12):
            for k in range(n):
                with T.block("sum"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        acc[0] = T.float32(0)
                    acc[0] = acc[0] + A[vi, vk]
            B[i] = acc[0]

    lowered = same_result(one_accumulator, normal(12, 7), normal(12))
    assert "lower.notes" not in lowered.attrs  # every iteration of the parallel loop has its own


def test_views_fold_into_their_source(same_result: Check) -> None:
    @T.prim_func
    def scaled(A: T.Buffer((4, 16)), B: T.Buffer((4, 16))):
        for i, j0 in T.grid(4, 4):
            with T.block("tile"):
                vi, vj = T.axis.remap("SS", [i, j0])
                T.reads(A[vi, vj * 4 : vj * 4 + 4])
                T.writes(B[vi, vj * 4 : vj * 4 + 4])
                a = T.match_buffer(A[vi, vj * 4 : vj * 4 + 4], (4,), strides=[1])
                b = T.match_buffer(B[vi, vj * 4 : vj * 4 + 4], (4,), strides=[1])
                for k in range(4):
                    b[k] = a[3 - k] * T.float32(2)

    same_result(scaled, normal(4, 16), normal(4, 16))


def test_conditions_on_memory_are_not_trusted_after_it_changed(same_result: Check) -> None:
    @T.prim_func
    def toggles(A: T.Buffer((4,), "int32"), B: T.Buffer((4,), "int32")):
        t = T.alloc_buffer((8,), "int32")
        for i in range(4):
            for j in range(4):
                t[A[0] % 4 + j] = i
                if A[0] < 2:
                    A[0] = A[0] + 3
                    if A[0] < 2:
                        B[j] = 100
                B[i] = B[i] + t[A[0] % 4 + j]

    ones = np.ones(4, "int32")
    same_result(toggles, ones, ones)


def test_empty_reductions_give_the_initial_value(same_result: Check) -> None:
    @T.prim_func
    def total(a: T.handle, B: T.Buffer((3,))):
        n = T.int64()
        A = T.match_buffer(a, (3, n))
        for i, k in T.grid(3, n):
            with T.block("B"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    B[vi] = T.float32(0)
                B[vi] = B[vi] + A[vi, vk]

    for n in (5, 0):
        lowered = same_result(total, normal(3, n), normal(3))
    (init, _) = ir.collect(lowered.body, ir.BufferStore)
    assert isinstance(init.value, ir.FloatImm)  # one store for both cases, under no condition
    assert not ir.collect(lowered.body, ir.IfThenElse)


def test_stride_variables_of_views_follow_the_final_layout() -> None:
    @T.prim_func
    def call(A: T.Buffer((64, 64)), C: T.Buffer((64, 64))):
        B = T.alloc_buffer((64, 64))
        for i0, j0 in T.grid(8, 4):
            for i, j in T.grid(8, 16):
                with T.block("B"):
                    vi = T.axis.spatial(64, i0 * 8 + i)
                    vj = T.axis.spatial(64, j0 * 16 + j)
                    B[vi, vj] = A[vi, vj]
            with T.block("kernel"):
                vi, vj = T.axis.remap("SS", [i0, j0])
                T.reads(B[vi * 8 : vi * 8 + 8, vj * 16 : vj * 16 + 16])
                T.writes(C[vi * 8 : vi * 8 + 8, vj * 16 : vj * 16 + 16])
                s0 = T.int32()
                s1 = T.int32()
                b = T.match_buffer(
                    B[vi * 8 : vi * 8 + 8, vj * 16 : vj * 16 + 16], (8, 16), strides=[s0, 1]
                )
                c = T.match_buffer(
                    C[vi * 8 : vi * 8 + 8, vj * 16 : vj * 16 + 16], (8, 16), strides=[s1, 1]
                )
                T.evaluate(
                    T.call_extern(
                        "copy", T.address_of(b[0, 0]), T.address_of(c[0, 0]), s0, s1, dtype="int32"
                    )
                )

    lowered = lower(call, "x86-64")
    assert sizes(lowered) == {"B": 8 * 16}
    (found,) = [n for n in ir.collect(lowered.body, ir.Call) if n.op == "call_extern"]
    assert [ir.const_int(arg) for arg in found.args[3:]] == [16, 64]


def test_storage_alignment_pads_rows(same_result: Check) -> None:
    @T.prim_func
    def padded(A: T.Buffer((8, 8)), C: T.Buffer((8, 8))):
        B = T.alloc_buffer((8, 8))
        for i, j in T.grid(8, 8):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                T.block_attr({"buffer_dim_align": [[0, 0, 16, 3]]})
                B[vi, vj] = A[vi, vj]
        for i, j in T.grid(8, 8):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[vj, vi]

    lowered = same_result(padded, normal(8, 8), normal(8, 8))
    assert sizes(lowered) == {"B": 8 * 19}


def test_large_local_buffers_become_memory_with_a_note(same_result: Check) -> None:
    @T.prim_func
    def reverse(A: T.Buffer((20000,)), B: T.Buffer((20000,))):
        L = T.alloc_buffer((20000,), scope="local")
        for i in range(20000):
            L[i] = A[i]
        for i in range(20000):
            B[i] = L[19999 - i]

    lowered = lower(reverse, "x86-64")
    (allocation,) = ir.collect(lowered.body, Allocate)
    assert allocation.buffer.scope == "global"
    assert "L is in memory" in lowered.attrs["lower.notes"][0]


def test_thread_axes_need_a_gpu() -> None:
    @T.prim_func
    def bound(A: T.Buffer((32,)), B: T.Buffer((32,))):
        for i in T.thread_binding(32, thread="threadIdx.x"):
            with T.block("B"):
                vi = T.axis.spatial(32, i)
                B[vi] = A[vi]

    with pytest.raises(BuildError, match=r"(?s)threadIdx\.x.*vectorize") as info:
        lower(bound, "x86-64")
    assert info.value.code == "BW631"


def test_nested_parallel_loops_become_serial(same_result: Check) -> None:
    @T.prim_func
    def nested(A: T.Buffer((4, 4)), B: T.Buffer((4, 4))):
        for i in T.parallel(4):
            for j in T.parallel(4):
                B[i, j] = A[i, j]

    lowered = same_result(nested, normal(4, 4), normal(4, 4))
    assert [loop.kind.value for loop in ir.loops(lowered.body)] == ["parallel", "serial"]
    assert "loop j is serial" in lowered.attrs["lower.notes"][0]


HALO_IN_PARALLEL = """
@T.prim_func
def halo(A: T.Buffer((2, 10), "float32"), B: T.Buffer((2, 8), "float32")):
    C = T.{allocate}((10,), "float32")
    for i in {outer}:
        with T.attr(0, "{key}", 1):
            for j in T.parallel(4):
                for h in range(4):
                    with T.block("C"):
                        vi = T.axis.spatial(2, i)
                        vh = T.axis.spatial(10, j * 2 + h)
                        C[vh] = A[vi, vh] + T.float32(1)
                for h in range(2):
                    with T.block("B"):
                        vi = T.axis.spatial(2, i)
                        vh = T.axis.spatial(8, j * 2 + h)
                        B[vi, vh] = C[vh] + C[vh + 2]
"""


@pytest.mark.parametrize("allocate", ["alloc_buffer", "allocate"])
@pytest.mark.parametrize("outer", ["range(2)", "T.unroll(2)"])
def test_what_parallel_iterations_alone_use_lives_in_them(
    allocate: str, outer: str, same_result: Check
) -> None:
    """Below unrolled loops and statements too: halos overlap, so the iterations would race."""
    func = from_source(HALO_IN_PARALLEL.format(allocate=allocate, outer=outer, key="a_note"))
    assert isinstance(func, PrimFunc)
    a, b = normal(2, 10), normal(2, 8)
    low = same_result(func, a, b)
    inside = [
        a
        for loop in ir.collect(low.body, ir.For)
        if loop.kind is ir.ForKind.PARALLEL
        for a in ir.collect(loop, Allocate)
    ]
    assert len(inside) == len(ir.collect(low.body, Allocate)) > 0


def test_what_parallel_iterations_use_by_address_lives_in_them() -> None:
    """What the address reaches is not known; other iterations have no use for it in any case."""

    @T.prim_func
    def by_address(A: T.Buffer((4, 8)), B: T.Buffer((4, 8))):
        C = T.alloc_buffer((8,))
        for j in T.parallel(4):
            with T.block("C"):
                vj = T.axis.spatial(4, j)
                T.reads(A[vj, 0:8])
                T.writes(C[0:8])
                T.evaluate(T.call_packed("copy_row", T.address_of(C[0]), T.address_of(A[vj, 0])))
            for h in range(8):
                with T.block("B"):
                    vj, vh = T.axis.remap("SS", [j, h])
                    B[vj, vh] = C[vh]

    (loop,) = [f for f in ir.loops(lower(by_address).body) if f.kind is ir.ForKind.PARALLEL]
    assert [a.buffer.name for a in ir.collect(loop, Allocate)] == ["C"]


def test_data_as_index_takes_no_more_memory_than_the_buffer_has(same_result: Check) -> None:
    """Of the data only the type is known: 2**32 values in rows of five."""

    @T.prim_func
    def picked(a: T.handle, i: T.handle, b: T.handle):
        T.func_attr({"tir_var_upper_bound": {"n": 9}})
        n = T.int32()
        A = T.match_buffer(a, (n,))
        P = T.match_buffer(i, (n,), "int64")
        B = T.match_buffer(b, (n,))
        C = T.alloc_buffer(((n + 4) // 5, 5))
        for j in range(n):
            with T.block("C"):
                vj = T.axis.spatial(n, j)
                C[vj // 5, vj % 5] = A[vj] + T.float32(1)
        for j in range(n):
            with T.block("B"):
                vj = T.axis.spatial(n, j)
                B[vj] = C[T.Cast("int32", P[vj]) // 5, T.Cast("int32", P[vj]) % 5]

    (made,) = ir.collect(lower(picked).body, Allocate)
    assert not any(n.value > 5 for n in ir.collect(made.buffer, ir.IntImm))
    same_result(picked, normal(7), np.array([3, 0, 6, 1, 1, 5, 2]), normal(7))

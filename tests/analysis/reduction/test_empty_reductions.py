"""Reductions that take no step have their initial value as result."""

from __future__ import annotations

import numpy as np

from blockwright import ir
from blockwright.analysis import check_well_formed, define_empty_reductions
from blockwright.interp import interpret
from blockwright.script import tir as T


@T.prim_func
def sums(a: T.handle, b: T.handle):
    n = T.int64()
    m = T.int64()
    A = T.match_buffer(a, (n, m))
    B = T.match_buffer(b, (n,))
    for k, i in T.grid(m, n):
        with T.block("B"):
            vk, vi = T.axis.remap("RS", [k, i])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi, vk]


def test_the_initial_value_stands_before_the_outermost_reduction_loop() -> None:
    defined = define_empty_reductions(sums)
    check_well_formed(defined)
    first, second = defined.root.body.seq
    assert isinstance(first, ir.IfThenElse)
    assert isinstance(second, ir.For)
    assert [b.name for b in ir.blocks(first)] == ["B_init"]
    for m in (0, 1, 4):
        x, y = np.ones((3, m), "float32"), np.full(3, 7, "float32")
        interpret(sums, x, y, outputs=1)
        assert np.array_equal(y, np.full(3, m))


def test_sizes_that_are_surely_positive_change_nothing() -> None:
    bounded = sums.replace(attrs={**sums.attrs, "tir_var_lower_bound": {"m": 1}})
    assert define_empty_reductions(bounded) is bounded


def test_a_split_reduction_with_a_tail_and_spatial_loops_inside() -> None:
    @T.prim_func
    def split(a: T.handle, B: T.Buffer((10,))):
        m = T.int64()
        A = T.match_buffer(a, (10, m))
        for i0 in range(3):
            for k0 in range((m + 3) // 4):
                for i1, k1 in T.grid(4, 4):
                    with T.block("B"):
                        vi = T.axis.spatial(10, i0 * 4 + i1)
                        vk = T.axis.reduce(m, k0 * 4 + k1)
                        T.where(i0 * 4 + i1 < 10 and k0 * 4 + k1 < m)
                        with T.init():
                            B[vi] = T.float32(1)
                        B[vi] = B[vi] + A[vi, vk]

    for m in (0, 1, 6):
        y = np.full(10, 7, "float32")
        interpret(split, np.ones((10, m), "float32"), y, outputs=1)
        assert np.array_equal(y, np.full(10, m + 1))


def test_a_loop_over_results_and_terms_together() -> None:
    @T.prim_func
    def fused(a: T.handle, b: T.handle):
        n = T.int64()
        m = T.int64()
        A = T.match_buffer(a, (n, m))
        B = T.match_buffer(b, (n,))
        for f in range(n * m):
            with T.block("B"):
                vi = T.axis.spatial(n, f // m)
                vk = T.axis.reduce(m, f % m)
                with T.init():
                    B[vi] = T.float32(0)
                B[vi] = B[vi] + A[vi, vk]

    for m in (0, 3):
        y = np.full(5, 7, "float32")
        interpret(fused, np.ones((5, m), "float32"), y, outputs=1)
        assert np.array_equal(y, np.full(5, m))


def test_a_length_that_depends_on_the_result() -> None:
    @T.prim_func(check_well_formed=False)
    def below(A: T.Buffer((4, 4)), B: T.Buffer((4,))):
        for i in range(4):
            for k in range(i):
                with T.block("B"):
                    vi = T.axis.spatial(4, i)
                    vk = T.axis.reduce(i, k)
                    with T.init():
                        B[vi] = T.float32(0)
                    B[vi] = B[vi] + A[vi, vk]

    y = np.full(4, 7, "float32")
    interpret(below, np.ones((4, 4), "float32"), y, outputs=1)
    assert np.array_equal(y, np.arange(4))


def test_named_values_around_a_block_stand_around_its_initial_value_too() -> None:
    """One of them feeds the reduction axis: the loop behind it is a reduction loop."""

    @T.prim_func
    def named(a: T.handle, b: T.handle):
        n = T.int64()
        m = T.int64()
        A = T.match_buffer(a, (n, m))
        B = T.match_buffer(b, (n,))
        for i, k in T.grid(n, m):
            row: T.int64 = n - 1 - i
            term: T.int64 = k
            with T.block("B"):
                vi = T.axis.spatial(n, row)
                vk = T.axis.reduce(m, term)
                with T.init():
                    B[vi] = T.float32(1)
                B[vi] = B[vi] + A[vi, vk]

    check_well_formed(define_empty_reductions(named))
    for m in (0, 3):
        y = np.full(5, 7, "float32")
        interpret(named, np.ones((5, m), "float32"), y, outputs=1)
        assert np.array_equal(y, np.full(5, m + 1))


def test_a_view_declared_in_a_reduction_loop_is_declared_for_the_initial_value_too() -> None:
    @T.prim_func
    def viewed(a: T.handle, b: T.handle):
        n = T.int64()
        m = T.int64()
        A = T.match_buffer(a, (n, m))
        B = T.match_buffer(b, (n,))
        for k, i in T.grid(m, n):
            C = T.decl_buffer((n,), "float32", data=B.data)
            with T.block("B"):
                vk, vi = T.axis.remap("RS", [k, i])
                with T.init():
                    C[vi] = T.float32(1)
                C[vi] = C[vi] + A[vi, vk]

    check_well_formed(define_empty_reductions(viewed))
    for m in (0, 3):
        y = np.full(5, 7, "float32")
        interpret(viewed, np.ones((5, m), "float32"), y, outputs=1)
        assert np.array_equal(y, np.full(5, m + 1))


def test_an_axis_without_threads_does_not_take_the_initial_value_with_it() -> None:
    @T.prim_func
    def combined(a: T.handle, B: T.Buffer((3,))):
        m = T.int64()
        A = T.match_buffer(a, (3, m))
        for i in T.thread_binding(3, thread="threadIdx.y"):
            for k in T.thread_binding(m, thread="threadIdx.x"):
                with T.block("B"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        B[vi] = T.float32(1)
                    B[vi] = B[vi] + A[vi, vk]

    for m in (0, 1, 4):
        x, y = np.ones((3, m), "float32"), np.full(3, 7, "float32")
        interpret(combined, x, y, outputs=1)
        assert np.array_equal(y, np.full(3, m + 1))

"""Statements of a kernel outside the loops of an axis that has no iterations."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw

SOURCE = """
@T.prim_func
def main(a: T.handle, r: T.handle, q: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (3, n), "float32")
    R = T.match_buffer(r, (3,), "float32")
    Q = T.match_buffer(q, (3,), "float32")
    for i in range(3):
        for k in range(n):
            with T.block("R"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    R[vi] = T.float32(2)
                R[vi] = R[vi] + A[vi, vk]
        with T.block("Q"):
            vi = T.axis.spatial(3, i)
            Q[vi] = R[vi] + T.float32(1)
"""


def bind(s: bw.Schedule, outer: str) -> None:
    i, k = s.get_loops("R")[:2]
    s.bind(k, "threadIdx.x")
    if outer:
        s.bind(i, outer)


def decompose(s: bw.Schedule) -> None:
    s.decompose_reduction("R", s.get_loops("R")[1])


@pytest.mark.parametrize("outer", ["", "blockIdx.x", "threadIdx.y"])
@pytest.mark.parametrize("decomposed", ["never", "first", "last"])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_other_statements_run(decomposed: str, outer: str, n: int) -> None:
    s = bw.Schedule(bw.from_source(SOURCE))
    if decomposed == "first":
        decompose(s)
    bind(s, outer)
    if decomposed == "last":
        decompose(s)
    a = np.arange(3 * n, dtype="float32").reshape(3, n)
    r, q = np.full(3, 7, "float32"), np.full(3, 7, "float32")
    bw.interpret(s.func, a, r, q)
    np.testing.assert_array_equal(r, a.sum(1) + 2)
    np.testing.assert_array_equal(q, r + 1)


def test_grid_without_blocks() -> None:
    text = """
@T.prim_func
def main(n: T.int32, B: T.Buffer((8,), "float32")):
    for i in T.thread_binding(n, thread="blockIdx.x"):
        for j in T.thread_binding(n, thread="threadIdx.x"):
            with T.block("B"):
                v = T.axis.opaque(8, i + j)
                B[v] = T.float32(1)
"""
    b = np.zeros(8, "float32")
    bw.interpret(bw.from_source(text), 0, b)
    assert not b.any()
    bw.interpret(bw.from_source(text), 1, b)
    assert b.tolist() == [1, *[0] * 7]

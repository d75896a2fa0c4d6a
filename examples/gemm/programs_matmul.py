"""The matrix product that `steps` schedules."""

from __future__ import annotations

from blockwright.script import tir as T

SIZE = 1152
"""Rows, columns and depth; whole tiles for vectors of 4, 8 and 16 elements."""


@T.prim_func
def matmul(
    A: T.Buffer((1152, 1152), "float32"),
    B: T.Buffer((1152, 1152), "float32"),
    C: T.Buffer((1152, 1152), "float32"),
):
    for i, j, k in T.grid(1152, 1152, 1152):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]

"""Buffers used inside one parallel loop: private to its iterations, or shared by its rounds."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.interp import interpret
from blockwright.script.ir import from_source
from blockwright.support import InterpretError

X = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")


RUNNING_TOTAL = from_source("""
@T.prim_func
def running_total(x: T.Buffer((4, 8), "float32"), out: T.Buffer((4, 8), "float32")):
    total = T.alloc_buffer((4,), "float32")
    for k in range(8):
        for i in T.parallel(4):
            with T.block("total"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    total[vi] = T.float32(0)
                total[vi] = total[vi] + x[vi, vk]
            with T.block("out"):
                vi, vk = T.axis.remap("SS", [i, k])
                out[vi, vk] = total[vi]
""")

TOTAL_NOBODY_READS = from_source("""
@T.prim_func
def total_nobody_reads(x: T.Buffer((4, 8), "float32"), out: T.Buffer((4, 8), "float32")):
    total = T.alloc_buffer((4,), "float32")
    for k in range(8):
        for i in T.parallel(4):
            with T.block("total"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    total[vi] = T.float32(0)
                total[vi] = total[vi] + x[vi, vk]
    for i, k in T.grid(4, 8):
        with T.block("out"):
            vi, vk = T.axis.remap("SS", [i, k])
            out[vi, vk] = x[vi, vk]
""")

ROW_OF_ITS_OWN = from_source("""
@T.prim_func
def row_of_its_own(x: T.Buffer((4, 8), "float32"), out: T.Buffer((4, 8), "float32")):
    row = T.alloc_buffer((2,), "float32")
    for half in range(4):
        for i in T.parallel(4):
            for k in range(2):
                with T.block("row"):
                    vi, vh, vk = T.axis.remap("SSS", [i, half, k])
                    row[vk] = x[vi, vh * 2 + vk] * T.float32(2)
            for k in range(2):
                with T.block("out"):
                    vi, vh, vk = T.axis.remap("SSS", [i, half, k])
                    out[vi, vh * 2 + vk] = row[vk]
""")

ONE_TOTAL_FOR_ALL = from_source("""
@T.prim_func
def one_total_for_all(x: T.Buffer((4, 8), "float32"), out: T.Buffer((4, 8), "float32")):
    total = T.alloc_buffer((1,), "float32")
    for k in range(8):
        for i in T.parallel(4):
            with T.block("total"):
                T.reads(total[0], x[i, k])
                T.writes(total[0], out[i, k])
                total[0] = total[0] + x[i, k]
                out[i, k] = total[0]
""")

CUMULATED = X.cumsum(axis=1, dtype="float32")


@pytest.mark.parametrize(
    ("program", "expected"),
    [(RUNNING_TOTAL, CUMULATED), (TOTAL_NOBODY_READS, X), (ROW_OF_ITS_OWN, X * 2)],
)
def test_values_outlive_an_iteration_where_another_loop_repeats_it(
    program: ir.PrimFunc, expected: np.ndarray
) -> None:
    for order in (None, "reverse"):
        out = np.zeros_like(X)
        interpret(program, X, out, order=order)
        np.testing.assert_array_equal(out, expected)
    native = np.zeros_like(X)
    bw.build(program)[program.name](X, native)
    np.testing.assert_array_equal(native, expected)


def test_a_shared_total_that_all_iterations_update_is_no_memory_of_theirs() -> None:
    with pytest.raises(InterpretError):
        interpret(ONE_TOTAL_FOR_ALL, X, np.zeros_like(X))

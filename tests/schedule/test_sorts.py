"""Steps do not change whether the arithmetic on a scalar parameter is exact or wraps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.ir.attributes import INDEX_PARAMS
from blockwright.schedule import Schedule
from blockwright.support import ScheduleError

K = (1 << 31) - 1
REMOVED = """
@T.prim_func
def main(A: T.Buffer((12,), "int32"), C: T.Buffer((8,), "int32"), D: T.Buffer((1,), "int32"),
         k: T.int32):
    B = T.alloc_buffer((8,), "int32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] + 1
    for i in range(T.min(k, 8)):
        with T.block("C"):
            vi = T.axis.spatial(T.min(k, 8), i)
            C[vi] = B[vi] * 2
    with T.block("D"):
        D[0] = A[(k << 7) % 12]
"""
ADDED = """
@T.prim_func
def main(A: T.Buffer((64,), "int32"), C: T.Buffer((64,), "int32"), D: T.Buffer((1,), "int32"),
         k: T.int32):
    T.func_attr({"tir_var_lower_bound": {"k": 1}})
    for i in range(64):
        with T.block("C"):
            vi = T.axis.spatial(64, i)
            C[vi] = A[vi] * 2
    with T.block("D"):
        D[0] = A[INDEX]
"""


def results(func: ir.PrimFunc) -> list[Any]:
    """What the interpreter and compiled code compute for D."""
    found: list[Any] = []
    for run in (lambda *a: bw.interpret(func, *a), bw.build(func)["main"]):
        a, c, d = np.arange(12, dtype="int32"), np.zeros(8, "int32"), np.zeros(1, "int32")
        run(a, c, d, K)
        found.append(int(d[0]))
    return found


def test_a_parameter_remains_an_index_without_the_domain_that_used_it() -> None:
    sch = Schedule(bw.from_source(REMOVED))
    wanted = [(K << 7) % 12] * 2
    assert results(sch.func) == wanted
    sch.reverse_compute_inline("C")
    assert sch.func.attrs[INDEX_PARAMS] == ("k",)
    assert results(sch.func) == wanted
    again = bw.from_source(sch.func.script())
    assert results(again) == wanted


def test_a_parameter_that_the_program_computes_with_does_not_become_a_size() -> None:
    func = bw.from_source(ADDED.replace("INDEX", "(k << 7) % 12"))
    sch = Schedule(func)
    with pytest.raises(ScheduleError, match="k would be a size") as caught:
        sch.split(sch.get_loops("C")[0], [None, func.params[-1]])
    assert caught.value.code == "BW304"


def test_another_parameter_may_become_a_size() -> None:
    func = bw.from_source(ADDED.replace("INDEX", "k"))
    sch = Schedule(func)
    sch.split(sch.get_loops("C")[0], [None, func.params[-1]])
    assert INDEX_PARAMS not in sch.func.attrs

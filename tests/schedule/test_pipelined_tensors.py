"""Pipelines of a buffer that is passed to a function as a tensor: with several versions of the
buffer, the function still gets one of them, in the shape that the program declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm_ffi

import blockwright as bw

NAME = "blockwright.test.pipelined_tensors.double"
PROGRAM = f"""
@T.prim_func
def f(A: T.Buffer((6, 4), "float32"), C: T.Buffer((6, 4), "float32")):
    tile = T.alloc_buffer((4,), "float32"%s)
    for i in range(6):
        for j in range(4):
            with T.block("fetch"):
                vi, vj = T.axis.remap("SS", [i, j])
                tile[vj] = A[vi, vj]
        with T.block("call"):
            vi = T.axis.spatial(6, i)
            T.reads(tile[0:4])
            T.writes(tile[0:4])
            T.call_packed("{NAME}", T.tensor(tile[0]))
        for j in range(4):
            with T.block("use"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = tile[vj]
"""

shapes: list[tuple[int, ...]] = []


def double(x: Any) -> None:
    array = x if isinstance(x, np.ndarray) else np.from_dlpack(x)
    shapes.append(array.shape)
    array *= 2


tvm_ffi.register_global_func(NAME, double, override=True)


def double_buffered(s: Any) -> None:
    s.double_buffer("fetch", 0)


def prefetched(s: Any) -> None:
    s.software_pipeline(s.get_loops("use")[0], stages=[0, 1, 1])


def in_three_stages(s: Any) -> None:
    s.software_pipeline(s.get_loops("use")[0], stages=[0, 1, 2])


@pytest.mark.parametrize("step", [double_buffered, prefetched, in_three_stages])
@pytest.mark.parametrize("layout", ["", ", strides=[2]"])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_function_gets_one_version(
    step: Callable[[Any], None], layout: str, compiled: bool
) -> None:
    s = bw.Schedule(bw.from_source(PROGRAM % layout))
    step(s)
    A = np.arange(24, dtype=np.float32).reshape(6, 4)
    C = np.zeros_like(A)
    shapes.clear()
    if compiled:
        bw.build(s.func)["f"](A, C)
    else:
        bw.interpret(s.func, A, C, packed={NAME: double})
    assert shapes == [(4,)] * 6
    assert (C == 2 * A).all()

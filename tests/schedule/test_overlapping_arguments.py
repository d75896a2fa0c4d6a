"""Parameters of a function with "tir.noalias": False may overlap; steps and proofs know it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.support import ScheduleError

LINE = 'A: T.Buffer((16,), "int32"), B: T.Buffer((16,), "int32")'
THREE = LINE + ', C: T.Buffer((16,), "int32")'
SQUARE = 'A: T.Buffer((4, 4), "int32"), B: T.Buffer((4, 4), "int32")'
COPY = """
    for i in range(16):
        with T.block("B"):
            vi = T.axis.spatial(16, i)
            B[vi] = A[vi] * 3 + 1
"""
TWO = (
    COPY
    + """
    for i in range(16):
        with T.block("C"):
            vi = T.axis.spatial(16, i)
            C[vi] = A[vi] * 2
"""
)
GRID = """
    for i, j in T.grid(4, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 3 + 1
"""
SUM = """
    for i, k in T.grid(16, 16):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = 0
            B[vi] = B[vi] + A[vk]
"""
BETWEEN = """
    D = T.alloc_buffer((16,), "int32")
    for i in range(16):
        with T.block("D"):
            vi = T.axis.spatial(16, i)
            D[vi] = A[vi] * 3 + 1
    for i in range(16):
        with T.block("B"):
            vi = T.axis.spatial(16, i)
            B[vi] = D[15 - vi] + A[vi]
"""
STEPS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "vectorize": (LINE, COPY, lambda s: s.vectorize(s.get_loops("B")[0])),
    "parallel": (LINE, COPY, lambda s: s.parallel(s.get_loops("B")[0])),
    "bind": (LINE, COPY, lambda s: s.bind(s.get_loops("B")[0], "threadIdx.x")),
    "cache_read": (LINE, COPY, lambda s: s.cache_read("B", 0, "global")),
    "cache_write": (LINE, COPY, lambda s: s.cache_write("B", 0, "global")),
    "reorder": (SQUARE, GRID, lambda s: s.reorder(*reversed(s.get_loops("B")))),
    "transform_block_layout": (
        SQUARE, GRID, lambda s: s.transform_block_layout("B", lambda i, j: (j, i))),
    "merge": (THREE, TWO, lambda s: s.merge(s.get_loops("B")[0], s.get_loops("C")[0])),
    "reorder of a sum": (LINE, SUM, lambda s: s.reorder(*reversed(s.get_loops("B")))),
    "decompose_reduction": (LINE, SUM, lambda s: s.decompose_reduction("B", s.get_loops("B")[0])),
    "rfactor": (LINE, SUM, lambda s: s.rfactor(s.get_loops("B")[1], 0)),
    "compute_inline": (LINE, BETWEEN, lambda s: s.compute_inline("D")),
    "reverse_compute_inline": (LINE, BETWEEN, lambda s: s.reverse_compute_inline("B")),
    "reverse_compute_at": (
        LINE, BETWEEN, lambda s: s.reverse_compute_at("B", s.get_loops("D")[0])),
    "compute_at": (LINE, BETWEEN, lambda s: s.compute_at("D", s.get_loops("B")[0])),
}  # fmt: skip


def program(signature: str, body: str, noalias: bool = False) -> ir.PrimFunc:
    func = bw.from_source(f"""
@T.prim_func
def main({signature}):
    T.func_attr({{"tir.noalias": {noalias}}})
{body}
""")
    assert isinstance(func, ir.PrimFunc)
    return func


@pytest.mark.parametrize("case", STEPS.values(), ids=STEPS.keys())
def test_steps_that_rest_on_distinct_memory_are_refused(
    case: tuple[str, str, Callable[[Any], Any]],
) -> None:
    signature, body, step = case
    with pytest.raises(ScheduleError):
        step(bw.Schedule(program(signature, body)))


def test_steps_that_keep_the_order_are_taken() -> None:
    schedule = bw.Schedule(program(SQUARE, GRID))
    fused = schedule.fuse(*schedule.get_loops("B"))
    schedule.unroll(schedule.split(fused, [4, 4])[1])
    assert "unroll" in schedule.func.script()


def test_nothing_is_proved_of_arguments_that_may_overlap() -> None:
    after = program(SQUARE, GRID.replace("i, j in", "j, i in"))
    assert bw.verify(program(SQUARE, GRID, noalias=True), after).verdict == "proved"
    assert bw.verify(program(SQUARE, GRID), after).verdict == "unknown"


BODIES = {
    "an element for all": "    for i in range(16):\n        B[i] = A[5] * A[i] + B[3]\n",
    "a sum kept in memory": (
        "    for i, k in T.grid(8, 8):\n        B[i] = B[i] + A[i + k] * A[k]\n"),
    "vectorized": "    for i in T.vectorized(16):\n        B[i] = A[i] * 3 + 1\n",
    "backwards": "    for i in range(16):\n        B[15 - i] = A[i]\n",
    "filled and read": (
        "    for i in range(16):\n        B[i] = 3\n    for i in range(16):\n"
        "        B[i] = A[i] + 1\n"),
    "a condition that changes": (
        "    for i in range(16):\n        if A[2] < 9:\n            B[i] = A[2] + 3\n"),
    "an index that changes": (
        "    for i in range(16):\n        B[T.max(0, T.min(15, A[3] + i))] = i\n"),
    "a sum": SUM, "through a buffer": BETWEEN,
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_built_code_runs_in_the_order_of_the_program(body: str) -> None:
    func = program(LINE, body)
    built = bw.build(func)["main"]
    for a, b in itertools.product((6, 0, 3), range(13)):
        results = []
        for run in (lambda *args: bw.interpret(func, *args), built):
            memory = (np.arange(32) % 7).astype("int32")
            run(memory[a : a + 16], memory[b : b + 16])
            results.append(memory)
        np.testing.assert_array_equal(results[1], results[0])


def test_components_of_a_reduction_that_may_share_memory_are_not_split_up() -> None:
    """Both sums start before either ends: in one memory the second goes on from the first."""
    source = """
@T.prim_func
def main(A: T.Buffer((8,), "float32"), B: T.Buffer((), "float32"), C: T.Buffer((), "float32")):
    T.func_attr({{"tir.noalias": {0}}})
    for k in range(8):
        with T.block("sums"):
            vk = T.axis.reduce(8, k)
            with T.init():
                B[()] = T.float32(4)
                C[()] = T.float32(0)
            B[()] = T.min(B[()], A[vk])
            C[()] = C[()] + A[vk]
"""
    for noalias in (True, False):
        func = bw.from_source(source.format(noalias))
        assert isinstance(func, ir.PrimFunc)
        sch = bw.Schedule(func)
        (loop,) = sch.get_loops("sums")
        if noalias:
            sch.rfactor(loop, 0)
            continue
        with pytest.raises(ScheduleError, match="may share memory"):
            sch.rfactor(loop, 0)

"""Allocations whose memory is one declared buffer: steps find it by its name and dimensions."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

SOURCE = """
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int32()
    m = T.int32()
    A = T.match_buffer(a, (n, m), "float32")
    B = T.match_buffer(b, (n, m), "float32")
    {}
    for i, j in T.grid(n, m):
        with T.block("X"):
            vi, vj = T.axis.remap("SS", [i, j])
            X[vi, vj] = A[vi, vj] + T.float32(1)
    for i, j in T.grid(n, m):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = X[vi, vj] * T.float32(2){}
"""
WHOLE = [
    'D = T.allocate([n * m], "float32")\n    X = T.decl_buffer((n, m), data=D)',
    'D = T.allocate([m, n], "float32", "global")\n    X = T.Buffer((n, m), data=D)',
    'D = T.allocate([m * n], "float32")\n    X = T.decl_buffer((n, m), data=D, elem_offset=0)',
    'D = T.allocate([m * n], "float32")\n    X = T.decl_buffer((n, m), data=D, strides=[m, 1])',
    'D = T.allocate([n * m], "float32")\n    Z = T.decl_buffer((n * m,), data=D)\n'
    "    X = T.decl_buffer((n, m), data=Z.data)",
    'D = T.allocate([n * m], "float32")\n    E = T.allocate([n], "float32")\n'
    "    X = T.decl_buffer((n, m), data=D)\n    Y = T.decl_buffer((n,), data=E)",
]
PART = [
    'D = T.allocate([n * m + 1], "float32")\n    X = T.decl_buffer((n, m), data=D)',
    'D = T.allocate([n * m + 1], "float32")\n    X = T.decl_buffer((n, m), data=D, elem_offset=1)',
    'D = T.allocate([n * m], "int32")\n    X = T.decl_buffer((n, m), "float32", data=D)',
    'D = T.allocate([n * m], "float32")\n    X = T.decl_buffer((n, m), data=D, strides=[1, n])',
]


def swapped(i: ir.Expr, j: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    return j, i


def right(func: ir.PrimFunc, before: ir.PrimFunc) -> None:
    for n, m in ((1, 1), (3, 5), (33, 2)):
        a = np.random.default_rng(n).standard_normal((n, m)).astype("float32")
        results = [np.zeros_like(a) for _ in range(3)]
        bw.interpret(before, a, results[0])
        bw.interpret(func, a, results[1])
        bw.build(func)["main"](a, results[2])
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("declared", WHOLE)
def test_the_buffer_is_found(declared: str) -> None:
    func = bw.from_source(SOURCE.format(declared, ""))
    s = bw.Schedule(func)
    s.cache_read("B", "X", "local")
    s.transform_layout("X", "X", swapped)
    outer, _ = s.split(s.get_loops("X_local")[0], [32, None])
    s.compute_at("X", outer)
    right(s.func, func)


@pytest.mark.parametrize("declared", PART)
def test_other_memory_stays_as_it_is(declared: str) -> None:
    func = bw.from_source(SOURCE.format(declared, ""))
    s = bw.Schedule(func)
    assert "X" not in {b.name for b in s.func.root.alloc_buffers}
    s.parallel(s.get_loops("B")[0])
    right(s.func, func)


def test_second_view_of_the_memory() -> None:
    """Both views are names of one memory, so the blocks keep their order."""
    declared = (
        'D = T.allocate([n * m], "float32")\n    X = T.decl_buffer((n, m), data=D)\n'
        "    Y = T.decl_buffer((n * m,), data=D)"
    )
    last = """
    for i in range(n * m):
        with T.block("Y"):
            vi = T.axis.spatial(n * m, i)
            Y[vi] = T.float32(0)
"""
    func = bw.from_source(SOURCE.format(declared, last))
    s = bw.Schedule(func)
    with pytest.raises(bw.ScheduleError):
        s.reverse_compute_at("B", s.get_loops("Y")[0])
    right(s.func, func)

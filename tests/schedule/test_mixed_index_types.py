"""Steps on nests whose loops differ in type, as those of `T.grid(n, 4)` with an int64 size do, keep
operands of one type: printed programs read back as they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.testing import assert_same_meaning

SOURCE = """
@T.prim_func
def main(a: T.handle, c: T.handle, n: T.int64):
    A = T.match_buffer(a, (n, 4), "float32")
    C = T.match_buffer(c, (n, 4), "float32")
    B = T.alloc_buffer((n, 4), "float32")
    for i, j in T.grid(n, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.Cast("float32", vj * 3 + 1)
    for i, j in T.grid(n, T.int64(4)):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, T.int64(3) - vj] + T.Cast("float32", vj * T.int64(5) + vi)
"""
TILED = """
@T.prim_func
def main(a: T.handle, c: T.handle, n: T.int64):
    A = T.match_buffer(a, (n, 8), "float32")
    C = T.match_buffer(c, (n, 8), "float32")
    for i, j in T.grid(n, 4):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            tile = T.match_buffer(A[vi, vj * 2 : vj * 2 + 2], (2,), "float32", offset_factor=1)
            for k in range(2):
                C[vi, vj * 2 + k] = tile[1 - k] + T.Cast("float32", vj * 3 + k)
"""
STEPS: dict[str, tuple[str, Callable[[Schedule], object]]] = {
    "inline": (SOURCE, lambda s: s.compute_inline("B")),
    "reverse_compute_inline": (SOURCE, lambda s: s.reverse_compute_inline("C")),
    "digits": (SOURCE, lambda s: s.transform_block_layout("B", lambda i, j: (i, j // 2, j % 2))),
    "turned": (SOURCE, lambda s: s.transform_block_layout("B", lambda i, j: (j, i))),
    "fused": (TILED, lambda s: s.transform_block_layout("C", lambda i, j: (i * 4 + j,))),
    "tiles": (TILED, lambda s: s.transform_block_layout("C", lambda i, j: (j, i))),
}


@pytest.mark.parametrize("name", STEPS)
def test_operands_keep_one_type(name: str) -> None:
    source, step = STEPS[name]
    func = bw.from_source(source)
    sch = Schedule(func, verify="full")
    step(sch)
    assert_same_meaning(func, sch.func, sizes={"n": 3})
    ir.assert_structural_equal(bw.from_source(sch.func.script()), sch.func)
    for node in ir.walk(sch.func):
        if isinstance(node, (ir.Add, ir.Sub, ir.Mul, ir.FloorDiv, ir.FloorMod, ir.GT, ir.GE)):
            assert node.a.dtype is node.b.dtype, node

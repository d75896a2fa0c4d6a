"""Parts of partitioned loops have the type of the loop, whatever the type of the guards."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.testing.check import Reference

TEXT = """
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (1, n), "float32")
    B = T.match_buffer(b, (1, n), "float32")
    for i, j in T.grid(1, n):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(A[vi, 0:n])
            T.writes(B[vi, vj])
            B[vi, vj] = A[vi, T.Cast("int64", T.max(T.Cast("int32", vj) * 65536, 7) % n)]
"""


@pytest.mark.parametrize("kind", ["serial", "parallel"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_parts_have_the_type_of_the_loop(depth: int, kind: str) -> None:
    func = bw.from_source(TEXT)
    sch = bw.Schedule(func)
    outer, inner = sch.split(sch.get_loops("B")[1], [None, 4])
    first = sch.split(inner, [None, 2])[0]
    middle = sch.split(first, [None, 4, 2])[1]
    loops = {1: middle, 2: outer, 3: sch.get_loops("B")[-1]}
    sch.annotate(loops[depth], "loop_partition", True)
    if kind == "parallel":
        sch.parallel(outer)
    module = build(sch.func)
    (lowered,) = module.lowered.functions.values()
    for loop in ir.collect(lowered.body, ir.For):
        assert loop.min.dtype is loop.loop_var.dtype
        assert loop.extent.dtype is loop.loop_var.dtype
    for n in (1, 2, 5, 9):
        reference = Reference(func, seed=n, sizes={"n": n})
        arrays = [x.copy() for x in reference.given]
        module(*arrays)
        reference.assert_results(arrays, sch.func)


ADDED = """
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int64()
    T.func_attr({"tir_var_lower_bound": {"n": 4}})
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    for i in range(n):
        with T.block("B"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi] + T.float32(1)
"""


@pytest.mark.parametrize("inferred", [(), (0,), (1,)])
def test_pieces_of_symbolic_numbers_of_iterations(inferred: tuple[int, ...]) -> None:
    func = bw.from_source(ADDED)
    sch = bw.Schedule(func)
    (loop,) = sch.get_loops("B")
    (n,) = [v for v in ir.walk(func) if isinstance(v, ir.Var) and v.name == "n"][:1]
    factors: list[ir.Expr | None] = [n // 2, n - n // 2]
    for place in inferred:
        factors[place] = None
    assert len(sch.loop_partition(loop, factors)) == 2
    module = build(sch.func)
    for size in (4, 5, 11):
        reference = Reference(func, seed=size, sizes={"n": size})
        arrays = [x.copy() for x in reference.given]
        module(*arrays)
        reference.assert_results(arrays, sch.func)

"""offset_operand: exact sums over the whole range of the operands, or a refusal."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.interp import interpret
from blockwright.schedule import Schedule, ScheduleError
from blockwright.script.compute import Program
from blockwright.testing import assert_same_meaning

M, N, K = 6, 5, 300


def product(a: str = "int8", b: str = "int8", total: str = "int32") -> ir.PrimFunc:
    p = Program("product")
    m, n, k = (ir.const(size, "int64") for size in (M, N, K))
    x, w = p.param("A", (m, k), a), p.param("B", (n, k), b)

    def term(i: ir.Expr, j: ir.Expr, k: ir.Expr) -> ir.Expr:
        return ir.mul(ir.cast_to(x[i, k], total), ir.cast_to(w[j, k], total))

    return p.finish([p.reduce("C", (m, n), (k,), term)])


CONVOLUTION = """
@T.prim_func
def conv(A: T.Buffer((2, 9, 3), "int8"), B: T.Buffer((4, 3, 3), "uint8"), c: T.handle):
    C = T.match_buffer(c, (2, 7, 4), "int32")
    for b, x, o, r, i in T.grid(2, 7, 4, 3, 3):
        with T.block("C"):
            vb, vx, vo, vr, vi = T.axis.remap("SSSRR", [b, x, o, r, i])
            with T.init():
                C[vb, vx, vo] = 0
            C[vb, vx, vo] = C[vb, vx, vo] + T.int32(A[vb, vx + vr, vi]) * T.int32(B[vo, vr, vi])
"""
SYMBOLIC = """
@T.prim_func
def main(a: T.handle, b: T.handle, c: T.handle):
    n, k = T.int32(), T.int32()
    A = T.match_buffer(a, (n, k), "int8")
    B = T.match_buffer(b, (3, k), "int8")
    C = T.match_buffer(c, (n, 3), "int64")
    for i, j, l in T.grid(n, 3, k):
        with T.block("C"):
            vi, vj, vl = T.axis.remap("SSR", [i, j, l])
            with T.init():
                C[vi, vj] = T.int64(0)
            C[vi, vj] = C[vi, vj] + T.int64(A[vi, vl]) * T.int64(B[vj, vl])
"""


def shifted(func: ir.PrimFunc, read: str, offset: int, dtype: str) -> Schedule:
    sch = Schedule(func, verify="full")
    copied, sums, difference = sch.offset_operand(sch.get_block("C"), read, offset, dtype)
    names = [sch.get(h).name for h in (copied, sums, difference)]
    assert names == [f"{read}_offset", "C_correction", "C_difference"]
    return sch


@pytest.mark.parametrize(
    ("read", "offset", "dtype"),
    [("A", 128, "uint8"), ("B", 128, "uint8"), ("A", -1000, "int16"), ("B", 7, "int64")],
)
def test_sums_at_the_ends_of_the_type_are_exact(read: str, offset: int, dtype: str) -> None:
    func = product()
    sch = shifted(func, read, offset, dtype)
    rng = np.random.default_rng(0)
    a, b = (rng.choice([-128, -1, 0, 127], (n, K)).astype(np.int8) for n in (M, N))
    want = a.astype(np.int32) @ b.T.astype(np.int32)
    for run in (lambda *x: interpret(sch.func, *x), build(sch.func)["product"]):
        c = np.zeros((M, N), np.int32)
        run(a, b, c)
        np.testing.assert_array_equal(c, want)


def test_sums_that_wrap_stay_the_same() -> None:
    func = product("int16", "int16", "int16")
    sch = shifted(func, "A", 32768, "uint16")
    assert_same_meaning(func, sch.func, exact=True)


def test_convolutions_and_symbolic_sizes() -> None:
    conv = bw.from_source(CONVOLUTION)
    assert_same_meaning(conv, shifted(conv, "A", 128, "uint8").func, exact=True)
    func = bw.from_source(SYMBOLIC)
    sch = shifted(func, "A", 128, "uint8")
    for sizes in ({"n": 4, "k": 9}, {"n": 1, "k": 1}, {"n": 2, "k": 0}):
        assert_same_meaning(func, sch.func, sizes=sizes, exact=True)


def test_later_steps_find_a_product_and_a_sum() -> None:
    func = product()
    sch = shifted(func, "A", 128, "uint8")
    block = sch.get_block("C")
    i, j, k = sch.get_loops(block)
    k0, k1 = sch.split(k, [None, 4])
    sch.reorder(k0, i, j, k1)
    sch.decompose_reduction(block, k0)
    sch.compute_inline("A_offset")
    assert_same_meaning(func, sch.func, exact=True)


@pytest.mark.parametrize(
    ("func", "offset", "dtype", "code"),
    [
        (product(), 127, "uint8", "BW304"),
        (product(), 129, "uint8", "BW304"),
        (product(), 128, "float32", "BW304"),
        (product("int64", "int64", "int64"), 1 << 63, "uint64", "BW304"),
        (product("uint8"), 1, "uint8", "BW304"),
        (product("int8", "int8", "float32"), 128, "uint8", "BW326"),
    ],
)
def test_what_is_refused(func: ir.PrimFunc, offset: int, dtype: str, code: str) -> None:
    sch = Schedule(func)
    with pytest.raises(ScheduleError) as caught:
        sch.offset_operand(sch.get_block("C"), "A", offset, dtype)
    assert caught.value.code == code


def test_loops_must_be_those_of_the_block() -> None:
    sch = Schedule(product())
    sch.split(sch.get_loops("C")[2], [None, 4])
    with pytest.raises(ScheduleError) as caught:
        sch.offset_operand("C", "A", 128, "uint8")
    assert caught.value.code == "BW322"

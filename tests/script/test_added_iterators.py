"""Iterators that stand for loop variables in blocks that declare none."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.ir import IterType


def program(body: str) -> ir.PrimFunc:
    func = bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer((4, 10), "float32"), B: T.Buffer((4, 10), "float32")):
    for i, j in T.grid(4, 10):
        with T.block("B"):
            {body}
""")
    ir.assert_structural_equal(bw.from_source(func.script()), func)
    return func


def kinds(func: ir.PrimFunc) -> list[IterType]:
    return [it.iter_type for it in ir.blocks(func.body)[-1].iter_vars]


@pytest.mark.parametrize(
    ("body", "kinds_wanted"),
    [
        ("B[i, j] = A[i, 9 - j] + 1.0", "SS"),
        ("B[i, 9 - j] = A[i, j]", "SO"),
        ("B[i, 0] = B[i, 0] + A[i, j]", "SO"),
        ("B[i, j] = A[i, j]\n            B[j % 4, i] = A[i, j]", "OO"),
        ("T.atomic_add(B[i, j], A[i, j])", "OO"),
        (
            "D = T.match_buffer(B[i, 9 - j:10], (j + 1,), offset_factor=1)\n"
            "            D[j] = A[i, j]",
            "OO",
        ),
    ],
)
def test_different_elements_make_it_spatial(body: str, kinds_wanted: str) -> None:
    names = {"S": IterType.SPATIAL, "O": IterType.OPAQUE}
    assert kinds(program(body)) == [names[k] for k in kinds_wanted]


def test_steps_on_blocks_without_iterators() -> None:
    func = program("B[i, j] = A[i, 9 - j] + 1.0")
    s = bw.Schedule(func)
    s.cache_write("B", 0, "local")
    i, j = s.get_loops("B")
    s.reorder(j, i)
    s.parallel(j)
    s.vectorize(i)
    a = np.random.default_rng(1).standard_normal((4, 10)).astype("float32")
    b, c = np.zeros_like(a), np.zeros_like(a)
    bw.interpret(s.func, a, b)
    bw.build(s.func)["main"](a, c)
    np.testing.assert_array_equal(b, a[:, ::-1] + 1)
    np.testing.assert_array_equal(c, b)


def test_rows_of_a_scan() -> None:
    func = program("B[i, j] = T.if_then_else(j == 0, A[i, 0], B[i, j - 1] + A[i, j])")
    s = bw.Schedule(func)
    with pytest.raises(bw.ScheduleError):
        s.parallel(s.get_loops("B")[1])
    s.parallel(s.get_loops("B")[0])
    a = np.arange(40, dtype="float32").reshape(4, 10)
    b = np.zeros_like(a)
    bw.interpret(s.func, a, b)
    np.testing.assert_array_equal(b, a.cumsum(1))


def test_sums_are_kept_in_order() -> None:
    s = bw.Schedule(program("B[i, 0] = B[i, 0] + A[i, j]"))
    for step in (s.parallel, s.vectorize):
        with pytest.raises(bw.ScheduleError):
            step(s.get_loops("B")[1])


def test_the_kind_is_named() -> None:
    s = bw.Schedule(program("B[i, 9 - j] = A[i, j]"))
    with pytest.raises(bw.ScheduleError, match="drives the opaque iterator vj of block B"):
        s.vectorize(s.get_loops("B")[1])

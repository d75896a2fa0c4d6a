"""A trace keeps every expression of its steps, as JSON and as Python."""

from collections.abc import Callable
from typing import Any

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.script import tir as T
from blockwright.testing.moves.checks import FORMS, check_replay

PROGRAM = """
@T.prim_func
def main(a: T.handle, B: T.Buffer((8,), "float32")):
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    V = T.alloc_buffer((8,), "float32")
    for i in range(8):
        with T.block("V"):
            vi = T.axis.spatial(8, i)
            V[vi] = A[vi % n]
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = V[7 - vi]
    for i in range(n):
        with T.block("A"):
            vi = T.axis.spatial(n, i)
            A[vi] = A[vi] + T.float32(1)
"""
PADS: dict[str, Callable[[Any, Any], Any]] = {
    "select": lambda i, j: T.Select(i > 1, T.float32(1), T.float32(0)),
    "if_then_else": lambda i, j: T.if_then_else(T.EQ(i, j), T.float32(1), T.float32(2)),
    "and": lambda i, j: T.Select(T.And(i > 1, T.NE(j, 1)), T.float32(1), T.float32(2)),
    "or, not": lambda i, j: T.Select(T.Or(T.Not(i > 1), j > 1), T.float32(1), T.float32(2)),
    "call": lambda i, j: T.exp(T.Cast("float32", i)),
    "quotient": lambda i, j: T.Cast("float32", i) / T.float32(3),
    "infinity": lambda i, j: T.float32("inf"),
    "nan": lambda i, j: T.float32("nan"),
    "truncdiv": lambda i, j: T.truncdiv(i - 5, 2),
    "truncmod": lambda i, j: T.truncmod(i - 5, 2),
    "shift": lambda i, j: T.shift_left(i, 2),
    "abs": lambda i, j: T.abs(i - 2),
    "reinterpret": lambda i, j: T.reinterpret("float32", T.Cast("int32", i)),
    "wrap": lambda i, j: T.Cast("uint8", i * 100) + T.uint8(200),
    "constant double": lambda i, j: T.float64(0.1),
    "double": lambda i, j: T.float64(0.1) * T.Cast("float64", j),
}


@pytest.mark.parametrize("name", PADS)
def test_values_of_padding_are_kept(name: str) -> None:
    func = bw.from_source(PROGRAM)
    sch = Schedule(func)
    sch.transform_layout("V", ("write", 0), lambda i: (i // 3, i % 3), pad_value=PADS[name])
    for form in FORMS:
        check_replay(func, sch.trace, sch.func, form)


@pytest.mark.parametrize(
    "factor",
    [
        lambda n: T.max(T.truncdiv(n, 2), T.int64(1)),
        lambda n: T.Select(n > 4, T.int64(4), T.int64(2)),
        lambda n: T.shift_left(T.int64(1), 2) + n,
        lambda n: T.Select(T.And(n > 4, T.NE(n, 6)), T.int64(4), T.int64(3)),
    ],
)
def test_factors_are_kept(factor: Callable[[ir.Expr], ir.Expr]) -> None:
    func = bw.from_source(PROGRAM)
    sch = Schedule(func)
    sch.split(sch.get_loops("A")[0], [None, factor(sch.symbol("n"))])
    for form in FORMS:
        check_replay(func, sch.trace, sch.func, form)


@pytest.mark.parametrize("value", [{"$expr": "1", "$dtype": "int32"}, {"$map": "x", "$'a": [2]}])
def test_mappings_of_users_are_kept(value: dict[str, Any]) -> None:
    func = bw.from_source(PROGRAM)
    sch = Schedule(func)
    sch.annotate("V", "mine", value)
    for form in FORMS:
        check_replay(func, sch.trace, sch.func, form)

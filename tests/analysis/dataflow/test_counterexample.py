"""Numeric evaluation of indices, and instances of loops."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis.dataflow.counterexample import (
    DependsOnMore,
    VarRange,
    end_lanes,
    instances,
    shown,
    sizes_to_try,
    value_of,
)

I, J = (ir.Var(name, ir.dtype_of("int32")) for name in "ij")  # noqa: E741


def number(value: int) -> ir.Expr:
    return ir.const(value, "int32")


@pytest.mark.parametrize(
    ("make", "python"),
    [
        (ir.floordiv, lambda a, b: a // b),
        (ir.floormod, lambda a, b: a % b),
        (ir.Div, lambda a, b: int(a / b)),
        (ir.Mod, lambda a, b: a - b * int(a / b)),
        (ir.minimum, min),
    ],
)
def test_arithmetic_on_rows(make: object, python: object) -> None:
    assert callable(make)
    assert callable(python)
    values = np.arange(-7, 8)
    expr = make(I, J)
    assert list(value_of(expr, {I: values, J: 3})) == [python(int(v), 3) for v in values]
    assert list(value_of(expr, {I: values, J: -2})) == [python(int(v), -2) for v in values]


def test_unknown_values_are_no_counterexample() -> None:
    with pytest.raises(DependsOnMore):
        value_of(ir.add(I, J), {I: 1})
    with pytest.raises(DependsOnMore):
        value_of(ir.FloorDiv(I, J), {I: 1, J: np.array([1, 0])})


def test_instances_of_nested_loops() -> None:
    spans = [VarRange(I, number(0), number(4)), VarRange(J, I, number(3))]
    rows = instances(spans, {})
    assert (rows.rows, rows.complete) == (12, True)
    assert rows.at(5) == {I: 1, J: 3}
    assert rows.where(value_of(ir.GT(J, number(4)), rows.env)).rows == 1
    assert shown(rows.at(5), (I, J)) == "i = 1, j = 3"


def test_of_many_iterations_the_ends_remain() -> None:
    rows = instances([VarRange(I, number(0), number(100))], {}, limit=8)
    assert not rows.complete
    assert list(rows.env[I]) == [0, 1, 50, 99]


def test_the_lanes_of_a_vector_at_its_ends() -> None:
    ramp = ir.Ramp(I, number(2), 4)
    first, last = end_lanes([ramp])
    assert [value_of(lane[0], {I: 10}) for lane in (first, last)] == [10, 16]


def test_sizes_within_their_bounds() -> None:
    func = bw.from_source("""
@T.prim_func
def f(a: T.handle):
    T.func_attr({"tir_var_upper_bound": {"n": 4}})
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    with T.block("root"):
        A[0] = 1.0
""")
    (tries,) = {tuple(v for env in sizes_to_try(func) for v in env.values())}
    assert tries == (4, 3, 4)

"""Programs of other rooms read back too: operators, stages of lowering, built graphs."""

from __future__ import annotations

import numpy as np
import pytest

from blockwright import ir
from blockwright.graph import GraphBuilder
from blockwright.ir.printer import script
from blockwright.lower import lower
from blockwright.ops.implementation import lower_call
from blockwright.ops.row import OpContext
from blockwright.ops.table import OPERATORS
from blockwright.script.ir import from_source

SAMPLES = [
    (name, number)
    for name, row in OPERATORS.items()
    if row.lower
    for number in range(len(row.samples))
]


def program(name: str, number: int = 0) -> ir.PrimFunc:
    row = OPERATORS[name]
    sample = row.samples[number]
    rng = np.random.default_rng(0)
    infos: list[ir.TensorInfo] = []
    for arg in sample.args:
        array = np.asarray(arg(rng) if callable(arg) else arg)
        shape = tuple(ir.const(size, "int64") for size in array.shape)
        infos.append(ir.TensorInfo(shape, ir.dtype_of(array.dtype)))
    return lower_call(row, OpContext(name), infos, {**row.attrs, **sample.attrs})


def round_trip(program: ir.Node) -> None:
    again = from_source(repr(program))
    ir.assert_structural_equal(again, program)
    assert repr(again) == repr(program)


@pytest.mark.parametrize(("name", "number"), SAMPLES)
def test_operator_programs(name: str, number: int) -> None:
    round_trip(program(name, number))


@pytest.mark.parametrize(("name", "number"), SAMPLES)
def test_lowered_operator_programs(name: str, number: int) -> None:
    round_trip(lower(program(name, number)))


@pytest.mark.parametrize("name", [name for name, number in SAMPLES if number == 0])
def test_every_stage_of_lowering(name: str) -> None:
    stages: list[str] = []

    def check(stage: str, before: ir.PrimFunc, after: ir.PrimFunc) -> None:
        stages.append(stage)
        if after is not before:
            round_trip(after)

    lower(program(name), on_pass=check)
    assert stages


def test_built_graphs() -> None:
    n = ir.var("n", "int64")
    four = ir.const(4, "int64")
    builder = GraphBuilder({"tir_var_upper_bound": {"n": 64}})
    x = builder.param("x", ir.TensorInfo((n, four), ir.dtype_of("float32")))
    weight = np.arange(64, dtype="float32").reshape(4, 16)
    y = builder.op("matmul", x, weight)
    z = builder.op("exp", y)
    function = builder.finish("main", ir.TupleExpr((y, z)))
    table: dict[str, np.ndarray] = {}
    text = script(function, constants=table)
    again = from_source(text, constants=table)
    ir.assert_structural_equal(again, function)
    assert script(again, constants=dict(table)) == text

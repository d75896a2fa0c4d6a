"""Vectors of decoded numbers: lanes at constant distances, and functions of four bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import blockwright as bw
from blockwright import ir
from blockwright.analysis.lane_offsets import lane_offsets
from blockwright.build import build
from blockwright.script.compute import Program
from blockwright.strategies import apply_strategies
from blockwright.target import Target

X = ir.var("x", "int64")
LANES = np.arange(8)


def scalar(value: int | ir.Expr) -> ir.Expr:
    return ir.Broadcast(value if isinstance(value, ir.Expr) else ir.const(value, "int64"), 8)


RAMP = ir.Ramp(ir.const(0, "int64"), ir.const(1, "int64"), 8)
INDICES: dict[str, tuple[ir.Expr, ir.Expr | None, Any]] = {
    "quotient": (ir.Add(scalar(X), ir.FloorDiv(RAMP, scalar(4))), X, LANES // 4),
    "remainder": (ir.Sub(ir.FloorMod(RAMP, scalar(3)), scalar(2)), None, LANES % 3 - 2),
    "below": (ir.Sub(scalar(X), RAMP), X, -LANES),
    "ramp": (ir.Ramp(X, ir.const(5, "int64"), 8), X, 5 * LANES),
}


@pytest.mark.parametrize("name", INDICES)
def test_offsets_of_lanes(name: str) -> None:
    index, base, offsets = INDICES[name]
    found = lane_offsets(index)
    assert found is not None
    assert found.base is base
    assert found.offsets == tuple(offsets)


def test_a_constant_factor_multiplies_scalar_and_offsets() -> None:
    found = lane_offsets(ir.Mul(ir.Add(scalar(X), RAMP), scalar(4)))
    assert found is not None
    assert found.base is not None
    assert ir.structural_equal(found.base, ir.mul(X, 4))
    assert found.offsets == tuple(4 * LANES)


def test_other_indices_have_no_offsets() -> None:
    for index in (
        ir.Mul(scalar(X), RAMP),
        ir.FloorDiv(ir.Add(scalar(X), RAMP), scalar(4)),
        ir.FloorDiv(RAMP, scalar(0)),
        ir.Ramp(X, X, 8),
        ir.Ramp(ir.const(200, "uint8"), ir.const(10, "uint8"), 8),  # wraps around
    ):
        assert lane_offsets(index) is None


def built(func: ir.PrimFunc, target: str) -> tuple[Callable[..., Any], str]:
    module = build(apply_strategies(func, Target(target)).func, target)
    return module["main"], module.source("llvm")


@pytest.mark.parametrize(
    ("dtype", "group", "columns"),
    [("float32", 4, 64), ("float16", 8, 72), ("int8", 3, 51), ("bool", 32, 160)],
)
def test_a_scale_for_each_group_is_loaded_once(dtype: str, group: int, columns: int) -> None:
    p = Program("main")
    scale = p.param("S", (3, -(-columns // group)), dtype)

    def element(i: Any, j: Any) -> ir.Expr:
        return scale[i, j // group]

    run, text = built(p.finish([p.compute("out", (3, columns), element)]), "native")
    scales = np.random.default_rng(0).integers(0, 2, (3, -(-columns // group))).astype(dtype)
    result = np.zeros((3, columns), dtype)
    run(scales, result)
    np.testing.assert_array_equal(result, np.repeat(scales, group, axis=1)[:, :columns])
    if columns % 16 == 0:
        assert "masked.gather" not in text


NUMBERS = st.sampled_from([0.0, 1.0, -7.0, 8.0, 0.3, 1e-3, 6e4, 1e-7])


@settings(max_examples=20)
@given(
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    word=st.sampled_from(["uint32", "int32", "uint8", "int16", "uint64"]),
    mask=st.sampled_from([15, 7, 1, 31]),
    steps=st.lists(st.tuples(st.sampled_from("+-*r"), NUMBERS), max_size=3),
    target=st.sampled_from(["native", "x86-64-v3"]),
)
def test_functions_of_four_bits_round_as_written(
    dtype: str, word: str, mask: int, steps: list[tuple[str, float]], target: str
) -> None:
    """Five bits are no table: the plain code must give the same, too."""

    p = Program("main")
    x = p.param("X", (64,), word)

    def value(i: Any) -> ir.Expr:
        result = ir.cast_to(ir.call("bitwise_and", x[i], ir.const(mask, word)), dtype)
        for op, number in steps:
            c = ir.const(number, dtype)
            result = {"+": result + c, "-": result - c, "*": result * c, "r": c - result}[op]
        return result

    func = p.finish([p.compute("out", (64,), value)])
    run, _ = built(func, target)
    words = np.random.default_rng(0).integers(0, 100, 64).astype(word)
    if np.dtype(word).kind == "i":
        words -= np.array(50, word)
    kind = ir.dtype_of(dtype).numpy()
    result, wanted = np.zeros(64, kind), np.zeros(64, kind)
    run(words, result)
    bw.interpret(func, words, wanted)
    bits = f"uint{8 * kind.itemsize}"
    same = (result.view(bits) == wanted.view(bits)) | (np.isnan(result) & np.isnan(wanted))
    assert same.all()

"""Attributes of operators are of the kinds that their rows take, or `bw.validate` says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.graph import deduce_call
from blockwright.ops.attribute_kinds import check_attribute
from blockwright.ops.implementation import ATTRIBUTE, lower_call
from blockwright.ops.row import REQUIRED, OpContext, OpRow
from blockwright.ops.table import OPERATORS

PARAMS = """x: R.Tensor((4,), "float32"), a: R.Tensor(("n", 4), "float32"),
         b: R.Tensor((4,), "bool")"""
WRONG = [
    'clip(x, min="a")', "clip(x, max=(1,))", "softplus(x, threshold=(-1, 1))",
    'softplus(x, beta="1")', "celu(x, alpha=0)", "celu(x, alpha=0.0)", 'elu(x, alpha="a")',
    'rms_norm(x, eps=["a"])', "layer_norm(x, x, x, eps=None)", 'vector_norm(x, ord="")',
    'vector_norm(x, ord="inf")', 'where(b, a, scalar="a")', 'add(x, scalar="1")',
    "add(x, scalar=[1])", "softmax(a, axis=1.5)", "softmax(a, axis=True)", "softmax(a, axis=(0,))",
    "repeat(x, repeats=1, axis=0.0)", "repeat(x, repeats=1.0)", "slice_scatter(a, a, axis=0.0)",
    "slice(a, axis=0, begin=1.0)", 'tril(a, k=float("nan"))', 'triu(a, k="int32")',
    'gelu(x, approximate="tahn")', "gelu(x, approximate=None)", 'sum(x, keepdims="no")',
    "sum(x, keepdims=1)", "mean(a, axes=[0.0])", 'sum(x, dtype="handle")',
    'astype(x, dtype="float32x4")', 'add(x, scalar=1.0, scalar_side="rigth")',
    'pad(x, pad_width=[(1, 1)], pad_mode="reflected")', "pad(x, pad_width=[1.5, 1])",
    "reshape(x, shape=(2.0, 2))", "full(shape=(2,), fill_value=None)", "arange(end=None)",
    "cumsum(x, axis=1.0)", "split(x, indices_or_sections=2.0)", "flip(x, axis=[2**70])",
]  # fmt: skip
FIT = [
    "clip(x, min=0)", "clip(x, max=1.5)", "celu(x, alpha=-1)", "softmax(a, axis=-1)",
    'gelu(x, approximate="tanh")', "sum(a, axes=[0, 1], keepdims=True)", "tril(a, k=n)",
    'vector_norm(x, ord=float("inf"))', "repeat(x, repeats=n)", 'sum(x, dtype="float64")',
    "add(x, scalar=1)", "split(x, indices_or_sections=[1, 2])", "flip(x, axis=0)",
]  # fmt: skip


def module(call: str) -> ir.IRModule:
    return bw.from_source(f"@R.function\ndef main({PARAMS}):\n    return R.{call}\n")


@pytest.mark.parametrize("call", WRONG)
def test_values_of_another_kind_are_refused(call: str) -> None:
    for entry in (bw.validate, bw.compile):
        with pytest.raises(bw.BlockwrightError) as caught:
            entry(module(call))
        assert caught.value.code == "BW401"
        assert caught.value.help


@pytest.mark.parametrize("call", FIT)
def test_values_of_the_kind_are_taken(call: str) -> None:
    bw.validate(module(call))


def test_a_misspelt_word_is_named() -> None:
    with pytest.raises(bw.ValidationError) as caught:
        bw.validate(module('gelu(x, approximate="tahn")'))
    assert caught.value.help == "did you mean 'tanh'?"


def test_every_attribute_has_a_kind_that_takes_what_rows_state() -> None:
    for row in OPERATORS.values():
        stated = [{k: v for k, v in row.attrs.items() if v is not REQUIRED}]
        for attrs in (*stated, *(sample.attrs for sample in row.samples)):
            for name, value in attrs.items():
                if name != ATTRIBUTE:
                    check_attribute(row, name, value)


@pytest.mark.parametrize("value", ["a", 1.5, float("nan"), [1.5], {}, (-1, 1), 0, None, True])
def test_what_deduction_takes_can_be_lowered(value: Any) -> None:
    """A program or an error with a code, for any value of any attribute."""
    for row in OPERATORS.values():
        if row.samples and row.lower is not None:
            for name in (*row.attrs, ATTRIBUTE):
                _lowered(row, {**row.samples[0].attrs, name: value})


def _lowered(row: OpRow, attrs: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    arrays = [np.asarray(a(rng) if callable(a) else a) for a in row.samples[0].args]
    infos = [
        ir.TensorInfo(tuple(ir.const(d, "int64") for d in a.shape), ir.dtype_of(a.dtype))
        for a in arrays
    ]
    args = tuple(ir.GraphVar(f"x{k}", info=info) for k, info in enumerate(infos))
    try:
        deduce_call(ir.GraphCall(ir.OpRef(row.name), args, attrs), Analyzer())
        lower_call(row, OpContext(row.name), infos, {**row.attrs, **attrs})
    except bw.BlockwrightError:
        return

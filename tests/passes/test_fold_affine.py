"""Folding of constant factors and shifts per channel into the weights before them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.graph import GraphBuilder
from blockwright.ops.table import OPERATORS

F32 = ir.dtype_of("float32")
RNG = np.random.default_rng(5)


def array(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def tensor(*shape: int) -> ir.TensorInfo:
    return ir.TensorInfo(tuple(ir.const(d, "int64") for d in shape), F32, len(shape))


def statistics(channels: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Scale, shift, mean and variance."""
    return (*(array(channels) for _ in range(3)), RNG.uniform(0.3, 2, channels).astype(np.float32))


def names(module: ir.IRModule) -> list[str]:
    return [b.value.op.name for b in module["main"].bindings]


PRODUCTS = [
    ("nn.conv2d", (2, 4, 6, 5), (6, 4, 3, 3), {"padding": 1}, 1),
    ("nn.conv2d", (2, 4, 6, 5), (6, 2, 3, 3), {"groups": 2}, 1),
    ("nn.conv2d", (2, 6, 5, 4), (3, 3, 1, 4),
     {"groups": 4, "data_layout": "NHWC", "kernel_layout": "HWIO"}, 3),
    ("nn.conv1d", (2, 3, 9), (5, 3, 2), {"out_layout": "NWC"}, 2),
    ("nn.conv2d_transpose", (1, 4, 3, 3), (4, 3, 2, 2), {"strides": 2, "groups": 2}, 1),
    ("linear", (3, 2, 7), (5, 7), {}, 2),
    ("matmul", (3, 2, 7), (7, 5), {}, 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "x", "w", "attrs", "axis"), PRODUCTS)
@pytest.mark.parametrize("bias", [False, True])
def test_batch_norm_goes_into_weights_and_bias(
    name: str, x: Any, w: Any, attrs: Any, axis: int, bias: bool, run: Any, evaluate: Any
) -> None:
    b = GraphBuilder()
    y = b.op(name, b.param("x", tensor(*x)), array(*w), **attrs)
    shape = [ir.const_int(d) for d in y.tensor_info.shape]
    channels = shape[axis]
    if bias:
        y = b.op("add", y, array(channels, *[1] * (len(shape) - 1 - axis)))
    y = b.op("nn.batch_norm", y, *statistics(channels), axis=axis)
    module = ir.IRModule({"main": b.finish("main", y)})
    folded = run(module, "fold_affine")
    assert names(folded) == [name, "add"]
    data = array(*x)
    np.testing.assert_allclose(evaluate(folded, data), evaluate(module, data), rtol=1e-5, atol=2e-5)


def test_factors_and_shifts_are_folded_too(run: Any, evaluate: Any) -> None:
    b = GraphBuilder()
    y = b.op("nn.conv2d", b.param("x", tensor(1, 2, 4, 4)), array(3, 2, 1, 1))
    y = b.op("divide", b.op("add", y, array(3, 1, 1)), array(1, 3, 1, 1))
    y = b.op("subtract", b.op("multiply", array(3, 1, 1), y), array(3, 1, 1))
    module = ir.IRModule({"main": b.finish("main", y)})
    folded = run(module, "fold_affine")
    assert names(folded) == ["nn.conv2d", "add"]
    x = array(1, 2, 4, 4)
    np.testing.assert_allclose(evaluate(folded, x), evaluate(module, x), rtol=1e-4, atol=1e-4)


def test_a_linear_layers_own_bias_is_folded(run: Any, evaluate: Any) -> None:
    b = GraphBuilder()
    y = b.op("linear", b.param("x", tensor(3, 4)), array(5, 4), array(5))
    module = ir.IRModule({"main": b.finish("main", b.op("nn.batch_norm", y, *statistics(5)))})
    folded = run(module, "fold_affine")
    assert names(folded) == ["linear", "add"]
    x = array(3, 4)
    np.testing.assert_allclose(evaluate(folded, x), evaluate(module, x), rtol=1e-4, atol=1e-4)


def test_a_product_that_others_read_keeps_its_weights(run: Any, evaluate: Any) -> None:
    b = GraphBuilder()
    y = b.op("nn.conv2d", b.param("x", tensor(1, 2, 4, 4)), array(3, 2, 1, 1))
    z = b.op("add", b.op("nn.batch_norm", y, *statistics(3)), y)
    module = ir.IRModule({"main": b.finish("main", z)})
    folded = run(module, "fold_affine")
    assert names(folded) == ["nn.conv2d", "subtract", "multiply", "add", "add"]
    x = array(1, 2, 4, 4)
    np.testing.assert_allclose(evaluate(folded, x), evaluate(module, x), rtol=1e-5, atol=1e-5)


def test_what_would_not_be_finite_is_not_folded(run: Any) -> None:
    b = GraphBuilder()
    y = b.op("nn.conv2d", b.param("x", tensor(1, 2, 4, 4)), array(3, 2, 1, 1) * 1e30)
    y = b.op("multiply", y, np.full((3, 1, 1), 1e30, np.float32))
    module = ir.IRModule({"main": b.finish("main", y)})
    assert run(module, "fold_affine")["main"] is module["main"]


def test_weights_that_are_arguments_stay(run: Any) -> None:
    b = GraphBuilder()
    y = b.op("linear", b.param("x", tensor(3, 4)), b.param("w", tensor(5, 4)))
    module = ir.IRModule({"main": b.finish("main", b.op("multiply", y, array(5)))})
    assert run(module, "fold_affine")["main"] is module["main"]


def test_folding_costs_no_accuracy(run: Any) -> None:
    """Against float64: the folded convolution errs at most twice as much as the two steps do."""
    b = GraphBuilder()
    x, w = array(1, 64, 12, 12), array(32, 64, 3, 3)
    y = b.op("nn.conv2d", b.param("x", tensor(*x.shape)), w)
    stats = statistics(32)
    module = ir.IRModule({"main": b.finish("main", b.op("nn.batch_norm", y, *stats))})
    exact = OPERATORS["nn.batch_norm"].oracle(
        OPERATORS["nn.conv2d"].oracle(
            x.astype(np.float64), w.astype(np.float64), **OPERATORS["nn.conv2d"].attrs
        ),
        *stats,
        **OPERATORS["nn.batch_norm"].attrs,
    )
    errors = [
        np.abs(lowered(m, run, x) - exact).max() for m in (run(module, "fold_affine"), module)
    ]
    assert errors[0] <= 2 * errors[1]


def lowered(module: ir.IRModule, run: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The result of the tensor programs one after another, in float32 as written."""
    from blockwright.build import build
    from blockwright.passes.rewrite import tir_args, tir_callee

    legal = run(module, "legalize")
    public = {
        name: func.replace(attrs={**func.attrs, "tir.is_private": False})
        for name, func in legal.functions.items() if isinstance(func, ir.PrimFunc)
    }  # fmt: skip
    library = build(ir.IRModule(public))
    main = legal["main"]
    values: dict[Any, Any] = {main.params[0]: x}
    for binding in main.bindings:
        args = [
            a.data if isinstance(a, ir.Constant) else values[a] for a in tir_args(binding.value)
        ]
        out = np.empty([ir.const_int(d) for d in binding.var.tensor_info.shape], np.float32)
        library[tir_callee(binding.value)](*args, out)
        values[binding.var] = out
    return values[main.body.body]

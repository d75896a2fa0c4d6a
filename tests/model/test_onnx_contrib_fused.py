"""Operators that ONNX Runtime's optimizer fuses: products, convolutions, activations, norms."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockwright as bw

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import helper, numpy_helper

from tests.onnx_nodes import ONLY_OURS, Array, Drawn, Model, Node, answers, node, number

_DRAWN = Drawn()
F = _DRAWN.floats
_X, _EIGHT, _SKIP = F(2, 3, 8), F(8), F(2, 3, 8)
_IMAGE, _FILTER, _FOUR = F(1, 3, 6, 6), F(4, 3, 3, 3), F(4)


def _product(*shapes: tuple[int, ...], op: str = "FusedMatMul", **attrs: Any) -> Node:
    return node(op, *(F(*shape) for shape in shapes), attrs=attrs)


def _conv(activation: str, *numbers: float, **attrs: Any) -> Node:
    if numbers:
        attrs["activation_params"] = numbers
    return node(
        "FusedConv",
        _IMAGE,
        _FILTER,
        _FOUR,
        attrs={"activation": activation, **attrs},
        tolerance=1e-4,
    )


PRODUCTS = (
    _product((2, 3, 4), (2, 5, 4), alpha=0.5, transB=1),
    _product((2, 4, 3), (2, 4, 5), transA=1),
    _product((3, 2, 6, 4), (2, 6, 4, 5), transBatchA=1),
    _product((4, 2, 3), (2, 4, 5), transBatchA=1, transA=1),
    _product((2, 3, 4), (4, 2, 5), transBatchB=1),
    _product((4,), (4, 5), transA=1),
    _product((3, 4), (5, 4), op="TransposeMatMul", transB=1),
    _product((3, 4), (5, 4), (5,), op="FusedGemm", transB=1, activation="Relu"),
    _product(
        (4, 3),
        (4, 5),
        (5,),
        op="FusedGemm",
        transA=1,
        alpha=2.0,
        beta=0.5,
        activation="LeakyRelu",
        activation_alpha=0.3,
    ),
    _product((4, 3), (3, 5), op="FusedGemm", activation="Tanh"),
)
CONVOLUTIONS = (
    _conv("Relu", pads=[1, 1, 1, 1]),
    _conv("Tanh", strides=[2, 2]),
    _conv("Sigmoid"),
    _conv("LeakyRelu", 0.2),
    _conv("Clip", -0.5, 0.5),
    _conv("HardSigmoid", 0.3, 0.4),
    node(
        "FusedConv",
        _IMAGE,
        _FILTER,
        _FOUR,
        F(1, 4, 4, 4),
        attrs={"activation": "Relu"},
        tolerance=1e-4,
    ),
)
ACTIVATIONS = (
    node("Gelu", _X),
    node("BiasGelu", _X, _EIGHT),
    node("FastGelu", _X),
    node("FastGelu", _X, _EIGHT),
    node("FastGelu", _X.astype("float16"), _EIGHT.astype("float16"), tolerance=2e-3),
    node("QuickGelu", _X),
    node("QuickGelu", _X, attrs={"alpha": 1.0}),
    node("QuickGelu", _X, attrs={"alpha": 0.5}),
)
_SUM: dict[str, Any] = {"outputs": (True, False, False, True)}
_HALF = [v.astype("float16") for v in (_X, _SKIP, _EIGHT, F(8), F(8))]
_IDS, _SEGMENTS = number([[6, 0, 2], [1, 3, 3]], "int32"), number([[0, 0, 1], [1, 0, 1]], "int32")
_WORDS, _PLACES, _KINDS = F(7, 8), F(5, 8), F(2, 8)
_MASK = number([[1, 1, 0], [1, 1, 1]], "int32")
NORMS = (
    node("SkipLayerNormalization", _X, _SKIP, _EIGHT, F(8), F(8), **_SUM),
    node("SkipLayerNormalization", _X, _SKIP, _EIGHT, attrs={"epsilon": 1e-3}),
    node("SkipLayerNormalization", _X, F(3, 8), _EIGHT, F(8)),
    node("SkipLayerNormalization", _X, F(1, 3, 8), _EIGHT, F(8), **_SUM),
    node("SkipLayerNormalization", *_HALF, tolerance=5e-3, **_SUM),
    node("SkipSimplifiedLayerNormalization", _X, _SKIP, _EIGHT, F(8), **_SUM),
    node("SkipSimplifiedLayerNormalization", F(3, 8), F(3, 8), _EIGHT, attrs={"epsilon": 0.01}),
    node("SimplifiedLayerNormalization", _X, _EIGHT, domain=""),
    node("SimplifiedLayerNormalization", _X, F(3, 8), attrs={"axis": 1, "epsilon": 0.1}, domain=""),
    node(
        "EmbedLayerNormalization",
        *(_IDS, _SEGMENTS, _WORDS, _PLACES, _KINDS, _EIGHT, F(8), _MASK),
        outputs=(True, True, True),
    ),
    node(
        "EmbedLayerNormalization",
        *(_IDS, None, _WORDS, _PLACES, None, _EIGHT, F(8), None, number([[2, 1, 0]], "int32")),
        attrs={"epsilon": 1e-3},
        outputs=(True, True),
    ),
)
_GRID = np.clip(F(1, 3, 4, 2), -1.2, 1.2)
_PADS = number([0, 1, 0, 1, 0, 2], "int64")
MOVES = (
    *(node("ExpandDims", _X, number(axis, "int32"), known=[1]) for axis in (1, 3, -1, -2)),
    node("GatherND", _X, number([[0, 1], [1, -1]], "int32")),
    *(
        node("Pad", _X, _PADS, attrs={"mode": m}, known=[1])
        for m in ("constant", "edge", "reflect")
    ),
    node("Pad", _X, _PADS.reshape(1, -1), number([2]), known=[1, 2]),
    node("Pad", _X, number([0, -1, 0, 0, 1, -2], "int64"), known=[1]),
    node("Trilu", _X),
    node("Trilu", _X, number(1, "int64"), attrs={"upper": 0}, known=[1]),
    *(
        node("GridSample", F(1, 2, 5, 6), _GRID, attrs={"mode": m, **more}, tolerance=1e-4)
        for m in ("bilinear", "nearest", "bicubic")
        for more in ({}, {"padding_mode": "border", "align_corners": 1})
    ),
    node("Range", number(2, "int32"), number(7, "int32"), known=[0, 1]),
    node("Range", number([2]), number([7]), number([0.5]), known=[0, 1, 2]),
)


@pytest.mark.parametrize("nodes", [PRODUCTS, CONVOLUTIONS, ACTIVATIONS, NORMS, MOVES])
def test_nodes_compute_what_onnx_runtime_does(nodes: tuple[Node, ...]) -> None:
    Model(nodes).interpreted()


def test_compiled_nodes_compute_what_onnx_runtime_does() -> None:
    Model(
        (*PRODUCTS[:2], PRODUCTS[8], *CONVOLUTIONS[-1:], *ACTIVATIONS[1:6], *NORMS[:1])
    ).compiled()


def test_sizes_may_be_symbols() -> None:
    ids = {0: ["batch", "length"], 1: ["batch", "length"], 7: ["batch", "length"]}
    wide = {0: ["batch", "length", 8], 1: ["batch", "length", 8]}
    nodes = (
        NORMS[0]._replace(shapes=wide),
        NORMS[9]._replace(shapes=ids),
        PRODUCTS[0]._replace(shapes={0: ["batch", "length", 4], 1: ["batch", "other", 4]}),
        node("BiasSplitGelu", _X, _EIGHT, shapes={0: ["batch", "length", 8]}),
    )
    Model(nodes[:3]).interpreted()
    assert not bw.import_model(Model(nodes).proto, fallback="error").attrs.get("fallbacks")


# ----------------------------------------------------- operators that ONNX Runtime's CPU code lacks


def _gelu(x: Array) -> Array:
    return x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _grouped(x: Array, gamma: Array, beta: Array) -> Array:
    """Group norm of two groups of channels, which are last, then SiLU."""
    apart = x.astype("float64").reshape(x.shape[0], -1, 2, x.shape[-1] // 2)
    mean, variance = apart.mean((1, 3), keepdims=True), apart.var((1, 3), keepdims=True)
    y = ((apart - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape) * gamma + beta
    return y / (1 + np.exp(-y))


def test_operators_for_other_devices_follow_their_definitions() -> None:
    image, skip, gamma, beta = F(2, 3, 3, 8), F(2, 8), F(8), F(8)
    total = image + skip[:, None, None] + _EIGHT
    added = _X + _EIGHT
    bias = F(1, 3, 8)
    spread = F(2, 1, 1, 8)
    scores = F(2, 3, 4, 8)
    weight = F(8, 5)
    approximate = added[0] @ weight
    tanh = np.tanh(np.sqrt(2 / np.pi) * (approximate + 0.044715 * approximate**3))
    norm = {"groups": 2, "activation": 1}
    first = {**norm, "channels_last": 0}
    planes, one = np.moveaxis(image, -1, 1), np.moveaxis(skip[:, None, None], -1, 1)
    grouped = _grouped(total, gamma, beta)
    inner = {"axis": 3, "is_inner_broadcast": 1}
    outer = {"axis": 1, "is_inner_broadcast": 0}
    relu = {"activation": "Relu"}
    cases: list[tuple[Node, list[Array]]] = [
        (node("BiasAdd", _X, _EIGHT, _SKIP), [_X + _EIGHT + _SKIP]),
        (node("BiasSplitGelu", _X, _EIGHT), [added[..., :4] * _gelu(added[..., 4:])]),
        (
            node("BiasSoftmax", _X, bias, attrs=outer),
            [_softmax((_X + bias).reshape(2, -1)).reshape(_X.shape)],
        ),
        (node("BiasSoftmax", scores, spread, attrs=inner), [_softmax(scores + spread)]),
        (node("GemmFastGelu", added[0], weight), [approximate * (1 + tanh) / 2]),
        (
            node("FusedMatMulActivation", added[0], weight, attrs=relu),
            [np.maximum(approximate, 0)],
        ),
        (node("GroupNorm", total, gamma, beta, attrs=norm), [grouped]),
        (
            node(
                "SkipGroupNorm", image, gamma, beta, skip, _EIGHT, attrs=norm, outputs=(True, True)
            ),
            [grouped, total],
        ),
        (
            node(
                *("SkipGroupNorm", planes, gamma, beta, one, _EIGHT),
                attrs=first,
                outputs=(True, True),
            ),
            [np.moveaxis(grouped, -1, 1), np.moveaxis(total, -1, 1)],
        ),
    ]
    proto = Model([case for case, _ in cases])
    found = bw.interpret(bw.import_model(proto.proto, fallback="error"), *proto.arguments)
    wanted = [value for _, values in cases for value in values]
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


def test_convolutions_with_channels_last() -> None:
    more = F(1, 4, 4, 4)
    plain = node("FusedConv", _IMAGE, _FILTER, _FOUR, more, attrs={"activation": "Relu"})
    moved = [np.moveaxis(v, 1, -1) for v in (_IMAGE, more)]
    last = node("NhwcFusedConv", moved[0], _FILTER, _FOUR, moved[1], attrs={"activation": "Relu"})
    bare = node("NhwcConv", moved[0], _FILTER, attrs={"strides": [2, 2]})
    model = Model([last, bare])
    found = bw.interpret(bw.import_model(model.proto, fallback="error"), *model.arguments)
    (wanted,) = answers(Model([plain]).proto, Model([plain]).arguments)
    np.testing.assert_allclose(np.moveaxis(found[0], -1, 1), wanted, rtol=1e-4, atol=1e-4)
    assert found[1].shape == (1, 2, 2, 4)


# ----------------------------------------------------------------------------- models of optimizers


def test_a_model_that_the_optimizer_of_onnx_runtime_wrote(tmp_path: Path) -> None:
    """A convolution, a product with its transposition and GELU, which it fuses."""
    made = helper.make_node
    nodes = [
        made("Conv", ["x", "filter", "shift"], ["a"], pads=[1, 1, 1, 1]),
        made("Relu", ["a"], ["b"]),
        made("Reshape", ["b", "shape"], ["c"]),
        made("Transpose", ["c"], ["d"], perm=[0, 2, 1]),
        made("MatMul", ["c", "d"], ["e"]),
        made("Mul", ["e", "small"], ["f"]),
        made("MatMul", ["f", "weight"], ["g"]),
        made("Add", ["g", "bias"], ["h"]),
        made("Div", ["h", "root"], ["i"]),
        made("Erf", ["i"], ["j"]),
        made("Add", ["j", "one"], ["k"]),
        made("Mul", ["h", "k"], ["l"]),
        made("Mul", ["l", "half"], ["y"]),
    ]
    constants = {
        "filter": F(4, 3, 3, 3),
        "shift": F(4),
        "shape": number([0, 4, 36], "int64"),
        "small": number(0.1),
        "weight": F(4, 4),
        "bias": F(4),
        "root": number(math.sqrt(2)),
        "one": number(1),
        "half": number(0.5),
    }
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "graph",
        [info("x", 1, ["n", 3, 6, 6])],
        [info("y", 1, None)],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    x = F(2, 3, 6, 6)
    path = tmp_path / "optimized.onnx"
    (wanted,) = answers(proto, [x], optimize=str(path))
    operators = {n.op_type for n in onnx.load(path).graph.node}
    assert {"FusedConv", "FusedMatMul", "BiasGelu"} <= operators
    exe = bw.compile(path, options=ONLY_OURS)
    np.testing.assert_allclose(exe(x)[0], wanted, rtol=1e-4, atol=1e-4)

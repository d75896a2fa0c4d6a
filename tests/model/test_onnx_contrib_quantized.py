"""Quantized operators of ONNX Runtime, and models that its tools quantize."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
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
F, BYTES, SCALES = _DRAWN.floats, _DRAWN.bytes, _DRAWN.scales


# --------------------------------------------------------------------------- weights of few bits


def _few_bits(
    bits: int, depth: int, block: int, zero: str = "packed", dtype: str = "float32", **more: Any
) -> Node:
    columns, blocks = 6, -(-depth // block)
    zeros = {
        "none": None,
        "packed": BYTES(columns, -(-blocks * bits // 8)),
        "float": F(columns, blocks).astype(dtype),
    }
    return node(
        "MatMulNBits",
        F(2, 3, depth).astype(dtype),
        BYTES(columns, blocks, block * bits // 8),
        (SCALES(columns, blocks) / 2 ** (bits - 2)).astype(dtype),
        zeros[zero],
        attrs={"K": depth, "N": columns, "bits": bits, "block_size": block},
        tolerance=2e-2 if dtype == "float16" else 2e-5,
        **more,
    )


def _with_bias(each: Node) -> Node:
    return each._replace(inputs=(*each.inputs, None, F(6)))


def _table(bits: int, zero: bool) -> Node:
    return node(
        "GatherBlockQuantized",
        BYTES(10, 32 * bits // 8),
        np.array([[1, 9], [-1, 0]]),
        SCALES(10, 2),
        BYTES(10, -(-2 * bits // 8)) if zero else None,
        attrs={"bits": bits, "block_size": 16, "quantize_axis": 1, "gather_axis": 0},
        known=[0, 2, 3],
    )


FEW_BITS = (
    *(_few_bits(bits, 40, 16, zero) for bits in (2, 4, 8) for zero in ("none", "packed")),
    _few_bits(4, 40, 16, "float"),
    _few_bits(4, 64, 64, dtype="float16", known=[1, 2, 3]),
    _with_bias(_few_bits(4, 32, 32, known=[1, 2, 3, 5])),
    _few_bits(4, 64, 32, shapes={0: ["b", "s", 64]}, known=[1, 2, 3]),
    *(_table(bits, zero) for bits in (4, 8) for zero in (False, True)),
)

# ----------------------------------------------------------------------------------------- products

_LEFT, _SIGNED, _UNSIGNED = BYTES(2, 3, 8), BYTES(8, 5, dtype="int8"), BYTES(8, 5)
_TENTH, _MIDDLE, _THREE = number(0.1), number(120, "uint8"), number(3, "int8")
_SUMS = _DRAWN.random.integers(-999, 999, 5).astype("int32")
_X = F(2, 3, 8)


def _gemm(dtype: str, *more: Array | None, transposed: bool = False, **attrs: Any) -> Node:
    a, b = BYTES(3, 8, dtype=dtype), BYTES(8, 5, dtype=dtype)
    zeros = [number(v, dtype) for v in (5, 4)]
    b = b.T.copy() if transposed else b
    return node(
        *("QGemm", a, _TENTH, zeros[0], b, number(0.05), zeros[1], *more),
        attrs={"transB": int(transposed), **attrs},
        known=[3],
        tolerance=1 if len(more) > 1 else 1e-4,
    )


def _embedding() -> Node:
    """Quantized tables of words, positions and segments."""
    words = _DRAWN.random.integers(0, 7, (2, 3)).astype("int32")
    tables = [BYTES(7, 8), BYTES(5, 8), BYTES(2, 8), BYTES(8), BYTES(8)]
    scales, zeros = [*SCALES(5)], [*BYTES(5)]
    return node(
        *("QEmbedLayerNormalization", words, words % 2, *tables, number([[1, 1, 0]] * 2, "int32")),
        *map(np.asarray, (*scales, *zeros)),
        outputs=(True, True),
        tolerance=1e-4,
    )


def _lstm(dtype: str, directions: int, *more: Array | None, **attrs: Any) -> Node:
    """An LSTM of 3 inputs and a state of 4; `more` are its bias, lengths, states and peepholes.

    Backwards, ONNX Runtime starts all sequences in the same step, so that their states share a
    scale in other steps.
    """
    weights = BYTES(directions, 3, 16, dtype=dtype), BYTES(directions, 4, 16, dtype=dtype)
    more = (*more, *[None] * (5 - len(more)))
    shape, zeros = (directions,), BYTES(directions, dtype=dtype)
    if attrs.pop("columns", False):
        shape, zeros = (directions, 16), np.zeros((directions, 16), dtype)
    scales = SCALES(*shape) / 40, SCALES(*shape) / 40
    return node(
        *("DynamicQuantizeLSTM", F(5, 2, 3), *weights, *more),
        *(scales[0], zeros, scales[1], zeros),
        attrs={"hidden_size": 4, **attrs},
        known=[1, 2, 3, 7, 8, 9, 10, 11],
        outputs=(True, True, True),
        shapes={0: ["steps", "batch", 3]},
        tolerance=1e-3 if directions == 2 else 1e-5,
    )


_HEADS = {"num_heads": 2}
_TOKENS, _MERGED = BYTES(2, 4, 16), BYTES(16, 48, dtype="int8")
_SMALL = number(0.02)
_LENGTHS = number([3, 2], "int32")
_STATES = F(2, 2, 4), F(2, 2, 4)
PRODUCTS = (
    _lstm("int8", 1),
    _lstm("uint8", 1, F(1, 32), direction="reverse"),
    _lstm("int8", 2, F(2, 32), _LENGTHS, *_STATES, F(2, 12), direction="bidirectional"),
    _lstm("int8", 1, F(1, 32), columns=True),
    node("MatMulInteger16", *(BYTES(*s).astype("int16") - 99 for s in ((3, 4), (4, 5)))),
    node("MatMulIntegerToFloat", _LEFT, _SIGNED, _TENTH, _SMALL, _MIDDLE, _THREE, F(5)),
    node(
        *("MatMulIntegerToFloat", _LEFT, _UNSIGNED, _TENTH, SCALES(5), _MIDDLE, BYTES(5)),
        tolerance=1e-4,
    ),
    node("DynamicQuantizeMatMul", _X, _SIGNED, _TENTH, _THREE, F(5), tolerance=1e-4),
    node("DynamicQuantizeMatMul", _X, _UNSIGNED, SCALES(5), BYTES(5), tolerance=1e-4),
    node("DynamicQuantizeMatMul", 0 * _X, _SIGNED, _TENTH, _THREE, F(5)),
    node("DynamicQuantizeLinear", _X, outputs=(True, True, True), domain=""),
    node("DynamicQuantizeLinear", 0 * _X, outputs=(True, True, True), domain=""),
    _gemm("uint8", _SUMS, number(0.9), number(2, "uint8"), alpha=1.5),
    _gemm("int8", None, number(0.9), number(2, "int8")),
    _gemm("uint8", _SUMS, transposed=True),
    _embedding(),
    node(
        *("QAttention", _TOKENS, _MERGED, F(48), _SMALL, _SMALL),
        *(number([[1, 1, 1, 0], [1, 0, 0, 0]], "int32"), _MIDDLE, _THREE),
        attrs=_HEADS,
        tolerance=1e-4,
    ),
    node(
        *("QAttention", _TOKENS, _MERGED, F(48), _SMALL, SCALES(48) / 5),
        *(None, _MIDDLE, np.zeros(48, "int8"), F(2, 2, 2, 3, 8)),
        attrs={**_HEADS, "unidirectional": 1},
        outputs=(True, True),
        known=[1],
        tolerance=1e-4,
    ),
)

# ------------------------------------------------------------------------ operators on real numbers


def _real(dtype: str) -> Iterator[Node]:
    """Operators on bytes of a type."""
    a, b, image = (
        BYTES(2, 3, 8, dtype=dtype),
        BYTES(3, 8, dtype=dtype),
        BYTES(2, 4, 6, 6, dtype=dtype),
    )
    zero, one, nine = (number(v, dtype) for v in (5, 1, 9))
    given = (a, number(0.05), zero)
    share = (number(0.004), one)
    yield node("QLinearAdd", *given, b, number(0.07), nine, number(0.13), one, tolerance=1)
    yield node("QLinearMul", *given, b, number(0.07), nine, number(0.43), one, tolerance=1)
    yield node("QLinearSigmoid", *given, *share, tolerance=1)
    yield node("QLinearLeakyRelu", *given, number(0.06), nine, attrs={"alpha": 0.2}, tolerance=1)
    for attrs in ({"opset": 13}, {"opset": 13, "axis": 1}, {"opset": 12, "axis": 1}):
        yield node("QLinearSoftmax", *given, *share, attrs=attrs, tolerance=1)
    yield node(
        *("QLinearConcat", _TENTH, one, *given, BYTES(2, 2, 8, dtype=dtype), number(0.2), nine),
        attrs={"axis": 1},
        known=[0, 1, 3, 4, 6, 7],
        tolerance=1,
    )
    yield node(
        *("QLinearWhere", F(2, 3, 8) > 0, *given, b, number(0.2), nine, _TENTH, one),
        known=[2, 3, 5, 6, 7, 8],
        tolerance=1,
    )
    pixels = (image, number(0.05), zero, number(0.03), one)
    window = {"kernel_shape": [3, 3], "strides": [2, 2]}
    for last in (0, 1):
        layout = {"channels_last": last}
        yield node("QLinearGlobalAveragePool", *pixels, attrs=layout, tolerance=1)
        padded = {**window, **layout, "pads": [1, 1, 1, 1], "count_include_pad": last}
        yield node("QLinearAveragePool", *pixels, attrs=padded, tolerance=1)
    yield node("QLinearAveragePool", *pixels, attrs={**window, "ceil_mode": 1}, tolerance=1)
    yield node("NhwcMaxPool", image, attrs={**window, "pads": [1, 1, 1, 1]})
    yield node("NhwcMaxPool", image, attrs={**window, "auto_pad": "SAME_UPPER"})


REAL = (*_real("uint8"), *_real("int8"))
CONVERSIONS = (
    node(
        *("QLinearConv", BYTES(1, 6, 6, 4), _TENTH, number(9, "uint8")),
        *(BYTES(3, 4, 3, 3, dtype="int8"), SCALES(3), np.zeros(3, "int8")),
        *(number(2), number(100, "uint8"), _SUMS[:3]),
        attrs={"channels_last": 1, "pads": [1, 1, 1, 1]},
        known=[3, 4, 5],
        tolerance=1,
    ),
    node("QuantizeLinear", _X, number(0.05), number(7, "uint8")),
    node("QuantizeLinear", _X, number(0.001), number(-7, "int16")),
    node("QuantizeLinear", _X, SCALES(3), BYTES(3), attrs={"axis": 1}),
    node("DequantizeLinear", _LEFT, SCALES(3), BYTES(3), attrs={"axis": 1}),
    node("DequantizeLinear", _SUMS, number(0.01)),
    node("DequantizeLinear", _LEFT, number(0.05, "float16"), number(7, "uint8"), tolerance=1e-3),
)


@pytest.mark.parametrize("nodes", [FEW_BITS, PRODUCTS, REAL, CONVERSIONS])
def test_nodes_compute_what_onnx_runtime_does(nodes: tuple[Node, ...]) -> None:
    Model(nodes).interpreted()


@pytest.mark.slow
def test_compiled_nodes_compute_what_onnx_runtime_does() -> None:
    Model((FEW_BITS[9], PRODUCTS[3], REAL[1])).compiled()


def test_a_mean_is_quantized_again() -> None:
    """ONNX Runtime's CPU code lacks it."""
    attrs = {"axes": [1], "keepdims": 0}
    zero, one = number(5, "uint8"), number(1, "uint8")
    model = Model([node("QLinearReduceMean", _LEFT, _TENTH, zero, number(0.04), one, attrs=attrs)])
    found = bw.interpret(bw.import_model(model.proto, fallback="error"), *model.arguments)
    wanted = ((_LEFT.astype("float64") - 5) * 0.1).mean(1) / 0.04 + 1
    assert np.abs(found.astype("float64") - np.clip(wanted, 0, 255)).max() <= 0.51


def test_rows_beyond_a_table_are_zero() -> None:
    each = _table(4, True)
    inputs = [*each.inputs]
    inputs[1] = np.array([[10, 9], [-11, 0]])
    Model([each._replace(inputs=inputs)]).interpreted()


def test_groups_of_a_weight_in_any_order_run_in_the_fallback() -> None:
    each = _few_bits(4, 32, 16)
    order = np.arange(32, dtype="int32") // 16
    model = Model([each._replace(inputs=(*each.inputs, order))])
    with pytest.raises(bw.ImporterError, match=r"MatMulNBits node0: .*not covered") as caught:
        bw.import_model(model.proto, fallback="error")
    assert caught.value.code == "BW501"


# ------------------------------------------------------------------------------------ tools of ORT


class _Images:
    """Three inputs that ranges of activations are taken from."""

    def __init__(self, values: list[Array]) -> None:
        self.values = iter(values)

    def get_next(self) -> dict[str, Array] | None:
        value = next(self.values, None)
        return None if value is None else {"x": value}


def small_network(path: Path) -> None:
    """A convolution with a shortcut, a pool, and two layers."""
    made = helper.make_node
    nodes = [
        made("Conv", ["x", "filter", "shift"], ["a"], "first", pads=[1, 1, 1, 1]),
        made("Relu", ["a"], ["b"], "second"),
        made("Conv", ["b", "more"], ["c"], "third", pads=[1, 1, 1, 1]),
        made("Add", ["b", "c"], ["d"], "fourth"),
        made("GlobalAveragePool", ["d"], ["e"], "fifth"),
        made("Flatten", ["e"], ["f"], "sixth"),
        made("Gemm", ["f", "weight", "bias"], ["g"], "seventh", transB=1),
        made("Sigmoid", ["g"], ["h"], "eighth"),
        made("MatMul", ["h", "last"], ["y"], "ninth"),
    ]
    constants = {
        "filter": F(4, 3, 3, 3) / 3,
        "shift": F(4),
        "more": F(4, 4, 3, 3) / 4,
        "weight": F(32, 4),
        "bias": F(32),
        "last": F(32, 5),
    }
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", 1, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", 1, ["n", 5])],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path
    )


def _quantized(method: str, path: Path, values: list[Array]) -> Any:
    """The network, as a tool of ONNX Runtime quantizes it."""
    import onnxruntime.quantization as tools  # pyright: ignore[reportMissingImports]

    ort: Any = tools
    result = path.with_name("quantized.onnx")
    if method == "dynamic":
        ort.quantize_dynamic(path, result, reduce_range=True)
    elif method == "static":
        formats = ort.QuantFormat.QOperator
        ort.quantize_static(
            path, result, _Images(values), quant_format=formats, reduce_range=True, per_channel=True
        )
    else:
        pytest.importorskip("onnx_ir")
        name = "onnxruntime.quantization.matmul_nbits_quantizer"
        bits: Any = importlib.import_module(name)
        made = bits.MatMulNBitsQuantizer(onnx.load(path), block_size=16, is_symmetric=False)
        made.process()
        made.model.save_model_to_file(str(result))
    return onnx.load(result)


OPERATORS = {
    "dynamic": {"ConvInteger", "MatMulInteger"},
    "static": {"QLinearConv", "QLinearAdd", "QLinearGlobalAveragePool", "QGemm", "QLinearSigmoid"},
    "few bits": {"MatMulNBits"},
}


@pytest.mark.parametrize("method", OPERATORS)
@pytest.mark.filterwarnings("ignore")
def test_quantized_models_compute_what_onnx_runtime_does(method: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    small_network(path)
    values = [F(2, 3, 8, 8) for _ in range(3)]
    proto = _quantized(method, path, values)
    assert OPERATORS[method] <= {n.op_type for n in proto.graph.node}
    program = bw.import_model(proto, fallback="error")
    for x in (values[0], values[1][:1]):
        (wanted,) = answers(proto, [x])
        np.testing.assert_allclose(bw.interpret(program, x), wanted, rtol=1e-3, atol=0.03)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_quantized_model_compiles(tmp_path: Path) -> None:
    small_network(path := tmp_path / "model.onnx")
    x = F(2, 3, 8, 8)
    proto = _quantized("static", path, [x])
    (wanted,) = answers(proto, [x])
    found = bw.compile(proto, options=ONLY_OURS)(x)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=0.03)

"""ONNX models with elements of 4 and 2 bits and with floats of 8 and 4 bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import blockwright as bw

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


def info(name: str, shape: list[Any] | None, kind: int) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], **constants: Array) -> Any:
    tensors = [numpy_helper.from_array(v, n) for n, v in constants.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])


@pytest.mark.parametrize("name", ["int4", "uint2"])
def test_weights_below_a_byte_are_decoded_in_blocks(name: str) -> None:
    kind = getattr(ml_dtypes, name)
    rng, limits = np.random.default_rng(0), ml_dtypes.iinfo(kind)
    weight = rng.integers(limits.min, int(limits.max) + 1, (8, 4)).astype(kind)
    scale, zero = rng.random((2, 4), "float32"), np.ones((2, 4), kind)
    nodes = [
        helper.make_node(
            "DequantizeLinear", ["weight", "scale", "zero"], ["w"], block_size=4, axis=0
        ),
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("QuantizeLinear", ["product", "step", "none"], ["y"]),
    ]
    outputs = [info("y", None, getattr(TensorProto, name.upper())), info("product", None, 1)]
    exe = bw.compile(
        model(
            nodes,
            [info("x", ["n", 8], TensorProto.FLOAT)],
            outputs,
            weight=weight,
            scale=scale,
            zero=zero,
            step=np.array(0.7, "float32"),
            none=np.zeros((), kind),
        )
    )
    x = rng.standard_normal((3, 8)).astype("float32")
    y, product = exe(x)
    decoded = (weight.astype("float32") - 1) * scale.repeat(4, 0)
    np.testing.assert_allclose(product, x @ decoded, rtol=1e-5, atol=1e-5)
    wanted = np.clip(np.rint(product / np.float32(0.7)), int(limits.min), int(limits.max))
    assert y.dtype == ("int8" if name == "int4" else "uint8")  # elements are passed as bytes
    np.testing.assert_array_equal(y, wanted)


def test_elements_below_a_byte_are_passed_as_bytes() -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    outputs = [info("y", ["n"], TensorProto.FLOAT)]
    exe = bw.compile(model([node], [info("x", ["n"], TensorProto.INT4)], outputs))
    numbers = np.arange(-8, 8)
    for x in (numbers.astype("int8"), numbers.astype(ml_dtypes.int4)):
        np.testing.assert_array_equal(exe(x)[0], numbers)
    with pytest.raises(bw.ArgumentError, match="pass elements of int4 in bytes") as caught:
        exe(numbers.astype("int16"))
    assert caught.value.code == "BW703"


def test_casts_to_small_floats_saturate() -> None:
    names = ("FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ", "FLOAT8E8M0", "FLOAT4E2M1")
    nodes = [
        helper.make_node("Cast", ["x"], [name.lower()], to=getattr(TensorProto, name))
        for name in names
    ]
    outputs = [info(name.lower(), ["n"], getattr(TensorProto, name)) for name in names]
    program = bw.import_model(model(nodes, [info("x", ["n"], TensorProto.FLOAT)], outputs))
    x = np.array([0.3, -1.2, 1e6, -1e6, 3.0], "float32")
    first, second, powers, last = bw.interpret(program, x)
    np.testing.assert_array_equal(first.astype("float32"), [0.3125, -1.25, 240, -240, 3])
    np.testing.assert_array_equal(second.astype("float32"), [0.3125, -1.25, 57344, -57344, 3])
    np.testing.assert_array_equal(powers.astype("float32"), [0.5, 2, 2**20, 2**20, 4])
    np.testing.assert_array_equal(last.astype("float32"), [0.5, -1, 6, -6, 3])
    compiled = bw.compile(program)(x)
    for found, wanted in zip(compiled[:3], (first, second, powers), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found.view("uint8"), wanted.view("uint8"))
    np.testing.assert_array_equal(compiled[3], last.view("uint8"))


@pytest.mark.parametrize("name", ["int4", "float4_e2m1fn"])
def test_elements_below_a_byte_are_moved(name: str) -> None:
    """Transposed, reversed, repeated, padded: vectors, single elements and gathers."""
    kind = getattr(TensorProto, {"int4": "INT4", "float4_e2m1fn": "FLOAT4E2M1"}[name])
    made = {
        "first": [-1],
        "last": [-100],
        "axis": [1],
        "back": [-1],
        "twice": [1, 2],
        "wide": [2, 1],
    }
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"]),
        helper.make_node("Slice", ["x", "first", "last", "axis", "back"], ["reversed"]),
        helper.make_node("Tile", ["x", "twice"], ["tiled"]),
        helper.make_node("Expand", ["row", "wide"], ["spread"]),
    ]
    names = ("turned", "reversed", "tiled", "spread")
    proto = model(
        nodes,
        [info("x", ["n", 40], kind), info("row", [1, "m"], kind)],
        [info(n, None, kind) for n in names],
        **{n: np.array(v) for n, v in made.items()},
    )
    codes = np.random.default_rng(0).integers(0, 16, (5, 40)).astype("uint8")
    x = codes.view(getattr(ml_dtypes, name))
    bits = x.astype("int8") if name == "int4" else codes
    turned, backward, tiled, spread = bw.compile(proto)(x, x[:1])
    np.testing.assert_array_equal(turned, bits.T)
    np.testing.assert_array_equal(backward, bits[:, ::-1])
    np.testing.assert_array_equal(tiled, np.tile(bits, (1, 2)))
    np.testing.assert_array_equal(spread, np.repeat(bits[:1], 2, 0))

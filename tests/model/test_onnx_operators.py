"""ONNX operators without a row of the same form: against NumPy, for more than one size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32
Array = np.ndarray[Any, Any]


def program(
    node: Any,
    shapes: dict[str, Any],
    constants: dict[str, Array] | None = None,
    kind: int = FLOAT,
) -> Any:
    """The import of a model with one node."""
    inputs = [helper.make_tensor_value_info(n, kind, s) for n, s in shapes.items()]
    outputs = [helper.make_tensor_value_info(n, FLOAT, None) for n in node.output]
    tensors = [numpy_helper.from_array(v, n) for n, v in (constants or {}).items()]
    graph = helper.make_graph([node], "graph", inputs, outputs, tensors)
    return bw.import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))


def drawn(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def test_distinct_slices_in_order_and_as_they_appear() -> None:
    names = ["y", "first", "places", "counts"]
    x = np.array([[3, 1], [0, 2], [3, 1], [0, 1], [0, 2]], "int32")
    node = helper.make_node("Unique", ["x"], names, axis=0)
    found = bw.compile(program(node, {"x": ["n", 2]}, kind=INT32))(x)
    wanted = np.unique(x, True, True, True, axis=0)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want.reshape(got.shape))
    node = helper.make_node("Unique", ["x"], names, axis=0, sorted=0)
    y, first, places, counts = bw.interpret(program(node, {"x": ["n", 2]}, kind=INT32), x)
    np.testing.assert_array_equal(y, [[3, 1], [0, 2], [0, 1]])
    np.testing.assert_array_equal(first, [0, 1, 3])
    np.testing.assert_array_equal(places, [0, 1, 0, 2, 1])
    np.testing.assert_array_equal(counts, [2, 2, 1])


@pytest.mark.parametrize("count", [9, 10])
def test_real_signals_return_from_half_of_their_spectrum(count: int) -> None:
    node = helper.make_node("DFT", ["x", "count", "axis"], ["y"], inverse=1, onesided=1)
    constants = {"count": np.array(count), "axis": np.array(1)}
    signal = drawn(3, count, 2)
    spectrum = np.fft.rfft(signal, axis=1)
    x = np.stack([spectrum.real, spectrum.imag], -1).astype("float32")
    made = program(node, {"x": ["n", count // 2 + 1, 2, 2]}, constants)
    np.testing.assert_allclose(bw.interpret(made, x)[..., 0], signal, rtol=1e-4, atol=1e-5)


def test_frames_of_a_signal_of_any_length() -> None:
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"])
    window = np.hanning(8).astype("float32")
    made = program(node, {"x": [1, "n", 1]}, {"step": np.array(3), "window": window})
    for length in (8, 21):
        x = drawn(1, length, 1)
        frames = np.lib.stride_tricks.sliding_window_view(x[0, :, 0], 8)[::3]
        wanted = np.fft.rfft(frames * window)
        found = bw.interpret(made, x)
        np.testing.assert_allclose(found[0, ..., 0], wanted.real, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[0, ..., 1], wanted.imag, rtol=1e-4, atol=1e-5)


def test_batch_norm_in_training_moves_its_statistics() -> None:
    node = helper.make_node(
        "BatchNormalization",
        ["x", "scale", "bias", "mean", "var"],
        ["y", "m", "v"],
        training_mode=1,
        momentum=0.75,
    )
    held = {n: np.abs(drawn(k + 3)[k:]) for k, n in enumerate(("scale", "bias", "mean", "var"))}
    x = drawn(4, 3, 5)
    y, m, v = bw.interpret(program(node, {"x": ["n", 3, 5]}, held), x)
    mean, var = x.mean((0, 2)), x.var((0, 2))
    np.testing.assert_allclose(m, 0.75 * held["mean"] + 0.25 * mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(v, 0.75 * held["var"] + 0.25 * var, rtol=1e-5)
    normed = (x - mean[:, None]) / np.sqrt(var + 1e-5)[:, None]
    wanted = normed * held["scale"][:, None] + held["bias"][:, None]
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)

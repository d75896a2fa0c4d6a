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
    outputs = [helper.make_tensor_value_info(n, FLOAT, None) for n in node.output if n]
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


def test_distinct_elements_of_a_matrix_are_counted_as_a_vector() -> None:
    """The group of each element is a vector too (ONNX Runtime), not a matrix as in PyTorch."""
    x = np.array([[3, 1, 3], [0, 2, 1]], "int32")
    for ordered, wanted in ((1, [3, 1, 3, 0, 2, 1]), (0, [0, 1, 0, 2, 3, 1])):
        node = helper.make_node("Unique", ["x"], ["y", "", "places"], sorted=ordered)
        _, places = bw.interpret(program(node, {"x": ["n", 3]}, kind=INT32), x)
        np.testing.assert_array_equal(places, wanted, strict=False)
        assert places.shape == (6,)


@pytest.mark.parametrize(
    ("op", "wanted"),
    [("Mean", [2, 0]), ("L2", [7, 3]), ("LogSum", [2, 0]), ("LogSumExp", [7, 3])],
)
def test_reductions_of_integers_are_cut_off(op: str, wanted: list[int]) -> None:
    """As ONNX Runtime and the function bodies of ONNX have it."""
    node = helper.make_node(f"Reduce{op}", ["x"], ["y"], axes=[1], keepdims=0)
    x = np.array([[7, 0, 1, 3], [-1, 3, -1, 1]], "int32")
    model = helper.make_model(
        helper.make_graph(
            [node],
            "graph",
            [helper.make_tensor_value_info("x", INT32, ["n", 4])],
            [helper.make_tensor_value_info("y", INT32, None)],
        ),
        opset_imports=[helper.make_opsetid("", 13)],
    )
    np.testing.assert_array_equal(bw.compile(model)(x), [wanted])


def test_constants_of_selu_are_those_of_single_precision() -> None:
    node = helper.make_node("Selu", ["x"], ["y"])
    x = np.array([0.5, -2.0])
    gamma, alpha = float(np.float32(1.0507009873554805)), float(np.float32(1.6732632423543772))
    found = bw.interpret(program(node, {"x": ["n"]}, kind=TensorProto.DOUBLE), x)
    wanted = [gamma * 0.5, gamma * alpha * np.expm1(-2.0)]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("count", [9, 10])
def test_real_signals_return_from_half_of_their_spectrum(count: int) -> None:
    node = helper.make_node("DFT", ["x", "count", "axis"], ["y"], inverse=1, onesided=1)
    constants = {"count": np.array(count), "axis": np.array(1)}
    signal = drawn(3, count, 2)
    spectrum = np.fft.rfft(signal, axis=1)
    x = np.stack([spectrum.real, spectrum.imag], -1).astype("float32")
    made = program(node, {"x": ["n", count // 2 + 1, 2, 2]}, constants)
    np.testing.assert_allclose(bw.interpret(made, x)[..., 0], signal, rtol=1e-4, atol=1e-5)


def test_transforms_of_any_length() -> None:
    """Also of a length that the model computes when it runs."""
    node = helper.make_node("DFT", ["x", "", "axis"], ["y"])
    made = bw.compile(program(node, {"x": [2, "n", 1]}, {"axis": np.array(1)}))
    back = helper.make_node("DFT", ["x", "", "axis"], ["y"], inverse=1, onesided=1)
    returned = program(back, {"x": [2, "n", 2]}, {"axis": np.array(1)})
    for length in (7, 12):
        x = drawn(2, length, 1)
        wanted = np.fft.fft(x[..., 0])
        [found] = made(x)
        np.testing.assert_allclose(found[..., 0], wanted.real, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[..., 1], wanted.imag, rtol=1e-4, atol=1e-5)
        half = np.fft.rfft(x[..., 0])
        signal = bw.interpret(returned, np.stack([half.real, half.imag], -1).astype("float32"))
        whole = np.fft.irfft(half)
        np.testing.assert_allclose(signal[..., 0], whole, rtol=1e-4, atol=1e-5)


def test_ranges_and_parts_whose_sizes_are_computed_at_the_call() -> None:
    """(begin, end, step) of a range, then the number of largest elements, and the parts of x."""
    kinds = {"bounds": 7, "ends": FLOAT, "k": 7, "parts": 7, "x": FLOAT}
    shapes = {"bounds": [3], "ends": [3], "k": [], "parts": [2], "x": ["n"]}
    nodes = [
        helper.make_node("Split", ["bounds"], ["b0", "b1", "b2"], num_outputs=3),
        helper.make_node("Range", ["b0", "b1", "b2"], ["whole"]),
        helper.make_node("Split", ["ends"], ["e0", "e1", "e2"], num_outputs=3),
        helper.make_node("Range", ["e0", "e1", "e2"], ["fractions"]),
        helper.make_node("TopK", ["x", "k"], ["largest", "places"]),
        helper.make_node("Split", ["x", "parts"], ["first", "second"]),
        helper.make_node("Pad", ["x", "parts"], ["padded"]),
        helper.make_node("Neg", ["parts"], ["minus"]),
        helper.make_node("Pad", ["x", "minus"], ["cut"]),
    ]
    outputs = ["whole", "fractions", "largest", "first", "second", "padded", "cut"]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(n, kinds[n], shapes[n]) for n in kinds],
        [helper.make_empty_tensor_value_info(n) for n in outputs],
    )
    exe = bw.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    x = np.arange(5, dtype="float32")
    for bounds, ends, k, parts in (
        ((0, 9, 2), (0, 1, 0.25), 2, (1, 4)),
        ((5, 0, -2), (2, 3.1, 0.5), 5, (5, 0)),
        ((5, 0, 1), (1, 0, 0.5), 1, (3, 2)),
    ):
        arguments = np.array(bounds), np.array(ends, "float32"), np.array([k]), np.array(parts)
        found = exe(*arguments[:2], np.array(k), arguments[3], x)
        wanted = [np.arange(*bounds), np.arange(*ends), x[::-1][:k], x[: parts[0]], x[parts[0] :]]
        cut = x[parts[0] : 5 - parts[1]]
        for got, want in zip(found, [*wanted, np.pad(x, parts), cut], strict=True):
            np.testing.assert_array_equal(got, want)
    with pytest.raises(bw.ArgumentError) as caught:
        exe(np.array([0, 1, 1]), np.ones(3, "float32"), np.array(1), np.array([1, 3]), x)
    assert caught.value.code == "BW708"


def test_sizes_of_one_that_are_computed_at_the_call_are_repeated() -> None:
    """x has n rows; the range has as many elements, or one that is added to every row."""
    nodes = [
        helper.make_node("Range", ["zero", "k", "one"], ["numbers"]),
        helper.make_node("Unsqueeze", ["numbers", "axis"], ["column"]),
        helper.make_node("Add", ["x", "column"], ["y"]),
        helper.make_node("Less", ["column", "two"], ["few"]),
        helper.make_node("Where", ["few", "column", "x"], ["z"]),
    ]
    constants = {"zero": np.array(0), "one": np.array(1), "two": np.array(2), "axis": np.array([1])}
    tensors = [numpy_helper.from_array(v, n) for n, v in constants.items()]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.INT64, ["n", 3]),
        helper.make_tensor_value_info("k", TensorProto.INT64, []),
    ]
    outputs = [helper.make_empty_tensor_value_info(n) for n in ("y", "z")]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    exe = bw.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    for rows, count in ((4, 4), (4, 1), (1, 1), (0, 1)):
        x = np.arange(rows * 3).reshape(rows, 3) - 5
        column = np.arange(count)[:, None]
        y, z = exe(x, np.array(count))
        np.testing.assert_array_equal(y, x + column)
        np.testing.assert_array_equal(z, np.where(column < 2, column, x))
    with pytest.raises(bw.ArgumentError) as caught:
        exe(np.zeros((4, 3), "int64"), np.array(2))
    assert caught.value.code == "BW708"


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


@pytest.mark.parametrize("kind", ["float32", "int32", "bool"])
@pytest.mark.parametrize("upper", [0, 1])
def test_triangles_whose_diagonal_is_computed(upper: int, kind: str) -> None:
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    graph = helper.make_graph(
        [helper.make_node("Trilu", ["x", "k"], ["y"], upper=upper)],
        "graph",
        [
            helper.make_tensor_value_info("x", number, ["n", 3, "m"]),
            helper.make_tensor_value_info("k", TensorProto.INT64, []),
        ],
        [helper.make_empty_tensor_value_info("y")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    exe = bw.compile(proto, options={"fallback": "error"})
    x = (np.arange(24).reshape(2, 3, 4) + 1).astype(kind)
    least, most = np.iinfo("int64").min, np.iinfo("int64").max
    for k in (-5, -1, 0, 2, 5, least, most):
        wanted = (np.triu if upper else np.tril)(x, int(np.clip(k, -9, 9)))
        np.testing.assert_array_equal(exe(x, np.array(k))[0], wanted)


def test_frames_of_a_complex_signal() -> None:
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"], onesided=0)
    window = np.hanning(8).astype("float32")
    made = program(node, {"x": [1, "n", 2]}, {"step": np.array(3), "window": window})
    x = drawn(1, 21, 2)
    signal = x[0, :, 0] + 1j * x[0, :, 1]
    frames = np.lib.stride_tricks.sliding_window_view(signal, 8)[::3]
    wanted = np.fft.fft(frames * window)
    found = bw.interpret(made, x)[0]
    np.testing.assert_allclose(found[..., 0], wanted.real, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[..., 1], wanted.imag, rtol=1e-4, atol=1e-5)


def test_signals_state_whether_they_are_complex() -> None:
    """A last axis of any size would be read as real numbers."""
    node = helper.make_node("DFT", ["x"], ["y"])
    with pytest.raises(bw.ImporterError, match="declare it as 1 for real numbers, or as 2"):
        program(node, {"x": [1, 8, "parts"]})


@pytest.mark.parametrize("reverse", [0, 1])
def test_exclusive_sums_along_axes_of_any_length(reverse: int) -> None:
    node = helper.make_node("CumSum", ["x", "axis"], ["y"], exclusive=1, reverse=reverse)
    exe = bw.compile(program(node, {"x": [2, "n"]}, {"axis": np.array(1)}))
    for length in (0, 1, 4):
        sums = np.tile(np.arange(length, dtype="float32"), (2, 1))
        found = exe(np.ones((2, length), "float32"))[0]
        np.testing.assert_array_equal(found, sums[:, ::-1] if reverse else sums)


def test_sign_of_nan_is_nan() -> None:
    made = program(helper.make_node("Sign", ["x"], ["y"]), {"x": ["n"]})
    x = np.array([np.nan, -np.inf, -0.5, -0.0, 2.0], "float32")
    np.testing.assert_array_equal(bw.compile(made)(x)[0], [np.nan, -1, -1, 0, 1])
    np.testing.assert_array_equal(bw.interpret(made, x), [np.nan, -1, -1, 0, 1])


def gathering(shape: list[Any], places: list[Any], batch: int = 0) -> Any:
    node = helper.make_node("GatherND", ["x", "at"], ["y"], batch_dims=batch)
    inputs = [
        helper.make_tensor_value_info("x", FLOAT, shape),
        helper.make_tensor_value_info("at", TensorProto.INT64, places),
    ]
    outputs = [helper.make_tensor_value_info("y", FLOAT, None)]
    graph = helper.make_graph([node], "graph", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.mark.parametrize("place", [[0, 4], [0, 7], [1, -5], [1, -6], [3, 0], [-4, 0]])
def test_each_coordinate_lies_within_its_own_axis(place: list[int]) -> None:
    """Also where the position in memory would be that of another row's element."""
    x = np.arange(12, dtype="float32").reshape(3, 4)
    exe = bw.compile(gathering(["n", 4], ["k", 2]))
    np.testing.assert_array_equal(exe(x, np.array([[2, -1], [-3, 0]]))[0], [11, 0])
    with pytest.raises(bw.ArgumentError) as caught:
        exe(x, np.array([place]))
    assert caught.value.code == "BW708"


def test_coordinates_of_a_batch_select_from_their_own_row() -> None:
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    exe = bw.compile(gathering(["n", "m", 4], ["n", "k", 1], batch=1))
    found = exe(x, np.array([[[1], [0]], [[2], [-1]]]))[0]
    np.testing.assert_array_equal(found, np.stack([x[0, [1, 0]], x[1, [2, 2]]]))
    exe = bw.compile(gathering(["n", "m", 4], ["n", "m", 1], batch=2))
    found = exe(x, np.array([[[1], [0], [3]], [[2], [-1], [0]]]))[0]
    np.testing.assert_array_equal(found, [[1, 4, 11], [14, 19, 20]])
    with pytest.raises(bw.ArgumentError) as caught:
        exe(x, np.array([[[1], [0], [4]], [[2], [-1], [0]]]))
    assert caught.value.code == "BW708"


def test_parameters_belong_to_the_activations_that_take_one() -> None:
    """The only alpha is that of the first function with an alpha, which is the second of all."""
    for alpha in (0.3, None):
        given: dict[str, Any] = {} if alpha is None else {"activation_alpha": [alpha]}
        node = helper.make_node(
            "RNN",
            ["x", "w", "r"],
            ["y"],
            hidden_size=1,
            direction="bidirectional",
            activations=["Relu", "LeakyRelu"],
            **given,
        )
        weights = {"w": np.ones((2, 1, 1), "float32"), "r": np.zeros((2, 1, 1), "float32")}
        exe = bw.compile(program(node, {"x": ["n", 1, 1]}, weights))
        x = np.array([2, -1, -4], "float32")
        found = exe(x.reshape(3, 1, 1))[0].reshape(3, 2)
        slope = np.float32(0.01 if alpha is None else alpha)
        np.testing.assert_allclose(found[:, 0], np.maximum(x, 0))
        np.testing.assert_allclose(found[:, 1], np.where(x < 0, slope * x, x), rtol=1e-6)


def test_every_direction_lists_its_activations() -> None:
    node = helper.make_node(
        "RNN",
        ["x", "w", "r"],
        ["y"],
        hidden_size=1,
        direction="bidirectional",
        activations=["Relu"],
    )
    weights = {"w": np.ones((2, 1, 1), "float32"), "r": np.zeros((2, 1, 1), "float32")}
    with pytest.raises(bw.ImporterError, match="list those of all directions"):
        program(node, {"x": ["n", 1, 1]}, weights)

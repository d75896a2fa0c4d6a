"""Windows and resizes of images whose sizes are known only at the call, against ONNX Runtime."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

import blockwright as bw

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
IMAGE = {"x": ("n", 2, "h", "w")}


def model(
    node: Any, constants: dict[str, Any] | None = None, shapes: dict[str, Any] | None = None
) -> Any:
    """A model with nodes, whose inputs are float32."""
    nodes = node if isinstance(node, list) else [node]
    inputs = [helper.make_tensor_value_info(k, 1, s) for k, s in (shapes or IMAGE).items()]
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    outputs = [helper.make_empty_tensor_value_info("y")]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def drawn(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def agrees(proto: Any, *calls: tuple[Array, ...], compiled: bool = False) -> None:
    """Imported once, the model computes what ONNX Runtime does, for all calls."""
    module = bw.import_model(proto, fallback="error")
    exe = bw.compile(module) if compiled else None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    names = [i.name for i in session.get_inputs()]
    for arrays in calls:
        [wanted] = session.run(None, dict(zip(names, arrays, strict=True)))
        found = bw.interpret(module, *arrays) if exe is None else exe(*arrays)[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


IMAGES = [(drawn(2, 2, h, w),) for h, w in ((5, 6), (6, 7), (1, 1), (9, 4))]


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool", "LpPool"])
def test_windows_that_keep_the_size(op: str, mode: str) -> None:
    attrs: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": mode}
    weights = {"k": drawn(4, 2, 3, 3)} if op == "Conv" else {}
    proto = model(helper.make_node(op, ["x", *weights], ["y"], **attrs), weights)
    agrees(proto, *IMAGES, compiled=op in ("Conv", "MaxPool") and mode == "SAME_LOWER")


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 1, 1]])
def test_windows_that_end_outside_count_as_zeros(pads: list[int]) -> None:
    attrs: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}
    node = helper.make_node("LpPool", ["x"], ["y"], pads=pads, **attrs)
    agrees(model(node), *IMAGES[:2], IMAGES[3])


MODES = [
    {"mode": mode, "coordinate_transformation_mode": place}
    for mode in ("nearest", "linear", "cubic")
    for place in ("half_pixel", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric")
]


@pytest.mark.parametrize("attrs", MODES, ids=lambda a: "-".join(a.values()))
def test_resizes_of_any_size(attrs: dict[str, str]) -> None:
    """By scales that are numbers, and to the size of another image."""
    scaled = helper.make_node("Resize", ["x", "", "scales"], ["y"], **attrs)
    scales = {"scales": np.array([1, 1, 0.5, 1.5], "float32")}
    agrees(model(scaled, scales), (drawn(2, 2, 4, 6),), (drawn(2, 2, 8, 3),), compiled=True)
    sized = [
        helper.make_node("Shape", ["other"], ["size"]),
        helper.make_node("Resize", ["x", "", "", "size"], ["y"], **attrs),
    ]
    shapes = {**IMAGE, "other": ("n", 2, "p", "q")}
    others = [(drawn(1, 2, 4, 5), drawn(1, 2, 8, 3)), (drawn(1, 2, 3, 2), drawn(1, 2, 3, 8))]
    agrees(model(sized, shapes=shapes), *others)


def test_sizes_that_the_model_computes() -> None:
    """Of axes of known and of unknown sizes."""
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear")
    calls = [(drawn(1, 2, 4, 5), np.array([1, 2, *s])) for s in ((4, 5), (2, 9))]
    for image in ((1, 2, 4, 5), (1, 2, "h", "w")):
        proto = model(node, shapes={"x": image, "sizes": (4,)})
        proto.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
        agrees(proto, *calls)


PAIRS = [(5, 1.4), (3, 10 / 3), (10, 0.7), (6, 1 / 3), (10, 0.6), (31, 0.3), (13, 0.6)]
"""Sizes and scales whose product, or a position, is an integer in float32 only."""


@pytest.mark.parametrize(
    ("place", "nearest"),
    [
        ("half_pixel", "round_prefer_ceil"),
        ("asymmetric", "floor"),
        ("pytorch_half_pixel", "ceil"),
        ("half_pixel_symmetric", "round_prefer_floor"),
        ("tf_half_pixel_for_nn", "round_prefer_ceil"),
        ("align_corners", "round_prefer_floor"),
    ],
)
def test_scales_are_float32(place: str, nearest: str) -> None:
    """Sizes and nearest elements are those of ONNX Runtime, which computes them in float32."""
    attrs: dict[str, Any] = {
        "coordinate_transformation_mode": place,
        "nearest_mode": nearest,
        "mode": "nearest",
    }
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **attrs)
    pairs = PAIRS if place != "align_corners" else PAIRS[:4]  # which are integers
    calls = [
        (np.arange(size, dtype="float32")[None], np.array([1, scale], "float32"))
        for size, scale in pairs
    ]
    agrees(model(node, shapes={"x": ("m", "n"), "scales": (2,)}), *calls, compiled=True)
    for x, scales in calls:
        constant = {"scales": scales}
        agrees(model(node, constant, {"x": x.shape}), (x,))
        agrees(model(node, constant, {"x": ("m", "n")}), (x,))
    sized = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attrs)
    for x, scales in calls:
        sizes = {"sizes": np.array([1, int(np.float32(x.shape[1]) * scales[1])])}
        agrees(model(sized, sizes, {"x": x.shape}), (x,))


@pytest.mark.parametrize(("size", "scale", "wanted"), [(5, 1.4, 7), (3, 10 / 3, 10), (10, 0.7, 7)])
def test_scaled_sizes(size: int, scale: float, wanted: int) -> None:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    x, scales = drawn(1, size), {"scales": np.array([1, scale], "float32")}
    for shape in ((1, size), (1, "n")):
        module = bw.import_model(model(node, scales, {"x": shape}))
        assert bw.interpret(module, x).shape == (1, wanted)


def test_resizes_to_the_size_of_another_image_by_scales() -> None:
    """As older exporters write it: the scales are quotients of sizes."""
    nodes = [
        helper.make_node("Shape", ["x"], ["from"], start=2),
        helper.make_node("Shape", ["other"], ["to"], start=2),
        helper.make_node("Cast", ["from"], ["below"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Cast", ["to"], ["above"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Div", ["above", "below"], ["both"]),
        helper.make_node("Concat", ["ones", "both"], ["scales"], axis=0),
        helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest"),
    ]
    ones = {"ones": np.ones(2, "float32")}
    calls = [((3, 6), (10, 2)), ((10, 5), (7, 7)), ((4, 4), (8, 4)), ((7, 13), (3, 29))]
    exe = bw.compile(model(nodes, ones, {**IMAGE, "other": ("n", 2, "p", "q")}))
    for before, after in calls:
        x, other = drawn(1, 2, *before), drawn(1, 2, *after)
        assert exe(x, other)[0].shape == other.shape
        fixed = model(nodes, ones, {"x": x.shape, "other": other.shape})
        agrees(fixed, (x, other))
        agrees(model(nodes, ones, {**IMAGE, "other": ("n", 2, "p", "q")}), (x, other))


def test_scales_that_the_model_computes() -> None:
    shapes = {**IMAGE, "scales": (4,)}
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    calls = [(drawn(1, 2, 4, 5), np.array([1, 1, s, 2], "float32")) for s in (0.5, 1, 2)]
    agrees(model(node, shapes=shapes), *calls)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "attrs",
    [
        {"sizes": np.array([1, 1, 4, 4])},
        {"sizes": np.array([1, 1, 4, 6])},
        {"scales": np.ones(4, "float32")},
        {"scales": np.array([1, 1, 1, 1.5], "float32")},
    ],
    ids=str,
)
@pytest.mark.parametrize("region", [(0.25, 0.25, 0.75, 0.75), (0, 0, 1, 1), (-0.2, 0.1, 1.2, 0.65)])
def test_regions_are_cropped_also_where_the_size_stays(
    mode: str, attrs: dict[str, Array], region: tuple[float, ...]
) -> None:
    """Against ONNX's own evaluator: ONNX Runtime does not crop axes of the same size."""
    from onnx.reference import ReferenceEvaluator

    names = ["x", "roi", *(name if name in attrs else "" for name in ("scales", "sizes"))]
    node = helper.make_node(
        "Resize",
        names,
        ["y"],
        mode=mode,
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=9.0,
    )
    top, left, bottom, right = region
    roi = np.array([0, 0, top, left, 1, 1, bottom, right], "float32")
    proto = model(node, {"roi": roi, **attrs}, {"x": (1, 1, 4, 4)})
    x = drawn(1, 1, 4, 4)
    wanted = cast("Any", ReferenceEvaluator(proto)).run(None, {"x": x})[0]
    found = bw.interpret(bw.import_model(proto, fallback="error"), x)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_resizes_are_the_same_for_known_and_for_unknown_sizes() -> None:
    for attrs in (
        {"mode": "linear", "antialias": 1},
        {"mode": "cubic", "antialias": 1, "cubic_coeff_a": -0.5},
        {"mode": "cubic", "exclude_outside": 1},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"mode": "nearest", "nearest_mode": "ceil"},
    ):
        node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **attrs)
        scales = {"scales": np.array([1, 1, 0.4, 1.25], "float32")}
        x = drawn(1, 2, 11, 8)
        known = bw.interpret(bw.import_model(model(node, scales, {"x": x.shape})), x)
        unknown = bw.interpret(bw.import_model(model(node, scales)), x)
        np.testing.assert_allclose(unknown, known, rtol=1e-5, atol=1e-6)


def test_blocks_of_any_image() -> None:
    proto = model(helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2))
    agrees(proto, (drawn(1, 2, 4, 6),), (drawn(2, 2, 2, 2),))
    with pytest.raises(bw.ArgumentError, match="no multiple of the block size"):
        bw.compile(proto)(drawn(1, 2, 3, 4))


@pytest.mark.parametrize("mode", ["edge", "wrap", "constant"])
def test_paddings(mode: str) -> None:
    """Also of bools, and wider than the axis that is repeated."""
    pads = np.array([0, 7, 0, 5])
    node = helper.make_node("Pad", ["x", "pads"], ["y"], mode=mode)
    for dtype in ("float32", "bool"):
        x = np.arange(6).reshape(2, 3).astype(dtype)
        kind = helper.np_dtype_to_tensor_dtype(x.dtype)
        graph = helper.make_graph(
            [node],
            "graph",
            [helper.make_tensor_value_info("x", kind, ["n", 3])],
            [helper.make_empty_tensor_value_info("y")],
            [numpy_helper.from_array(pads, "pads")],
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
        wanted = np.pad(x, ((0, 0), (7, 5)), mode=mode)  # pyright: ignore[reportCallIssue, reportArgumentType]
        np.testing.assert_array_equal(bw.interpret(bw.import_model(proto), x), wanted)


def test_parts_that_do_not_add_up_to_the_axis_are_refused() -> None:
    node = helper.make_node("Split", ["x", "parts"], ["y", "z"], axis=1)
    with pytest.raises(bw.ImporterError, match="do not add up") as caught:
        bw.compile(model(node, {"parts": np.array([1, 2])}))
    assert caught.value.code == "BW507"

"""Nodes of older opsets: the version of an operator that the model's opset selects decides."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest

import blockwright as bw

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper

from tests.onnx_nodes import Model, Node, node

Array = np.ndarray[Any, Any]


class Case(NamedTuple):
    """A node, and the opsets in which it has this form."""

    first: int
    last: int
    node: Node


def x(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def f(*values: float) -> Array:
    return np.array(values, "float32")


def i(*values: int) -> Array:
    return np.array(values, "int64")


def case(first: int, last: int, op: str, *inputs: Array | None, **more: Any) -> Case:
    form = {k: more.pop(k) for k in ("outputs", "known", "tolerance") if k in more}
    return Case(first, last, node(op, *inputs, attrs=more, domain="", **form))


_CUBE, _IMAGE = x(2, 3, 4), x(1, 4, 6, 6)
_CHANNELS = [np.abs(x(4)) + k for k in range(4)]
_BOXES = np.array([[0, 0, 4, 4], [1, 1, 5, 3]], "float32")
_QUANTIZED = np.arange(6, dtype="uint8")

CASES = [
    # Another meaning since 13: axes from `axis` on are normalized together.
    *(
        case(7, 13, op, _CUBE, **attrs)
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for attrs in ({}, {"axis": 0}, {"axis": 1}, {"axis": 2})
    ),
    *(case(11, 13, op, _CUBE, axis=-2) for op in ("Softmax", "LogSoftmax", "Hardmax")),
    case(10, 22, "RoiAlign", _IMAGE, _BOXES, i(0, 0), output_height=2, output_width=2),
    # Attributes that are inputs in newer versions.
    case(7, 9, "TopK", _CUBE, k=2, outputs=(True, True)),
    case(7, 9, "TopK", _CUBE, k=2, axis=1, outputs=(True, True)),
    case(10, 10, "TopK", _CUBE, i(2), known=(1,), outputs=(True, True)),
    case(7, 12, "Squeeze", x(2, 1, 3, 1), axes=[1]),
    case(7, 12, "Unsqueeze", x(2, 3), axes=[0, 2]),
    case(7, 12, "Split", x(5, 2), split=[2, 3], axis=0, outputs=(True, True)),
    case(7, 12, "Split", x(6, 2), outputs=(True, True)),
    case(7, 9, "Slice", _CUBE, axes=[1, 2], starts=[1, -3], ends=[3, 100]),
    case(10, 13, "Slice", _CUBE, i(0), i(3), i(2), i(2), known=(1, 2, 3, 4)),
    case(7, 10, "Pad", x(2, 3), pads=[1, 0, 0, 2], value=0.5),
    case(7, 10, "Pad", x(2, 3), pads=[0, 1, 0, 2], mode="reflect"),
    case(7, 10, "Clip", x(2, 3), min=-0.5, max=0.25),
    case(7, 10, "Clip", f(np.inf, 1, -np.inf), max=2.0),
    case(11, 13, "Clip", x(2, 3), None, np.array(0.25, "float32"), known=(2,)),
    *(
        case(7, 12, f"Reduce{op}", np.abs(_CUBE), axes=[1], keepdims=k, tolerance=1e-4)
        for op in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "SumSquare")
        for k in (0, 1)
    ),
    case(7, 17, "ReduceLogSumExp", _CUBE, axes=[0, 2]),
    case(7, 12, "ReduceMean", _CUBE),
    case(7, 11, "Dropout", x(2, 3), ratio=0.4),
    case(12, 13, "Dropout", x(2, 3), np.array(0.4, "float32"), known=(1,)),
    # Attributes that newer versions add.
    case(7, 12, "DepthToSpace", _IMAGE, blocksize=2),
    case(11, 13, "DepthToSpace", _IMAGE, blocksize=2, mode="CRD"),
    case(7, 13, "SpaceToDepth", _IMAGE, blocksize=2),
    case(11, 13, "GatherND", _CUBE, np.array([[0, 1], [1, 2]], "int64")),
    case(12, 13, "GatherND", _CUBE, np.array([[1], [2]], "int64"), batch_dims=1),
    case(7, 13, "ArgMax", _CUBE, axis=1),
    case(7, 13, "ArgMin", _CUBE, axis=2, keepdims=0),
    case(7, 18, "AveragePool", _IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
    case(7, 13, "AveragePool", _IMAGE, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1),
    case(10, 13, "AveragePool", _IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case(7, 13, "AveragePool", _IMAGE, kernel_shape=[3, 3], auto_pad="SAME_LOWER"),
    case(7, 13, "MaxPool", _IMAGE, kernel_shape=[3, 2], auto_pad="SAME_UPPER"),
    case(10, 13, "MaxPool", _IMAGE, kernel_shape=[2, 2], dilations=[2, 2]),
    case(7, 13, "LpPool", _IMAGE, kernel_shape=[2, 2], p=3),
    case(7, 13, "GlobalLpPool", _IMAGE, p=1),
    case(7, 13, "BatchNormalization", _IMAGE, *_CHANNELS, momentum=0.5),
    case(7, 8, "BatchNormalization", _IMAGE, *_CHANNELS, spatial=1),
    case(7, 13, "InstanceNormalization", _IMAGE, *_CHANNELS[:2]),
    case(7, 13, "LRN", _IMAGE, size=3),
    case(7, 13, "LpNormalization", _CUBE, axis=1, p=1),
    case(9, 13, "MeanVarianceNormalization", _IMAGE, tolerance=1e-4),
    case(10, 12, "QuantizeLinear", x(2, 3), np.array(0.1, "float32"), np.array(3, "uint8")),
    case(10, 12, "DequantizeLinear", _QUANTIZED, np.array(0.1, "float32"), np.array(3, "uint8")),
    case(10, 13, "Mod", i(-7, 7), i(3, -3)),
    case(10, 13, "Mod", f(-7.5, 7.5), f(3, -3), fmod=1),
    # The same form in all of these.
    case(7, 13, "Gemm", x(2, 3), x(4, 3), x(2, 1), transB=1, alpha=0.5),
    case(7, 13, "MatMul", x(2, 2, 3), x(3, 2)),
    case(7, 13, "Conv", _IMAGE, x(2, 4, 3, 3), auto_pad="SAME_LOWER", strides=[2, 2]),
    case(7, 13, "ConvTranspose", _IMAGE, x(4, 2, 3, 3), strides=[2, 2], tolerance=1e-4),
    case(7, 13, "PRelu", _IMAGE, x(4, 1, 1)),
    case(7, 13, "PRelu", _IMAGE, x(6)),
    *(case(7, 13, op, x(2, 3), x(3)) for op in ("Add", "Sub", "Mul", "Div", "Greater", "Less")),
    case(7, 13, "Pow", np.abs(x(2, 3)), x(3)),
    case(7, 13, "Equal", i(1, 2), i(1, 3)),
    case(8, 13, "Max", x(2, 3), x(3), x(2, 1)),
    case(8, 13, "Mean", x(2, 3), x(3)),
    case(8, 13, "Expand", x(2, 1), i(2, 1, 3), known=(1,)),
    case(7, 13, "Tile", x(2, 3), i(2, 1), known=(1,)),
    case(7, 13, "Reshape", x(2, 3, 4), i(0, -1), known=(1,)),
    case(7, 13, "Flatten", x(2, 3, 4), axis=2),
    case(7, 13, "Gather", x(4, 3), i(2, 0), axis=0),
    case(7, 13, "Concat", x(2, 3), x(2, 1), axis=1),
    case(7, 13, "Cast", x(2, 3), to=TensorProto.INT32),
    case(7, 13, "Selu", x(5)),
    case(7, 13, "Elu", x(5), alpha=0.5),
    case(7, 13, "HardSigmoid", x(5)),
    case(9, 10, "Scatter", x(3, 3), np.array([[1, 0, 2]], "int64"), x(1, 3)),
    case(11, 15, "ScatterElements", x(3, 3), np.array([[1, 0, 2]], "int64"), x(1, 3)),
    case(9, 13, "OneHot", i(1, 0, 5), i(3), f(2, 5), known=(1,)),
    case(7, 8, "Upsample", x(1, 1, 2, 3), scales=[1.0, 1.0, 2.0, 2.0]),
    case(9, 9, "Upsample", x(1, 1, 2, 3), f(1, 1, 2, 2), known=(1,), mode="linear"),
    case(11, 12, "Resize", x(1, 1, 4, 4), f(), f(1, 1, 2, 0.5), known=(1, 2), mode="linear"),
    case(
        7,
        13,
        "LSTM",
        x(3, 2, 4),
        x(1, 12, 4),
        x(1, 12, 3),
        hidden_size=3,
        outputs=(True, True, True),
    ),
    case(7, 13, "GRU", x(3, 2, 4), x(1, 9, 4), x(1, 9, 3), hidden_size=3, outputs=(True, True)),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("opset", range(7, 15))
def test_nodes_of_older_opsets(opset: int) -> None:
    Model([c.node for c in CASES if c.first <= opset <= c.last], opset).interpreted()


def model(opset: int, op: str, *inputs: Array, known: tuple[int, ...] = (), **attrs: Any) -> Any:
    """A model of one node, for opsets that ONNX Runtime does not run."""
    names = [f"x{k}" for k in range(len(inputs))]
    kinds = [helper.np_dtype_to_tensor_dtype(v.dtype) for v in inputs]
    declared = [
        helper.make_tensor_value_info(n, kind, v.shape)
        for n, kind, v in zip(names, kinds, inputs, strict=True)
    ]
    constants = [numpy_helper.from_array(inputs[k], names[k]) for k in known]
    result = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attrs)], "g", declared, [result]
    )
    graph.initializer.extend(constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)


def computed(opset: int, op: str, *inputs: Array, known: tuple[int, ...] = (), **attrs: Any) -> Any:
    program = bw.import_model(model(opset, op, *inputs, known=known, **attrs), fallback="error")
    return bw.interpret(program, *(v for k, v in enumerate(inputs) if k not in known))


def test_operands_that_are_broadcast_from_an_axis_on() -> None:
    a, b = x(2, 3, 4), x(3)
    np.testing.assert_array_equal(computed(6, "Add", a, b, broadcast=1, axis=1), a + b[:, None])
    np.testing.assert_array_equal(
        computed(1, "Mul", a, x(2, 3), broadcast=1, axis=0), a * x(2, 3)[:, :, None]
    )
    np.testing.assert_array_equal(computed(6, "Sub", a, x(4), broadcast=1), a - x(4))
    np.testing.assert_array_equal(computed(1, "Less", a, b, broadcast=1, axis=1), a < b[:, None])
    np.testing.assert_array_equal(computed(1, "Relu", a, consumed_inputs=[0]), np.maximum(a, 0))
    known = computed(6, "Add", a, b, known=(0, 1), broadcast=1, axis=1)
    np.testing.assert_array_equal(known, a + b[:, None])
    with pytest.raises(bw.BlockwrightError) as caught:
        computed(6, "Add", a, b, broadcast=1, axis=3)
    assert caught.value.code == "BW507"


def test_one_slope_for_each_channel() -> None:
    a, slope = x(2, 3, 4), x(3)
    wanted = np.where(a < 0, a * slope[:, None], a)
    np.testing.assert_array_equal(computed(6, "PRelu", a, slope), wanted)


def test_operands_that_were_attributes() -> None:
    a = x(2, 3)
    np.testing.assert_array_equal(computed(1, "Reshape", a, shape=[3, -1]), a.reshape(3, 2))
    np.testing.assert_array_equal(computed(1, "Concat", a, a), np.concatenate([a, a], 1))
    np.testing.assert_array_equal(computed(1, "Cast", a, to="INT32"), a.astype("int32"))
    np.testing.assert_array_equal(
        computed(1, "Pad", a, paddings=[0, 1, 0, 2]), np.pad(a, ((0, 0), (1, 2)))
    )
    image = x(1, 1, 2, 3)
    larger = computed(1, "Upsample", image, height_scale=2.0, width_scale=3.0)
    np.testing.assert_array_equal(larger, image.repeat(2, 2).repeat(3, 3))


def test_infinity_is_clipped_to_the_largest_number() -> None:
    """The bounds of version 6 are attributes with these defaults; later a bound may be missing."""
    most = float(np.finfo("float32").max)
    np.testing.assert_array_equal(computed(6, "Clip", f(np.inf, 1), min=-1.0), f(most, 1))
    np.testing.assert_array_equal(computed(13, "Clip", f(np.inf, 1)), f(np.inf, 1))


def test_negative_indices_hit_nothing_before_version_11() -> None:
    operands = i(-1, 1), i(3), f(0, 1)
    hits = f(0, 1, 0)
    np.testing.assert_array_equal(computed(9, "OneHot", *operands, known=(1,)), [f(0, 0, 0), hits])
    np.testing.assert_array_equal(computed(11, "OneHot", *operands, known=(1,)), [f(0, 0, 1), hits])


def test_inference_is_stated_by_an_attribute_before_version_7() -> None:
    a = _IMAGE
    wanted = computed(9, "BatchNormalization", a, *_CHANNELS)
    found = computed(6, "BatchNormalization", a, *_CHANNELS, is_test=1)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(computed(6, "Dropout", a, is_test=1), a)


@pytest.mark.parametrize(("opset", "kind"), [(8, "float32"), (9, "float32"), (10, "bool")])
def test_the_mask_of_dropout_has_the_type_of_its_version(opset: int, kind: str) -> None:
    proto = model(opset, "Dropout", _CUBE)
    proto.graph.node[0].output.append("mask")
    proto.graph.output.append(helper.make_empty_tensor_value_info("mask"))
    _, mask = bw.interpret(bw.import_model(proto, fallback="error"), _CUBE)
    np.testing.assert_array_equal(mask, np.ones(_CUBE.shape, kind), strict=True)


@pytest.mark.parametrize("opset", [18, 20, 21])
def test_weights_of_groups_and_of_channels(opset: int) -> None:
    """Before version 21 a group of channels has one scale and one bias."""
    a = x(2, 4, 3)
    count = 4 if opset >= 21 else 2
    scale, bias = x(count), x(count) + 1
    grouped = a.reshape(2, 2, 6)
    spread = (grouped - grouped.mean(2, keepdims=True)) / np.sqrt(
        grouped.var(2, keepdims=True) + 1e-5
    )
    wide = [v.repeat(4 // count)[:, None] for v in (scale, bias)]
    wanted = spread.reshape(a.shape) * wide[0] + wide[1]
    found = computed(opset, "GroupNormalization", a, scale, bias, num_groups=2)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("opset", "op", "inputs", "attrs", "what"),
    [
        (10, "Resize", (x(1, 1, 2, 2), f(1, 1, 2, 2)), {}, "version 10 of Resize"),
        (1, "Tile", (x(2, 3), f(2), f(0)), {}, "version 1 of Tile"),
        (6, "Dropout", (x(2, 3),), {}, "is_test=0"),
        (6, "BatchNormalization", (_IMAGE, *_CHANNELS), {}, "is_test=0"),
        (7, "BatchNormalization", (_IMAGE, *_CHANNELS), {"spatial": 0}, "spatial=0"),
    ],
)
def test_versions_with_another_meaning_are_refused(
    opset: int, op: str, inputs: tuple[Array, ...], attrs: dict[str, Any], what: str
) -> None:
    with pytest.raises(bw.BlockwrightError, match=what) as caught:
        bw.import_model(model(opset, op, *inputs, **attrs), fallback="error")
    assert caught.value.code == "BW522"
    assert "version_converter" in (caught.value.help or "")


def test_refused_versions_run_in_onnx_runtime_where_it_has_them() -> None:
    image = x(1, 1, 2, 2)
    proto = model(10, "Resize", image, f(1, 1, 2, 2), known=(1,))
    with pytest.warns(bw.BlockwrightWarning, match="Resize"):
        (found,) = bw.compile(proto)(image)
    np.testing.assert_array_equal(found, image.repeat(2, 2).repeat(2, 3))
    with pytest.raises(bw.BlockwrightError) as caught:
        bw.compile(model(6, "Dropout", x(2, 3)))
    assert caught.value.code == "BW522"


_BOTH_FORMS = {
    "axes", "pads", "value", "starts", "ends", "split", "min", "max", "scales",
    "ratio", "to", "output_sequence", "p", "broadcast", "consumed_inputs",
}  # fmt: skip
"""Attributes that converters take, or that mean nothing to them, also where a newer version has
them no more or of another type."""
_OTHER_DEFAULTS = {"alpha", "gamma", "direction", "mode", "axis"}
"""Attributes whose default in the schema of the version is the one that converters read."""


def test_each_change_of_an_operator_is_known() -> None:
    """A version that drops an attribute or changes a default is listed, or taken in both forms."""
    from blockwright.frontend.onnx.converters import CONVERTERS
    from blockwright.frontend.onnx.versions import OLDER

    versions: dict[str, list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain and CONVERTERS.find("", schema.name):
            versions.setdefault(schema.name, []).append(schema)
    unknown: list[tuple[str, int, str]] = []
    for name, known in versions.items():
        known.sort(key=lambda schema: schema.since_version)
        for older, newer in pairwise(known):
            if newer.since_version <= OLDER.get(name, (1, None))[0]:
                continue
            for attribute, was in older.attributes.items():
                now = newer.attributes.get(attribute)
                dropped = now is None and attribute not in _BOTH_FORMS
                changed = now is not None and (
                    was.default_value.SerializeToString() != now.default_value.SerializeToString()
                )
                if dropped or (changed and attribute not in {*_BOTH_FORMS, *_OTHER_DEFAULTS}):
                    unknown.append((name, newer.since_version, attribute))
    assert not unknown

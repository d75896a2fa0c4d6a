"""Sizes that models compute in float types, which are expressions where the arithmetic is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw

pytest.importorskip("onnx")
ort: Any = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class Graph:
    """A graph that is written node by node; values are names, arrays become initializers."""

    def __init__(self, opset: int, **inputs: tuple[Any, ...]) -> None:
        self.opset, self.inputs = opset, inputs
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, op: str, *operands: str | Array, **attrs: Any) -> str:
        names: list[str] = []
        for operand in operands:
            if isinstance(operand, str):
                names.append(operand)
                continue
            names.append(f"c{len(self.constants)}")
            self.constants.append(numpy_helper.from_array(operand, names[-1]))
        made = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [made], **attrs))
        return made

    def size(self, x: str, axis: int, *, vector: bool = False) -> str:
        """One size of a tensor."""
        place = np.array([axis] if vector else axis, "int64")
        return self.add("Gather", self.add("Shape", x), place, axis=0)

    def part(self, x: str, begin: int, end: int) -> str:
        """A part of a list."""
        if self.opset < 10:
            return self.add("Slice", x, starts=[begin], ends=[end])
        return self.add("Slice", x, *(np.array([v]) for v in (begin, end, 0)))

    def vector(self, x: str) -> str:
        if self.opset < 13:
            return self.add("Unsqueeze", x, axes=[0])
        return self.add("Unsqueeze", x, np.array([0]))

    def model(self, *results: str) -> Any:
        proto = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info(k, FLOAT, v) for k, v in self.inputs.items()],
            [helper.make_empty_tensor_value_info(name) for name in results],
            self.constants,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(proto, opset_imports=opsets, ir_version=8)


def compiled(model: Any, *, computed: bool = False) -> Any:
    """The executable.

    Arguments:
        computed: whether the program computes a size; else all are expressions of input sizes.
    """
    module = bw.import_model(model, fallback="error")
    assert ("tensor_to_shape" in str(module)) == computed
    return bw.compile(module, options={"fallback": "error"})


def agrees(model: Any, *shapes: tuple[int, ...], computed: bool = False) -> None:
    """Results are those of ONNX Runtime, of one input with each of some shapes."""
    exe = compiled(model, computed=computed)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    name = session.get_inputs()[0].name
    for shape in shapes:
        x = rng.standard_normal(shape, "float32")
        found = exe(x)
        for got, want in zip(
            found,
            session.run(None, {name: x}),
            strict=True,
        ):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, strict=True)


def scaled(g: Graph, x: str, axis: int, scale: float, rounding: str = "Floor") -> str:
    """A size by a factor, as the exporter of PyTorch writes it."""
    size = g.add("Cast", g.size(x, axis), to=FLOAT)
    product = g.add("Mul", size, np.array(scale, "float32"))
    return g.vector(g.add("Cast", g.add(rounding, product), to=INT64))


def conv(g: Graph, x: str, channels: tuple[int, int], **attrs: Any) -> str:
    rng = np.random.default_rng(len(g.nodes))
    weight = rng.standard_normal((*channels, 3, 3), "float32") * np.float32(0.2)
    return g.add("Relu", g.add("Conv", x, weight, pads=[1, 1, 1, 1], **attrs))


def u_net(opset: int) -> Any:
    """Two levels: pooled, doubled again in floats, joined with what was before the pool."""
    g = Graph(opset, x=("batch", 3, "h", "w"))
    x = g.add("ConvTranspose", "x", np.ones((3, 3, 2, 2), "float32"), strides=[2, 2])
    skip = conv(g, x, (4, 3))
    y = conv(g, g.add("MaxPool", skip, kernel_shape=[2, 2], strides=[2, 2]), (4, 4))
    sizes = g.add("Concat", scaled(g, y, 2, 2.0), scaled(g, y, 3, 2.0), axis=0)
    if opset >= 11:
        whole = g.add("Concat", g.part(g.add("Shape", y), 0, 2), sizes, axis=0)
        empty = np.zeros(0, "float32")
        mode = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        up = g.add("Resize", y, empty, empty, whole, mode="nearest", **mode)
    else:
        own = g.add("Cast", g.part(g.add("Shape", y), 2, 4), to=FLOAT)
        scales = g.add("Div", g.add("Cast", sizes, to=FLOAT), own)
        scales = g.add("Concat", np.ones(2, "float32"), scales, axis=0)
        up = g.add("Upsample", y, scales, mode="nearest")
    joined = g.add("Concat", skip, up, axis=1)
    return g.model(conv(g, joined, (2, 8)), g.add("Add", skip, up))


@pytest.mark.parametrize("opset", [9, 11, 13])
def test_u_net(opset: int) -> None:
    agrees(u_net(opset), (1, 3, 4, 6), (2, 3, 5, 7), (1, 3, 1, 16))


def test_sizes_of_a_u_net_are_expressions() -> None:
    text = str(bw.import_model(u_net(11)))
    assert text.count("(batch, 4, h * 2, w * 2)") >= 3


@pytest.mark.parametrize(
    ("scale", "rounding"), [(0.5, "Floor"), (0.5, "Ceil"), (0.25, "Ceil"), (1.5, "Floor")]
)
def test_dyadic_factors(scale: float, rounding: str) -> None:
    g = Graph(13, x=("n", "m"))
    rows = scaled(g, "x", 0, scale, rounding)
    agrees(g.model(g.add("Expand", g.size("x", 1, vector=True), rows)), (3, 2), (4, 2), (7, 2))


def test_sizes_beyond_exact_floats_are_refused() -> None:
    g = Graph(13, x=("n", 0))
    sizes = g.add("Concat", scaled(g, "x", 0, 1.5), np.array([0]), axis=0)
    exe = compiled(g.model(g.add("ConstantOfShape", sizes)))
    for n in (0, 3, (1 << 24) // 3, (1 << 24) // 3 + 1):  # the last one gives an even product
        assert np.shape(exe(np.zeros((n, 0), "float32"))[0]) == (n * 3 // 2, 0)
    with pytest.raises(bw.ArgumentError, match=r"n \* 3 = 16777221 must be at most 16777216") as e:
        exe(np.zeros(((1 << 24) // 3 + 2, 0), "float32"))
    assert e.value.code == "BW708"


@pytest.mark.parametrize(
    ("dtype", "number", "is_exact"),
    [
        ("float32", 0.7, False),
        ("float32", 1 / 3, False),
        ("float64", 0.1, False),
        ("float64", 1.5, True),
        ("float16", 2.0, True),
        ("float16", 3.0, False),
        ("float16", 1.6, False),
    ],
)
def test_factors_of_each_type(dtype: str, number: float, is_exact: bool) -> None:
    g = Graph(13, x=("n",))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    product = g.add("Mul", g.add("Cast", g.add("Shape", "x"), to=kind), np.array([number], dtype))
    model = g.model(g.add("ConstantOfShape", g.add("Cast", product, to=INT64)))
    exe = compiled(model, computed=not is_exact)
    for n in (0, 1, 3, 10, 1001):
        wanted = int(np.array(n, dtype) * np.array(number, dtype))
        assert np.shape(exe(np.zeros(n, "float32"))[0]) == (wanted,)


def test_image_info() -> None:
    """As in Faster R-CNN: a list of sizes and a scale, of which sizes are taken again."""
    g = Graph(13, x=(1, 3, "h", "w"))
    sizes = [g.add("Cast", g.size("x", axis, vector=True), to=FLOAT) for axis in (2, 3)]
    info = g.add("Concat", *sizes, np.array([1.6], "float32"), axis=0)
    height, width = (g.add("Gather", info, np.array([k])) for k in range(2))
    stride = np.array([16], "float32")
    cells = [g.add("Ceil", g.add("Div", v, stride)) for v in (height, width)]
    shape = g.add("Cast", g.add("Concat", *cells, axis=0), to=INT64)
    clipped = g.add("Min", g.add("ReduceMax", "x", keepdims=0), g.add("Gather", info, np.array(2)))
    model = g.model(info, g.add("Expand", clipped, shape))
    agrees(model, (1, 3, 32, 48), (1, 3, 33, 15), (1, 3, 1, 1))


def test_reshape_with_shape_arithmetic_in_floats() -> None:
    """As tf2onnx writes it: (n, 4 m, c) → (n, m / 2, 8 c) is (n, 4 m · 0.125, 8 c)."""
    g = Graph(13, x=("n", "m", 3))
    doubled = g.add("Concat", "x", "x", "x", "x", "x", "x", "x", "x", axis=1)
    shape = g.add("Cast", g.add("Shape", doubled), to=FLOAT)
    shape = g.add("Mul", shape, np.array([1, 0.125, 8], "float32"))
    wanted = g.add("Cast", g.add("Floor", shape), to=INT64)
    reshaped = g.add("Reshape", doubled, wanted)
    narrow = g.add(
        "Concat", "x", g.add("Slice", reshaped, *(np.array([v]) for v in (0, 3, 2))), axis=2
    )
    agrees(g.model(reshaped, narrow), (2, 5, 3), (1, 1, 3), (3, 8, 3))


def test_quotients() -> None:
    """n / m · m is no n in floats, but 6 n / 2 n is 3, and n / 4 is exact."""
    g = Graph(13, x=("n", "m"))
    n, m = (g.add("Cast", g.size("x", axis, vector=True), to=FLOAT) for axis in (0, 1))
    parts = g.add("Div", n, np.array([4], "float32"))
    three = g.add("Div", g.add("Mul", n, np.array([6], "float32")), g.add("Add", n, n))
    for size, computed in (
        (g.add("Mul", parts, three), False),
        (g.add("Div", g.add("Mul", n, m), m), False),
        (g.add("Mul", g.add("Div", n, m), m), True),
    ):
        whole = g.add("Cast", g.add("Ceil", size), to=INT64)
        model = g.model(g.add("Expand", np.ones(1, "float32"), whole))
        agrees(model, (3, 7), (8, 3), (5, 5), computed=computed)
        if not computed:
            with pytest.raises(bw.ArgumentError, match="must be from 1 to 16777216"):
                compiled(model)(np.zeros((0, 0), "float32"))


def test_floats_in_other_results_are_not_checked() -> None:
    """Where a float decides no shape, it is rounded as the model says."""
    g = Graph(13, x=("n", 0))
    model = g.model(g.add("Sqrt", g.add("Cast", g.add("Shape", "x"), to=FLOAT)))
    agrees(model, ((1 << 24) + 3, 0), (5, 0))

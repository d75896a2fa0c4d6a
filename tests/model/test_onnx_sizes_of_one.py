"""Axes that may have one element, which ONNX then broadcasts; against ONNX Runtime."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import blockwright as bw

onnx = pytest.importorskip("onnx")
onnxruntime: Any = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
Array = np.ndarray[Any, Any]
HELD = {
    **{str(k): np.array([k]) for k in (-1, 0, 1, 2)},
    "end": np.array([1 << 31]),
    "table": np.ones((9, 5), "float32"),
    "row": np.arange(5, dtype="float32"),
}


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def info(name: str, shape: Sequence[Any] | None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def drawn(*shape: int) -> Array:
    return np.abs(np.random.default_rng(sum(shape)).standard_normal(shape)).astype("float32")


def built(nodes: list[Any], inputs: list[Any]) -> Any:
    """A model with a result `r`."""
    used = {name for n in nodes for name in n.input}
    held = [numpy_helper.from_array(v, n) for n, v in HELD.items() if n in used]
    graph = helper.make_graph(nodes, "graph", inputs, [info("r", None)], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def compared(nodes: list[Any], inputs: list[Any], calls: Sequence[Sequence[Array]]) -> Any:
    """Compile a model and compare it with ONNX Runtime in every call."""
    proto = built(nodes, inputs)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    exe = bw.compile(proto, options={"fallback": "error"})
    for call in calls:
        (wanted,) = session.run(None, {i.name: x for i, x in zip(inputs, call, strict=True)})
        found: Any = exe(*call)[0]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6, strict=True)
    return exe


X = [info("x", ["b", "t"])]
SHAPE = [node("Shape", "x", "s"), node("Gather", "s 1", "t"), node("Sub", "t 1", "before")]


FIRST = node("Slice", "x 0 1 1", "y")
LAST = node("Slice", "x -1 end 1", "y")
HALVES = node("Split", "x", "a y", axis=1, num_outputs=2)


def named(value: Any) -> str | None:
    """The name of a case: the operators of its nodes."""
    return None if isinstance(value, tuple) else "-".join(n.op_type for n in value)


@pytest.mark.parametrize(
    ("nodes", "sizes"),
    [
        ([FIRST, node("Sub", "x y", "r")], (3, 1, 0)),
        ([LAST, node("Sub", "y x", "r")], (3, 1, 0)),
        ([node("Slice", "x 1 2 1", "y"), node("Add", "x y", "r")], (3, 2, 0)),
        ([*SHAPE, node("Slice", "x before t 1", "y"), node("Mul", "x y", "r")], (3, 1)),
        ([node("Slice", "x 0 -1 1", "y"), node("Sub", "x y", "r")], (2,)),
        ([HALVES, node("Max", "x y", "r")], (2,)),
        ([HALVES, node("Pow", "a y", "r")], (2, 3, 4)),
        ([FIRST, node("Mean", "y x", "r")], (3, 0)),
        ([FIRST, node("PRelu", "x y", "r")], (3, 0)),
        ([FIRST, node("Greater", "y x", "g"), node("Where", "g y x", "r")], (3, 0)),
        ([FIRST, node("Shape", "x", "s"), node("Expand", "y s", "r")], (3, 1, 0)),
        ([FIRST, node("Shape", "y", "s"), node("Expand", "x s", "r")], (3, 1, 0)),
        ([FIRST, node("Sub", "row y", "r")], (3, 1)),
        ([HALVES, node("Shape", "a", "s"), node("Expand", "y s", "r")], (2, 3, 4)),
        ([HALVES, node("Shape", "y", "s"), node("Expand", "a s", "r")], (2, 3, 4)),
    ],
    ids=named,
)
def test_parts_of_an_axis_that_may_have_one_element(nodes: list[Any], sizes: list[int]) -> None:
    compared(nodes, X, [(drawn(2, t),) for t in sizes])


def test_windows_that_may_be_one() -> None:
    pool = node("MaxPool", "x", "y", kernel_shape=[64], strides=[64], ceil_mode=1)
    inputs, calls = [info("x", ["b", "c", "t"])], [(drawn(1, 2, 40),), (drawn(1, 2, 1),)]
    exe = compared([pool, node("Sub", "x y", "r")], inputs, calls)
    with pytest.raises(bw.ArgumentError, match=r"\(t \+ 63\) // 64 = 2 and t = 70") as caught:
        exe(drawn(1, 2, 70))
    assert caught.value.code == "BW708"


def test_batch_axes_of_products_that_may_be_one() -> None:
    inputs, calls = [info("x", ["b", "t", "u"])], [(drawn(b, 2, 4),) for b in (3, 1, 0)]
    first = node("Slice", "x 0 1 0", "y")
    turned = node("Transpose", "y", "z", perm=[0, 2, 1])
    compared([first, turned, node("MatMul", "x z", "r")], inputs, calls)
    product = node("Einsum", "x y", "r", equation="btu,bsu->bts")
    compared([first, product], inputs, calls[:2])


def test_only_the_axes_that_meet_are_repeated() -> None:
    """Rows and columns are as many, but only the columns meet an axis of another size."""
    rows, corner = node("Slice", "x 0 1 0", "y"), node("Slice", "y 0 1 1", "z")
    difference = node("Sub", "y z", "r")
    compared([rows, corner, difference], [info("x", ["t", "t"])], [(drawn(3, 3),), (drawn(0, 0),)])
    chosen = [node("Compress", "x c", "y", axis=0), node("Compress", "y c", "z", axis=1)]
    masks = [np.array(m) for m in ([False, True, False], [True, True, True])]
    inputs = [info("x", ["n", "n"]), info("c", ["n"], BOOL)]
    compared([*chosen, difference], inputs, [(drawn(3, 3), m) for m in masks])


def test_a_part_of_an_axis_whose_size_is_computed() -> None:
    nodes = [
        node("Compress", "x c", "k", axis=0),
        node("Slice", "k 0 1", "f"),
        node("Sub", "k f", "r"),
    ]
    masks = [np.array(m) for m in ([True, False, True], [False, True, False], [False] * 3)]
    inputs = [info("x", ["n"]), info("c", ["n"], BOOL)]
    compared(nodes, inputs, [(drawn(3), m) for m in masks])


def test_two_sizes_of_which_either_may_be_one() -> None:
    nodes = [
        node("Compress", "x c", "y", axis=0),
        node("Compress", "x d", "z", axis=0),
        node("Sub", "y z", "r"),
    ]
    every, one, none = (np.array(m) for m in ([True] * 3, [False, True, False], [False] * 3))
    inputs = [info("x", ["n", 2]), info("c", ["n"], BOOL), info("d", ["n"], BOOL)]
    pairs = [(every, every), (every, one), (one, every), (one, none), (none, none)]
    exe = compared(nodes, inputs, [(drawn(3, 2), *pair) for pair in pairs])
    with pytest.raises(bw.ArgumentError) as caught:
        exe(drawn(3, 2), every, none)
    assert caught.value.code == "BW708"


def test_windows_of_two_sizes() -> None:
    """t - 4 and t - 2 windows: of five elements there is one of the former."""
    nodes = [
        node("AveragePool", "x", "y", kernel_shape=[5]),
        node("AveragePool", "x", "z", kernel_shape=[3]),
        node("Sub", "y z", "r"),
    ]
    inputs = [info("x", ["b", "c", "t"])]
    exe = compared(nodes, inputs, [(drawn(1, 2, 5),)])
    with pytest.raises(bw.ArgumentError) as caught:
        exe(drawn(1, 2, 9))
    assert caught.value.code == "BW708"


def test_sizes_that_are_one_together_are_only_compared() -> None:
    """Rows of a table of positions: where there is one, the operand has one row as well."""
    nodes = [
        node("Shape", "x", "n", start=0, end=1),
        node("Slice", "table 0 n 0", "rows"),
        node("Add", "x rows", "r"),
    ]
    compared(nodes, [info("x", ["n", 5])], [(drawn(4, 5),), (drawn(1, 5),)])
    assert "R.take" not in str(bw.import_model(built(nodes, [info("x", ["n", 5])])))


def test_a_mask_that_is_repeated_per_head() -> None:
    """As exported attention does: [2 * batch, 1, t] becomes [batch, 2, -1, t]."""
    nodes = [
        node("Shape", "x", "batch", start=0, end=1),
        node("Shape", "x", "t", start=1, end=2),
        node("Concat", "x x", "twice", axis=0),
        node("Unsqueeze", "twice 1", "rows"),
        node("Concat", "batch 2 -1 t", "shape", axis=0),
        node("Reshape", "rows shape", "mask"),
        node("Add", "scores mask", "r"),
    ]
    inputs = [info("x", ["b", "t"]), info("scores", ["b", 2, "t", "t"])]
    calls = [(drawn(b, t), drawn(b, 2, t, t)) for b, t in ((2, 5), (1, 7), (3, 1))]
    compared(nodes, inputs, calls)


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: torch.Tensor, pad: torch.Tensor) -> torch.Tensor:
        return self.layer(x, src_key_padding_mask=pad)


@pytest.mark.filterwarnings("ignore")
def test_a_padding_mask_of_any_batch_and_length() -> None:
    """The mask is repeated per head: [2 * batch, 1, t] becomes [batch, 2, -1, t]."""
    pytest.importorskip("onnxscript")
    model, file = Encoder().eval(), io.BytesIO()
    dims = {0: torch.export.Dim("batch", max=16), 1: torch.export.Dim("t", min=2, max=64)}
    examples = torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    exported: Any = torch.onnx.export(
        model, examples, dynamo=True, dynamic_shapes=(dims, dims), verbose=False
    )
    exported.save(file)
    exe = bw.compile(file.getvalue())
    for batch, length in ((2, 5), (1, 7), (3, 2)):
        x, pad = torch.randn(batch, length, 8), torch.zeros(batch, length, dtype=torch.bool)
        pad[:, -1] = True
        torch.testing.assert_close(exe(x, pad)[0], model(x, pad).detach(), rtol=1e-4, atol=1e-5)


def test_windows_in_turn_give_the_length_a_lower_bound() -> None:
    """Sizes behind the convolutions of a speech encoder are not clamped at 0 again and again."""
    steps = [(10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2)]
    rng = np.random.default_rng(0)
    held = [
        numpy_helper.from_array(rng.standard_normal((1, 1, taps)).astype("float32"), f"w{k}")
        for k, (taps, _) in enumerate(steps)
    ]
    nodes = [
        node("Conv", f"v{k} w{k}", f"v{k + 1}", kernel_shape=[taps], strides=[stride])
        for k, (taps, stride) in enumerate(steps)
    ]
    nodes.append(node("Add", "v7 b", "r"))
    inputs = [info("v0", ["batch", 1, "n"]), info("b", ["batch", 1, "frames"])]
    graph = helper.make_graph(nodes, "graph", inputs, [info("r", None)], held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    exe = bw.compile(proto)
    for n, frames in ((400, 1), (719, 1), (720, 2), (16000, 49)):
        given = {"v0": drawn(2, 1, n), "b": drawn(2, 1, frames)}
        (wanted,) = session.run(None, given)
        (found,) = exe(*given.values())
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=1e-3)
    with pytest.raises(bw.ArgumentError, match=r"BW708.*expected at least 400, got 399"):
        exe(drawn(2, 1, 399), drawn(2, 1, 1))


def test_squeeze_without_axes_keeps_axes_of_several_elements() -> None:
    """Which axes there are must not depend on the call: one of size 1 is refused."""
    exe = compared([node("Squeeze", "x", "r")], [info("x", ["n", 1, 4])], [[drawn(3, 1, 4)]])
    assert exe(drawn(0, 1, 4))[0].shape == (0, 4)
    with pytest.raises(bw.ArgumentError) as caught:
        exe(drawn(1, 1, 4))
    assert caught.value.code == "BW708"
    assert "name the axes to squeeze" in str(caught.value)
    twice = [node("Concat", "x x", "y", axis=0), node("Squeeze", "y", "r")]
    x = np.zeros((1, 1, 4), "float32")
    assert bw.compile(built(twice, [info("x", ["n", 1, 4])]))(x)[0].shape == (2, 4)


def test_squeeze_of_a_size_that_data_decide() -> None:
    """The number of places is known when the model runs, and is checked there."""
    nodes = [node("NonZero", "x", "y"), node("Squeeze", "y", "z"), node("Cast", "z", "r", to=FLOAT)]
    exe = bw.compile(built(nodes, [info("x", ["n"])]))
    np.testing.assert_array_equal(exe(np.array([0, 1, 2], "float32"))[0], [1, 2])
    with pytest.raises(bw.ArgumentError) as caught:
        exe(np.array([0, 1, 0], "float32"))
    assert caught.value.code == "BW708"

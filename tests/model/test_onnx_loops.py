"""Loops of ONNX models whose length is an input, a size, or a condition; against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import blockwright as bw

onnx = pytest.importorskip("onnx")
onnxruntime: Any = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Array = np.ndarray[Any, Any]


def info(name: str, shape: Sequence[Any] | None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    names = [name.strip("_") for name in inputs.split()]
    return helper.make_node(operator, names, outputs.split(), **attributes)


def body(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> Any:
    return helper.make_graph(nodes, "body", inputs, outputs)


def compared(
    nodes: list[Any],
    inputs: list[Any],
    outputs: str,
    calls: Sequence[Sequence[Array]],
    **constants: Array,
) -> Any:
    """Compile a model and compare it with ONNX Runtime in every call."""
    results = [info(name, None) for name in outputs.split()]
    for result in results:
        result.type.Clear()
    held = [numpy_helper.from_array(v, n) for n, v in constants.items()]
    graph = helper.make_graph(nodes, "graph", inputs, results, held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    exe = bw.compile(proto, options={"fallback": "error"})
    for call in calls:
        wanted = session.run(None, {i.name: x for i, x in zip(inputs, call, strict=True)})
        found: Any = exe(*call)
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    return exe


def drawn(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def sums(more: str = "go") -> Any:
    """A running sum, scaled by a value around the loop; each step is an output too."""
    nodes = [
        node("Mul", "total scale", "scaled"),
        node("Add", "scaled x", "new"),
        node("Cast", "step", "number", to=FLOAT),
        node("Add", "new number", "row"),
        node("Identity", more, "again"),
    ]
    given = [info("step", [], INT64), info("go", [], BOOL), info("total", ["n"])]
    return body(nodes, given, [info("again", [], BOOL), info("new", ["n"]), info("row", ["n"])])


def test_the_number_of_iterations_is_an_input_or_a_size() -> None:
    x, scale = drawn(3), np.array([0.5], "float32")
    counted = node("Loop", "count true zeros", "last every", body=sums())
    zeros = node("Mul", "x zero", "zeros")
    held = {"true": np.array(True), "zero": np.array(0, "float32"), "scale": scale}
    calls = [(x, np.array(count)) for count in (3, 1, 500)]
    inputs = [info("x", ["n"]), info("count", [], INT64)]
    compared([zeros, counted], inputs, "last every", calls, **held)
    nodes = [zeros, node("Shape", "x", "size"), node("Squeeze", "size", "count"), counted]
    compared(nodes, [info("x", ["n"])], "last every", [(drawn(n),) for n in (4, 1, 90)], **held)


def test_a_condition_ends_the_loop() -> None:
    nodes = [
        node("Mul", "total scale", "new"),
        node("ReduceMax", "new", "largest", keepdims=0),
        node("Less", "largest limit", "again"),
    ]
    given = [info("step", [], INT64), info("go", [], BOOL), info("total", ["n"])]
    doubled = body(nodes, given, [info("again", [], BOOL), info("new", ["n"])])
    held = {"scale": np.array(1.01, "float32"), "limit": np.array(1e6, "float32")}
    calls = [(np.full(n, v, "float32"),) for n, v in ((2, 1), (5, 3e6), (1, 0.001))]
    inputs = [info("x", ["n"])]
    held["true"] = np.array(True)
    compared([node("Loop", "__ true x", "y", body=doubled)], inputs, "y", calls, **held)
    limited = [node("Loop", "most go x", "y", body=doubled)]
    inputs += [info("most", [], INT64), info("go", [], BOOL)]
    limits = ((7, True), (0, True), (9, False))
    calls = [(c[0], np.array(m), np.array(g)) for c, (m, g) in zip(calls, limits, strict=True)]
    compared(limited, inputs, "y", calls, **held)


def test_loops_inside_loops() -> None:
    inner = body(
        [node("Add", "t1 part", "t2"), node("Identity", "g1", "g2")],
        [info("k1", [], INT64), info("g1", [], BOOL), info("t1", [2])],
        [info("g2", [], BOOL), info("t2", [2])],
    )
    outer = body(
        [
            node("Mul", "t0 half", "part"),
            node("Add", "k0 one", "times"),
            node("Loop", "times true t0", "t3", body=inner),
            node("Identity", "g0", "g3"),
        ],
        [info("k0", [], INT64), info("g0", [], BOOL), info("t0", [2])],
        [info("g3", [], BOOL), info("t3", [2])],
    )
    held = {"true": np.array(True), "one": np.array(1), "half": np.array([0.01, 0.02], "float32")}
    inputs = [info("x", [2]), info("count", [], INT64)]
    calls = [(drawn(2), np.array(count)) for count in (0, 1, 4)]
    compared([node("Loop", "count true x", "y", body=outer)], inputs, "y", calls, **held)


@pytest.mark.parametrize("outside", [False, True])
def test_loops_inside_loops_with_scan_outputs(outside: bool) -> None:
    """The condition that ends the inner loop depends on data, or is one around both."""
    more = [node("Identity", "on", "g2")] if outside else [node("Less", "t2 limit", "g2")]
    inner = body(
        [node("Add", "t1 one", "t2"), *more],
        [info("k1", [], INT64), info("g1", [], BOOL), info("t1", [])],
        [info("g2", [], BOOL), info("t2", [])],
    )
    outer = body(
        [
            node("Mul", "t0 half", "part"),
            node("Loop", "most true part", "t3", body=inner),
            node("Add", "t3 half", "row"),
            node("Identity", "g0", "g3"),
        ],
        [info("k0", [], INT64), info("g0", [], BOOL), info("t0", [])],
        [info("g3", [], BOOL), info("t3", []), info("row", [])],
    )
    held = {"true": np.array(True), "most": np.array(20)}
    held |= {n: np.array(v, "float32") for n, v in (("one", 1), ("half", 0.5), ("limit", 4))}
    inputs = [info("x", []), info("count", [], INT64), info("on", [], BOOL)]
    calls = [
        (drawn(), np.array(count), np.array(on))
        for count, on in ((1, True), (30, False), (30, True))
    ]
    compared([node("Loop", "count true x", "y rows", body=outer)], inputs, "y rows", calls, **held)


def test_scan_outputs_of_loops_whose_conditions_depend_on_data() -> None:
    """The condition of the body, and the one at the start."""
    held = {"true": np.array(True), "scale": np.array([1], "float32")}
    inputs = [info("x", [2]), info("count", [], INT64), info("on", [], BOOL)]
    calls = [
        (drawn(2), np.array(count), np.array(on))
        for count, on in ((3, True), (3, False), (0, True), (1, False))
    ]
    loop = node("Loop", "count true x", "last every", body=sums("on"))
    compared([loop], inputs, "last every", calls, **held)
    begun = node("Loop", "count on x", "last every", body=sums("true"))
    compared([begun], inputs, "last every", calls, **held)


def rows_of_unknown_size(declared: list[Any]) -> Any:
    """A loop whose scan output is a slice, of which only the model declares the size."""
    step = body(
        [
            node("Add", "k0 one", "k1"),
            node("Unsqueeze", "k0 axis", "begin"),
            node("Unsqueeze", "k1 axis", "end"),
            node("Slice", "x begin end", "row"),
            node("Identity", "g0", "g1"),
        ],
        [info("k0", [], INT64), info("g0", [], BOOL)],
        [info("g1", [], BOOL), info("row", declared)],
    )
    return node("Loop", "count true", "every", body=step)


def test_sizes_of_scan_outputs_are_declared_or_refused() -> None:
    held = {"true": np.array(True), "one": np.array(1), "axis": np.array([0])}
    inputs = [info("x", ["n"]), info("count", [], INT64)]
    calls = [(drawn(9), np.array(count)) for count in (9, 0, 4)]
    compared([rows_of_unknown_size([1])], inputs, "every", calls, **held)
    with pytest.raises(bw.ImporterError, match="scan output row depends on data") as caught:
        compared([rows_of_unknown_size(["k"])], inputs, "every", calls, **held)
    assert caught.value.code == "BW526"


@pytest.mark.parametrize("shape", [["n", 3], [2, 3], [0, 3]])
def test_carried_values_that_grow_are_refused_unless_the_loop_is_written_out(shape: Any) -> None:
    given = [info("step", [], INT64), info("go", [], BOOL), info("rows", None)]
    nodes = [node("Concat", "rows x", "more", axis=0), node("Identity", "go", "again")]
    step = body(nodes, given, [info("again", [], BOOL), info("more", None)])
    loop = node("Loop", "count _ start", "every", body=step, name="grow")
    inputs = [info("start", shape), info("x", [1, 3])]
    with pytest.raises(bw.ImporterError, match="Loop grow: the carried value more") as caught:
        compared([loop], [*inputs, info("count", [], INT64)], "every", [])
    assert caught.value.code == "BW526"
    rows = drawn(2 if isinstance(shape[0], str) else shape[0], 3)
    compared([loop], inputs, "every", [(rows, drawn(1, 3))], count=np.array(3))


@pytest.mark.parametrize("backward", [False, True])
def test_scans_over_any_length(backward: bool) -> None:
    step = body(
        [node("MatMul", "h w", "p"), node("Add", "p a", "q"), node("Tanh", "q", "h1"),
         node("Mul", "h1 b", "row")],
        [info("h", [3]), info("a", [3]), info("b", [3])],
        [info("h1", [3]), info("row", [3])],
    )  # fmt: skip
    scan = node(
        "Scan", "h0 xs ys", "last rows", body=step, num_scan_inputs=2, scan_input_axes=[0, 1],
        scan_output_axes=[1], scan_input_directions=[int(backward), 0],
        scan_output_directions=[int(backward)],
    )  # fmt: skip
    inputs = [info("h0", [3]), info("xs", ["n", 3]), info("ys", [3, "n"])]
    calls = [(drawn(3), drawn(n, 3), drawn(3, n)) for n in (1, 6, 301)]
    compared([scan], inputs, "last rows", calls, w=drawn(3, 3))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("operator", ["RNN", "GRU", "LSTM"])
def test_recurrent_layers_of_any_length(operator: str, direction: str) -> None:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[operator]
    count, size, width = (2 if direction == "bidirectional" else 1), 4, 3
    held = {
        "w": drawn(count, gates * size, width),
        "r": 0.5 * drawn(count, gates * size, size),
        "b": drawn(count, 2 * gates * size),
    }
    extra: dict[str, Any] = {"linear_before_reset": 1} if operator == "GRU" else {}
    layer = node(
        operator, "x w r b lengths", "y last", hidden_size=size, direction=direction, **extra
    )
    inputs = [info("x", ["steps", "batch", width]), info("lengths", ["batch"], TensorProto.INT32)]
    calls = [
        (drawn(steps, 2, width), np.array([steps, max(1, steps // 2)], "int32"))
        for steps in (5, 1, 40)
    ]
    compared([layer], inputs, "y last", calls, **held)

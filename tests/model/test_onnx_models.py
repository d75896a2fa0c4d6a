"""ONNX models: loading, dynamic sizes, names, functions, control flow, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright.support import BlockwrightError

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Array = np.ndarray[Any, Any]


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def info(name: str, shape: Sequence[Any] | None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    constants: dict[str, Array] | None = None,
    opset: int = 18,
    functions: Sequence[Any] = (),
) -> Any:
    tensors = [numpy_helper.from_array(v, n) for n, v in (constants or {}).items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    domains = {"": opset} | {f.domain: 1 for f in functions}
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(d, v) for d, v in domains.items()],
        functions=functions,
    )


def refusal(proto: Any, fixed: dict[str, Array] | None = None) -> BlockwrightError:
    with pytest.raises(BlockwrightError) as caught:
        bw.import_model(proto, fixed, fallback="error")
    return caught.value


def drawn(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype("float32")


def halves() -> Any:
    """relu(x · w + b) with pairs of rows joined: the shape is computed from the batch."""
    nodes = [
        node("Gemm", "x w b", "product"),
        node("Relu", "product", "positive"),
        node("Shape", "positive", "shape"),
        node("Gather", "shape first", "rows"),
        node("Div", "rows two", "half"),
        node("Unsqueeze", "half zero", "listed"),
        node("Concat", "listed rest", "target", axis=0),
        node("Reshape", "positive target", "joined"),
        node("MatMul", "joined w2", "y"),
    ]
    constants = {
        "w": drawn(4, 8),
        "b": drawn(8),
        "w2": drawn(16, 3),
        "first": np.array(0),
        "two": np.array(2),
        "zero": np.array([0]),
        "rest": np.array([16]),
    }
    return model(nodes, [info("x", ["batch", 4])], [info("y", ["half", 3])], constants)


def expected_halves(x: Array) -> Array:
    hidden = np.maximum(x @ drawn(4, 8) + drawn(8), 0)
    return hidden.reshape(len(x) // 2, 16) @ drawn(16, 3)


def test_a_model_runs_for_all_sizes_of_a_named_dimension() -> None:
    exe = bw.compile(halves())
    assert exe.signature.dims == {"batch": (0, None)}
    assert [r.name for r in exe.signature.results] == ["y"]
    for rows in (2, 6, 0):
        x = drawn(rows, 4)
        (by_position,) = exe(x)
        np.testing.assert_allclose(by_position, expected_halves(x), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(exe(x=x)[0], by_position)


def test_sizes_that_do_not_fit_a_reshape_are_refused_by_calls() -> None:
    nodes = [node("Reshape", "x shape", "y")]
    proto = model(
        nodes, [info("x", ["n"])], [info("y", None)], {"shape": np.array([-1, 4], "int64")}
    )
    exe = bw.compile(proto)
    assert exe(drawn(8))[0].shape == (2, 4)
    with pytest.raises(BlockwrightError) as caught:
        exe(drawn(6))
    assert caught.value.code == "BW708"


def test_the_open_dimension_of_a_reshape_is_what_remains() -> None:
    nodes = [
        node("Shape", "x", "length", start=1, end=2),
        node("Concat", "length rest", "shape", axis=0),
        node("Reshape", "x shape", "y"),
    ]
    constants = {"rest": np.array([4, -1])}
    proto = model(nodes, [info("x", ["batch", "length", 12])], [info("y", None)], constants)
    x = drawn(5, 3, 12)
    found = bw.interpret(bw.import_model(proto), x)
    np.testing.assert_array_equal(found, x.reshape(3, 4, -1))


def test_paths_and_bytes_are_models(tmp_path: Path) -> None:
    proto = halves()
    path = tmp_path / "model.onnx"
    onnx.save(halves(), path, save_as_external_data=True, location="weights", size_threshold=0)
    for source in (path, str(path), proto.SerializeToString()):
        found = bw.import_model(source)
        assert bw.ir.structural_equal(found.functions["main"], bw.import_model(proto)["main"])


def test_names_that_are_no_identifiers_can_be_passed() -> None:
    proto = model(
        [node("Neg", "input.1", "out/0")], [info("input.1", [None])], [info("out/0", [1])]
    )
    exe = bw.compile(proto)
    np.testing.assert_array_equal(exe(**{"input.1": drawn(3)})[0], -drawn(3))
    assert exe.signature.results[0].name == "out/0"


def test_functions_of_the_model_are_expanded_with_their_attributes() -> None:
    body = node("LeakyRelu", "v", "w")
    reference = onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT)
    reference.ref_attr_name = "slope"
    body.attribute.append(reference)
    function = helper.make_function(
        "own", "Bent", ["v"], ["w"], [body], [helper.make_opsetid("", 18)], ["slope"]
    )
    call = helper.make_node("Bent", ["x"], ["y"], domain="own", slope=0.5)
    proto = model([call], [info("x", [3])], [info("y", [3])], functions=[function])
    found = bw.interpret(bw.import_model(proto), np.array([-2, 0, 3], "float32"))
    np.testing.assert_array_equal(found, [-1, 0, 3])


def branch(op: str) -> Any:
    return helper.make_graph([node(op, "x", "inner")], op, [], [info("inner", [3])])


def test_a_condition_at_run_time_chooses_a_branch() -> None:
    chosen = node("If", "up", "y", then_branch=branch("Exp"), else_branch=branch("Neg"))
    inputs = [info("x", [3]), info("up", [], BOOL)]
    proto = model([chosen], inputs, [info("y", [3])])
    exe, x = bw.compile(proto), drawn(3)
    np.testing.assert_allclose(exe(x, np.array(True))[0], np.exp(x), rtol=1e-6)
    np.testing.assert_array_equal(exe(x, np.array(False))[0], -x)


def body_of(*nodes: Any) -> Any:
    """A branch whose result is `out`, of any shape."""
    return helper.make_graph(list(nodes), "branch", [], [info("out", None)])


def test_a_condition_between_ranks_has_to_be_known() -> None:
    cut = body_of(node("ReduceSum", "x", "out", keepdims=0))
    chosen = node("If", "up", "y", then_branch=branch("Exp"), else_branch=cut)
    proto = model([chosen], [info("x", [3]), info("up", [], BOOL)], [info("y", None)])
    assert (refusal(proto).code, '"up": …' in str(refusal(proto))) == ("BW523", True)
    fixed = bw.import_model(proto, {"up": np.array(False)})
    np.testing.assert_allclose(bw.interpret(fixed, drawn(3)).item(), drawn(3).sum(), rtol=1e-6)


def test_branches_of_different_sizes() -> None:
    """Of the columns of x at most five are kept, or one, where there are more than five."""
    size = [node("Shape", "x", "s"), node("Gather", "s at", "t"), node("Greater", "t at5", "c")]
    held = {"zero": np.array([0]), "one": np.array([1]), "five": np.array([5])}
    held |= {"at": np.array(1), "at5": np.array(5)}
    then = body_of(node("Slice", "x zero five one", "out"))
    other = body_of(node("Identity", "x", "out"))
    single = body_of(node("ReduceSum", "x one", "out"))
    for body, width in ((then, 5), (single, 1)):
        chosen = node("If", "c", "y", then_branch=body, else_branch=other)
        nodes = [*size, chosen, node("Add", "y y", "r")]
        exe = bw.compile(model(nodes, [info("x", ["b", "t"])], [info("r", None)], held))
        for t in (0, 3, 5, 8):
            x = drawn(2, t)
            kept = x if t <= 5 else x[:, :5] if width == 5 else x.sum(1, keepdims=True)
            np.testing.assert_allclose(exe(x)[0], 2 * kept, rtol=1e-5, strict=True)


def test_a_squeeze_of_a_dynamic_axis_is_refused_with_its_reason() -> None:
    """As PyTorch exports x.squeeze(1)."""
    held = {"at": np.array(1), "axis": np.array([1])}
    size = [node("Shape", "x", "s"), node("Gather", "s at", "t"), node("Equal", "t at", "c")]
    then, other = body_of(node("Squeeze", "x axis", "out")), body_of(node("Identity", "x", "out"))
    chosen = node("If", "c", "y", then_branch=then, else_branch=other)
    named = model([*size, chosen], [info("x", ["b", "t", 4])], [info("y", None)], held)
    error = refusal(named)
    assert error.code == "BW523"
    assert "different ranks" in error.message
    assert "give the axis a number" in (error.help or "")
    fixed = model([*size, chosen], [info("x", ["b", 1, 4])], [info("y", None)], held)
    assert bw.compile(fixed)(drawn(3, 1, 4))[0].shape == (3, 4)


def counted_loop() -> Any:
    body = helper.make_graph(
        [node("Add", "total x", "more"), node("Identity", "go", "again")],
        "body",
        [info("step", [], INT64), info("go", [], BOOL), info("total", [2])],
        [info("again", [], BOOL), info("more", [2]), info("total", [2])],
    )
    return node("Loop", "count go0 x", "last every", body=body)


def test_loops_of_known_length_are_unrolled() -> None:
    constants = {"count": np.array(3), "go0": np.array(True)}
    outputs = [info("last", [2]), info("every", [3, 2])]
    proto = model([counted_loop()], [info("x", [2])], outputs, constants)
    x = drawn(2)
    last, every = bw.interpret(bw.import_model(proto), x)
    np.testing.assert_allclose(last, 4 * x)
    np.testing.assert_allclose(every, [x, 2 * x, 3 * x])


def test_shapes_that_the_model_computes() -> None:
    """A reshape, a broadcast and a slice whose sizes are arguments; -1 and 0 keep their meaning."""
    nodes = [
        node("Reshape", "x shape", "y"),
        node("Expand", "y wider", "z"),
        node("Slice", "x starts ends", "part"),
    ]
    inputs = [
        info("x", ["n", 6]),
        *(info(name, [size], INT64) for name, size in (("shape", 3), ("wider", 2))),
        *(info(name, [1], INT64) for name in ("starts", "ends")),
    ]
    exe = bw.compile(model(nodes, inputs, [info(name, None) for name in ("y", "z", "part")]))
    x = drawn(4, 6)
    for shape, wider, start, end in (
        ((0, -1, 3), (1, 1), -3, 9),
        ((2, 3, 4), (3, 1), 1, 3),
        ((1, 24, -1), (24, 1), 3, 2),
    ):
        arrays = [np.array(v) for v in (shape, wider, [start], [end])]
        y, z, part = exe(x, *arrays)
        wanted = x.reshape([d or x.shape[k] for k, d in enumerate(shape)])
        np.testing.assert_array_equal(y, wanted)
        np.testing.assert_array_equal(z, wanted * np.ones(wider, "float32"))
        np.testing.assert_array_equal(part, x[start:end])
    for shape in ((5, 5, 1), (4, 5, -1)):
        with pytest.raises(BlockwrightError) as caught:
            exe(x, np.array(shape), np.array([1, 1]), np.array([0]), np.array([1]))
        assert caught.value.code == "BW708"


def test_inputs_that_decide_shapes_are_named_and_can_be_fixed() -> None:
    inputs = [info("x", [6]), info("shape", ["rank"], INT64)]
    proto = model([node("Reshape", "x shape", "y")], inputs, [info("y", None)])
    error = refusal(proto)
    assert error.code == "BW523"
    assert '{"shape": …}' in (error.help or "")
    fixed = bw.import_model(proto, {"shape": np.array([2, -1])})
    assert bw.interpret(fixed, drawn(6)).shape == (2, 3)
    assert refusal(proto, {"form": np.array([2, 3])}).code == "BW524"
    assert refusal(proto, {"shape": np.array([2, 3], "int32")}).code == "BW524"


def test_all_uncovered_operators_are_listed_with_their_nodes() -> None:
    nodes = [
        node("StringNormalizer", "x", "a", name="first"),
        node("SequenceLength", "x", "b", name="second"),
        node("StringNormalizer", "x", "c", name="third"),
    ]
    error = refusal(model(nodes, [info("x", [2, 2])], [info("a", None), info("b", None)]))
    assert error.code == "BW501"
    assert "nodes first, third" in str(error)
    assert "nodes second" in str(error)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert refusal(b"no model").code == "BW521"
    assert refusal(tmp_path / "absent.onnx").code == "BW521"
    inputs, outputs = [info("x", [2])], [info("y", [2])]
    assert refusal(model([node("Neg", "z", "y")], inputs, outputs)).code == "BW521"
    assert refusal(model([node("Neg", "x", "y")], inputs, outputs, opset=99)).code == "BW522"
    rankless = model([node("Neg", "x", "y")], [info("x", None)], outputs)
    assert refusal(rankless).code == "BW525"
    strings = model([node("Identity", "x", "y")], [info("x", [1], TensorProto.STRING)], outputs)
    assert refusal(strings).code == "BW504"


def test_a_failure_names_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    from blockwright.frontend.onnx.converters import CONVERTERS

    def failing(call: Any) -> Any:
        raise KeyError("absent")

    monkeypatch.setitem(CONVERTERS.table, ("", "Exp"), failing)
    nodes = [helper.make_node("Exp", ["x"], ["y"], "third")]
    error = refusal(model(nodes, [info("x", [2])], [info("y", [2])]))
    assert error.code == "BW500"
    assert error.message == "Exp third cannot be converted: KeyError: 'absent'"


def test_sizes_that_must_be_equal_are_compared_by_each_call() -> None:
    """The positions of a transformer are cut from a table of 32; another input has its own name."""
    nodes = [
        node("Shape", "x", "size", end=1),
        node("Slice", "table zero size zero", "part"),
        node("Add", "x part", "y"),
        node("Mul", "y z", "w"),
        node("MatMul", "z v", "q"),
    ]
    held = {"table": drawn(32, 4), "zero": np.array([0])}
    inputs = [info("x", ["s", 4]), info("z", ["t", 4]), info("v", ["k", 3])]
    exe = bw.compile(model(nodes, inputs, [info("w", None), info("q", None)], held))
    x, z, v = drawn(7, 4), drawn(7, 4) + 1, drawn(4, 3)
    w, q = exe(x, z, v)
    np.testing.assert_allclose(w, (x + held["table"][:7]) * z, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(q, z @ v, rtol=1e-5, atol=1e-5)
    long = drawn(40, 4)
    for bad, text in (
        ((long, long, v), r"T.min\(s, 32\) = 32 and s = 40"),
        ((x, z[:3], v), "t = 3 and s = 7"),
    ):
        with pytest.raises(bw.BlockwrightError, match=text) as caught:
            exe(*bad)
        assert caught.value.code == "BW708"


def test_arguments_for_other_models_are_refused() -> None:
    for given in ({"example_inputs": (drawn(2, 4),)}, {"dynamic_shapes": ({0: "n"},)}):
        with pytest.raises(bw.OptionError) as caught:
            bw.compile(halves(), **given)
        assert caught.value.code == "BW908"


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    content = halves().SerializeToString()
    monkeypatch.setitem(sys.modules, "onnx", None)
    error = refusal(content)
    assert error.code == "BW520"
    assert "blockwright[onnx]" in (error.help or "")


def test_an_initializer_among_the_inputs_is_a_constant() -> None:
    """It is no argument; another value is fixed, or the initializer removed."""
    inputs = [info("x", ["n"]), info("k", [])]
    proto = model(
        [node("Mul", "x k", "y")], inputs, [info("y", None)], {"k": np.array(2, "float32")}
    )
    x, other = drawn(3), np.array(5, "float32")
    exe = bw.compile(proto)
    np.testing.assert_array_equal(exe(x)[0], 2 * x)
    with pytest.raises(BlockwrightError, match="there is no argument `k`") as caught:
        exe(x, k=other)
    assert caught.value.code == "BW701"
    np.testing.assert_array_equal(bw.compile(proto, {"k": other})(x)[0], 5 * x)
    del proto.graph.initializer[:]
    np.testing.assert_array_equal(bw.compile(proto)(x, k=other)[0], 5 * x)

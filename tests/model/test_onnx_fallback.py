"""Nodes that no converter covers run in ONNX Runtime, between parts that are compiled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright.frontend.onnx import framework_calls
from blockwright.frontend.onnx import importer as onnx_importer

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
CONTRIB = "com.microsoft"
Array = np.ndarray[Any, Any]
needs_runtime = pytest.mark.skipif(
    not framework_calls.has_runtime(), reason="needs pip install onnxruntime"
)


def value(name: str, shape: Sequence[Any] | None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, Array]
) -> Any:
    tensors = [numpy_helper.from_array(v, n) for n, v in constants.items()]
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(CONTRIB, 1)]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def inverted() -> Any:
    """Nodes of another domain, whose results have symbolic sizes of the inputs."""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["a"]),
        helper.make_node("Inverse", ["a"], ["b"], name="first", domain=CONTRIB),
        helper.make_node("Inverse", ["b"], ["c"], name="second", domain=CONTRIB),
        helper.make_node("Exp", ["c"], ["y"]),
    ]
    constants = {"two": np.array(2, "float32")}
    return model(nodes, [value("x", ["n", 3, 3])], [value("y", None)], constants)


def distinct() -> Any:
    """A node that decides the size of its results."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Unique", ["a"], ["b", "places", "counts"], name="values", domain=CONTRIB),
        helper.make_node("Exp", ["b"], ["y"]),
    ]
    outputs = [value("y", ["m"]), value("counts", ["m"], INT64)]
    return model(nodes, [value("x", ["n"])], outputs, {})


def answers(proto: Any, *inputs: Array) -> list[Array]:
    """What ONNX Runtime computes for the whole model."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    runtime: Any = onnxruntime
    session = runtime.InferenceSession(proto.SerializeToString())
    names = [i.name for i in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))


def compiled(proto: Any, name: str) -> Any:
    with pytest.warns(bw.BlockwrightWarning, match=f"(?s)BW513.*{name}") as caught:
        exe = bw.compile(proto)
    assert len(caught) == 1
    return exe


@needs_runtime
def test_sizes_that_follow_from_those_of_inputs(tmp_path: Path) -> None:
    proto, rng = inverted(), np.random.default_rng(0)
    exe = compiled(proto, "Inverse")
    found = [(operator.name, operator.places) for operator in exe.fallbacks]
    assert found == [("com.microsoft.Inverse", ("first", "second"))]
    exe.save(tmp_path / "model.bwx")
    (needed,) = exe.metadata.extra["libraries"]
    assert (needed["name"], needed["symbols"]) == ("onnxruntime", ("com.microsoft.Inverse",))
    x = rng.standard_normal((1, 3, 3)).astype("float32")
    for run in (exe, bw.load(tmp_path / "model.bwx")):
        for n in (3, 1):
            x = rng.standard_normal((n, 3, 3)).astype("float32")
            np.testing.assert_allclose(run(x)[0], answers(proto, x)[0], rtol=1e-5)
    found = bw.interpret(exe.stages["graph"], x)
    np.testing.assert_allclose(found, answers(proto, x)[0], rtol=1e-5)


@needs_runtime
def test_sizes_that_the_node_decides() -> None:
    proto = distinct()
    exe = compiled(proto, "Unique")
    for values in ([1, 2, 1, 3], [5, 5], [4]):
        x = np.array(values, "float32")
        interpreted = bw.interpret(exe.stages["graph"], x)
        for found in (exe(x), interpreted):
            for ours, theirs in zip(found, answers(proto, x), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@needs_runtime
def test_what_the_runtime_does_not_run_is_refused() -> None:
    for operator, why in (("StringNormalizer", "does not run it"), ("Unheard", "does not run it")):
        nodes = [helper.make_node(operator, ["x"], ["y"], name="first")]
        proto = model(nodes, [value("x", [2])], [value("y", None)], {})
        with pytest.raises(bw.ImporterError, match=f"{operator} first: .*{why}") as caught:
            bw.compile(proto)
        assert caught.value.code == "BW501"
    with pytest.raises(bw.ImporterError, match="2 nodes with unsupported operators") as caught:
        bw.compile(inverted(), options={"fallback": "error"})
    assert caught.value.code == "BW501"


def test_without_the_runtime_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onnx_importer, "has_runtime", lambda: False)
    with pytest.raises(bw.ImporterError, match="nodes first, second") as caught:
        bw.compile(inverted())
    assert caught.value.code == "BW501"
    assert "pip install onnxruntime" in (caught.value.help or "")


@needs_runtime
def test_a_bernoulli_variable_is_1_at_the_rate_given() -> None:
    """The body by which ONNX defines the operator gives 1 at the rate 1 - p."""
    node = helper.make_node("Bernoulli", ["p"], ["y"], seed=1.0)
    with pytest.warns(bw.BlockwrightWarning, match="RandomUniformLike"):
        exe = bw.compile(model([node], [value("p", ["n"])], [value("y", ["n"])], {}))
    p = np.array([0, 1, 1, 0, 1], "float32")
    np.testing.assert_array_equal(exe(p)[0], p)
    assert abs(exe(np.full(10_000, 0.3, "float32"))[0].mean() - 0.3) < 0.03

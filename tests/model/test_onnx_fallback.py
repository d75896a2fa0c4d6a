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
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def boxes() -> Any:
    """Boxes that are chosen by their scores: how many depends on these."""
    nodes = [
        helper.make_node("Mul", ["boxes", "two"], ["doubled"]),
        helper.make_node(
            "NonMaxSuppression", ["doubled", "scores", "most", "overlap"], ["chosen"], name="nms"
        ),
        helper.make_node("Add", ["chosen", "one"], ["y"]),
    ]
    constants = {
        "two": np.array(2, "float32"),
        "most": np.array([3]),
        "overlap": np.array([0.5], "float32"),
        "one": np.array(1),
    }
    inputs = [value("boxes", [1, "n", 4]), value("scores", [1, 1, "n"])]
    return model(nodes, inputs, [value("y", ["m", 3], INT64)], constants)


def unpooled() -> Any:
    """A node whose result has the size of an input that is symbolic."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("GridSample", ["a", "grid"], ["b"], name="sampled"),
        helper.make_node("Exp", ["b"], ["y"]),
    ]
    inputs = [value("x", ["n", 2, 4, 5]), value("grid", ["n", 3, 3, 2])]
    return model(nodes, inputs, [value("y", None)], {})


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
    proto, rng = unpooled(), np.random.default_rng(0)
    exe = compiled(proto, "GridSample")
    assert [(o.name, o.places) for o in exe.fallbacks] == [("GridSample", ("sampled",))]
    exe.save(tmp_path / "model.bwx")
    (needed,) = exe.metadata.extra["libraries"]
    assert (needed["name"], needed["symbols"]) == ("onnxruntime", ("GridSample",))
    for run in (exe, bw.load(tmp_path / "model.bwx")):
        for n in (1, 3):
            x = rng.standard_normal((n, 2, 4, 5)).astype("float32")
            grid = rng.uniform(-1, 1, (n, 3, 3, 2)).astype("float32")
            np.testing.assert_allclose(run(x, grid)[0], answers(proto, x, grid)[0], rtol=1e-5)
    found = bw.interpret(exe.stages["graph"], x, grid)
    np.testing.assert_allclose(found, answers(proto, x, grid)[0], rtol=1e-5)


@needs_runtime
def test_sizes_that_the_node_decides() -> None:
    proto, rng = boxes(), np.random.default_rng(1)
    exe = compiled(proto, "NonMaxSuppression")
    for n in (1, 6):
        corners = np.sort(rng.uniform(0, 9, (1, n, 4)).astype("float32"))
        scores = rng.random((1, 1, n), np.float32)
        (expected,) = answers(proto, corners, scores)
        np.testing.assert_array_equal(exe(corners, scores)[0], expected)
        found = bw.interpret(exe.stages["graph"], corners, scores)
        np.testing.assert_array_equal(found, expected)


@needs_runtime
def test_what_the_runtime_does_not_run_is_refused() -> None:
    nodes = [helper.make_node("StringNormalizer", ["x"], ["y"], name="first")]
    proto = model(nodes, [value("x", [2])], [value("y", None)], {})
    with pytest.raises(bw.ImporterError, match="StringNormalizer first: ") as caught:
        bw.compile(proto)
    assert caught.value.code == "BW501"
    with pytest.raises(bw.ImporterError, match="1 node with unsupported operators") as caught:
        bw.compile(boxes(), options={"fallback": "error"})
    assert caught.value.code == "BW501"


def test_without_the_runtime_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onnx_importer, "has_runtime", lambda: False)
    with pytest.raises(bw.ImporterError, match="nodes nms") as caught:
        bw.compile(boxes())
    assert caught.value.code == "BW501"
    assert "pip install onnxruntime" in (caught.value.help or "")

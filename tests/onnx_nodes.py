"""Nodes of ONNX Runtime's operators, many in one model: what it computes, and what we do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

import blockwright as bw

Array = np.ndarray[Any, Any]
CONTRIB = "com.microsoft"
ONLY_OURS = {"fallback": "error"}
"""Options with which a node that ONNX Runtime would run is an error."""


class Node(NamedTuple):
    """A node with its inputs.

    Attributes:
        inputs: arrays; None for those that are left out.
        outputs: whether each output is used.
        known: positions of inputs that are part of the model.
        tolerance: of its results, relative and absolute; 1 for integers that may be rounded apart.
    """

    op: str
    inputs: Sequence[Array | None]
    attrs: Mapping[str, Any]
    outputs: Sequence[bool] = (True,)
    known: Sequence[int] = ()
    tolerance: float = 2e-5
    domain: str = CONTRIB
    shapes: Mapping[int, Sequence[Any]] = {}


def node(
    op: str, *inputs: Array | None, attrs: Mapping[str, Any] | None = None, **more: Any
) -> Node:
    return Node(op, inputs, attrs or {}, **more)


class Model:
    """A model of several nodes, none of which reads another one's results.

    Attributes: `proto`, and the `arguments` of a call.
    """

    def __init__(self, nodes: Sequence[Node], opset: int = 18) -> None:
        from onnx import helper, numpy_helper

        made: list[Any] = []
        inputs: list[Any] = []
        outputs: list[Any] = []
        constants: list[Any] = []
        self.nodes, self.arguments = nodes, list[Array]()
        for n, each in enumerate(nodes):
            names: list[str] = []
            for k, value in enumerate(each.inputs):
                name = "" if value is None else f"x{n}_{k}"
                names.append(name)
                if value is None:
                    continue
                if k in each.known:
                    constants.append(numpy_helper.from_array(value, name))
                    continue
                kind = helper.np_dtype_to_tensor_dtype(value.dtype)
                shape = each.shapes.get(k, value.shape)
                inputs.append(helper.make_tensor_value_info(name, kind, shape))
                self.arguments.append(value)
            used = [f"y{n}_{k}" if wanted else "" for k, wanted in enumerate(each.outputs)]
            outputs.extend(helper.make_empty_tensor_value_info(name) for name in used if name)
            while names and not names[-1]:
                names.pop()
            label = f"node{n}"
            made.append(
                helper.make_node(each.op, names, used, label, domain=each.domain, **each.attrs)
            )
        graph = helper.make_graph(made, "nodes", inputs, outputs, constants)
        imports = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIB, 1)]
        self.proto = helper.make_model(graph, opset_imports=imports, ir_version=9)

    def judged(self, found: object) -> None:
        """Compare results with those of ONNX Runtime."""
        several: list[Any] = (
            list(cast("Sequence[Any]", found)) if isinstance(found, (list, tuple)) else [found]
        )
        wanted = answers(self.proto, self.arguments)
        places = [
            (n, k) for n, each in enumerate(self.nodes) for k, w in enumerate(each.outputs) if w
        ]
        for (n, k), ours, theirs in zip(places, several, wanted, strict=True):
            each = self.nodes[n]
            label = f"output {k} of {each.op} {dict(each.attrs)} (node {n})"
            close(ours, theirs, each.tolerance, label)

    def interpreted(self) -> None:
        """Judge what the graph computes."""
        program = bw.import_model(self.proto, fallback="error")
        self.judged(bw.interpret(program, *self.arguments))

    def compiled(self) -> Any:
        """Judge the compiled model; return it."""
        exe = bw.compile(self.proto, options=ONLY_OURS)
        self.judged(exe(*self.arguments))
        return exe


def close(ours: Any, theirs: Array, tolerance: float, label: str) -> None:
    ours = np.asarray(ours)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), label
    if theirs.dtype.kind in "iu":
        apart = np.abs(ours.astype("int64") - theirs.astype("int64"))
        assert apart.max(initial=0) <= (1 if tolerance == 1 else 0), label
    else:
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance, err_msg=label)


def answers(proto: Any, arguments: Sequence[Array], optimize: str = "") -> list[Array]:
    """What ONNX Runtime computes.

    Arguments: `optimize` is a path for the model as its optimizer leaves it.
    """
    import onnxruntime  # pyright: ignore[reportMissingImports]

    runtime: Any = onnxruntime
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    levels = runtime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_DISABLE_ALL
    if optimize:
        options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = optimize
    session = runtime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [i.name for i in session.get_inputs()]
    return session.run(None, dict(zip(names, arguments, strict=True)))


class Drawn:
    """Random arrays, the same in each run."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def floats(self, *shape: int, dtype: str = "float32") -> Array:
        return self.random.standard_normal(shape).astype(dtype)

    def bytes(self, *shape: int, dtype: str = "uint8") -> Array:
        """Signed ones have 7 bits: without VNNI, ONNX Runtime's products of others saturate."""
        low, high = (0, 256) if dtype == "uint8" else (-64, 64)
        return self.random.integers(low, high, shape).astype(dtype)

    def scales(self, *shape: int) -> Array:
        return self.random.uniform(0.01, 0.1, shape).astype("float32")


def number(value: Any, dtype: str = "float32") -> Array:
    return np.array(value, dtype)

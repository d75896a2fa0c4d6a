"""Compute nodes with ONNX Runtime, or with ONNX's reference where that has no kernel."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator

from fuzzing.onnx_graphs.program import IR_VERSION, Array, Node, OnnxProgram

ERRORS = {np.dtype("float16"): 2e-3, np.dtype("float32"): 5e-7, np.dtype("float64"): 1e-12}
"""By how much rounding may change a result, relative to it."""
_RUNTIME: Any = onnxruntime
_RUNTIME.set_default_logger_severity(4)


class Invalid(Exception):
    """The operator does not accept these operands."""


def computed(node: Node, values: Mapping[str, Array], opset: int) -> list[Array]:
    """The results of a node, those that are left out included. Raises: Invalid."""
    names = dict.fromkeys([*(name for name in node.inputs if name), *node.captures])
    data = _model(node, tuple((name, values[name].dtype.name) for name in names), opset)
    given = {name: values[name] for name in names}
    try:
        session = _session(data)
        if session is not None:
            return [np.asarray(r) for r in session.run(None, given)]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            reference: Any = ReferenceEvaluator(data)
            return [np.asarray(r) for r in reference.run(None, given)]
    except Exception as problem:  # both raise exceptions of many classes
        raise Invalid(str(problem)) from problem


def _model(node: Node, inputs: tuple[tuple[str, str], ...], opset: int) -> bytes:
    listed = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
        for name, dtype in inputs
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in node.outputs if name]
    graph = helper.make_graph([node.proto()], "node", listed, results)
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
    return model.SerializeToString()


@functools.lru_cache(maxsize=512)
def _session(model: bytes) -> Any:
    """A session that runs the nodes as they are; None if a kernel is missing."""
    options = _RUNTIME.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = _RUNTIME.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        return _RUNTIME.InferenceSession(model, options, ["CPUExecutionProvider"])
    except Exception as problem:
        if type(problem).__name__ == "NotImplemented":
            return None
        raise


class Expected(msgspec.Struct, frozen=True):
    """The results of a call, and by how much each element may differ."""

    results: list[Array]
    allowed: list[Array]


def expected(program: OnnxProgram, call: Mapping[str, Array]) -> Expected:
    """The results of a call. Raises: Invalid."""
    results, exact = _run(program, call, None)
    allowed = [np.zeros(r.shape) for r in results]
    for seed in range(3):
        others, _ = _run(program, call, np.random.default_rng(seed))
        for number, (result, other) in enumerate(zip(results, others, strict=True)):
            if result.dtype.kind != "f" or other.shape != result.shape:
                continue
            found = np.abs(other.astype(np.float64) - result.astype(np.float64))
            allowed[number] = np.maximum(allowed[number], found)
    for number, result in enumerate(results):
        if not exact[number] and result.size:
            largest = float(np.abs(result.astype(np.float64)).max()) + 0.1
            common = 0.3 * float(allowed[number].max()) + 4 * ERRORS[result.dtype] * largest
            allowed[number] = 12 * allowed[number] + common
    return Expected(results, allowed)


def _run(
    program: OnnxProgram, call: Mapping[str, Array], chance: Any
) -> tuple[list[Array], list[bool]]:
    """The outputs and whether they are exact.

    Every result that may be rounded is changed by about a rounding error, if `chance` is given.
    """
    values = program.given(call)
    exact = dict.fromkeys(values, True)
    for node in program.nodes:
        found = computed(node, values, program.opset)
        kept = node.exact and all(exact[name] for name in node.uses)
        for name, result in zip((n for n in node.outputs if n), found, strict=True):
            values[name], exact[name] = result, kept and is_exact(result)
            if result.dtype.kind in "iub":
                exact[name] = True
            elif chance is not None and not exact[name] and result.size:
                values[name] = _moved(result, chance)
            if result.dtype.kind == "f" and not np.isfinite(result).all():
                raise Invalid("not finite")
    return [values[name] for name in program.outputs], [exact[name] for name in program.outputs]


def _moved(result: Array, chance: Any) -> Array:
    size = np.abs(result.astype(np.float64))
    step = ERRORS[result.dtype] * (size + 0.1 * size.max())
    return np.asarray(result + step * chance.uniform(-1, 1, result.shape), result.dtype)


def is_exact(result: Array) -> bool:
    """Whether sums and products of a few such numbers are exact in their type.

    They are multiples of 1/16 of at most 64; in half precision, integers of at most 16.
    """
    if result.dtype.kind in "iub":
        return True
    parts, most = (1, 16) if result.dtype == np.float16 else (16, 1024)
    scaled = result.astype(np.float64) * parts
    return bool((scaled == np.round(scaled)).all() and (np.abs(scaled) <= most).all())

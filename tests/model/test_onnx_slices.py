"""ONNX Slice with bounds inside and outside of the axis, against ONNX Runtime.

With a negative step a start before the axis is its first element, unlike in Python.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import blockwright as bw

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper

STEPS = [1, 2, -1, -2]


def model(size: int | str, step: int, bounds: tuple[int, int] | None) -> Any:
    """Slice of a vector, by constants or by inputs."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size])]
    constants = {"axes": [0], "steps": [step]}
    if bounds is None:
        inputs += [helper.make_tensor_value_info(b, TensorProto.INT64, [1]) for b in ("b", "e")]
    else:
        constants |= {"b": [bounds[0]], "e": [bounds[1]]}
    graph = helper.make_graph(
        [helper.make_node("Slice", ["x", "b", "e", "axes", "steps"], ["y"])],
        "graph",
        inputs,
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.array(v), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def session(step: int) -> Any:
    return onnxruntime.InferenceSession(model("n", step, None).SerializeToString())


def bounds_of(size: int) -> Any:
    return itertools.product(range(-2 * size - 1, 2 * size + 2), repeat=2)


@pytest.mark.parametrize("step", STEPS)
def test_bounds_that_the_model_computes(step: int) -> None:
    run, exe = session(step), bw.compile(model("n", step, None))
    fixed = bw.compile(model(3, step, None))
    for size in range(5):
        x = np.arange(size, dtype="float32")
        for begin, end in bounds_of(size):
            b, e = np.array([begin]), np.array([end])
            [wanted] = run.run(None, {"x": x, "b": b, "e": e})
            label = f"[{begin}:{end}:{step}] of {size}"
            np.testing.assert_array_equal(exe(x, b, e)[0], wanted, err_msg=label)
            if size == 3:
                np.testing.assert_array_equal(fixed(x, b, e)[0], wanted, err_msg=label)


@pytest.mark.parametrize("step", STEPS)
def test_bounds_that_are_constants(step: int) -> None:
    """Of axes of any size, of a known size, and of constants, which are sliced at import."""
    run = session(step)
    for begin, end in itertools.product((-10, -3, -1, 0, 2, 9), repeat=2):
        any_size = bw.import_model(model("n", step, (begin, end)))
        for size in range(4):
            x = np.arange(size, dtype="float32")
            [wanted] = run.run(None, {"x": x, "b": np.array([begin]), "e": np.array([end])})
            label = f"[{begin}:{end}:{step}] of {size}"
            np.testing.assert_array_equal(bw.interpret(any_size, x), wanted, err_msg=label)
            if size in (0, 3):
                known = bw.import_model(model(size, step, (begin, end)))
                np.testing.assert_array_equal(bw.interpret(known, x), wanted, err_msg=label)
                folded = bw.import_model(model(size, step, (begin, end)), {"x": x})
                np.testing.assert_array_equal(bw.interpret(folded), wanted, err_msg=label)

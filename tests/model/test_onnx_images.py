"""ONNX models of detectors: boxes, samples and positions, with sizes known only at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright.ops.table import OPERATORS

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Array = np.ndarray[Any, Any]


def info(name: str, shape: Sequence[Any] | None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: list[Any], inputs: list[Any], outputs: str, **constants: Array) -> Any:
    tensors = [numpy_helper.from_array(v, n) for n, v in constants.items()]
    results = [info(name, None) for name in outputs.split()]
    graph = helper.make_graph(nodes, "graph", inputs, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).random(shape, "float32")


def test_boxes_that_overlap_are_suppressed() -> None:
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", "limit", "overlap"], ["kept"])
    inputs = [info("boxes", [1, "n", 4]), info("scores", [1, 2, "n"]), info("limit", [1], INT64)]
    exe = bw.compile(model([node], inputs, "kept", overlap=np.array([0.4], "float32")))
    for count, limit in ((30, 100), (7, 2), (5, 0), (0, 3)):
        boxes, scores = drawn(1, count, 4), drawn(1, 2, count, seed=1)
        wanted = OPERATORS["vision.non_max_suppression"].oracle(
            boxes, scores, np.array(limit), np.float32(0.4), np.float32("nan")
        )
        np.testing.assert_array_equal(exe(boxes, scores, np.array([limit]))[0], wanted)


def test_regions_are_pooled_for_any_number_of_boxes() -> None:
    node = helper.make_node(
        "RoiAlign", ["x", "boxes", "of"], ["y"], output_height=2, output_width=3, spatial_scale=8.0
    )
    inputs = [info("x", [2, 1, "h", 6]), info("boxes", ["n", 4]), info("of", ["n"], INT64)]
    program = bw.import_model(model([node], inputs, "y"))
    x, boxes, of = drawn(2, 1, 5, 6), drawn(3, 4), np.array([0, 1, 0])
    wanted = OPERATORS["vision.roi_align"].oracle(
        x, boxes, of, output_size=(2, 3), spatial_scale=8.0
    )
    np.testing.assert_allclose(bw.interpret(program, x, boxes, of), wanted, rtol=1e-5, atol=1e-5)


def test_positions_count_all_channels_and_images() -> None:
    pool = helper.make_node(
        "MaxPool", ["x"], ["y", "at"], kernel_shape=[2, 2], strides=[2, 2], storage_order=0
    )
    back = helper.make_node("MaxUnpool", ["y", "at"], ["z"], kernel_shape=[2, 2], strides=[2, 2])
    program = bw.import_model(model([pool, back], [info("x", ["n", 2, "h", 4])], "y at z"))
    x = drawn(3, 2, 6, 4)
    values, places, spread = bw.interpret(program, x)
    np.testing.assert_array_equal(x.reshape(-1)[places], values)
    np.testing.assert_array_equal(spread, np.where(np.isin(x, values), x, 0))

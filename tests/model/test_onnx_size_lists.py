"""Lists that a model computes from sizes: evaluated at import as far as they are integers.

Against ONNX Runtime, whose results are equal to the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper

from blockwright.frontend.onnx.sizes import Sizes, packed
from fuzzing.onnx_graphs.evaluate import expected
from fuzzing.onnx_graphs.program import OnnxProgram
from fuzzing.onnx_graphs.size_lists import size_program

Array = np.ndarray[Any, Any]
N = ir.Var("n", ir.dtype_of("int64"))


def agrees(program: OnnxProgram, *, compiled: bool) -> None:
    module = bw.import_model(program.model(), fallback="error")
    exe = bw.compile(module) if compiled else None
    for call in program.calls:
        found = bw.interpret(module, *call.values()) if exe is None else exe(*call.values())
        wanted = expected(program, call).results
        for name, got, want in zip(program.outputs, found, wanted, strict=True):
            np.testing.assert_array_equal(got, want, err_msg=name, strict=True)


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_random_lists(seed: int, dynamic: bool) -> None:
    agrees(size_program(seed, dynamic=dynamic), compiled=seed == 0)


def results(
    steps: list[tuple[str, list[str], dict[str, Any]]], shape: tuple[Any, ...], x: Array
) -> list[Array]:
    """The results of operators of "s", the shape of x, and "f", the shape as float32.

    The operand "c" is the list f, 1.6; other names are numbers.
    """
    constants = {"1.6": np.array([1.6], "float32"), "mask": np.array([False, True])}
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Concat", ["f", "1.6"], ["c"], axis=0),
    ]
    for place, (op, operands, attrs) in enumerate(steps):
        for name in operands:
            if name not in ("s", "f", "c", "mask") and not name.startswith("y"):
                constants[name] = np.array([float(v) for v in name.split()], "float32")
        nodes.append(helper.make_node(op, operands, [f"y{place}"], **attrs))
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info(f"y{k}") for k in range(len(steps))],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return list(bw.compile(proto, options={"fallback": "error"})(x))


@pytest.mark.parametrize("shape", [("n", "m"), ("n", 4), (3, 4)])
def test_fractions_beside_sizes(shape: tuple[Any, ...]) -> None:
    kinds = {name: getattr(TensorProto, name) for name in ("BOOL", "DOUBLE", "INT64")}
    steps: list[tuple[str, list[str], dict[str, Any]]] = [
        ("Concat", ["f", "1.6"], {"axis": 0}),
        ("Where", ["mask", "f", "1.6 .3"], {}),
        ("Floor", ["c"], {}),
        ("Ceil", ["c"], {}),
        ("Neg", ["c"], {}),
        ("Mul", ["c", ".5"], {}),
        ("Div", ["f", "3"], {}),
        ("Equal", ["c", "1.6"], {}),
        ("Cast", ["c"], {"to": kinds["BOOL"]}),
        ("Cast", ["c"], {"to": kinds["DOUBLE"]}),
        ("Cast", ["c"], {"to": kinds["INT64"]}),
    ]
    wanted: list[list[Any]] = [
        [3, 4, 1.6],
        [1.6, 4],
        [3, 4, 1],
        [3, 4, 2],
        [-3, -4, -1.6],
        [1.5, 2, 0.8],
        [1, np.float32(4) / np.float32(3)],
        [False, False, True],
        [True, True, True],
        [3, 4, float(np.float32(1.6))],
        [3, 4, 1],
    ]
    found = results(steps, shape, np.zeros((3, 4), "float32"))
    for step, got, want in zip(steps, found, wanted, strict=True):
        np.testing.assert_array_equal(got, np.array(want, got.dtype), err_msg=str(step))


@pytest.mark.parametrize("n", [(1 << 24) + 1, (1 << 24) + 3, 1 << 25])
def test_sizes_are_rounded_to_the_float_type(n: int) -> None:
    """float32 has no 2^24 + 1."""
    steps: list[tuple[str, list[str], dict[str, Any]]] = [("Mul", ["f", "3 3"], {})]
    single = np.float32(n)
    for shape in (("n", "m"), (n, 0)):
        (product,) = results(steps, shape, np.zeros((n, 0), "float32"))
        np.testing.assert_array_equal(product, [single * np.float32(3), 0])
    steps = [("Cast", ["f"], {"to": TensorProto.INT64})]
    (back,) = results(steps, (n, 0), np.zeros((n, 0), "float32"))
    np.testing.assert_array_equal(back, [int(single), 0])


def test_sizes_hold_integers_only() -> None:
    whole = packed(np.array([N, 2], object), ir.dtype_of("int64"))
    assert isinstance(whole, Sizes)
    for items, dtype in (([N, 1.6], "int64"), ([N, 2], "float32")):
        with pytest.raises(TypeError, match="sizes are integers"):
            packed(np.array(items, object), ir.dtype_of(dtype))

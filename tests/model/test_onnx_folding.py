"""Nodes of constants, which are evaluated at import, give what they give when the model runs.

Each case runs with constants and with inputs: the results are equal, or both are coded errors.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import blockwright as bw

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


def model(
    op: str, operands: list[Array | None], known: set[int], results: int, attrs: dict[str, Any]
) -> Any:
    """A model of one node, some of whose operands are constants."""
    names = ["" if v is None else f"x{k}" for k, v in enumerate(operands)]
    given = {k: v for k, v in enumerate(operands) if v is not None}
    inputs = [
        helper.make_tensor_value_info(names[k], helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in given.items()
        if k not in known
    ]
    constants = [numpy_helper.from_array(v, names[k]) for k, v in given.items() if k in known]
    outputs = [f"y{k}" for k in range(results)]
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, **attrs)],
        "graph",
        inputs,
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def outcome(
    op: str, operands: list[Array | None], known: set[int], results: int, attrs: dict[str, Any]
) -> Any:
    """The results, or the error's code."""
    arguments = [v for k, v in enumerate(operands) if v is not None and k not in known]
    try:
        module = bw.import_model(model(op, operands, known, results, attrs), fallback="error")
        found = bw.interpret(module, *arguments)
    except bw.BlockwrightError as error:
        return error.code
    return list(found) if results > 1 else [found]


def agree(
    op: str, *operands: Array | None, sizes: tuple[int, ...] = (), results: int = 1, **attrs: Any
) -> Any:
    """What a node of constants gives: the same as with inputs, except those that decide shapes."""
    given = [None if v is None else np.asarray(v) for v in operands]
    every = {k for k, v in enumerate(given) if v is not None}
    folded = outcome(op, given, every, results, attrs)
    run = outcome(op, given, set(sizes), results, attrs)
    label = f"{op} {attrs} of {operands}: {folded} folded, {run} run"
    assert isinstance(folded, str) == isinstance(run, str), label
    if isinstance(folded, str):
        assert "BW500" not in (folded, run), label  # an error that no converter expects
    else:
        for got, want in zip(folded, run, strict=True):
            np.testing.assert_array_equal(got, want, err_msg=label, strict=True)
    return folded


def i(*values: Any, dtype: str = "int64") -> Array:
    return np.array(values, dtype)


EMPTY, SCALAR = np.zeros((0, 3), "float32"), np.array(3, "int64")
MOVED = [EMPTY, np.zeros((2, 0), "int64"), SCALAR, i(1, 2, 3), np.arange(6).reshape(1, 2, 3)]
INTEGERS = ["int64", "int32", "int8", "uint8"]


def extremes(kind: str) -> Array:
    if kind == "float32":
        return np.array([-np.inf, np.nan, -1.5, -0.0, 0, 2.5, 3e38, np.inf], kind)
    least, most = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    return np.array([least, least + 1, 0, 1, 2, most // 2, most - 1, most], kind)


@pytest.mark.parametrize("kind", [*INTEGERS, "float32"])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Mod", "Max", "Min"])
def test_arithmetic_of_the_least_and_largest_numbers(op: str, kind: str) -> None:
    """Sums, products and quotients are cut off to their type."""
    if op == "Mod" and kind == "float32":
        return
    values = extremes(kind)
    if op in ("Div", "Mod"):
        others = values[values != 0]
        others = np.append(others, np.array(-1).astype(kind)) if kind != "uint8" else others
    else:
        others = values
    agree(op, values[:, None], others[None])
    agree(op, values[0], others[-1])
    agree(op, values[:0], others[:1])
    agree(op, values[:3], others[:2])


@pytest.mark.parametrize("kind", [*INTEGERS, "float32"])
@pytest.mark.parametrize("op", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
def test_comparisons(op: str, kind: str) -> None:
    values = extremes(kind)
    agree(op, values[:, None], values[None])
    agree(op, values[0], values[-1])


def test_functions_of_one_operand() -> None:
    floats = extremes("float32")
    for op, values in (
        ("Not", np.array([True, False])),
        ("Neg", floats),
        ("Neg", extremes("int64")),
        ("Neg", extremes("int8")),
        ("Floor", floats),
        ("Ceil", floats),
        ("Sqrt", floats),
        ("Relu", floats),
        ("Relu", extremes("int32")),
    ):
        for part in (values, values[0], values[:0]):
            agree(op, np.asarray(part))
    for op in ("And", "Or", "Xor"):
        agree(op, np.array([True, False])[:, None], np.array([True, False]))
        agree(op, np.array(True), np.array(False))


@pytest.mark.parametrize("to", ["INT64", "INT32", "INT8", "UINT8", "BOOL", "FLOAT", "FLOAT16"])
def test_casts(to: str) -> None:
    number = getattr(TensorProto, to)
    for kind in INTEGERS:
        agree("Cast", extremes(kind), to=number)
    agree("Cast", np.array(True), to=number)
    agree("Cast", np.array([-1.5, 0, 2.5, 100], "float32"), to=number)


@pytest.mark.parametrize("kind", ["int64", "int32"])
@pytest.mark.parametrize("op", ["Prod", "Sum", "Max", "Min"])
def test_reductions(op: str, kind: str) -> None:
    values = extremes(kind)
    for part, keeps in itertools.product((values, values[:1], values[:0], values[-1]), (0, 1)):
        agree(f"Reduce{op}", np.asarray(part), keepdims=keeps)
    agree(f"Reduce{op}", values, i(-1), sizes=(1,))
    agree(f"Reduce{op}", values, i(1), sizes=(1,))
    agree(f"Reduce{op}", values.reshape(2, 4), i(1), sizes=(1,))


def test_moves() -> None:
    for x in MOVED:
        for axis in range(-4, 5):
            agree("Flatten", x, axis=axis)
            agree("Unsqueeze", x, i(axis), sizes=(1,))
            agree("Squeeze", x, i(axis), sizes=(1,))
            agree("Concat", x, x, axis=axis)
            agree("Split", x, results=2, axis=axis, num_outputs=2)
        agree("Squeeze", x)
        agree("Unsqueeze", x, i(0, 0), sizes=(1,))
        agree("Transpose", x)
        agree("Identity", x)
        agree("Shape", x)
        agree("Size", x)
        for shape in (i(-1), i(3), i(0, -1), i(0, 0, 0), i(-1, -1), i(2, 0), i(7), i(6, 1)):
            agree("Reshape", x, shape, sizes=(1,))
            agree("Expand", x, np.abs(shape), sizes=(1,))
            agree("Tile", x, shape, sizes=(1,))
    agree("Transpose", MOVED[-1], perm=[2, 0, 1])
    agree("Transpose", MOVED[-1], perm=[0, 0, 1])
    agree("Transpose", MOVED[-1], perm=[0, 1])
    agree("Concat", i(1), i(1)[None], axis=0)


def test_slices() -> None:
    x, largest = np.arange(6).reshape(2, 3), np.iinfo("int64").max
    for begin, end, step in itertools.product(
        (0, 1, -1, -9, largest), (0, 2, -1, -9, largest), (1, 2, -1, -2)
    ):
        agree("Slice", x, i(begin), i(end), i(1), i(step), sizes=(1, 2, 3, 4))
    agree("Slice", x, i(0), i(2), i(1), i(0), sizes=(1, 2, 3, 4))
    agree("Slice", x, i(0), i(2), i(2), sizes=(1, 2, 3))
    agree("Slice", SCALAR, i(0), i(2), sizes=(1, 2))
    agree("Slice", EMPTY, i(0, 0), i(2, 2), sizes=(1, 2))


def test_parts() -> None:
    """As many equal parts as there are results; the last ones are smaller, or empty."""
    x = np.arange(5, dtype="float32")
    parts = agree("Split", x, results=4, num_outputs=4)
    assert [part.size for part in parts] == [2, 2, 1, 0]
    agree("Split", x, results=3, num_outputs=3)
    agree("Split", EMPTY, results=2, num_outputs=2)
    for sizes in (i(2, 3), i(5, 0), i(2, 2), i(6, -1), i(1, 2, 2)):
        agree("Split", x, sizes, sizes=(1,), results=2)


def test_elements() -> None:
    for x in (i(4, 5, 6), np.arange(6).reshape(2, 3), np.zeros((0, 2), "int64"), SCALAR):
        for index, axis in itertools.product((i(0), i(-1), SCALAR * 0, i()), (-2, 0, 1)):
            agree("Gather", x, index, axis=axis)
    agree("Where", np.array([True, False]), i(1, 2), i(3))
    agree("Where", np.array(True), i(1, 2), i(3, 4, 5))
    agree("NonZero", i(0, 3, 0, 1))
    agree("NonZero", np.zeros((2, 0), "int64"))
    agree("ConstantOfShape", i(2, 3), sizes=(0,))
    agree("ConstantOfShape", i(2, 0), sizes=(0,))
    agree("ConstantOfShape", i(-1), sizes=(0,))
    for begin, end, step in ((0, 5, 2), (5, 0, -2), (0, 5, -1), (0, 0, 1), (3, 1, 1)):
        agree("Range", *(np.array(v) for v in (begin, end, step)), sizes=(0, 1, 2))


def test_an_index_beyond_the_sizes_of_a_shape_is_refused() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Gather", ["s", "k"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.array(5), "k")],
    )
    with pytest.raises(bw.BlockwrightError, match="index 5 is out of range") as caught:
        bw.import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))
    assert caught.value.code == "BW507"


def test_products_of_integers_are_cut_off_to_their_type() -> None:
    (total,) = agree("ReduceProd", i(1 << 30, 4, 3, dtype="int32"), keepdims=0)
    assert total == 0
    (quotient,) = agree("Div", i(-(1 << 63)), i(-1))
    assert quotient == -(1 << 63)

"""Casts to floats of 8 bits, of numbers beyond the largest one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import blockwright as bw

INF, NAN = float("inf"), float("nan")
NUMBERS = [1.0, 240.0, 300.0, 448.0, 465.0, 1000.0, -1e5, INF, -INF, NAN]
INTEGERS = [1, -17, 127, 300, -1000, 32767]
TYPES = [
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
]
LARGEST = {
    "FLOAT8E4M3FN": 448,
    "FLOAT8E4M3FNUZ": 240,
    "FLOAT8E5M2": 57344,
    "FLOAT8E5M2FNUZ": 57344,
}


class Cast(torch.nn.Module):
    """Casts by way of another type to one of 8 bits."""

    def __init__(self, source: torch.dtype, target: torch.dtype) -> None:
        super().__init__()
        self.source, self.target = source, target

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.source).to(self.target).float()


@pytest.mark.parametrize("target", TYPES, ids=str)
@pytest.mark.parametrize(
    "source", [torch.float32, torch.float64, torch.float16, torch.bfloat16, *TYPES], ids=str
)
def test_floats_of_pytorch(source: torch.dtype, target: torch.dtype) -> None:
    """`float8_e4m3fn` saturates, also from infinities and from other floats of 8 bits."""
    x, module = torch.tensor(NUMBERS), Cast(source, target)
    found = bw.compile(module, (x,))(x)
    torch.testing.assert_close(found, module(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("target", TYPES, ids=str)
@pytest.mark.parametrize("source", [torch.int64, torch.int16, torch.int8, torch.uint8], ids=str)
def test_integers_of_pytorch(source: torch.dtype, target: torch.dtype) -> None:
    x, module = torch.tensor(INTEGERS), Cast(source, target)
    found = bw.compile(module, (x,))(x)
    torch.testing.assert_close(found, module(x), rtol=0, atol=0, equal_nan=True)


class Kept(torch.nn.Module):
    """Writes numbers to a buffer of 8 bits."""

    kept: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(3).to(torch.float8_e4m3fn))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.copy_(x)
        return self.kept.float()


def test_copies_to_a_buffer_of_pytorch() -> None:
    x = torch.tensor([1e4, -INF, 2.0])
    assert bw.compile(Kept(), (x,))(x).tolist() == [448, -448, 2]


def cast_by_onnx(kind: str, saturate: int | None, source: str) -> Any:
    onnx = pytest.importorskip("onnx")
    kinds = onnx.TensorProto.DataType
    given = {} if saturate is None else {"saturate": saturate}
    nodes = [
        onnx.helper.make_node("Cast", ["x"], ["s"], to=kinds.Value(source)),
        onnx.helper.make_node("Cast", ["s"], ["c"], to=kinds.Value(kind), **given),
        onnx.helper.make_node("Cast", ["c"], ["y"], to=kinds.FLOAT),
    ]
    inputs, outputs = (onnx.helper.make_tensor_value_info(n, kinds.FLOAT, ["n"]) for n in "xy")
    graph = onnx.helper.make_graph(nodes, "graph", [inputs], [outputs])
    imports = [onnx.helper.make_opsetid("", 21)]
    return bw.compile(onnx.helper.make_model(graph, opset_imports=imports, ir_version=10))


@pytest.mark.parametrize("kind", LARGEST)
@pytest.mark.parametrize("source", ["FLOAT", "FLOAT16", "DOUBLE", "INT32", "INT64"])
def test_casts_of_onnx_saturate(kind: str, source: str) -> None:
    x = np.array([1, -64000, 62000], "float32")
    found = cast_by_onnx(kind, None, source)(x)[0]
    assert found.tolist() == [1, -LARGEST[kind], LARGEST[kind]]


def test_casts_of_onnx_between_floats_of_8_bits_saturate() -> None:
    x = np.array([1, -1024, 448, INF, NAN], "float32")
    found = cast_by_onnx("FLOAT8E4M3FN", None, "FLOAT8E5M2")(x)[0]
    np.testing.assert_array_equal(found, [1, -448, 448, 448, NAN])


def test_casts_of_onnx_that_do_not_saturate() -> None:
    found = cast_by_onnx("FLOAT8E4M3FN", 0, "INT32")(np.array([448, 1000], "float32"))[0]
    np.testing.assert_array_equal(found, [448, NAN])


def test_small_integers_of_onnx_need_no_bounds() -> None:
    found = cast_by_onnx("FLOAT8E4M3FN", None, "UINT8")(np.array([3, 255], "float32"))[0]
    assert found.tolist() == [3, 256]
    found = cast_by_onnx("FLOAT8E4M3FNUZ", None, "UINT8")(np.array([3, 255], "float32"))[0]
    assert found.tolist() == [3, 240]

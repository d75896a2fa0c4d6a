"""Load ONNX models and read their protos: tensors, attributes, types.

    loaded = load("model.onnx")        # a path, bytes or a ModelProto
    loaded.graph, loaded.opsets        # the graph, and domain → opset version

The package `onnx` is imported here, at first use, and nowhere else in the room.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from blockwright import ir
from blockwright.support import ImporterError

NEWEST = 28
"""Newest opset version of the default domain; for older ones see `versions`."""

# Number in TensorProto.DataType → element type.
_TYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    21: "uint4",
    22: "int4",
    23: "float4_e2m1fn",
    24: "float8_e8m0fnu",
    25: "uint2",
    26: "int2",
}
_NUMBERS = {name: number for number, name in _TYPES.items()}


class Loaded(msgspec.Struct, frozen=True, eq=False):
    """A model and what its nodes refer to.

    Attributes:
        graph: the `GraphProto`.
        opsets: domain → opset version; the default domain is "".
        functions: (domain, name, overload) → `FunctionProto` of the model.
        folder: where external data lies; None if the model is not a file.
    """

    graph: Any
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], Any]
    folder: Path | None


def onnx_package() -> Any:
    """The package `onnx`.

    Raises: ImporterError BW520 if it is not installed.
    """
    try:
        return importlib.import_module("onnx")
    except ModuleNotFoundError as error:
        if error.name not in ("onnx", "google", "google.protobuf"):
            raise
        raise ImporterError(
            f"ONNX models need the package {error.name.partition('.')[0]}, which is not installed",
            code="BW520",
            help='pip install "blockwright[onnx]"; compiled models run without it',
        ) from error


def is_onnx(model: Any) -> bool:
    """Whether a value is an ONNX model: a path to one, its bytes, or a proto."""
    if isinstance(model, (str, os.PathLike)):
        return Path(cast("str", model)).suffix == ".onnx"
    return isinstance(model, bytes) or type(model).__name__ == "ModelProto"


def load(model: Any) -> Loaded:
    """Read a model from a path, from bytes or from a proto.

    Raises: ImporterError: BW520 `onnx` is not installed, BW521 the model cannot be read, BW522 an
        opset version is not supported.
    """
    onnx = onnx_package()
    folder = None
    if isinstance(model, (str, os.PathLike)):
        path = Path(cast("str", model))
        folder = path.resolve().parent
        try:
            model = path.read_bytes()
        except OSError as error:
            raise ImporterError(
                f"{path.name} cannot be read: {error.strerror or error}",
                code="BW521",
                help="give the path of an ONNX file",
            ) from error
    if isinstance(model, bytes):
        content, model = model, onnx.ModelProto()
        try:
            model.ParseFromString(content)
        except Exception as error:  # the class of the error depends on protobuf's version
            raise _unreadable(str(error)) from error
    if not model.HasField("graph") or not model.opset_import:
        raise _unreadable("it has no graph or no opset version")
    opsets = {_domain(entry.domain): entry.version for entry in model.opset_import}
    newest = onnx.defs.onnx_opset_version()
    if opsets.get("", 1) > min(newest, NEWEST):
        raise ImporterError(
            f"opset {opsets['']} is not supported; the newest is {min(newest, NEWEST)}",
            code="BW522",
            help="export the model with an older opset_version",
        )
    functions = {(_domain(f.domain), f.name, f.overload): f for f in model.functions}
    return Loaded(model.graph, opsets, functions, folder)


def _unreadable(why: str) -> ImporterError:
    return ImporterError(
        f"not an ONNX model: {why}",
        code="BW521",
        help="onnx.checker.check_model says what is wrong with a model",
    )


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def element_type(number: int, what: str) -> ir.DType:
    """The element type of a number in TensorProto.DataType.

    Raises: ImporterError BW504 for strings, complex numbers and floats without a counterpart.
    """
    name = _TYPES.get(number)
    if name is None:
        known = onnx_package().TensorProto.DataType
        given = known.Name(number).lower() if number in known.values() else str(number)
        raise ImporterError(
            f"{what}: element type {given} is not supported",
            code="BW504",
            help="cast to another type before",
        )
    return ir.dtype_of(name)


def type_number(dtype: ir.DType) -> int:
    """The number of an element type in TensorProto.DataType."""
    return _NUMBERS[dtype.name]


def to_numpy(tensor: Any, folder: Path | None) -> np.ndarray[Any, Any]:
    """The value of a `TensorProto`.

    Raises: ImporterError: BW504 unsupported element type, BW521 external data cannot be read.
    """
    onnx = onnx_package()
    what = f"tensor {tensor.name!r}" if tensor.name else "a constant"
    dtype = element_type(tensor.data_type, what)
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    if external and folder is None:
        raise ImporterError(
            f"{what} is stored in another file, but the model was not loaded from one",
            code="BW521",
            help="pass the path of the model, or onnx.load it with its external data",
        )
    try:
        value = onnx.numpy_helper.to_array(tensor, str(folder or ""))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ImporterError(
            f"{what} cannot be read: {error}",
            code="BW521",
            help="keep the files of the model together",
        ) from error
    assert ir.dtype_of(value.dtype) is dtype
    return value


def attribute_value(attribute: Any, folder: Path | None) -> Any:
    """The value of an `AttributeProto`: a number, text, array, graph, or a tuple of them."""
    onnx = onnx_package()
    if attribute.type == onnx.AttributeProto.TENSOR:
        return to_numpy(attribute.t, folder)
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if attribute.type in (attribute.INTS, attribute.FLOATS, attribute.STRINGS):
        return tuple(v.decode() if isinstance(v, bytes) else v for v in value)
    return value

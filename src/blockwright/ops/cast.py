"""Conversion of element types: of values, and of their bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ops.common import broadcast_info, lower_elementwise, tensors
from blockwright.ops.row import REQUIRED, Array, Attrs, OpContext, OpRow, Sample
from blockwright.ops.samples import bools, floats, ints, special, values


def _deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    return broadcast_info(ctx, tensors(ctx, infos, 1, 1), ir.dtype_of(attrs["dtype"]))


def _lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    dtype = ir.dtype_of(attrs["dtype"])

    def body(x: Any) -> Any:
        return ir.cast_to(x, dtype)

    return lower_elementwise(ctx, infos, dtype, body)


def convert(x: Array, dtype: Any) -> Array:
    """Float to integer saturates (NaN to 0), bool is `!= 0`, the rest follows NumPy."""
    source, target = ir.dtype_of(x.dtype), ir.dtype_of(dtype)
    if target.is_bool:
        return np.asarray(x != 0)
    if not (source.is_float and target.is_int):
        return x.astype(target.numpy())
    out = np.zeros(x.shape, target.numpy())
    number = x.astype(np.float64)
    inside = (number > target.min_value - 1.0) & (number < float(target.max_value))
    out[inside] = np.trunc(number[inside]).astype(target.numpy())
    out[number >= float(target.max_value)] = target.max_value
    out[number <= target.min_value - 1.0] = target.min_value
    return out


# ------------------------------------------------------------------------------- the same bits
def _deduce_bits(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (x,) = tensors(ctx, infos, 1, 1)
    target = ir.dtype_of(attrs["dtype"])
    if x.dtype is not None and _width(x.dtype) != _width(target):
        raise ctx.error(
            f"elements of {x.dtype} have {_width(x.dtype)} bits, those of {target} "
            f"{_width(target)}",
            "choose a type of the same width",
        )
    return broadcast_info(ctx, [x], target)


def _width(dtype: ir.DType) -> int:
    return 8 if dtype.is_bool else dtype.bits


def _lower_bits(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    target = ir.dtype_of(attrs["dtype"])

    def body(x: Any) -> Any:
        bits = ir.cast_to(x, "uint8") if x.dtype.is_bool else x
        if target.is_bool:
            bits = bits if bits.dtype.is_int else ir.call("reinterpret", bits, dtype="uint8")
            return ir.cast_to(bits, "bool")
        return bits if bits.dtype is target else ir.call("reinterpret", bits, dtype=target)

    return lower_elementwise(ctx, infos, target, body)


def _same_bits(x: Array, dtype: Any) -> Array:
    target = ir.dtype_of(dtype)
    if target.is_bool:
        return np.asarray(x.view(np.uint8) != 0)
    if target.is_int and target.bits < 8:  # a byte each, as numbers of that range
        low = x.view(np.uint8) & np.uint8((1 << target.bits) - 1)
        signed = target.kind == "int"
        return np.where(signed & (low > target.max_value), low - (1 << target.bits), low).astype(
            target.numpy()
        )
    return x.view(target.numpy())


ROWS: tuple[OpRow, ...] = (
    OpRow(
        "reinterpret",
        ("x",),
        _deduce_bits,
        _lower_bits,
        _same_bits,
        {"dtype": REQUIRED},
        onnx=("BitCast",),
        samples=(
            Sample((special(),), {"dtype": "int32"}, 0.0),
            Sample((ints(3, 5),), {"dtype": "uint32"}, 0.0),
            Sample((floats(7, dtype="bfloat16"),), {"dtype": "float16"}, 0.0),
            Sample((floats(2, 3, dtype="float64"),), {"dtype": "uint64"}, 0.0),
            Sample((bools(5),), {"dtype": "int8"}, 0.0),
            Sample((values(0, 2, 255, dtype="uint8"),), {"dtype": "bool"}, 0.0),
        ),
        doc="The bits of each element as a number of another type of the same width.",
        layout="elementwise",
    ),
    OpRow(
        "astype",
        ("x",),
        _deduce,
        _lower,
        convert,
        {"dtype": REQUIRED},
        (
            "aten.to.dtype",
            "aten.to.device",
            "aten.to.dtype_layout",
            "aten.to.other",
            "aten._to_copy.default",
            "aten.type_as.default",
        ),
        onnx=("Cast",),
        samples=(
            Sample((floats(7, 3),), {"dtype": "int32"}, 0.0),
            Sample((special(),), {"dtype": "int32"}, 0.0),
            Sample((special(),), {"dtype": "bool"}, 0.0),
            Sample((special("float64"),), {"dtype": "float32"}, 0.0),
            Sample((special(),), {"dtype": "float16"}, 0.0),
            Sample((floats(5, dtype="float16"),), {"dtype": "float32"}, 0.0),
            Sample((floats(5),), {"dtype": "bfloat16"}, 0.0),
            Sample((ints(3, 5, dtype="int64"),), {"dtype": "float32"}, 0.0),
            Sample((ints(5, low=-300, high=300),), {"dtype": "int8"}, 0.0),
            Sample((ints(5, low=-1, high=2),), {"dtype": "bool"}, 0.0),
            Sample((values(300.0, -5.0, 200.9, 0.9),), {"dtype": "uint8"}, 0.0),
            Sample((bools(3, 5),), {"dtype": "float32"}, 0.0),
            Sample((bools(5),), {"dtype": "int64"}, 0.0),
        ),
        doc="Elements converted to another type; docs/semantics.md defines the rounding.",
        layout="elementwise",
    ),
)

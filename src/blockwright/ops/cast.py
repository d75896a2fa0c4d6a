"""Conversion of element types."""

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


ROWS: tuple[OpRow, ...] = (
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

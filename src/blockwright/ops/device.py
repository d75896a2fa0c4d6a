"""Placement of values on devices: copies, and hints that a pass turns into placement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockwright import ir
from blockwright.ir.device_names import canonical_device
from blockwright.ops.common import lower_elementwise, tensors
from blockwright.ops.row import REQUIRED, Array, Attrs, OpContext, OpRow, Sample
from blockwright.ops.samples import floats, ints

TO_DEVICE, HINT = "to_vdevice", "hint_on_device"
DESTINATION = {TO_DEVICE: "dst_vdevice", HINT: "device"}
"""Operator → its attribute with the device of the result."""


def _deduce(ctx: OpContext, infos: Sequence[ir.Info], attrs: Attrs) -> ir.Info:
    (info,) = tensors(ctx, infos, 1, 1)
    return info.replace(device=canonical_device(attrs[DESTINATION[ctx.name]]))


def _lower(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs) -> ir.PrimFunc:
    def body(x: Any) -> Any:
        return x

    return lower_elementwise(ctx, infos, infos[0].dtype, body)


def _copy(x: Array, **attrs: Any) -> Array:
    return x.copy()


ROWS: tuple[OpRow, ...] = (
    OpRow(
        TO_DEVICE,
        ("x",),
        _deduce,
        _lower,
        _copy,
        {"dst_vdevice": REQUIRED},
        samples=(
            Sample((floats(7, 3),), {"dst_vdevice": "cpu"}, 0.0),
            Sample((ints(5, dtype="int64"),), {"dst_vdevice": "cpu:1"}, 0.0),
        ),
        doc="The value on another device: a copy, or the value itself where the memory is shared.",
        layout="elementwise",
    ),
    OpRow(
        HINT,
        ("x",),
        _deduce,
        _lower,
        _copy,
        {"device": REQUIRED},
        samples=(Sample((floats(7, 3),), {"device": "cpu"}, 0.0),),
        doc="The value, which should be computed on a device; the pass RealizeDevices decides.",
        layout="elementwise",
    ),
)

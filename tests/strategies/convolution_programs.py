"""Convolutions that several tests of strategies schedule."""

from __future__ import annotations

from typing import Any

import blockwright as bw
from blockwright import ir
from blockwright.ops.implementation import lower_call
from blockwright.ops.row import OpContext
from blockwright.ops.table import OPERATORS


def operator(name: str, *shapes: tuple[int, ...], **attrs: Any) -> ir.PrimFunc:
    """An operator on float32 tensors."""
    row = OPERATORS[name]
    infos = [
        ir.TensorInfo(tuple(ir.const(d, "int64") for d in shape), ir.dtype_of("float32"))
        for shape in shapes
    ]
    func = lower_call(row, OpContext(name), infos, {**row.attrs, **attrs})
    return func.replace(attrs={**func.attrs, "global_symbol": "main"})


def convolution(
    height: int,
    width: int,
    channels: int,
    filters: int,
    kernel: int = 3,
    pad: int = 0,
    dilation: int = 1,
    groups: int = 1,
    stride: int = 1,
    batch: int = 2,
) -> ir.PrimFunc:
    """Channels-first convolution with bias; channels and filters are those of a group."""
    reach = dilation * (kernel - 1)
    rows, columns = ((n + 2 * pad - reach - 1) // stride + 1 for n in (height, width))
    outer = f"{batch}, {groups}, {channels}, {height + 2 * pad}, {width + 2 * pad}"
    border = f"""
    Y = T.alloc_buffer(({outer}))
    for n, g, c, i, j in T.grid({outer}):
        with T.block("pad"):
            vn, vg, vc, vh, vw = T.axis.remap("SSSSS", [n, g, c, i, j])
            Y[vn, vg, vc, vh, vw] = T.if_then_else(
                {pad} <= vh and vh < {height + pad} and {pad} <= vw and vw < {width + pad},
                X[vn, vg, vc, vh - {pad}, vw - {pad}], T.float32(0))"""
    data = "Y" if pad else "X"

    def at(axis: str) -> str:
        return f"v{axis} * {stride} + vk{axis} * {dilation}"

    return bw.from_source(f"""
@T.prim_func
def conv(X: T.Buffer(({batch}, {groups}, {channels}, {height}, {width}), "float32"),
         F: T.Buffer(({groups}, {filters}, {channels}, {kernel}, {kernel}), "float32"),
         bias: T.Buffer(({groups}, {filters}), "float32"),
         D: T.Buffer(({batch}, {groups}, {filters}, {rows}, {columns}), "float32")):
    C = T.alloc_buffer(({batch}, {groups}, {filters}, {rows}, {columns})){border if pad else ""}
    for n, g, f, i, j, c, kh, kw in T.grid(
        {batch}, {groups}, {filters}, {rows}, {columns}, {channels}, {kernel}, {kernel}
    ):
        with T.block("conv"):
            vn, vg, vf, vh, vw, vc, vkh, vkw = T.axis.remap("SSSSSRRR", [n, g, f, i, j, c, kh, kw])
            with T.init():
                C[vn, vg, vf, vh, vw] = T.float32(0)
            C[vn, vg, vf, vh, vw] = C[vn, vg, vf, vh, vw] + (
                {data}[vn, vg, vc, {at("h")}, {at("w")}] * F[vg, vf, vc, vkh, vkw])
    for n, g, f, i, j in T.grid({batch}, {groups}, {filters}, {rows}, {columns}):
        with T.block("bias"):
            vn, vg, vf, vh, vw = T.axis.remap("SSSSS", [n, g, f, i, j])
            D[vn, vg, vf, vh, vw] = T.max(C[vn, vg, vf, vh, vw] + bias[vg, vf], T.float32(0))
""")

"""Operators on images: sampling, boxes of detectors, displaced convolutions, unpooling."""

from __future__ import annotations

from typing import Any

import numpy as np

from blockwright import ir
from blockwright.frontend.onnx.call import Call, Converters, Value, dims_of, dtype_of, rank_of
from blockwright.frontend.onnx.convert_shapes import product
from blockwright.frontend.onnx.convert_windows import with_channels
from blockwright.frontend.onnx.sizes import I64

TABLE = Converters()

_METHODS = {"linear": "bilinear", "cubic": "bicubic"}


@TABLE.op("GridSample")
def grid_sample(call: Call) -> Value:
    mode = call.attr("mode")
    return call.apply(
        "image.grid_sample",
        call.tensor(0),
        call.cast(call.tensor(1), dtype_of(call.tensor(0))),
        method=_METHODS.get(mode, mode),
        padding_mode=call.attr("padding_mode"),
        align_corners=bool(call.attr("align_corners")),
    )


@TABLE.op("NonMaxSuppression")
def _non_max_suppression(call: Call) -> Value:
    """Without a limit no box is kept; without a least score all boxes are candidates."""
    boxes, scores = call.tensor(0), call.tensor(1)
    dtype = dtype_of(boxes)

    def number(position: int, default: Any, kind: ir.DType) -> ir.GraphExpr:
        given = call.optional(position)
        return call.scalar(default, kind) if given is None else call.reshape(given, ())

    found = call.apply(
        "vision.non_max_suppression",
        boxes,
        scores,
        number(2, 0, I64),
        number(3, 0.0, dtype),
        number(4, np.nan, dtype),
        centred=bool(call.attr("center_point_box")),
    )
    count = ir.Var(call.imp.dimensions.unique("count"), I64)
    info = ir.TensorInfo((count, ir.const(3, I64)), I64)
    return call.imp.builder.match_cast(found, info, "kept")


@TABLE.op("RoiAlign")
def _roi_align(call: Call) -> Value:
    return call.apply(
        "vision.roi_align",
        *call.tensors(),
        output_size=(call.attr("output_height"), call.attr("output_width")),
        sampling_ratio=call.attr("sampling_ratio"),
        spatial_scale=call.attr("spatial_scale"),
        aligned=call.attr("coordinate_transformation_mode") == "half_pixel",
        mode=call.attr("mode"),
    )


@TABLE.op("DeformConv")
def _deform_conv(call: Call) -> Value:
    x, mask = call.tensor(0), call.optional(4)
    rank = rank_of(x) - 2
    if rank != 2:
        raise call.error(f"{rank} spatial axes are not supported", "use 2")
    result = call.apply(
        "nn.deform_conv2d",
        x,
        call.tensor(1),
        call.tensor(2),
        *(() if mask is None else (mask,)),
        strides=call.attr("strides", (1,) * rank),
        padding=call.attr("pads", (0,) * 2 * rank),
        dilation=call.attr("dilations", (1,) * rank),
        groups=call.attr("group"),
        offset_groups=call.attr("offset_group"),
    )
    return with_channels(call, result, call.optional(3))


@TABLE.op("MaxUnpool")
def _max_unpool(call: Call) -> Value:
    """Elements at their positions in a tensor of zeros, which `output_shape` may extend."""
    x, indices = call.tensor(0), call.tensor(1)
    size = call.attr("kernel_shape")
    rank = len(size)
    strides, pads = call.attr("strides", (1,) * rank), call.attr("pads", (0,) * 2 * rank)
    shape: list[ir.Expr] = list(dims_of(x)[:2])
    for axis, extent in enumerate(dims_of(x)[2:]):
        moved = ir.mul(ir.sub(extent, ir.const(1, I64)), ir.const(strides[axis], I64))
        more = size[axis] - pads[axis] - pads[rank + axis]
        shape.append(call.imp.builder.analyzer.simplify(ir.add(moved, ir.const(more, I64))))
    zeros = call.apply("full", shape=(product(shape),), fill_value=0, dtype=dtype_of(x))
    count = (product(dims_of(x)),)
    flat = call.apply(
        "scatter_elements", zeros, call.reshape(indices, count), call.reshape(x, count), axis=0
    )
    result = call.reshape(flat, shape)
    if not call.has(2):
        return result
    wanted = call.ints(2, "output_shape")
    width = tuple(
        (0, ir.sub(ir.const(want, I64), have)) for want, have in zip(wanted, shape, strict=True)
    )
    return call.apply("pad", result, pad_width=width)

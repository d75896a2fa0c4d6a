"""Operators of `com.microsoft` that mean the same as newer ones of ONNX, or nearly so."""

from __future__ import annotations

import numpy as np

from blockwright import ir
from blockwright.frontend.onnx.call import Call, Converters, Value, dims_of, rank_of
from blockwright.frontend.onnx.contrib_fused import CONTRIB
from blockwright.frontend.onnx.convert_images import grid_sample
from blockwright.frontend.onnx.convert_made import range_, trilu
from blockwright.frontend.onnx.convert_selection import gather_nd
from blockwright.frontend.onnx.convert_shapes import pad

TABLE = Converters()


def _late(call: Call, *positions: int) -> bool:
    """Whether one of some inputs is computed when the model runs."""
    values = [call.operands[k] for k in positions if call.has(k)]
    return any(isinstance(v, ir.GraphExpr) and not isinstance(v, ir.Constant) for v in values)


@TABLE.op("ExpandDims", domain=CONTRIB)
def _expand_dims(call: Call) -> Value:
    """A new axis of size 1; a negative one counts from the end of the result."""
    if _late(call, 1):
        return NotImplemented
    x, (axis,) = call.tensor(0), call.ints(1, "the axis")
    rank = rank_of(x)
    if not -rank - 1 <= axis <= rank:
        raise call.error(
            f"axis {axis} is out of range for rank {rank}", f"use {-rank - 1} to {rank}"
        )
    dims = list(dims_of(x))
    place = axis if axis >= 0 else axis + rank + 1
    return call.reshape(x, [*dims[:place], 1, *dims[place:]])


@TABLE.op("GatherND", domain=CONTRIB)
def _gather_nd(call: Call) -> Value:
    return gather_nd(call.like(*call.operands, batch_dims=0))


@TABLE.op("Pad", domain=CONTRIB)
def _pad(call: Call) -> Value:
    if _late(call, 1):
        return NotImplemented
    return pad(call.like(*call.operands, mode=call.attr("mode", "constant")))


@TABLE.op("Trilu", domain=CONTRIB)
def _trilu(call: Call) -> Value:
    if _late(call, 1):
        return NotImplemented
    return trilu(call.like(*call.operands, upper=call.attr("upper", 1)))


@TABLE.op("GridSample", domain=CONTRIB)
def _grid_sample(call: Call) -> Value:
    defaults = {"mode": "bilinear", "padding_mode": "zeros", "align_corners": 0}
    given = {name: call.attr(name, value) for name, value in defaults.items()}
    return grid_sample(call.like(*call.operands, **given))


@TABLE.op("Range", domain=CONTRIB)
def _range(call: Call) -> Value:
    """Bounds may be tensors of one element; the step is 1 unless it is given."""
    if _late(call, 0, 1, 2):
        return NotImplemented
    if call.has(2):
        return range_(call)
    one = np.ones((), call.imp.dtype(call.value(0)).numpy())
    return range_(call.like(*call.operands[:2], one))

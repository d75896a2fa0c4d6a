"""Convolutions and pools in one to three dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from blockwright import ir
from blockwright.frontend.onnx.call import Call, Converters, Value, dims_of, dtype_of, rank_of
from blockwright.frontend.onnx.convert_shapes import product

TABLE = Converters()


class Window(msgspec.Struct, frozen=True):
    """Attributes of a sliding window; one number for each spatial axis."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def padding(self) -> tuple[int, ...]:
        return (*self.before, *self.after)


def window_of(call: Call, x: ir.GraphExpr, size: tuple[int, ...]) -> Window:
    """The window of a node, with the padding that `auto_pad` stands for."""
    rank = len(size)
    strides = tuple(call.attr("strides", (1,) * rank))
    dilations = tuple(call.attr("dilations", (1,) * rank))
    mode = call.attr("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        pads = tuple(call.attr("pads", (0,) * 2 * rank))
        return Window(size, strides, dilations, pads[:rank], pads[rank:])
    if mode == "VALID":
        return Window(size, strides, dilations, (0,) * rank, (0,) * rank)
    before: list[int] = []
    after: list[int] = []
    for axis in range(rank):
        extent = ir.const_int(dims_of(x)[2 + axis])
        whole = (size[axis] - 1) * dilations[axis] + 1
        if extent is None and strides[axis] != 1:
            raise call.error(
                f"auto_pad={mode} with a stride on a dimension of unknown size",
                "declare the size, or give pads",
            )
        count = 0 if extent is None else -(-extent // strides[axis])
        total = (
            whole - 1 if extent is None else max((count - 1) * strides[axis] + whole - extent, 0)
        )
        low = total // 2 if mode == "SAME_UPPER" else total - total // 2
        before.append(low)
        after.append(total - low)
    return Window(size, strides, dilations, tuple(before), tuple(after))


def kernel_size(call: Call, weight: ir.GraphExpr) -> tuple[int, ...]:
    """The spatial sizes of a kernel."""
    if "kernel_shape" in call.attrs:
        return tuple(call.attr("kernel_shape"))
    sizes = [ir.const_int(d) for d in dims_of(weight)[2:]]
    if any(s is None for s in sizes):
        raise call.error("the kernel has a symbolic size", "set kernel_shape")
    return tuple(s for s in sizes if s is not None)


def with_channels(call: Call, result: ir.GraphExpr, bias: ir.GraphExpr | None) -> ir.GraphExpr:
    """Add a bias for each channel."""
    if bias is None:
        return result
    spread = call.reshape(bias, [dims_of(bias)[0], *([1] * (rank_of(result) - 2))])
    return call.apply("add", result, spread)


@TABLE.op("Conv")
def _conv(call: Call) -> Value:
    x, weight = call.tensor(0), call.tensor(1)
    return with_channels(call, convolve(call, x, weight), call.optional(2))


def convolve(call: Call, x: ir.GraphExpr, weight: ir.GraphExpr) -> ir.GraphExpr:
    """The convolution that a node's attributes describe, without bias."""
    rank = rank_of(weight) - 2
    if rank not in (1, 2, 3):
        raise call.error(f"{rank} spatial axes are not supported", "use 1 to 3")
    window = window_of(call, x, kernel_size(call, weight))
    return call.apply(
        f"nn.conv{rank}d",
        x,
        weight,
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilations,
        groups=call.attr("group", 1),
    )


@TABLE.op("ConvTranspose")
def _conv_transpose(call: Call) -> Value:
    """Padding removes elements of the full result; `output_shape` says how many."""
    x, weight = call.tensor(0), call.tensor(1)
    rank = rank_of(weight) - 2
    size = kernel_size(call, weight)
    strides = tuple(call.attr("strides", (1,) * rank))
    dilations = tuple(call.attr("dilations", (1,) * rank))
    extra = list(call.attr("output_padding", (0,) * rank))
    mode = call.attr("auto_pad", "NOTSET")
    pads = list(call.attr("pads", (0,) * 2 * rank))
    wanted = call.attr("output_shape", None)
    if wanted is not None or mode in ("SAME_UPPER", "SAME_LOWER"):
        for axis in range(rank):
            extent = ir.const_int(dims_of(x)[2 + axis])
            if extent is None:
                raise call.error("a dimension has no known size", "give pads")
            whole = strides[axis] * (extent - 1) + (size[axis] - 1) * dilations[axis] + 1
            goal = wanted[axis] if wanted is not None else extent * strides[axis]
            total = whole + extra[axis] - goal
            if total < 0:
                extra[axis], total = extra[axis] - total, 0
            low = total // 2 if mode == "SAME_UPPER" else total - total // 2
            pads[axis], pads[axis + rank] = low, total - low
    windows: dict[str, Any] = {
        "strides": strides,
        "padding": tuple(pads),
        "dilation": dilations,
        "groups": call.attr("group"),
    }
    name = f"nn.conv{rank}d_transpose"
    fits = all(e < max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True))
    if fits:
        result = call.apply(name, x, weight, output_padding=tuple(extra), **windows)
    else:
        result = call.apply(name, x, weight, **windows)
        width = ((0, 0), (0, 0), *((0, e) for e in extra))
        result = call.apply("pad", result, pad_width=width)
    return with_channels(call, result, call.optional(2))


# ------------------------------------------------------------------------------------------- pools


@TABLE.op("MaxPool")
def max_pool(call: Call) -> Value:
    x = call.tensor(0)
    window = window_of(call, x, tuple(call.attr("kernel_shape")))
    if call.wants(1):
        return _with_positions(call, x, window)
    return _pool(call, "max", x, window)


@TABLE.op("AveragePool")
def average_pool(call: Call) -> Value:
    x = call.tensor(0)
    window = window_of(call, x, tuple(call.attr("kernel_shape")))
    counts = bool(call.attr("count_include_pad", 0))
    return _pool(call, "avg", x, window, count_include_pad=counts)


def _pool(
    call: Call, kind: str, x: ir.GraphExpr, window: Window, suffix: str = "", **attrs: Any
) -> ir.GraphExpr:
    ceil = bool(call.attr("ceil_mode", 0)) and call.attr("auto_pad", "NOTSET") in ("NOTSET", "")
    return call.apply(
        f"nn.{kind}_pool{len(window.size)}d{suffix}",
        x,
        pool_size=window.size,
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilations,
        ceil_mode=ceil,
        **attrs,
    )


def _with_positions(call: Call, x: ir.GraphExpr, window: Window) -> list[Value]:
    """Maxima and their positions in the flattened operand.

    With `storage_order`, the last axis of an image is the one that varies slowest.
    """
    plane = _pool(call, "max", x, window, suffix="_positions")
    batch, channels, *sizes = dims_of(x)
    if call.attr("storage_order", 0):
        plane = _columns_first(call, plane, sizes)
    lead = ir.mul(batch, channels)
    image = call.apply("arange", begin=0, end=lead, step=1, dtype="int64")
    image = call.reshape(image, (batch, channels, *([1] * len(sizes))))
    before = call.apply("multiply", image, scalar=product(sizes), scalar_side="right")
    return [_pool(call, "max", x, window), call.apply("add", plane, before)]


def _columns_first(call: Call, place: ir.GraphExpr, sizes: Sequence[ir.Expr]) -> ir.GraphExpr:
    """Positions in row-major order, counted in column-major order."""
    total: ir.GraphExpr | None = None
    for axis in range(len(sizes)):
        inner, outer = product(sizes[axis + 1 :]), product(sizes[:axis])
        digit = call.apply("floor_divide", place, scalar=inner, scalar_side="right")
        digit = call.apply("remainder", digit, scalar=sizes[axis], scalar_side="right")
        term = call.apply("multiply", digit, scalar=outer, scalar_side="right")
        total = term if total is None else call.apply("add", total, term)
    assert total is not None
    return total


@TABLE.op("LpPool")
def _lp_pool(call: Call) -> Value:
    """(Σ |x|^p)^(1/p) of each window, from the average of |x|^p with padding counted."""
    x, p, dtype = call.tensor(0), call.attr("p"), dtype_of(call.tensor(0))
    window = window_of(call, x, tuple(call.attr("kernel_shape")))
    if call.attr("ceil_mode", 0):
        raise call.error("ceil_mode is not supported", "use floor sizes")
    raised = call.apply("power", call.apply("abs", x), call.scalar(p, dtype))
    mean = _pool(call, "avg", raised, window, count_include_pad=True)
    total = call.apply("multiply", mean, call.scalar(math.prod(window.size), dtype))
    return call.apply("power", total, call.scalar(1 / p, dtype))


@TABLE.op("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(call: Call) -> Value:
    x = call.tensor(0)
    row = "mean" if call.op == "GlobalAveragePool" else "max"
    return call.apply(row, x, axes=tuple(range(2, rank_of(x))), keepdims=True)


@TABLE.op("GlobalLpPool")
def _global_lp_pool(call: Call) -> Value:
    x, p, dtype = call.tensor(0), call.attr("p"), dtype_of(call.tensor(0))
    raised = call.apply("power", call.apply("abs", x), call.scalar(p, dtype))
    total = call.apply("sum", raised, axes=tuple(range(2, rank_of(x))), keepdims=True)
    return call.apply("power", total, call.scalar(1 / p, dtype))

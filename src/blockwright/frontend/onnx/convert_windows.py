"""Convolutions and pools in one to three dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from blockwright import ir
from blockwright.frontend.onnx.call import Call, Converters, Value, dims_of, dtype_of, rank_of
from blockwright.frontend.onnx.convert_shapes import product
from blockwright.frontend.onnx.sizes import I64

TABLE = Converters()
_TWO = ir.const(2, I64)


class Window(msgspec.Struct, frozen=True):
    """Attributes of a sliding window; one number for each spatial axis.

    Padding that depends on sizes is an expression; see `_padded`.
    """

    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[Any, ...]
    after: tuple[Any, ...]

    @property
    def padding(self) -> tuple[Any, ...]:
        return (*self.before, *self.after)

    @property
    def is_known(self) -> bool:
        """Whether all padding is known at import."""
        return all(isinstance(p, int) for p in self.padding)


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
    before: list[Any] = []
    after: list[Any] = []
    for axis in range(rank):
        whole = (size[axis] - 1) * dilations[axis] + 1
        total = _same_padding(dims_of(x)[2 + axis], whole, strides[axis])
        small = total // 2 if isinstance(total, int) else ir.floordiv(total, _TWO)
        large = total - small if isinstance(total, int) else ir.sub(total, small)
        low, high = (small, large) if mode == "SAME_UPPER" else (large, small)
        before.append(low)
        after.append(high)
    return Window(size, strides, dilations, tuple(before), tuple(after))


def _same_padding(extent: ir.Expr, whole: int, stride: int) -> Any:
    """The padding with which an axis has ⌈extent / stride⌉ windows of `whole` elements."""
    number = ir.const_int(extent)
    if number is not None:
        return max((-(-number // stride) - 1) * stride + whole - number, 0)
    if stride == 1:
        return whole - 1
    step = ir.const(stride, I64)
    count = ir.floordiv(ir.add(extent, ir.const(stride - 1, I64)), step)
    reach = ir.add(ir.mul(ir.sub(count, ir.const(1, I64)), step), ir.const(whole, I64))
    return ir.maximum(ir.sub(reach, extent), ir.const(0, I64))


def _padded(
    call: Call, x: ir.GraphExpr, window: Window, fill: Any = 0
) -> tuple[ir.GraphExpr, Window]:
    """The operand with padding that is not known at import, and the window without it."""
    if window.is_known:
        return x, window
    pairs = tuple(zip(window.before, window.after, strict=True))
    width = (*((0, 0),) * (rank_of(x) - len(pairs)), *pairs)
    zeros = (0,) * len(pairs)
    padded = call.apply("pad", x, pad_width=width, pad_value=fill)
    return padded, msgspec.structs.replace(window, before=zeros, after=zeros)


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
    x, window = _padded(call, x, window_of(call, x, kernel_size(call, weight)))
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
        if not window.is_known:
            raise call.error(
                "positions with auto_pad on a dimension of unknown size",
                "declare the size, or give pads",
            )
        return _with_positions(call, x, window)
    dtype = dtype_of(x)
    lowest = -math.inf if dtype.is_float else int(dtype.min_value)
    return _pool(call, "max", *_padded(call, x, window, lowest))


@TABLE.op("AveragePool")
def average_pool(call: Call) -> Value:
    x = call.tensor(0)
    window = window_of(call, x, tuple(call.attr("kernel_shape")))
    counts = bool(call.attr("count_include_pad", 0))
    if counts or window.is_known:
        x, window = _padded(call, x, window)
        return _pool(call, "avg", x, window, count_include_pad=counts)
    ones = call.apply("full_like", x, fill_value=1)
    padded, plain = _padded(call, x, window)
    share = _pool(call, "avg", _padded(call, ones, window)[0], plain)
    return call.apply("divide", _pool(call, "avg", padded, plain), share)


def _pool(
    call: Call, kind: str, x: ir.GraphExpr, window: Window, suffix: str = "", **attrs: Any
) -> ir.GraphExpr:
    ceil = bool(call.attr("ceil_mode", 0)) and call.attr("auto_pad", "NOTSET") in ("NOTSET", "")
    attrs.setdefault("ceil_mode", ceil)
    return call.apply(
        f"nn.{kind}_pool{len(window.size)}d{suffix}",
        x,
        pool_size=window.size,
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilations,
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
    raised = call.apply("power", call.apply("abs", x), call.scalar(p, dtype))
    raised, window = _padded(call, raised, window)
    mean = _pool(call, "avg", raised, window, count_include_pad=True)
    if call.attr("ceil_mode", 0):
        mean = _with_cut_windows(call, raised, window, dims_of(mean))
    total = call.apply("multiply", mean, call.scalar(math.prod(window.size), dtype))
    return call.apply("power", total, call.scalar(1 / p, dtype))


def _with_cut_windows(
    call: Call, x: ir.GraphExpr, window: Window, shape: Sequence[ir.Expr]
) -> ir.GraphExpr:
    """The averages of `shape`, where windows that end outside are filled up with zeros."""
    more = tuple(a + s - 1 for a, s in zip(window.after, window.strides, strict=True))
    filled = msgspec.structs.replace(window, after=more)
    mean = _pool(call, "avg", x, filled, count_include_pad=True, ceil_mode=False)
    for axis in range(2, rank_of(x)):
        mean = call.apply("slice", mean, axis=axis, begin=0, end=shape[axis], step=1)
    return mean


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

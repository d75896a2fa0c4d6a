"""Converters of gradients of convolutions and average pools, as convolutions.

The gradient of a convolution's input is the transposed convolution of the result's gradient. That
of its kernel is a convolution of the input with the result's gradient as kernel, where batch and
channels change places, and so do strides and dilation. Both may be longer than what is asked for,
if strides do not divide the padded input, and are cropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from blockwright import ir
from blockwright.frontend.torch.convert_arithmetic import truncated
from blockwright.frontend.torch.operands import (
    Registry,
    as_exported,
    batched,
    cast_to,
    dims_of,
    is_half,
    per_axis,
    reshape,
)
from blockwright.graph import constant

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()
Dims = tuple[ir.Expr, ...]
_I64, _FLOAT32 = ir.dtype_of("int64"), ir.dtype_of("float32")


class _Windows(msgspec.Struct, frozen=True):
    """The arguments of a convolution, one number per spatial axis."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def rank(self) -> int:
        return len(self.stride)


@TABLE.overload("aten.convolution_backward.default")
def _convolution_backward(
    imp: Importer,
    node: Any,
    grad: Any,
    x: Any,
    weight: Any,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """Gradients of input, kernel and bias; None for those that `output_mask` excludes."""
    rank = len(dims_of(weight)) - 2
    windows = _Windows(
        per_axis(stride, rank), per_axis(padding, rank), per_axis(dilation, rank), groups
    )
    result: list[Any] = [None, None, None]
    if output_mask[0] and transposed:
        result[0] = _cropped(imp, _convolved(imp, grad, weight, windows), dims_of(x))
    elif output_mask[0]:
        result[0] = _spread(imp, grad, weight, windows, dims_of(x))
    if output_mask[1]:
        small, large = (x, grad) if transposed else (grad, x)
        result[1] = _of_kernel(imp, small, large, windows, dims_of(weight))
    if output_mask[2]:
        axes = (0, *range(2, rank + 2))
        result[2] = imp.builder.op("sum", grad, axes=axes)
    return result


def _convolved(imp: Importer, x: Any, weight: Any, windows: _Windows) -> Any:
    return imp.builder.op(
        f"nn.conv{windows.rank}d",
        x,
        weight,
        strides=windows.stride,
        padding=windows.padding,
        dilation=windows.dilation,
        groups=windows.groups,
    )


def _spread(imp: Importer, grad: Any, weight: Any, windows: _Windows, wanted: Dims) -> Any:
    """The transposed convolution of `grad`, of the size of the convolution's input."""
    extra: list[int] = []
    for axis, step in enumerate(windows.stride):
        last = ir.mul(ir.sub(dims_of(grad)[2 + axis], _number(1)), _number(step))
        reach = ir.mul(
            ir.sub(dims_of(weight)[2 + axis], _number(1)), _number(windows.dilation[axis])
        )
        without = ir.add(ir.add(last, reach), _number(1 - 2 * windows.padding[axis]))
        missing = ir.const_int(imp.builder.analyzer.simplify(ir.sub(wanted[2 + axis], without)))
        extra.append(step - 1 if missing is None else max(missing, 0))
    out = imp.builder.op(
        f"nn.conv{windows.rank}d_transpose",
        grad,
        weight,
        strides=windows.stride,
        padding=windows.padding,
        output_padding=tuple(extra),
        dilation=windows.dilation,
        groups=windows.groups,
    )
    return _cropped(imp, out, wanted)


def _of_kernel(imp: Importer, small: Any, large: Any, windows: _Windows, wanted: Dims) -> Any:
    """The gradient of a kernel of shape (channels of `small`, channels of `large` / groups, …).

    `large` is what the kernel moves over, `small` has an element for each of its places.
    """
    op, rank, groups = imp.builder.op, windows.rank, windows.groups
    space = tuple(range(2, rank + 2))
    batch, *extents = (dims_of(large)[0], *dims_of(large)[2:])
    if groups == 1:
        large = op("permute_dims", large, axes=(1, 0, *space))
    else:
        group = _number(groups)
        large = reshape(imp, large, (batch, group, wanted[1], *extents))
        large = op("permute_dims", large, axes=(2, 1, 0, *(axis + 1 for axis in space)))
        large = reshape(imp, large, (wanted[1], ir.mul(group, batch), *extents))
    small = op("permute_dims", small, axes=(1, 0, *space))
    exchanged = _Windows(windows.dilation, windows.padding, windows.stride, groups)
    out = _convolved(imp, large, small, exchanged)
    out = _cropped(imp, out, (wanted[1], wanted[0], *wanted[2:]))
    return op("permute_dims", out, axes=(1, 0, *space))


def _number(value: int) -> ir.Expr:
    return ir.const(value, "int64")


def _cropped(imp: Importer, value: Any, wanted: Dims) -> Any:
    """The first elements along each axis. Sizes that are not proved are compared at every call."""
    analyzer = imp.builder.analyzer
    for axis, size in enumerate(wanted):
        if not analyzer.prove_equal(dims_of(value)[axis], size):
            value = imp.builder.op("slice", value, axis=axis, end=size)
    if all(analyzer.prove_equal(a, b) for a, b in zip(dims_of(value), wanted, strict=True)):
        return value
    pattern = msgspec.structs.replace(value.tensor_info, shape=wanted)
    return imp.builder.match_cast(value, pattern, "gradient")


# ------------------------------------------------------------------------------------------- pools
@TABLE.overload("aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default")
def _avg_pool_backward(
    imp: Importer,
    node: Any,
    grad: Any,
    x: Any,
    size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Any:
    """Each element of the gradient, divided by the size of its window, is added to the window."""
    rank, dtype = 2 if "pool2d" in str(node.target) else 3, x.tensor_info.dtype
    sizes = per_axis(size, rank)
    windows = _Windows(per_axis(stride or size, rank), per_axis(padding, rank), (1,) * rank, 1)
    grad, x = batched(imp, grad, rank), batched(imp, x, rank)
    inner = _FLOAT32 if is_half(dtype) else dtype
    grad = cast_to(imp, grad, inner)
    if divisor is not None:
        grad = _divided(imp, grad, divisor)
    else:
        for axis in range(rank):
            shape = axis, grad, x, windows, sizes[axis]
            grad = _divided(imp, grad, _counts(imp, *shape, ceil_mode, count_include_pad))
    batch, channels, *extents = dims_of(grad)
    flat = (ir.mul(batch, channels), _number(1))
    grad = reshape(imp, grad, (*flat, *extents))
    ones = constant(np.ones((1, 1, *sizes), inner.numpy()), "window")
    out = _spread(imp, grad, ones, windows, (*flat, *dims_of(x)[2:]))
    return as_exported(imp, node, cast_to(imp, reshape(imp, out, dims_of(x)), dtype))


def _counts(
    imp: Importer,
    axis: int,
    grad: Any,
    x: Any,
    windows: _Windows,
    size: int,
    shortened: bool,
    count_include_pad: bool,
) -> Any:
    """Number of counted elements of the windows along a spatial axis, so that it broadcasts.

    A window is `shortened` if it may extend beyond the padding.
    """

    def scalar(name: str, value: Any, number: Any) -> Any:
        return imp.builder.op(name, value, scalar=number, scalar_side="right")

    places, extent = dims_of(grad)[2 + axis], dims_of(x)[2 + axis]
    step, before = windows.stride[axis], windows.padding[axis]
    if not shortened and (count_include_pad or not before):
        return size
    stop = ir.add(ir.mul(places, _number(step)), _number(-before))
    begin = imp.builder.op("arange", begin=-before, end=stop, step=step, dtype=_I64)
    end = scalar("minimum", scalar("add", begin, size), ir.add(extent, _number(before)))
    if not count_include_pad:
        begin, end = scalar("maximum", begin, 0), scalar("minimum", end, extent)
    count = imp.builder.op("subtract", end, begin)
    return reshape(imp, count, (places, *[_number(1)] * (windows.rank - axis - 1)))


def _divided(imp: Importer, grad: Any, count: Any) -> Any:
    """The gradient divided by a number or a vector of them; integers are truncated."""
    dtype = grad.tensor_info.dtype
    if not isinstance(count, int):
        count = cast_to(imp, count, dtype)
    if not dtype.is_float:
        return truncated(imp, grad, count)
    if isinstance(count, int):
        return imp.builder.op("divide", grad, scalar=count, scalar_side="right")
    return imp.builder.op("divide", grad, count)

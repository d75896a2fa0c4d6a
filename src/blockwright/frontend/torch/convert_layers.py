"""Converters of layers: convolutions, norms, parametric activations, padding."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blockwright import ir
from blockwright.frontend.torch.operands import (
    EVALUATION,
    Converter,
    Registry,
    as_exported,
    axis_of,
    batched,
    cast_to,
    dims_of,
    norm,
    only_first,
    per_axis,
    reshape,
)
from blockwright.frontend.torch.promotion import stored_number
from blockwright.graph import constant
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()


def _along_channels(imp: Importer, vector: ir.GraphExpr, rank: int) -> ir.GraphExpr:
    """Reshape a vector so that it broadcasts along the axis before the last `rank` axes."""
    if isinstance(vector, ir.Constant):
        return constant(vector.data.reshape((-1, *[1] * rank)), vector.name)
    return reshape(imp, vector, (*dims_of(vector), *[ir.const(1, "int64")] * rank))


def _ones(x: ir.GraphExpr, count: ir.Expr) -> ir.Constant:
    """Scales of one, for a layer without parameters."""
    size, dtype = ir.const_int(count), x.tensor_info.dtype
    if size is None or dtype is None:
        raise ImporterError("a norm over a symbolic number of channels needs scales", code="BW507")
    return constant(np.ones(size, dtype.numpy()), "ones")


# ------------------------------------------------------------------------------------ convolutions
@TABLE.row("nn.conv1d", "nn.conv2d", "nn.conv3d")
def _conv(
    imp: Importer,
    node: Any,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    return _convolve(
        imp,
        node,
        (x, weight, bias),
        groups,
        strides=stride,
        padding=padding,
        dilation=dilation,
    )


def _convolve(
    imp: Importer,
    node: Any,
    operands: tuple[Any, Any, Any],
    groups: int,
    suffix: str = "",
    **windows: Any,
) -> Any:
    """Call a convolution of (data, weight) and add the bias, if any.

    Attributes in `windows` are numbers for all spatial axes, or one per axis.
    """
    x, weight, bias = operands
    rank = len(dims_of(weight)) - 2
    attrs: dict[str, Any] = {name: per_axis(value, rank) for name, value in windows.items()}
    name = f"nn.conv{rank}d{suffix}"
    out = imp.builder.op(name, batched(imp, x, rank), weight, groups=groups, **attrs)
    if bias is not None:
        out = imp.builder.op("add", out, _along_channels(imp, bias, rank))
    return as_exported(imp, node, out)


@TABLE.overload("aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding")
def _conv_named_padding(
    imp: Importer,
    node: Any,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: str = "valid",
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    rank = len(dims_of(weight)) - 2
    before, after = [0] * rank, [0] * rank
    if padding == "same":  # strides are 1: the result has the input's size
        for axis, gap in enumerate(per_axis(dilation, rank)):
            size = ir.const_int(dims_of(weight)[2 + axis])
            if size is None:
                raise ImporterError("padding='same' for a kernel of symbolic size", code="BW507")
            before[axis] = gap * (size - 1) // 2
            after[axis] = gap * (size - 1) - before[axis]
    return _convolve(
        imp,
        node,
        (x, weight, bias),
        groups,
        strides=stride,
        padding=(*before, *after),
        dilation=dilation,
    )


@TABLE.row("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")
def _conv_transpose(
    imp: Importer,
    node: Any,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    return _convolve(
        imp,
        node,
        (x, weight, bias),
        groups,
        "_transpose",
        strides=stride,
        padding=padding,
        output_padding=output_padding,
        dilation=dilation,
    )


@TABLE.overload("aten.convolution.default")
def _convolution(
    imp: Importer,
    node: Any,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    if transposed:
        return _conv_transpose(
            imp, node, x, weight, bias, stride, padding, output_padding, groups, dilation
        )
    return _conv(imp, node, x, weight, bias, stride, padding, dilation, groups)


# ------------------------------------------------------------------------------------------- norms
@TABLE.row("nn.batch_norm")
def _batch_norm(
    imp: Importer,
    node: Any,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    cudnn: bool = False,
) -> Any:
    if mean is None or variance is None:
        mean, variance = _statistics(imp, x)
    elif training:
        raise ImporterError(
            "batch norm that updates its running statistics is training only",
            code="BW507",
            help=EVALUATION,
        )
    one = _ones(x, _channels(x)) if weight is None else weight
    operands = x, one, one if bias is None else bias, mean, variance
    return norm(
        imp,
        node,
        "nn.batch_norm",
        operands,
        epsilon=float(eps),
        scale=weight is not None,
        center=bias is not None,
    )


def _statistics(imp: Importer, x: Any) -> tuple[Any, Any]:
    """Mean and variance of each channel over the batch."""
    op, shape, dtype = imp.builder.op, dims_of(x), x.tensor_info.dtype
    channels = _channels(x)
    axes = tuple(axis for axis in range(len(shape)) if axis != 1)
    count = functools.reduce(ir.mul, (shape[axis] for axis in axes))
    wide = cast_to(imp, x, ir.dtype_of("float32")) if dtype.bits < 32 else x

    def per(total: Any) -> Any:
        return op("divide", total, scalar=count, scalar_side="right")

    mean = per(op("sum", wide, axes=axes, keepdims=True))
    away = op("subtract", wide, mean)
    variance = per(op("sum", op("multiply", away, away), axes=axes))
    return reshape(imp, mean, (channels,)), variance


@TABLE.overload("aten._native_batch_norm_legit_no_training.default")
def _native_batch_norm(
    imp: Importer,
    node: Any,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    momentum: float,
    eps: float,
) -> Any:
    only_first(node)
    out = _batch_norm(imp, node, x, weight, bias, mean, variance, False, momentum, eps)
    return [out, None, None]


def _channels(x: Any) -> ir.Expr:
    """The size of the channel axis."""
    if len(dims_of(x)) < 2:  # PyTorch accepts an empty vector
        raise ImporterError(
            "a norm over channels of a tensor without a channel axis",
            code="BW507",
            help="pass at least two axes",
        )
    return dims_of(x)[1]


def _vectors(x: Any, weight: Any, bias: Any) -> tuple[Any, ...]:
    """The parameters that are present; a bias alone gets scales of one."""
    if bias is not None and weight is None:
        weight = _ones(x, _channels(x))
    return tuple(v for v in (weight, bias) if v is not None)


@TABLE.row("nn.group_norm")
def _group_norm(
    imp: Importer,
    node: Any,
    x: Any,
    groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn: bool = False,
) -> Any:
    operands = x, *_vectors(x, weight, bias)
    return norm(imp, node, "nn.group_norm", operands, num_groups=groups, epsilon=float(eps))


@TABLE.row("nn.instance_norm")
def _instance_norm(
    imp: Importer,
    node: Any,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    own_statistics: bool,
    momentum: float,
    eps: float,
    cudnn: bool = False,
) -> Any:
    if not own_statistics:
        return _batch_norm(imp, node, x, weight, bias, mean, variance, False, momentum, eps)
    operands = x, *_vectors(x, weight, bias)
    return norm(imp, node, "nn.instance_norm", operands, epsilon=float(eps))


# ------------------------------------------------------------------------------------- activations
@TABLE.row("elu")
def _elu(
    imp: Importer,
    node: Any,
    x: Any,
    alpha: Any = 1.0,
    scale: Any = 1.0,
    input_scale: Any = 1.0,
) -> Any:
    if any(isinstance(v, ir.Expr) or v != 1 for v in (scale, input_scale)):
        raise ImporterError("elu with scale or input_scale is not supported", code="BW507")
    return imp.builder.op("elu", x, alpha=alpha if isinstance(alpha, ir.Expr) else float(alpha))


@TABLE.row("nn.prelu")
def _prelu(imp: Importer, node: Any, x: Any, weight: Any) -> Any:
    slopes = weight if dims_of(weight) else reshape(imp, weight, (ir.const(1, "int64"),))
    if not dims_of(x):
        one = reshape(imp, x, (ir.const(1, "int64"),))
        return reshape(imp, imp.builder.op("nn.prelu", one, slopes, axis=0), ())
    return imp.builder.op("nn.prelu", x, slopes, axis=min(1, len(dims_of(x)) - 1))


@TABLE.overload("aten.glu.default")
def _glu(imp: Importer, node: Any, x: Any, dim: int = -1) -> Any:
    axis = axis_of(dim, len(dims_of(x)))
    half = ir.floordiv(dims_of(x)[axis], ir.const(2, "int64"))
    value = imp.builder.op("slice", x, axis=axis, end=half)
    gate = imp.builder.op("slice", x, axis=axis, begin=half)
    return imp.builder.op("multiply", value, imp.builder.op("sigmoid", gate))


# ----------------------------------------------------------------------------------------- padding
@TABLE.overload("aten.pad.default")
def _pad(
    imp: Importer, node: Any, x: Any, pad: Sequence[Any], mode: str = "constant", value: Any = None
) -> Any:
    """Pad by pairs (before, after), from the last axis on; negative amounts crop."""
    rank = len(dims_of(x))
    width: list[tuple[Any, Any]] = [(0, 0)] * rank
    for axis, pair in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        width[rank - 1 - axis] = pair
    cuts: list[tuple[int, int, int]] = []
    for axis, (before, after) in enumerate(width):
        low, high = (-v if isinstance(v, int) and v < 0 else 0 for v in (before, after))
        if low or high:
            cuts.append((axis, low, high))
        width[axis] = (before if not low else 0, after if not high else 0)
    repeats = mode in ("reflect", "replicate")  # padding reads the uncropped input
    if not repeats:
        x = _cut(imp, x, cuts)
    if not all(isinstance(v, int) and v == 0 for pair in width for v in pair):
        number = stored_number(0 if value is None else value, x.tensor_info.dtype)
        x = imp.builder.op("pad", x, pad_width=tuple(width), pad_mode=mode, pad_value=number)
    return _cut(imp, x, cuts) if repeats else x


def _cut(imp: Importer, x: Any, cuts: Sequence[tuple[int, int, int]]) -> Any:
    for axis, low, high in cuts:
        x = imp.builder.op("slice", x, axis=axis, begin=low, end=-high if high else None)
    return x


@TABLE.row("pad")
def _constant_pad(imp: Importer, node: Any, x: Any, pad: Sequence[Any], value: Any = 0) -> Any:
    return _pad(imp, node, x, pad, "constant", value)


def _mode_pad(mode: str) -> Converter:
    def convert(imp: Importer, node: Any, x: Any, pad: Sequence[Any]) -> Any:
        return _pad(imp, node, x, pad, mode)

    return convert


def _tables() -> None:
    """Register the operators for each number of spatial axes."""
    for rank in (1, 2, 3):
        TABLE.overload(f"aten.reflection_pad{rank}d.default")(_mode_pad("reflect"))
        TABLE.overload(f"aten.replication_pad{rank}d.default")(_mode_pad("replicate"))


_tables()


# -------------------------------------------------------------------------- mixtures of experts
@TABLE.overload("aten._grouped_mm.default")
def _grouped(
    imp: Importer,
    node: Any,
    x: Any,
    weight: Any,
    offs: Any = None,
    bias: Any = None,
    out_dtype: Any = None,
) -> Any:
    if offs is None or len(dims_of(x)) != 2 or len(dims_of(weight)) != 3 or bias is not None:
        raise ImporterError("grouped products other than of rows with matrices", code="BW507")
    out = imp.builder.op("grouped_matmul", x, weight, offs)
    return out if out_dtype is None else cast_to(imp, out, out_dtype)


@TABLE.overload("transformers.grouped_mm_fallback.default")
def _grouped_by_transformers(imp: Importer, node: Any, x: Any, weight: Any, offs: Any) -> Any:
    """The operator that `transformers` registers for types without a kernel of PyTorch."""
    return _grouped(imp, node, x, weight, offs)

"""Converters of element-wise operators, comparisons, casts and reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockwright import ir
from blockwright.frontend.torch.calls import apply, require_elements, sorted_arguments
from blockwright.frontend.torch.operands import (
    Registry,
    axis_of,
    cast_to,
    dims_of,
    element_of,
    has_one_element,
    is_half,
    is_tensor,
    reshape,
    result_type,
)
from blockwright.frontend.torch.promotion import common_type, number_in, stored_number
from blockwright.ops.table import OPERATORS
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()
_INT32 = ir.dtype_of("int32")
_FLOAT16, _FLOAT32, _FLOAT64 = map(ir.dtype_of, ("float16", "float32", "float64"))


@TABLE.row("add", "subtract")
def _sum(imp: Importer, node: Any, a: Any, b: Any, alpha: Any = 1) -> Any:
    """a ± alpha · b."""
    name = "add" if "add" in str(node.target) else "subtract"
    return _scaled_sum(imp, node, name, a, b, alpha)


@TABLE.overload("aten.rsub.Scalar", "aten.rsub.Tensor")
def _rsub(imp: Importer, node: Any, a: Any, b: Any, alpha: Any = 1) -> Any:
    return _scaled_sum(imp, node, "subtract", b, a, alpha)


def _scaled_sum(imp: Importer, node: Any, name: str, a: Any, b: Any, alpha: Any) -> Any:
    """a ± alpha · b. In half precision only the operands and the result are rounded; of booleans,
    alpha is one too."""
    dtype = common_type((a, b))
    if dtype.is_bool and not isinstance(alpha, ir.Expr):
        alpha = bool(alpha)
        b = b if is_tensor(b) or alpha else False
    if isinstance(alpha, ir.Expr) or alpha != 1:
        if is_half(dtype):
            a, b, alpha = (_as_float32(imp, value, dtype) for value in (a, b, alpha))
            dtype = _FLOAT32
        b = apply(imp, "multiply", b, alpha, dtype=dtype) if is_tensor(b) else b * alpha
    return cast_to(imp, apply(imp, name, a, b, dtype=dtype), result_type(node))


def _as_float32(imp: Importer, value: Any, dtype: ir.DType) -> Any:
    """A tensor or number rounded to `dtype`, as float32."""
    if is_tensor(value):
        return cast_to(imp, cast_to(imp, value, dtype), _FLOAT32)
    return number_in(value, dtype)


@TABLE.overload("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def _div_mode(imp: Importer, node: Any, a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        out = apply(imp, "divide", a, b)
    elif rounding_mode == "floor":
        out = apply(imp, "floor_divide", a, b)
    else:
        out = truncated(imp, a, b)
    return cast_to(imp, out, result_type(node))


def truncated(imp: Importer, a: Any, b: Any) -> Any:
    """The quotient truncated toward zero; for integers, computed from floor division.

    In half precision PyTorch rounds the quotient first, unless the divisor is a single number.
    """
    dtype = common_type((a, b))
    if dtype.is_float:
        if is_half(dtype) and (not is_tensor(b) or has_one_element(b)):
            dtype = _FLOAT32
            a = a if not is_tensor(a) else cast_to(imp, a, dtype)
        return apply(imp, "trunc", apply(imp, "divide", a, b, dtype=dtype))
    rest = apply(imp, "fmod", a, b)
    return apply(imp, "floor_divide", apply(imp, "subtract", a, rest), b)


@TABLE.overload("prims.div.default")
def _quotient(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    """The quotient, truncated for integers."""
    is_float = common_type((a, b)).is_float
    return apply(imp, "divide", a, b) if is_float else truncated(imp, a, b)


@TABLE.overload("aten.signbit.default", "prims.signbit.default")
def _signbit(imp: Importer, node: Any, x: Any) -> Any:
    """Whether the sign bit of a number is set, also for zeros and NaN."""
    dtype = x.tensor_info.dtype
    if dtype.is_float:
        x = apply(imp, "copysign", 1.0, x)
    return apply(imp, "less", cast_to(imp, x, _INT32) if dtype.is_bool else x, 0)


@TABLE.row("power")
def _pow(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    dtype = common_type((a, b))
    if dtype is not result_type(node):
        raise ImporterError(
            f"PyTorch's exporter states {result_type(node)} for a power of {dtype}",
            code="BW509",
            help="use logical operators on bools",
        )
    number = b if is_tensor(a) and isinstance(b, (int, float)) else None
    root = number == 0.5 and dtype.is_float and dtype is not _FLOAT16  # there PyTorch calls pow
    if number == 2 or root:
        a = cast_to(imp, a, dtype)
        out = apply(imp, "multiply", a, a) if number == 2 else imp.builder.op("sqrt", a)
    else:
        out = apply(imp, "power", a, b)
    return cast_to(imp, out, dtype)


@TABLE.overload("aten.max.dim", "aten.min.dim")
def _extreme_along(imp: Importer, node: Any, x: Any, dim: int, keepdim: bool = False) -> Any:
    """The extreme value along an axis, and the index of its first occurrence."""
    name = "max" if "max" in str(node.target) else "min"
    axis = dim if x.tensor_info.rank else None
    require_elements(imp, name, x, axis)
    whole = cast_to(imp, x, _INT32) if x.tensor_info.dtype.is_bool else x
    return [
        imp.builder.op(name, x, axes=None if axis is None else (axis,), keepdims=keepdim),
        imp.builder.op(f"arg{name}", whole, axis=axis, keepdims=keepdim),
    ]


@TABLE.row("where")
def _where(imp: Importer, node: Any, condition: Any, a: Any, b: Any) -> Any:
    dtype = result_type(node)
    return imp.builder.op("where", condition, element_of(imp, a, dtype), element_of(imp, b, dtype))


@TABLE.row("clip")
def _clip(imp: Importer, node: Any, *args: Any, **kwargs: Any) -> Any:
    """Clamp a tensor between two numbers."""
    dtype = result_type(node)
    (x,), given = sorted_arguments(OPERATORS["clip"], node, args, kwargs)
    ends = {name: stored_number(end, dtype) for name, end in given.items() if end is not None}
    return imp.builder.op("clip", cast_to(imp, x, dtype), **ends)


@TABLE.overload("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(imp: Importer, node: Any, x: Any, mask: Any, value: Any) -> Any:
    dtype = x.tensor_info.dtype
    return imp.builder.op("where", mask, element_of(imp, value, dtype), x)


@TABLE.row("astype")
@TABLE.overload("prims.convert_element_type.default")
def _cast(imp: Importer, node: Any, x: Any, *ignored: Any, **also_ignored: Any) -> Any:
    return cast_to(imp, x, result_type(node))


@TABLE.overload(
    "aten.var.correction",
    "aten.std.correction",
    "aten.var_mean.correction",
    "aten.std_mean.correction",
)
def _variance(
    imp: Importer,
    node: Any,
    x: Any,
    dim: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> Any:
    """Variance or standard deviation, with `correction` subtracted from the element count.

    It is computed in float64 (for float16 in float32), as in PyTorch: the sum of values and the
    squared distances may overflow float32 where the result does not.
    """
    kind = str(node.target).split(".")[1]
    dtype, shape = x.tensor_info.dtype, dims_of(x)
    rank = len(shape)
    axes = tuple(axis_of(a, rank) for a in dim) if dim and rank else tuple(range(rank))
    wide = _FLOAT32 if dtype is _FLOAT16 else _FLOAT64
    count: ir.Expr = ir.const(1, "int64")
    for axis in axes:
        count = ir.mul(count, shape[axis])

    def per(total: Any, correction: Any) -> Any:
        return imp.builder.op(
            "divide", total, scalar=_degrees(count, correction), scalar_side="right"
        )

    op = imp.builder.op
    mean = per(op("sum", x, axes=axes, keepdims=True, dtype=wide.name), 0)
    away = op("subtract", cast_to(imp, x, wide), mean)
    out = per(op("sum", op("multiply", away, away), axes=axes, keepdims=bool(keepdim)), correction)
    out = cast_to(imp, op("sqrt", out) if kind.startswith("std") else out, dtype)
    if not kind.endswith("mean"):
        return out
    kept = mean if keepdim else reshape(imp, mean, dims_of(out))
    return [out, cast_to(imp, kept, dtype)]


def _degrees(count: ir.Expr, correction: Any) -> Any:
    """The number of elements minus the correction, at least 0."""
    less = 1 if correction is None else correction
    known = ir.const_int(count)
    if known is not None:
        return float(max(known - less, 0))
    if not isinstance(less, int):
        raise ImporterError("a fractional correction of a symbolic count", code="BW507")
    return ir.maximum(ir.sub(count, ir.const(less, "int64")), ir.const(0, "int64"))


@TABLE.overload("aten.round.decimals")
def _round_decimals(imp: Importer, node: Any, x: Any, *, decimals: int = 0) -> Any:
    """Round to multiples of a power of ten."""
    scale, dtype = 10.0 ** abs(decimals), x.tensor_info.dtype
    if not dtype.is_float:
        raise ImporterError("integers rounded to decimals", code="BW507")
    into, back = ("multiply", "divide") if decimals >= 0 else ("divide", "multiply")
    wide = cast_to(imp, x, _FLOAT32) if dtype.bits < 32 else x
    whole = imp.builder.op("round", apply(imp, into, wide, scale))
    return cast_to(imp, apply(imp, back, whole, scale), dtype)

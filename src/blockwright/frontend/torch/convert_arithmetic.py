"""Converters of element-wise operators, comparisons, casts, reductions and arithmetic on sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from blockwright import ir
from blockwright.frontend.torch.calls import apply
from blockwright.frontend.torch.operands import (
    Converter,
    Registry,
    cast_to,
    is_tensor,
    result_type,
    scalar_of,
    size_of,
)
from blockwright.frontend.torch.promotion import common_type

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()
_INT32 = ir.dtype_of("int32")


@TABLE.row("add", "subtract")
def _sum(imp: Importer, node: Any, a: Any, b: Any, alpha: Any = 1) -> Any:
    """a ± alpha · b."""
    name = "add" if "add" in str(node.target) else "subtract"
    return _scaled_sum(imp, node, name, a, b, alpha)


@TABLE.overload("aten.rsub.Scalar", "aten.rsub.Tensor")
def _rsub(imp: Importer, node: Any, a: Any, b: Any, alpha: Any = 1) -> Any:
    return _scaled_sum(imp, node, "subtract", b, a, alpha)


def _scaled_sum(imp: Importer, node: Any, name: str, a: Any, b: Any, alpha: Any) -> Any:
    dtype = common_type((a, b))
    if alpha != 1:
        b = apply(imp, "multiply", b, alpha, dtype=dtype) if is_tensor(b) else b * alpha
    return cast_to(imp, apply(imp, name, a, b, dtype=dtype), result_type(node))


@TABLE.overload("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def _div_mode(imp: Importer, node: Any, a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        out = apply(imp, "divide", a, b)
    elif rounding_mode == "floor":
        out = apply(imp, "floor_divide", a, b)
    else:
        out = _truncated(imp, a, b)
    return cast_to(imp, out, result_type(node))


def _truncated(imp: Importer, a: Any, b: Any) -> Any:
    """The quotient without its fraction; of integers, from the floored one."""
    if common_type((a, b)).is_float:
        return apply(imp, "trunc", apply(imp, "divide", a, b))
    rest = apply(imp, "fmod", a, b)
    return apply(imp, "floor_divide", apply(imp, "subtract", a, rest), b)


@TABLE.row("power")
def _pow(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    dtype = common_type((a, b))
    if is_tensor(a) and not is_tensor(b) and b in (2, 0.5) and (b == 2 or dtype.is_float):
        a = cast_to(imp, a, dtype)
        out = apply(imp, "multiply", a, a) if b == 2 else imp.builder.op("sqrt", a)
    else:
        out = apply(imp, "power", a, b)
    return cast_to(imp, out, result_type(node))


@TABLE.overload("aten.max.dim", "aten.min.dim")
def _extreme_along(imp: Importer, node: Any, x: Any, dim: int, keepdim: bool = False) -> Any:
    """The extreme along an axis, and the position of its first occurrence."""
    name = "max" if "max" in str(node.target) else "min"
    axis = dim if x.tensor_info.rank else None
    whole = cast_to(imp, x, _INT32) if x.tensor_info.dtype.is_bool else x
    return [
        imp.builder.op(name, x, axes=None if axis is None else (axis,), keepdims=keepdim),
        imp.builder.op(f"arg{name}", whole, axis=axis, keepdims=keepdim),
    ]


@TABLE.row("where")
def _where(imp: Importer, node: Any, condition: Any, a: Any, b: Any) -> Any:
    dtype = result_type(node)
    return imp.builder.op("where", condition, _operand(imp, a, dtype), _operand(imp, b, dtype))


def _operand(imp: Importer, value: Any, dtype: ir.DType) -> Any:
    return cast_to(imp, value, dtype) if is_tensor(value) else scalar_of(value, dtype)


@TABLE.overload("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(imp: Importer, node: Any, x: Any, mask: Any, value: Any) -> Any:
    dtype = x.tensor_info.dtype
    return imp.builder.op("where", mask, _operand(imp, value, dtype), x)


@TABLE.row("astype")
def _cast(imp: Importer, node: Any, x: Any, *ignored: Any, **also_ignored: Any) -> Any:
    return cast_to(imp, x, result_type(node))


def _size_arithmetic(fn: Callable[[Any, Any], Any]) -> Converter:
    def convert(imp: Importer, node: Any, a: Any, b: Any) -> Any:
        if isinstance(a, ir.Expr) or isinstance(b, ir.Expr):
            return fn(size_of(imp, a), size_of(imp, b))
        return fn(a, b)

    return convert


@TABLE.overload("operator.neg")
def _negated_size(imp: Importer, node: Any, a: Any) -> Any:
    return ir.sub(ir.const(0, "int64"), a) if isinstance(a, ir.Expr) else -a


@TABLE.overload(*(f"operator.{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge", "and")))
def _size_condition(imp: Importer, node: Any, *sizes: Any) -> Any:
    """A condition on sizes that the exporter asserts; ranges of symbols state it already."""
    return None


_SIZES: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": lambda a, b: a // b,
    "mod": operator.mod,
}
for _name, _fn in _SIZES.items():
    TABLE.overload(f"operator.{_name}")(_size_arithmetic(_fn))

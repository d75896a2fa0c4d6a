"""Converters of element-wise operators, comparisons, casts, reductions and arithmetic on sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from blockwright import ir
from blockwright.frontend.torch.operands import (
    Converter,
    cast_to,
    is_tensor,
    promoted,
    registrar,
    result_type,
    scalar_of,
    size_of,
)
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

CONVERTERS: dict[str, Converter] = {}
converter = registrar(CONVERTERS)


def _binary(imp: Importer, node: Any, op: str, a: Any, b: Any, compute: Any = None) -> Any:
    """Apply a binary row in the promoted type; Python scalars stay scalars."""
    if not is_tensor(a) and not is_tensor(b):
        raise ImporterError(f"{op} of two scalars", code="BW507")
    dtype = compute or promoted(node, *node.args[:2])
    if is_tensor(a) and is_tensor(b):
        return imp.builder.op(op, cast_to(imp, a, dtype), cast_to(imp, b, dtype))
    tensor, scalar, side = (a, b, "right") if is_tensor(a) else (b, a, "left")
    if isinstance(scalar, ir.Expr):
        raise ImporterError(f"{op} of a tensor and a size is not supported", code="BW507")
    return imp.builder.op(op, cast_to(imp, tensor, dtype), scalar=scalar, scalar_side=side)


def _arithmetic(op: str) -> Converter:
    def convert(imp: Importer, node: Any, a: Any, b: Any, *, alpha: Any = 1) -> Any:
        if alpha != 1:
            b = b * alpha if not is_tensor(b) else imp.builder.op(
                "multiply", b, scalar=alpha, scalar_side="right")  # fmt: skip
        return _binary(imp, node, op, a, b)

    return convert


@converter("aten.rsub.Scalar", "aten.rsub.Tensor")
def _rsub(imp: Importer, node: Any, a: Any, b: Any, alpha: Any = 1) -> Any:
    if alpha != 1:
        raise ImporterError("rsub with alpha is not supported", code="BW507")
    if is_tensor(b):
        return _binary(imp, node, "subtract", b, a)
    return imp.builder.op("subtract", a, scalar=b, scalar_side="left")


@converter("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def _div(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    return _binary(imp, node, "divide", a, b, result_type(node))


@converter("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def _div_mode(imp: Importer, node: Any, a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return _div(imp, node, a, b)
    if rounding_mode == "floor":
        return _binary(imp, node, "floor_divide", a, b)
    raise ImporterError(f"division with rounding_mode={rounding_mode!r}", code="BW507")


def _comparison(op: str) -> Converter:
    def convert(imp: Importer, node: Any, a: Any, b: Any) -> Any:
        return _binary(imp, node, op, a, b)

    return convert


@converter("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def _pow(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    if is_tensor(a) and b == 2:
        return imp.builder.op("multiply", a, a)
    if is_tensor(a) and b == 0.5:
        return imp.builder.op("sqrt", a)
    return _binary(imp, node, "power", a, b)


@converter("aten.__and__.Tensor", "aten.bitwise_and.Tensor", "aten.logical_and.default")
def _and(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    return _logical(imp, "logical_and", "bitwise_and", node, a, b)


@converter("aten.__or__.Tensor", "aten.bitwise_or.Tensor", "aten.logical_or.default")
def _or(imp: Importer, node: Any, a: Any, b: Any) -> Any:
    return _logical(imp, "logical_or", "bitwise_or", node, a, b)


def _logical(imp: Importer, logical: str, bitwise: str, node: Any, a: Any, b: Any) -> Any:
    if a.tensor_info.dtype.is_bool and b.tensor_info.dtype.is_bool:
        return imp.builder.op(logical, a, b)
    if "logical" in str(node.target):
        raise ImporterError("logical operations on numbers are not supported", code="BW507")
    return _binary(imp, node, bitwise, a, b)


def _unary(op: str) -> Converter:
    def convert(imp: Importer, node: Any, x: Any) -> Any:
        return imp.builder.op(op, cast_to(imp, x, result_type(node)))

    return convert


def _axes(dim: int | list[int] | None) -> tuple[int, ...] | None:
    """Axes of a reduction; None stands for all."""
    if dim is None:
        return None
    return tuple(dim) if isinstance(dim, list) else (dim,)


def _reduction(op: str, cast: bool = True) -> Converter:
    def convert(
        imp: Importer, node: Any, x: Any, dim: Any = None, keepdim: bool = False, *,
        dtype: Any = None,
    ) -> Any:  # fmt: skip
        if cast:
            x = cast_to(imp, x, result_type(node))
        axes = None if dim == [] else _axes(dim)
        return imp.builder.op(op, x, axes=axes, keepdims=bool(keepdim))

    return convert


@converter("aten.linalg_vector_norm.default")
def _vector_norm(
    imp: Importer, node: Any, x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *,
    dtype: Any = None,
) -> Any:  # fmt: skip
    return imp.builder.op("vector_norm", x, ord=float(ord), axes=_axes(dim), keepdims=bool(keepdim))


@converter("aten.clamp.default", "aten.clip.default")
def _clamp(
    imp: Importer, node: Any, x: Any, low: Any = None, high: Any = None, **named: Any
) -> Any:
    low, high = named.get("min", low), named.get("max", high)
    return imp.builder.op("clip", cast_to(imp, x, result_type(node)), min=low, max=high)


@converter("aten.clamp_min.default")
def _clamp_min(imp: Importer, node: Any, x: Any, low: Any) -> Any:
    return _clamp(imp, node, x, low, None)


@converter("aten.clamp_max.default")
def _clamp_max(imp: Importer, node: Any, x: Any, high: Any) -> Any:
    return _clamp(imp, node, x, None, high)


@converter("aten.hardtanh.default")
def _hardtanh(imp: Importer, node: Any, x: Any, low: Any = -1.0, high: Any = 1.0) -> Any:
    return _clamp(imp, node, x, low, high)


@converter("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf")
def _where(imp: Importer, node: Any, condition: Any, a: Any, b: Any) -> Any:
    dtype = result_type(node)
    return imp.builder.op("where", condition, _operand(imp, a, dtype), _operand(imp, b, dtype))


def _operand(imp: Importer, value: Any, dtype: ir.DType) -> Any:
    return cast_to(imp, value, dtype) if is_tensor(value) else scalar_of(value, dtype)


@converter("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(imp: Importer, node: Any, x: Any, mask: Any, value: Any) -> Any:
    dtype = x.tensor_info.dtype
    return imp.builder.op("where", mask, _operand(imp, value, dtype), x)


@converter("aten.to.dtype", "aten.to.device", "aten.to.dtype_layout", "aten._to_copy.default",
           "aten.type_as.default", "aten.to.other")  # fmt: skip
def _cast(imp: Importer, node: Any, x: Any, *ignored: Any, **also_ignored: Any) -> Any:
    return cast_to(imp, x, result_type(node))


def _size_arithmetic(fn: Callable[[Any, Any], Any]) -> Converter:
    def convert(imp: Importer, node: Any, a: Any, b: Any) -> Any:
        if isinstance(a, ir.Expr) or isinstance(b, ir.Expr):
            return fn(size_of(imp, a), size_of(imp, b))
        return fn(a, b)

    return convert


_UNARY = (
    "exp log sqrt rsqrt sigmoid tanh erf abs floor ceil round sin cos relu silu log1p expm1 exp2 "
    "log2 tan atan sinh cosh reciprocal sign square relu6 hardswish hardsigmoid mish selu "
    "log_sigmoid"
)
_ARITHMETIC = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "maximum": "maximum",
    "minimum": "minimum",
    "floor_divide": "floor_divide",
    "remainder": "remainder",
}
_COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
_REDUCTIONS = {
    "sum.dim_IntList": "sum",
    "sum.default": "sum",
    "mean.dim": "mean",
    "mean.default": "mean",
    "amax.default": "max",
    "amin.default": "min",
}
_SIZES: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": lambda a, b: a // b,
    "mod": operator.mod,
}


def _tables() -> None:
    """Overloads that are one row each."""
    for name, op in {**{n: n for n in _UNARY.split()}, "neg": "negative"}.items():
        CONVERTERS[f"aten.{name}.default"] = _unary(op)
    for name in ("logical_not", "bitwise_not"):
        CONVERTERS[f"aten.{name}.default"] = _unary("logical_not")
    for name, op in _ARITHMETIC.items():
        for overload in ("Tensor", "Scalar", "default"):
            CONVERTERS[f"aten.{name}.{overload}"] = _arithmetic(op)
    for name, op in _COMPARISONS.items():
        for overload in ("Tensor", "Scalar"):
            CONVERTERS[f"aten.{name}.{overload}"] = _comparison(op)
    for name, op in _REDUCTIONS.items():
        CONVERTERS[f"aten.{name}"] = _reduction(op)
    for name in ("any.dim", "any.default", "all.dim", "all.default"):
        CONVERTERS[f"aten.{name}"] = _reduction(name.split(".")[0], cast=False)
    for name, fn in _SIZES.items():
        CONVERTERS[f"operator.{name}"] = _size_arithmetic(fn)


_tables()

"""Map the arguments of a PyTorch overload to the operands and attributes of an operator row.

Names and defaults come from the overload's schema, the rest from `OpRow.torch_call`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from blockwright import ir
from blockwright.frontend.torch.operands import (
    Converter,
    cast_to,
    dims_of,
    has_one_element,
    is_half,
    is_tensor,
    result_type,
)
from blockwright.frontend.torch.promotion import common_type, float_type, number_in
from blockwright.ops.row import OpRow
from blockwright.ops.table import OPERATORS
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

# Arguments that do not affect values: a tensor's placement, and its type, which the result has.
_WITHOUT_MEANING = frozenset(
    {"memory_format", "dtype", "layout", "device", "pin_memory", "non_blocking", "generator",
     "sparse_grad"}
)  # fmt: skip
_INT32, _FLOAT32 = ir.dtype_of("int32"), ir.dtype_of("float32")


def row_converter(row: OpRow) -> Converter:
    """The converter for all overloads of a row, as described by its `torch_call`."""

    def convert(imp: Importer, node: Any, *args: Any, **kwargs: Any) -> Any:
        operands, attrs = sorted_arguments(row, node, args, kwargs)
        dtype = result_type(node) if row.torch_call.types == "result" else None
        if row.torch_call.needs_elements:
            axes = attrs.get("axes", attrs.get("axis"))
            require_elements(imp, row.name, operands[0], axes)
        return cast_to(
            imp, apply(imp, row.name, *operands, dtype=dtype, **attrs), result_type(node)
        )

    return convert


def apply(
    imp: Importer, name: str, *operands: Any, dtype: ir.DType | None = None, **attrs: Any
) -> ir.GraphExpr:
    """Apply a row to tensors and numbers, in their common type unless `dtype` is given."""
    row = OPERATORS[name]
    types = row.torch_call.types
    if dtype is None and types in ("promoted", "float"):
        dtype = common_type(operands)
        dtype = float_type(dtype) if types == "float" else dtype
    if dtype is not None and dtype.is_bool and not row.torch_call.bools:
        bools = [cast_to(imp, v, dtype) if is_tensor(v) else v for v in operands]
        return cast_to(imp, apply(imp, name, *bools, dtype=_INT32, **attrs), dtype)
    if dtype is not None and row.torch_call.keeps_divisor and unrounded(operands[-1], dtype):
        return cast_to(imp, apply(imp, name, *operands, dtype=_FLOAT32, **attrs), dtype)
    tensors = [v for v in operands if is_tensor(v)]
    numbers = [v for v in operands if not is_tensor(v)]
    if dtype is not None:
        tensors = [cast_to(imp, t, dtype) for t in tensors]
    if not numbers:
        return imp.builder.op(name, *tensors, **attrs)
    if len(numbers) > 1 or dtype is None or "scalar" not in row.attrs:
        raise ImporterError(
            f"{name} with {len(numbers)} numbers", code="BW507", help="make one of them a tensor"
        )
    side = "left" if not is_tensor(operands[0]) else "right"
    kept = row.torch_call.keeps_divisor and side == "right"
    scalar = number_in(numbers[0], dtype, rounded=not kept)
    return imp.builder.op(name, *tensors, scalar=scalar, scalar_side=side, **attrs)


def require_elements(imp: Importer, name: str, x: Any, axes: Any) -> None:
    """Reject calls with sizes for which a reduced axis is empty, as PyTorch does."""
    shape = dims_of(x)
    reduced = range(len(shape)) if axes is None else (axes,) if isinstance(axes, int) else axes
    for axis in reduced:
        extent = shape[axis]
        some = ir.compare(ir.GE, extent, ir.const(1, extent.dtype))
        if not imp.builder.analyzer.prove(some):
            message = (
                f"BW708: {name} over dimension {axis % len(shape)}, which has no elements\n"
                "help: pass larger tensors; Dim(..., min=1) declares it at export"
            )
            imp.builder.require(some, message)


def unrounded(divisor: Any, dtype: ir.DType) -> bool:
    """Whether a divisor or factor is a one-element tensor that half precision would round."""
    if not is_tensor(divisor) or not is_half(dtype) or divisor.tensor_info.dtype is dtype:
        return False
    return has_one_element(divisor)


def sorted_arguments(
    row: OpRow, node: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The operands, in order, and the attributes that an overload's arguments map to."""
    operands: list[Any] = []
    attrs: dict[str, Any] = {}
    for position, argument in enumerate(node.target._schema.arguments):
        name = argument.name
        if position < len(args):
            value = args[position]
        elif name in kwargs:
            value = kwargs[name]
        elif argument.has_default_value():
            value = argument.default_value
        else:
            raise ImporterError(f"{node.target}: the argument {name} is missing", code="BW507")
        attribute = _attribute(row, name)
        if attribute:
            _set(attrs, attribute, value, operands, row.torch_call.empty_axes)
        elif is_tensor(value) or (_is_number(argument) and "scalar" in row.attrs):
            operands.append(value)
        elif name not in _WITHOUT_MEANING and not _is_default(argument, value):
            raise ImporterError(
                f"{name}={value!r} is not supported",
                code="BW507",
                help="leave the argument at its default",
            )
    return operands, attrs


def _attribute(row: OpRow, name: str) -> str:
    """The attribute that an argument sets; "" for operands and ignored arguments."""
    given = row.torch_call.attrs.get(name)
    if given is not None:
        return given
    usual = {"dim": ("axes", "axis"), "keepdim": ("keepdims",)}.get(name, (name,))
    return next((n for n in usual if n in row.attrs and n != "dtype"), "")


def _set(
    attrs: dict[str, Any], name: str, value: Any, operands: list[Any], empty_axes: bool
) -> None:
    """Set an attribute; a tensor without axes is reduced over no axis, whatever `dim` says."""
    if isinstance(value, list):
        value = tuple(cast("list[Any]", value))
    if name in ("axes", "axis") and value is not None:
        if name == "axes" and not isinstance(value, tuple):
            value = (value,)
        if (value == () and not empty_axes) or not operands[0].tensor_info.rank:
            value = None
    attrs[name] = value


def _is_number(argument: Any) -> bool:
    """Whether an argument accepts a tensor or a number."""
    return not argument.kwarg_only and argument.type.kind() in ("TensorType", "NumberType")


def _is_default(argument: Any, value: Any) -> bool:
    return argument.has_default_value() and value == argument.default_value

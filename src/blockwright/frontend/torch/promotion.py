"""PyTorch's type promotion of operands, including Python numbers.

Tensors with axes take precedence over tensors without, and these over Python numbers. An operand of
lower precedence changes the type only if it has a higher category (bool < integer < float). This is
`torch.result_type`, on annotations instead of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.support import ImporterError

BOOL = ir.dtype_of("bool")
_PLACES = 3  # number of precedence classes: tensors with axes, tensors without, numbers


def default_float() -> ir.DType:
    """The type that integers are converted to by operators on floats."""
    import torch

    return ir.dtype_of(str(torch.get_default_dtype()).removeprefix("torch."))


def promote(a: ir.DType, b: ir.DType) -> ir.DType:
    """`torch.promote_types`."""
    import torch

    if a is b:
        return a
    result = torch.promote_types(getattr(torch, str(a)), getattr(torch, str(b)))
    return ir.dtype_of(str(result).removeprefix("torch."))


def number_type(value: Any) -> ir.DType:
    """The type of a Python number or of a size."""
    if isinstance(value, (bool, np.bool_)):
        return BOOL
    if isinstance(value, ir.Expr):
        return ir.dtype_of("int64") if value.dtype.is_int else default_float()
    if isinstance(value, (int, np.integer)):
        return ir.dtype_of("int64")
    if isinstance(value, (float, np.floating)):
        return default_float()
    raise ImporterError(
        f"a {type(value).__name__} is not an operand of a tensor operator", code="BW504"
    )


def common_type(operands: Iterable[Any]) -> ir.DType:
    """`torch.result_type` of tensors (graph expressions) and numbers."""
    kinds: list[ir.DType | None] = [None] * _PLACES
    for value in operands:
        if isinstance(value, ir.GraphExpr):
            info = value.tensor_info
            place, dtype = (0 if info.rank else 1), info.dtype
            assert dtype is not None
        else:
            place, dtype = 2, number_type(value)
        seen = kinds[place]
        kinds[place] = dtype if seen is None else promote(seen, dtype)
    result: ir.DType | None = None
    for dtype in reversed(kinds):
        result = _decided(dtype, result)
    assert result is not None
    return result


def _decided(before: ir.DType | None, after: ir.DType | None) -> ir.DType | None:
    """Combine the types of two precedence classes; the first decides within a category."""
    if before is None or after is None:
        return before or after
    if before.is_float:
        return before
    return promote(before, after) if before.is_bool or after.is_float else before


def float_type(dtype: ir.DType) -> ir.DType:
    """The type in which an operator on floats computes for an operand of type `dtype`."""
    return dtype if dtype.is_float else default_float()


def number_in(value: Any, dtype: ir.DType, *, rounded: bool = True) -> Any:
    """A number as an operand of type `dtype`; integers wrap around, as in PyTorch.

    Args:
        rounded: whether to round a number next to narrow floats to their type.
    """
    narrow = rounded and dtype.is_float and dtype.bits < 32
    if isinstance(value, ir.Expr):
        return ir.cast_to(value, dtype) if narrow else value
    if dtype.is_bool:
        return bool(value)
    if dtype.is_int:
        bits = int(value) & ((1 << dtype.bits) - 1)
        return bits - (1 << dtype.bits) if bits > dtype.max_value else bits
    number = float(value)
    if not narrow:
        return number
    with np.errstate(over="ignore"):  # via float32, as in PyTorch
        return float(np.asarray(np.float32(number)).astype(dtype.numpy()))


def stored_number(value: Any, dtype: ir.DType) -> Any:
    """A number as an element of type `dtype`: integers drop a fraction, unsigned ones wrap below 0.

    Raises: ImporterError: BW514 for a number that the type cannot hold, which PyTorch rejects too.
    """
    if isinstance(value, ir.Expr) or dtype.is_bool:
        return number_in(value, dtype)
    if dtype.is_int:
        fits = math.isfinite(value) and _lowest(dtype) <= int(value) <= dtype.max_value
    else:
        with np.errstate(over="ignore"):
            fits = not math.isfinite(value) or bool(
                np.isfinite(np.asarray(value).astype(dtype.numpy()))
            )
    if not fits:
        raise ImporterError(
            f"{value!r} is not representable in {dtype}",
            code="BW514",
            help="use a number in the range of the type",
        )
    return number_in(value, dtype)


def _lowest(dtype: ir.DType) -> int:
    """The smallest number that PyTorch converts to an integer type."""
    return dtype.min_value or -dtype.max_value

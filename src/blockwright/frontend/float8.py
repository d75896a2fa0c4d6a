"""Casts to floats of 8 bits that give the largest number instead of NaN or an infinity.

ONNX casts so to all four types unless the node says otherwise, PyTorch to `float8_e4m3fn`.
"""

from __future__ import annotations

from collections.abc import Callable

from blockwright import ir

LARGEST = {
    "float8_e4m3fn": 448.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2": 57344.0,
    "float8_e5m2fnuz": 57344.0,
}
"""The types → their largest numbers."""


def saturated(op: Callable[..., ir.GraphExpr], x: ir.GraphExpr, dtype: ir.DType) -> ir.GraphExpr:
    """The numbers of any type clamped to the finite range of `dtype`; NaN stays NaN.

    Args:
        op: applies an operator to operands, with attributes by name.
    """
    high, source = LARGEST[dtype.name], x.tensor_info.dtype
    assert source is not None
    if source.is_bool:
        return x
    if source.is_int:
        return _clamped(op, x, source, int(high))
    if source.bits < 16:  # the bounds may not be numbers of its type
        x = op("astype", x, dtype="float32")
    return op("clip", x, min=-high, max=high)


def _clamped(
    op: Callable[..., ir.GraphExpr], x: ir.GraphExpr, source: ir.DType, high: int
) -> ir.GraphExpr:
    """Integers between two bounds, of which those that the type does not reach are left out."""
    low = -high if source.min_value < -high else None
    top = high if source.max_value > high else None
    return x if low is None and top is None else op("clip", x, min=low, max=top)

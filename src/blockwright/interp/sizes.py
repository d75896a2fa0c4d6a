"""Evaluate symbolic sizes, and find the value limits of arguments that serve as indices."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from blockwright import ir
from blockwright.support import InterpretError

_OPERATIONS: dict[type[ir.BinaryOp], Callable[[int, int], int]] = {
    ir.Add: operator.add,
    ir.Sub: operator.sub,
    ir.Mul: operator.mul,
    ir.FloorDiv: lambda a, b: a // b,
    ir.FloorMod: operator.mod,
    ir.Min: min,
    ir.Max: max,
}


def evaluate(expr: ir.Expr, sizes: Mapping[str, int]) -> int:
    """Evaluate a size expression.

    Raises: InterpretError: BW757 if it is not an expression of known sizes; BW754 if it divides by
        zero.
    """
    match expr:
        case ir.IntImm():
            return expr.value
        case ir.Var() if expr.name in sizes:
            return sizes[expr.name]
        case ir.Cast():
            return evaluate(expr.value, sizes)
        case ir.BinaryOp() if type(expr) in _OPERATIONS:
            a, b = evaluate(expr.a, sizes), evaluate(expr.b, sizes)
            if b == 0 and isinstance(expr, (ir.FloorDiv, ir.FloorMod)):
                raise InterpretError(f"{expr!r} divides by zero", code="BW754")
            return _OPERATIONS[type(expr)](a, b)
        case _:
            raise InterpretError(f"{expr!r} is not a size", code="BW757")


def index_limits(func: ir.PrimFunc, sizes: Mapping[str, int]) -> dict[ir.Buffer, int]:
    """For parameters whose elements serve as indices: the smallest extent they index."""
    params = set(func.buffers)
    limits: dict[ir.Buffer, int] = {}
    for access in ir.accesses(func.body):
        for index, extent in zip(access.indices, access.buffer.shape, strict=True):
            for load in ir.collect(index, ir.BufferLoad):
                if load.buffer in params:
                    size = evaluate(extent, sizes)
                    limits[load.buffer] = min(size, limits.get(load.buffer, size))
    return limits

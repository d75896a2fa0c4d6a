"""Symbols that a parameter has only inside a dimension, from the size of that dimension."""

from __future__ import annotations

from blockwright import ir


def solution(dim: ir.Expr, size: ir.Expr) -> ir.Expr:
    """The symbol of a linear dimension such as `2 * n + 1`, for a dimension of this size."""
    if isinstance(dim, ir.Var):
        return size
    assert isinstance(dim, (ir.Add, ir.Sub, ir.Mul))  # `parameter_symbols` accepted it
    symbol_first = not isinstance(dim.a, ir.IntImm)
    inner, number = (dim.a, dim.b) if symbol_first else (dim.b, dim.a)
    if isinstance(dim, ir.Mul):
        return solution(inner, ir.floordiv(size, number))
    if isinstance(dim, ir.Add):
        return solution(inner, size - number)
    return solution(inner, size + number if symbol_first else number - size)


def is_size(value: ir.Expr) -> bool:
    """Whether a solution is a size or a part of one, and so not negative."""
    return isinstance(value, ir.Var) or (isinstance(value, ir.FloorDiv) and is_size(value.a))

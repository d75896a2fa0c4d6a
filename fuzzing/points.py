"""Evaluate index expressions at many points at once, to test the arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.ir import Expr, Var

Array = np.ndarray[Any, Any]


class Points:
    """Values of variables at many points; `valid` marks points without undefined operations.

    Args:
        values: one array per variable, all of the same length.
    """

    def __init__(self, values: dict[Var, Array]) -> None:
        self.values = values
        self.valid: Array = np.ones(len(next(iter(values.values()))), dtype=bool)

    def eval(self, node: Expr) -> Array:
        """The value of an expression at each point."""
        if isinstance(node, Var):
            return self.values[node]
        if isinstance(node, ir.IntImm):
            return np.full(len(self.valid), node.value, dtype=np.int64)
        if isinstance(node, ir.Not):
            return ~self.eval(node.a).astype(bool)
        if isinstance(node, ir.Select):
            c, a, b = (self.eval(e) for e in (node.condition, node.true_value, node.false_value))
            return np.where(c.astype(bool), a, b)
        if isinstance(node, ir.Cast):
            return self.eval(node.value)
        assert isinstance(node, (ir.BinaryOp, ir.CompareOp, ir.And, ir.Or)), node
        a, b = self.eval(node.a), self.eval(node.b)
        if isinstance(node, (ir.FloorDiv, ir.FloorMod)):
            self.valid &= b != 0
            b = np.where(b == 0, 1, b)
        return _OPS[type(node)](a, b)


_OPS: dict[type[Expr], Callable[[Array, Array], Array]] = {
    ir.Add: np.add, ir.Sub: np.subtract, ir.Mul: np.multiply, ir.FloorDiv: np.floor_divide,
    ir.FloorMod: np.mod, ir.Min: np.minimum, ir.Max: np.maximum, ir.EQ: np.equal,
    ir.NE: np.not_equal, ir.LT: np.less, ir.LE: np.less_equal, ir.GT: np.greater,
    ir.GE: np.greater_equal, ir.And: np.logical_and, ir.Or: np.logical_or,
}  # fmt: skip

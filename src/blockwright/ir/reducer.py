"""Commutative reducers: how two partial results of a reduction become one."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright.ir.dtype import DType
from blockwright.ir.expr import Expr, Var
from blockwright.ir.node import Node


class CommReducer(Node, frozen=True, eq=False):
    """A combination of two values, or of two tuples, in which order and grouping do not matter.

    `result[c]` is component c of combining `lhs` with `rhs`; `identity` is the value that changes
    nothing. Programs hold reductions in loop form; a reducer stands in the annotation "reducer" of
    a block whose combination is not a builtin one.
    """

    lhs: tuple[Var, ...]
    rhs: tuple[Var, ...]
    result: tuple[Expr, ...]
    identity: tuple[Expr, ...]

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Types of the components."""
        return tuple(var.type for var in self.lhs)

    def operands(self, lhs: Sequence[Expr], rhs: Sequence[Expr]) -> dict[Var, Expr]:
        """What the operand variables stand for in a combination of two tuples."""
        return dict(zip((*self.lhs, *self.rhs), (*lhs, *rhs), strict=True))

"""Commutative reducers: how two partial results of a reduction are combined."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright.ir.dtype import DType
from blockwright.ir.expr import Expr, Var
from blockwright.ir.node import Node


class CommReducer(Node, frozen=True, eq=False):
    """A commutative, associative combination of two values or of two tuples.

    `result[c]` is component c of combining `lhs` with `rhs`; `identity` is the neutral element.
    Programs express reductions as loops; a block whose combiner is not a builtin operator carries a
    `CommReducer` in its annotation "reducer".
    """

    lhs: tuple[Var, ...]
    rhs: tuple[Var, ...]
    result: tuple[Expr, ...]
    identity: tuple[Expr, ...]

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Data types of the components."""
        return tuple(var.type for var in self.lhs)

    def operands(self, lhs: Sequence[Expr], rhs: Sequence[Expr]) -> dict[Var, Expr]:
        """Substitution of the operand variables for combining two tuples."""
        return dict(zip((*self.lhs, *self.rhs), (*lhs, *rhs), strict=True))

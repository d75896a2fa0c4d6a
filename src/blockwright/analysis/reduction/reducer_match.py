"""Matching of an update against the pattern of a reducer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from blockwright import ir

Captured = dict[ir.Var, ir.Expr]
"""Pattern variables with the expressions they match."""

_COMMUTATIVE = (ir.Add, ir.Mul, ir.Min, ir.Max, ir.And, ir.Or, ir.EQ, ir.NE)
MIRROR: dict[type[ir.Expr], type[ir.Expr]] = {
    ir.LT: ir.GT, ir.GT: ir.LT, ir.LE: ir.GE, ir.GE: ir.LE,
}  # fmt: skip


def match_all(
    patterns: Sequence[ir.Expr],
    exprs: Sequence[ir.Expr],
    known: Captured,
    excluded: Sequence[ir.Var],
) -> Iterator[Captured]:
    """Enumerate all ways to match expressions against patterns simultaneously.

    Args:
        known: pattern variables that are already bound; any other variable matches any expression
            of its type that uses none of `excluded`.
    """
    if not patterns:
        yield known
        return
    for result in _match(patterns[0], exprs[0], known, excluded):
        yield from match_all(patterns[1:], exprs[1:], result, excluded)


def _match(
    pattern: ir.Expr, expr: ir.Expr, known: Captured, excluded: Sequence[ir.Var]
) -> Iterator[Captured]:
    if pattern.dtype is not expr.dtype:
        return
    if isinstance(pattern, ir.Var):
        settled = known.get(pattern)
        if settled is not None:
            if settled is expr or ir.structural_equal(settled, expr):
                yield known
        elif not ir.uses_var(expr, set(excluded)):
            yield {**known, pattern: expr}
        return
    for parts, others in _readings(pattern, expr):
        yield from match_all(parts, others, known, excluded)


def _readings(pattern: ir.Expr, expr: ir.Expr) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
    """Operands to match, for each permitted order of the operands."""
    choice = _choice(pattern)
    if choice is not None:
        other = _choice(expr)
        if other is not None:
            yield choice, other
        return
    if isinstance(pattern, (ir.IntImm, ir.FloatImm, ir.StringImm)):
        if ir.structural_equal(pattern, expr):
            yield (), ()
        return
    mirrored = type(expr) is MIRROR.get(type(pattern))
    if type(expr) is not type(pattern) and not mirrored:
        return
    mine, theirs = _operands(pattern), _operands(expr)
    if mine is None or theirs is None or len(mine) != len(theirs):
        return
    if not mirrored:
        yield mine, theirs
    if mirrored or isinstance(pattern, _COMMUTATIVE):
        yield mine, theirs[::-1]


def _choice(expr: ir.Expr) -> tuple[ir.Expr, ...] | None:
    """Condition and both values of a conditional expression of either form; None for others."""
    if isinstance(expr, ir.Select):
        return expr.condition, expr.true_value, expr.false_value
    if isinstance(expr, ir.Call) and expr.op == "if_then_else":
        return expr.args
    return None


def _operands(expr: ir.Expr) -> tuple[ir.Expr, ...] | None:
    """Operands of an operation; None for expressions that cannot occur in a reducer."""
    if isinstance(expr, (ir.BinaryOp, ir.CompareOp, ir.And, ir.Or)):
        return expr.a, expr.b
    if isinstance(expr, ir.Not):
        return (expr.a,)
    if isinstance(expr, ir.Cast):
        return (expr.value,)
    if isinstance(expr, ir.Call):
        return (ir.StringImm(expr.op), *expr.args)
    return None

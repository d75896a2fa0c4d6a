"""Generation of reductions in loop form: the update step and stores of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from blockwright import ir
from blockwright.analysis.reduction.reducer_table import combined


def step(
    reducer: ir.CommReducer, elements: Sequence[ir.BufferLoad], terms: Sequence[ir.Expr]
) -> ir.Stmt:
    """The statement that combines terms into elements.

    One component needs one store. Several are computed into lets before any is stored, because each
    may read all old values. A term that the combiner uses twice is computed once.
    """
    lets: list[tuple[ir.Var, ir.Expr]] = []
    operands: list[ir.Expr] = []
    for var, element, term in zip(reducer.rhs, elements, terms, strict=True):
        uses = sum(node is var for part in reducer.result for node in ir.walk(part))
        if uses > 1 and ir.collect(term, ir.Call):
            held = ir.Var(f"t_{element.buffer.name}", var.type)
            lets.append((held, term))
            operands.append(held)
        else:
            operands.append(term)
    shared, values = share_condition(combined(reducer, elements, operands))
    lets += shared
    if len(elements) > 1:
        result = [
            ir.Var(f"v_{e.buffer.name}", v.dtype) for e, v in zip(elements, values, strict=True)
        ]
        lets += zip(result, values, strict=True)
        values = tuple(result)
    body = stores(elements, values)
    return under_lets(lets, body)


def under_lets(lets: Sequence[tuple[ir.Var, ir.Expr]], body: ir.Stmt) -> ir.Stmt:
    """Wrap a statement in lets; each let may use the variables of the previous ones."""
    for var, value in reversed(lets):
        body = ir.LetStmt(var, value, body)
    return body


def share_condition(
    values: Sequence[ir.Expr],
) -> tuple[list[tuple[ir.Var, ir.Expr]], tuple[ir.Expr, ...]]:
    """If all values are selected by the same condition, compute it once, in a let."""
    choice = _common_condition(values)
    if choice is None:
        return [], tuple(values)
    taken = ir.Var("taken", choice.dtype)
    chosen = cast("Sequence[ir.Select]", values)
    return [(taken, choice)], tuple(v.replace(condition=taken) for v in chosen)


def _common_condition(values: Sequence[ir.Expr]) -> ir.Expr | None:
    """The common condition of several `Select` values, or None."""
    first = values[0]
    if len(values) == 1 or not isinstance(first, ir.Select):
        return None
    same = all(
        isinstance(v, ir.Select) and ir.structural_equal(v.condition, first.condition)
        for v in values
    )
    return first.condition if same else None


def stores(elements: Sequence[ir.BufferLoad], values: Sequence[ir.Expr]) -> ir.Stmt:
    """Store each value to its element."""
    pairs: Any = zip(elements, values, strict=True)
    return ir.seq(ir.BufferStore(e.buffer, v, e.indices) for e, v in pairs)

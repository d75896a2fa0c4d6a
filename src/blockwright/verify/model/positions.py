"""Index tables that the program fills itself: `rows[v] = v * 2 + 1`, then `x[rows[i]]`.

A read of such a table is replaced by the stored formula, so that positions become formulas. Whether
the read really sees that store is left to dataflow analysis: `Safety` checks every replacement. The
formula is an index, but the read is a value, whose arithmetic wraps around; a `reinterpret` around
the formula marks this (`as_value`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from blockwright import ir


class Taken(msgspec.Struct, frozen=True, eq=False):
    """A read, and the formula that replaced it."""

    read: ir.BufferLoad
    formula: ir.Expr


def as_value(formula: ir.Expr) -> ir.Expr:
    """Wrap an index as a value of its type."""
    return ir.Call("reinterpret", (formula,), formula.dtype)


def _whole(index: ir.Expr) -> ir.Expr:
    """Unwrap a position that is a wrapped index without arithmetic around it."""
    if isinstance(index, ir.Call) and index.op == "reinterpret":
        inner = index.args[0]
        return inner if inner.dtype is index.dtype else index
    return index


class Tables:
    """Integer buffers that a single store fills with a formula of the position."""

    def __init__(self, func: ir.PrimFunc) -> None:
        self.formulas: dict[ir.Buffer, tuple[tuple[ir.Var, ...], ir.Expr]] = {}
        parameters = set(func.buffers)
        stores: dict[ir.Buffer, list[ir.BufferStore]] = {}
        for store in ir.collect(func.body, ir.BufferStore):
            stores.setdefault(store.buffer, []).append(store)
        views = {v.source.buffer for b in ir.blocks(func.body) for v in b.match_buffers}
        for buffer, result in stores.items():
            if buffer.dtype.is_int and len(result) == 1 and buffer not in parameters | views:
                self._add(buffer, result[0])

    def _add(self, buffer: ir.Buffer, store: ir.BufferStore) -> None:
        at = tuple(i for i in store.indices if isinstance(i, ir.Var))
        if len(set(at)) != buffer.ndim or store.predicate is not None:
            return
        if not ir.collect(store.value, ir.BufferLoad):
            self.formulas[buffer] = at, store.value

    def take(self, expr: ir.Expr) -> tuple[ir.Expr, tuple[Taken, ...]]:
        """Replace reads of tables in an expression; return the expression and the reads."""
        if not self.formulas:
            return expr, ()
        taken: list[Taken] = []

        def visit(node: ir.Node) -> Any:
            if isinstance(node, ir.Buffer):
                return node
            if isinstance(node, ir.Call) and node.op == "if_then_else":
                test, yes, no = node.args  # conditional reads are left to dataflow analysis
                return node.replace(args=(visit(test), yes, no))
            result = node.map_children(visit)
            if not isinstance(result, ir.BufferLoad):
                return result
            result = result.replace(indices=tuple(map(_whole, result.indices)))
            if result.predicate is not None:
                return result
            known = self.formulas.get(result.buffer)
            if known is None or result.dtype.lanes > 1:
                return result
            at, value = known
            formula = ir.substitute(value, dict(zip(at, result.indices, strict=True)))
            if ir.collect(formula, ir.BufferLoad):
                return result
            taken.append(Taken(result, formula))
            return as_value(formula)

        return visit(expr), tuple(taken)

"""Rewrite stores under a data-dependent condition as unconditional stores.

    if mask[i] > 0:          →     y[i] = if_then_else(mask[i] > 0, x[i], y[i])
        y[i] = x[i]

    if mask[i, k] > 0:       →     s[i] = s[i] + if_then_else(mask[i, k] > 0, x[i, k], 0)
        s[i] = s[i] + x[i, k]

The reads under the condition, and the read of the old value, then always happen. A program in which
that would be invalid is not proved.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.verify.model import memory
from blockwright.verify.model.statement import COMBINERS, updated
from blockwright.verify.model.terms import extreme
from blockwright.verify.verdict import Unknown


def guarded(stmt: ir.IfThenElse, root: memory.Root) -> ir.Stmt:
    """The statement without its condition, with the condition moved into its stores.

    Nested conditions stay.

    Args:
        root: the underlying buffer of a view.

    Raises:
        Unknown: something other than a store depends on the condition, or the condition reads a
            buffer that is written under it.
    """
    test = stmt.condition
    if memory.read((test,), root) & memory.written((stmt,), root):
        raise Unknown(f"the condition {test!r} reads a buffer that is written under it")
    one = _one_store(stmt)
    if one is not None:
        return one
    then = _under(test, stmt.then_case)
    if stmt.else_case is None:
        return then
    return ir.seq([then, _under(ir.logical_not(test), stmt.else_case)])


def _one_store(stmt: ir.IfThenElse) -> ir.Stmt | None:
    """One store of a selected value, if both branches overwrite the same element."""
    yes, no = stmt.then_case, stmt.else_case
    if not (isinstance(yes, ir.BufferStore) and isinstance(no, ir.BufferStore)):
        return None
    same = yes.buffer is no.buffer and all(map(ir.structural_equal, yes.indices, no.indices))
    if not same or updated(yes, yes.value)[0] or updated(no, no.value)[0]:
        return None
    return _chosen(stmt.condition, yes, no.value) if no.predicate is None else None


def _under(test: ir.Expr, stmt: ir.Stmt) -> ir.Stmt:
    match stmt:
        case ir.BufferStore():
            return _store(test, stmt)
        case ir.SeqStmt():
            return ir.seq(_under(test, child) for child in stmt.seq)
        case ir.For() | ir.LetStmt():
            return stmt.replace(body=_under(test, stmt.body))
        case ir.IfThenElse():
            other = None if stmt.else_case is None else _under(test, stmt.else_case)
            return stmt.replace(then_case=_under(test, stmt.then_case), else_case=other)
        case ir.Evaluate() if isinstance(stmt.value, ir.IntImm):
            return stmt
        case _:
            raise Unknown(f"the condition {test!r} does not depend on indices alone")


def _store(test: ir.Expr, store: ir.BufferStore) -> ir.Stmt:
    combiner, rest = updated(store, store.value)
    neutral = _neutral(combiner, store.buffer.dtype)
    if neutral is None:
        return _chosen(test, store, ir.BufferLoad(store.buffer, store.indices))
    term = ir.Call("if_then_else", (test, rest, neutral), rest.dtype)
    old = ir.BufferLoad(store.buffer, store.indices)
    combine = next(cls for cls, name in COMBINERS.items() if name == combiner)
    return store.replace(value=combine(old, term))  # pyright: ignore[reportCallIssue]


def _chosen(test: ir.Expr, store: ir.BufferStore, other: ir.Expr) -> ir.Stmt:
    if store.predicate is not None or store.value.dtype.lanes != 1:
        raise Unknown(
            f"the condition {test!r} around a vector store does not depend on indices alone"
        )
    value = ir.Call("if_then_else", (test, store.value, other), store.value.dtype)
    return store.replace(value=value)


def _neutral(combiner: str, dtype: ir.DType) -> ir.Expr | None:
    """The identity element of a combiner."""
    if combiner in ("+", "*"):
        return ir.const(int(combiner == "*"), dtype)
    if combiner in ("and", "or"):
        return ir.const(combiner == "and", dtype)
    if combiner in ("min", "max") and dtype.is_float:
        return ir.const(extreme(dtype, largest=combiner == "min"), dtype)
    if combiner in ("min", "max"):
        return ir.const(dtype.max_value if combiner == "min" else dtype.min_value, dtype)
    return None

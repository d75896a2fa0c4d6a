"""Helpers of loop primitives: loop names, extents, and simplification of block bindings."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.analysis import facts_of_loop, reduced_by
from blockwright.arith import Analyzer
from blockwright.schedule.engine.state import StepState


def loop_names(
    state: StepState, loop: ir.For, names: tuple[str, ...] | None, count: int
) -> tuple[str, ...]:
    """Names for the parts of a loop: the given ones, or the loop's name with a number."""
    if names is None:
        return tuple(f"{loop.loop_var.name}_{k}" for k in range(count))
    wrong = [name for name in names if not name.isidentifier()]
    if wrong or len(names) != count:
        what = f"{wrong[0]!r} is not a name" if wrong else f"{len(names)} names for {count} loops"
        state.fail(what, code="BW304", guilty=[loop], help="pass one identifier per new loop")
    return names


def times_run(loop: ir.For, analyzer: Analyzer) -> ir.Expr:
    """The trip count of a loop: `extent`, or `max(extent, 0)` if the extent may be negative.

    Needed where extents are added: loops of extent -2 and 4 run four iterations, not two.
    """
    zero = ir.const(0, loop.extent.dtype)
    return loop.extent if _counts(loop, analyzer) else ir.maximum(loop.extent, zero)


def factors(loops: Sequence[ir.For], analyzer: Analyzer) -> list[ir.Expr]:
    """Extents of a loop nest whose product is positive exactly if the nest runs.

    Two negative extents would have a positive product, so all but one extent of unknown sign are
    clamped at 0. One negative factor is harmless: the product is then negative or 0.
    """
    doubtful = [f for f in loops[1:] if not _counts(f, analyzer)]
    if doubtful and _counts(loops[0], analyzer):
        del doubtful[0]
    return [times_run(f, analyzer) if f in doubtful else f.extent for f in loops]


def _counts(loop: ir.For, analyzer: Analyzer) -> bool:
    """Whether the extent is provably non-negative."""
    count = ir.const_int(loop.extent)
    if count is not None:
        return count >= 0
    return analyzer.prove(ir.GE(loop.extent, ir.const(0, loop.extent.dtype)))


def resized(loop: ir.For, low: ir.Expr, extent: ir.Expr, body: ir.Stmt) -> ir.For:
    """The loop with new bounds, also on the thread axis that it is bound to."""
    new = loop.replace(min=low, extent=extent, body=body)
    return new if new.thread is None else new.replace(thread=new.thread.replace(dom=new.dom))


class BindingFacts:
    """The facts for simplifying a block's iterator bindings and predicate.

    Expressions that do not use reduction loops must also hold when these loops are empty: they
    also determine where the initial value is stored.
    """

    def __init__(self, realize: ir.BlockRealize, analyzer: Analyzer) -> None:
        self.stepping = analyzer
        self.reduced = reduced_by(realize)
        self.always = analyzer.without_empty(self.reduced) if self.reduced else analyzer

    def of(self, expr: ir.Expr) -> Analyzer:
        return self.stepping if ir.uses_var(expr, self.reduced) else self.always


def simplified_bindings(stmt: ir.Stmt, changed: set[ir.Var], analyzer: Analyzer) -> ir.Stmt:
    """`stmt` with the block bindings that use changed variables simplified."""
    if isinstance(stmt, ir.BlockRealize):
        facts = BindingFacts(stmt, analyzer)
        values = tuple(
            facts.of(v).simplify(v) if ir.uses_var(v, changed) else v for v in stmt.iter_values
        )
        parts = (
            c if ir.is_const_int(c) else _simplified_condition(c, changed, facts.of(c))
            for c in ir.conditions(stmt.predicate)
        )
        return stmt.replace(iter_values=values, predicate=ir.all_of(parts))
    if isinstance(stmt, ir.Block):
        return stmt
    if isinstance(stmt, ir.For):
        inner = analyzer.copy()
        inner.bind(stmt.loop_var, stmt.dom)
        return stmt.replace(body=simplified_bindings(stmt.body, changed, inner))
    return stmt.map_children(
        lambda c: simplified_bindings(c, changed, analyzer) if isinstance(c, ir.Stmt) else c
    )


def _simplified_condition(condition: ir.Expr, changed: set[ir.Var], analyzer: Analyzer) -> ir.Expr:
    """True if the condition always holds; else the same comparison with simplified operands."""
    if not ir.uses_var(condition, changed):
        return condition
    if analyzer.prove(condition):
        return ir.const(True, "bool")
    if isinstance(condition, ir.CompareOp):
        return type(condition)(analyzer.simplify(condition.a), analyzer.simplify(condition.b))
    return condition


def moved(stmt: ir.Stmt, var: ir.Var, value: ir.Expr, analyzer: Analyzer) -> ir.Stmt:
    """`stmt` with a loop variable replaced by `value`, and bindings simplified.

    Blocks are not rewritten: their bodies use no loop variables.
    """
    if isinstance(stmt, ir.Block):
        return stmt
    if isinstance(stmt, ir.For):
        known = facts_of_loop(analyzer, stmt)
        low, extent = (_put(e, var, value, known) for e in (stmt.min, stmt.extent))
        loop = resized(stmt, low, extent, stmt.body)
        inner = analyzer.copy()
        inner.bind(loop.loop_var, loop.dom)
        return loop.replace(body=moved(loop.body, var, value, inner))
    if isinstance(stmt, ir.BlockRealize):
        facts = BindingFacts(stmt, analyzer)
        values = tuple(_put(v, var, value, facts.of(v)) for v in stmt.iter_values)
        predicate = ir.substitute(stmt.predicate, {var: value})
        return stmt.replace(iter_values=values, predicate=predicate)

    def below(child: ir.Node) -> ir.Node:
        if isinstance(child, ir.Stmt):
            return moved(child, var, value, analyzer)
        return ir.substitute(child, {var: value})

    return stmt.map_children(below)


def _put(expr: ir.Expr, var: ir.Var, value: ir.Expr, analyzer: Analyzer) -> ir.Expr:
    if not ir.uses_var(expr, var):
        return expr
    return analyzer.simplify(ir.substitute(expr, {var: value}))

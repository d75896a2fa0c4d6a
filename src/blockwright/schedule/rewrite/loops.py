"""Helpers of the loop primitives: names, extents and simplified block bindings."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.analysis import facts_of_loop, reduced_by
from blockwright.arith import Analyzer
from blockwright.schedule.engine.state import StepState


def loop_names(
    state: StepState, loop: ir.For, names: tuple[str, ...] | None, count: int
) -> tuple[str, ...]:
    """Names for the parts of a loop: those given, or the loop's own, numbered."""
    if names is None:
        return tuple(f"{loop.loop_var.name}_{k}" for k in range(count))
    wrong = [name for name in names if not name.isidentifier()]
    if wrong or len(names) != count:
        what = f"{wrong[0]!r} is no name" if wrong else f"{len(names)} names for {count} loops"
        state.fail(
            what, code="BW304", guilty=[loop], help="give every new loop an identifier as name"
        )
    return names


def times_run(loop: ir.For, analyzer: Analyzer) -> ir.Expr:
    """How often the loop runs: its extent, or 0 where that may be negative; for what adds up
    extents: after a loop of -2 iterations one of 4 runs four."""
    zero = ir.const(0, loop.extent.dtype)
    return loop.extent if _counts(loop, analyzer) else ir.maximum(loop.extent, zero)


def factors(loops: Sequence[ir.For], analyzer: Analyzer) -> list[ir.Expr]:
    """Extents of loops whose product is positive where the loops run. Of two loops of -2 iterations
    none runs; one such extent makes the product negative, which is as good."""
    doubtful = [f for f in loops[1:] if not _counts(f, analyzer)]
    if doubtful and _counts(loops[0], analyzer):
        del doubtful[0]
    return [times_run(f, analyzer) if f in doubtful else f.extent for f in loops]


def _counts(loop: ir.For, analyzer: Analyzer) -> bool:
    """Whether the extent is a number of iterations, not less than none."""
    count = ir.const_int(loop.extent)
    if count is not None:
        return count >= 0
    return analyzer.prove(ir.GE(loop.extent, ir.const(0, loop.extent.dtype)))


def resized(loop: ir.For, low: ir.Expr, extent: ir.Expr, body: ir.Stmt) -> ir.For:
    """The loop with other bounds; a thread axis it is bound to has them too."""
    new = loop.replace(min=low, extent=extent, body=body)
    return new if new.thread is None else new.replace(thread=new.thread.replace(dom=new.dom))


class BindingFacts:
    """What may be known of the values that a block's iterators get, and of its predicate. Those of
    spatial iterators also tell where an initial value is set whose reduction takes no step."""

    def __init__(self, realize: ir.BlockRealize, analyzer: Analyzer) -> None:
        self.stepping = analyzer
        self.reduced = reduced_by(realize)
        self.always = analyzer.without_empty(self.reduced) if self.reduced else analyzer

    def of(self, expr: ir.Expr) -> Analyzer:
        return self.stepping if ir.uses_var(expr, self.reduced) else self.always


def simplified_bindings(stmt: ir.Stmt, changed: set[ir.Var], analyzer: Analyzer) -> ir.Stmt:
    """`stmt` with the block bindings that mention changed variables simplified."""
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
    """True for a condition that always holds; another keeps its form, operands simplified."""
    if not ir.uses_var(condition, changed):
        return condition
    if analyzer.prove(condition):
        return ir.const(True, "bool")
    if isinstance(condition, ir.CompareOp):
        return type(condition)(analyzer.simplify(condition.a), analyzer.simplify(condition.b))
    return condition


def moved(stmt: ir.Stmt, var: ir.Var, value: ir.Expr, analyzer: Analyzer) -> ir.Stmt:
    """`stmt` for another value of a loop variable, bindings simplified. Blocks stay as they are:
    they use no loop variable."""
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

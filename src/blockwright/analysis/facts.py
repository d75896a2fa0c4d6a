"""Facts that a function states about its symbolic sizes, as an initial `Analyzer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockwright import ir
from blockwright.analysis.access.stable_values import changes_in
from blockwright.analysis.access.tree import Tree
from blockwright.arith import Analyzer
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND


def symbols_of(func: ir.PrimFunc) -> list[ir.Var]:
    """Symbolic sizes in order of first occurrence: scalar parameters, then buffer shapes."""
    handles = {handle for handle, _ in func.buffer_map}
    result: dict[ir.Var, None] = {p: None for p in func.params if p not in handles}
    return list(result | _in_shapes(func))


def _in_shapes(func: ir.PrimFunc) -> dict[ir.Var, None]:
    """Symbols in the shapes of parameter buffers, in order; skips constant extents quickly."""
    return {
        v: None
        for b in func.buffers
        for d in b.shape
        if not isinstance(d, ir.IntImm)
        for v in ir.collect(d, ir.Var)
    }


def declared_range(func: ir.PrimFunc, var: ir.Var) -> tuple[int | None, int | None]:
    """Minimum and maximum of a size or a scalar, as far as the function states them."""
    lowers: Mapping[str, Any] = func.attrs.get(LOWER_BOUND, {})
    uppers: Mapping[str, Any] = func.attrs.get(UPPER_BOUND, {})
    return _optional(lowers.get(var.name)), _optional(uppers.get(var.name))


def declared_bounds(func: ir.PrimFunc, var: ir.Var) -> tuple[int, int | None]:
    """Minimum (1 unless stated, so that loops run) and maximum of a size."""
    low, high = declared_range(func, var)
    return (1 if low is None else max(low, 1)), high


def symbol_facts(func: ir.PrimFunc) -> Analyzer:
    """An analyzer that knows the stated bounds of sizes; shape variables are non-negative."""
    analyzer = Analyzer(values=ir.value_variables(func), changes=changes_in(func))
    uppers: Mapping[str, Any] = func.attrs.get(UPPER_BOUND, {})
    lowers: Mapping[str, Any] = func.attrs.get(LOWER_BOUND, {})
    in_shapes = _in_shapes(func)
    for var in symbols_of(func):
        if not var.type.is_int:
            continue
        low = lowers.get(var.name, 0 if var in in_shapes else None)
        analyzer.bind_bounds(
            var, None if low is None else _int(low), _optional(uppers.get(var.name))
        )
    for condition in stated_conditions(func):
        analyzer.learn(condition)
    return analyzer


def stated_conditions(func: ir.PrimFunc) -> list[ir.Expr]:
    """Conditions on sizes stated by leading assertions and assumptions of the program.

    `assert n % t == 0, "..."` is checked by every call, and the code after it may rely on it;
    `T.evaluate(T.assume(n % t == 0))` is a promise of the caller.
    """
    if not isinstance(func.body, ir.BlockRealize):
        return []
    body = func.body.block.body
    result: list[ir.Expr] = []
    for stmt in body.seq if isinstance(body, ir.SeqStmt) else ():
        condition = _stated(stmt)
        if condition is None:
            break
        if not any(isinstance(n, (ir.BufferLoad, ir.Call)) for n in ir.walk(condition)):
            result.append(condition)
    return result


def _stated(stmt: ir.Stmt) -> ir.Expr | None:
    """The condition that holds after an assertion or assumption; None for other statements."""
    if isinstance(stmt, ir.AssertStmt):
        return stmt.condition
    call = stmt.value if isinstance(stmt, ir.Evaluate) else None
    return call.args[0] if isinstance(call, ir.Call) and call.op == "assume" else None


def _int(value: Any) -> int:
    return value.value if isinstance(value, ir.IntImm) else int(value)


def _optional(value: Any) -> int | None:
    return None if value is None else _int(value)


def facts_at(tree: Tree, at: ir.Stmt) -> Analyzer:
    """Facts that hold at a statement: sizes, enclosing loops, iterators of enclosing blocks.

    In the init statement of a block, the reduction loops are not known to have iterations.
    """
    analyzer = symbol_facts(tree.func)
    for node in reversed(list(tree.ancestors(at))):
        if isinstance(node, ir.For):
            analyzer.bind(node.loop_var, node.dom)
        elif isinstance(node, ir.Block):
            for it in node.iter_vars:
                analyzer.bind(it.var, it.dom)
    initial = tree.initial_of(at)
    return analyzer if initial is None else facts_of_initial(analyzer, tree.realize(initial))


def reduced_by(realize: ir.BlockRealize) -> set[ir.Var]:
    """Reduction iterators of a block with an init statement, and the variables driving them.

    Empty for other blocks.
    """
    if realize.block.init is None:
        return set()
    pairs = realize.bindings
    reduced = [(it.var, v) for it, v in pairs if it.iter_type is ir.IterType.REDUCE]
    return {var for it, value in reduced for var in (it, *ir.free_vars(value))}


def facts_of_loop(analyzer: Analyzer, loop: ir.For) -> Analyzer:
    """Facts at a loop that may be used for its extent.

    A spatial loop inside a reduction loop also determines for which elements the init statement
    runs when the reduction loop has no iterations.
    """
    reduced: set[ir.Var] = set()
    for realize in ir.collect(loop, ir.BlockRealize):
        reduced |= reduced_by(realize)
    own = {loop.loop_var, *ir.free_vars(loop.min), *ir.free_vars(loop.extent)}
    return analyzer if reduced & own else analyzer.without_empty(reduced)


def facts_of_initial(analyzer: Analyzer, realize: ir.BlockRealize) -> Analyzer:
    """Facts at or in a block that also hold in its init statement.

    The init statement runs even if the reduction has no iterations.
    """
    return analyzer.without_empty(reduced_by(realize))

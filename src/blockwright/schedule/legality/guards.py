"""Where what decides how often statements run may be evaluated: guards of steps that run a body in
more iterations than it has, and bounds that a step evaluates sooner, later or more often.

`and` may evaluate both operands, so a guard that joins a predicate does not protect what the
predicate divides by or loads. An `if` around the statement does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from blockwright import ir
from blockwright.analysis.access.stable_values import written_buffers
from blockwright.analysis.canonical.control_reads import loaded_buffers
from blockwright.arith import Analyzer, defined
from blockwright.schedule.engine.state import StepState

_DIVISIONS = (ir.FloorDiv, ir.FloorMod, ir.Div, ir.Mod)


def guarded(
    stmt: ir.Stmt,
    condition: ir.Expr,
    analyzer: Analyzer,
    moving: Set[ir.Var] | None = None,
) -> ir.Stmt:
    """`stmt` where `condition` holds: blocks get it as predicate, other statements an `if`, and so
    do loops and blocks whose bounds or predicate may fail where it does not hold.

    Args:
        stmt: the statement.
        condition: when it runs.
        analyzer: what is known around the statement without the condition.
        moving: variables with values that they did not have before; whatever depends on none of
            them is evaluated as before. Where None, all of the statement stands elsewhere.
    """
    if isinstance(stmt, ir.BlockRealize):
        if may_fail([stmt.predicate], analyzer, moving):
            return ir.IfThenElse(condition, stmt)
        return stmt.replace(predicate=ir.logical_and(stmt.predicate, condition))
    if isinstance(stmt, ir.For):
        bounds = (stmt.min, stmt.extent)
        if may_fail(bounds, analyzer, moving):
            return ir.IfThenElse(condition, stmt)
        if moving is not None and any(ir.uses_var(e, moving) for e in bounds):
            moving = {*moving, stmt.loop_var}
        inner = analyzer.copy()
        inner.bind(stmt.loop_var, stmt.dom)
        return stmt.replace(body=guarded(stmt.body, condition, inner, moving))
    if isinstance(stmt, ir.SeqStmt):
        return ir.seq([guarded(part, condition, analyzer, moving) for part in stmt.seq])
    return ir.IfThenElse(condition, stmt)


def narrowed(
    realize: ir.BlockRealize, conditions: Iterable[ir.Expr], analyzer: Analyzer
) -> ir.Stmt:
    """The block where further conditions hold too, which are evaluated where its predicate holds:
    that becomes an `if` around the block where they may fail."""
    more = tuple(conditions)
    if ir.is_const_int(realize.predicate, 1) or not may_fail(more, analyzer):
        joined = realize.predicate
        for condition in more:
            joined = ir.logical_and(joined, condition)
        return realize.replace(predicate=joined)
    return ir.IfThenElse(realize.predicate, realize.replace(predicate=ir.all_of(more)))


def may_fail(
    exprs: Iterable[ir.Expr], analyzer: Analyzer, moving: Set[ir.Var] | None = None
) -> bool:
    """Whether expressions may divide by 0, load what lies outside of its buffer or was not written,
    or do what only a call knows; with `moving`, whether those do that depend on these variables."""
    return any(
        _fails(node, analyzer)
        for expr in exprs
        if moving is None or ir.uses_var(expr, moving)
        for node in ir.walk(expr)
    )


def may_divide_by_0(exprs: Iterable[ir.Expr], analyzer: Analyzer) -> bool:
    """Whether integers are divided by what may be 0."""
    return any(_may_be_by_0(node, analyzer) for expr in exprs for node in ir.walk(expr))


def _may_be_by_0(node: ir.Node, analyzer: Analyzer) -> bool:
    if not isinstance(node, _DIVISIONS) or not node.dtype.is_int:
        return False
    return not ir.const_int(node.b) and not analyzer.is_nonzero(node.b)


def _fails(node: ir.Node, analyzer: Analyzer) -> bool:
    if isinstance(node, ir.Call):
        return node.op == "checked_index" or ir.op_has_effect(node.op)
    return isinstance(node, ir.BufferLoad) or _may_be_by_0(node, analyzer)


def require_lasting(state: StepState, loops: Sequence[ir.For], within: Sequence[ir.Stmt]) -> None:
    """Nothing in some statements writes what the bounds of the loops are loaded from: the step
    evaluates them anew in between."""
    loaded = {loop: memory(state, loaded_buffers([loop.min, loop.extent])) for loop in loops}
    if not any(loaded.values()):
        return
    written: set[ir.Buffer] = set()
    for stmt in within:
        written |= written_buffers(stmt)
        written |= {r.buffer for block in state.tree.child_blocks(stmt) for r in block.writes}
    written = memory(state, written)
    for loop, buffers in loaded.items():
        for buffer in buffers & written:
            state.fail(
                f"the bounds of loop {loop.loop_var.name} are loaded from {buffer.name}, which is "
                "written before the step would evaluate them again",
                code="BW350",
                guilty=[loop],
                help=f"let the loop read its bounds from a copy of {buffer.name} that nothing in "
                "it writes",
            )


def memory(state: StepState, buffers: Iterable[ir.Buffer]) -> set[ir.Buffer]:
    """The buffers that stand for the memory of these."""
    return {state.roots.get(b, b) for b in buffers}


def evaluated_early(state: StepState, loop: ir.For, outer: Sequence[ir.For]) -> ir.For:
    """The loop with bounds that can be evaluated where loops around it may not run: divisors that
    may be 0 then become `max(d, 1)`."""
    if not outer:
        return loop
    analyzer = state.loop_facts(outer[0])
    bounds = [loop.min, loop.extent]
    if not may_fail(bounds, analyzer) or all(
        analyzer.prove(ir.GT(f.extent, ir.const(0, f.extent.dtype))) for f in outer
    ):
        return loop
    low, extent = (defined(e, analyzer) for e in bounds)
    loads = [
        n
        for e in bounds
        for n in ir.walk(e)
        if _fails(n, analyzer) and not isinstance(n, _DIVISIONS)
    ]
    unsafe = [n for n in loads if not _is_input_element(state, n, analyzer)]
    if low is None or extent is None or unsafe:
        state.fail(
            f"the bounds of loop {loop.loop_var.name} are evaluated only where loop "
            f"{outer[0].loop_var.name} runs, and may fail elsewhere",
            code="BW350",
            guilty=[loop, *outer],
            help="state by an assertion or in tir_var_lower_bound that the outer loop runs, or "
            "let the loop have bounds that load nothing",
        )
    return loop.replace(min=low, extent=extent)


def _is_input_element(state: StepState, node: ir.Node, analyzer: Analyzer) -> bool:
    """Whether a node loads an element, surely inside, of an argument that is only read."""
    if not isinstance(node, ir.BufferLoad):
        return False
    buffer = node.buffer
    if buffer not in state.func.buffers or buffer in state.func.outputs:
        return False
    return all(
        analyzer.prove(ir.GE(*ir.match_types(index, 0)))
        and analyzer.prove(ir.LT(*ir.match_types(index, size)))
        for index, size in zip(node.indices, buffer.shape, strict=True)
    )

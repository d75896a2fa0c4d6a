"""Safe evaluation of loop bounds and predicates that a step guards, hoists or duplicates.

Some steps run a body in more iterations than it has and guard it, or evaluate bounds earlier, later
or more often. `and` may evaluate both operands, so a guard added to a predicate does not protect
the divisions and loads of that predicate; an `if` around the statement does.
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
    """Guard `stmt` by `condition`: as predicate of blocks, by an `if` around other statements.

    Loops and blocks whose bounds or predicate may fail if the condition does not hold also get an
    `if`.

    Args:
        stmt: the statement.
        condition: the guard.
        analyzer: facts around the statement, without the condition.
        moving: variables that take new values; expressions that use none of them are evaluated as
            before. None if the whole statement has moved.
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
    """Add conditions to a block's predicate.

    The conditions may assume the predicate. If they may fail otherwise, the old predicate becomes
    an `if` around the block.
    """
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
    """Whether expressions may fail: division by 0, loads (out of bounds or uninitialized), or calls
    with effects. With `moving`, only expressions that use these variables count."""
    return any(
        _fails(node, analyzer)
        for expr in exprs
        if moving is None or ir.uses_var(expr, moving)
        for node in ir.walk(expr)
    )


def may_divide_by_0(exprs: Iterable[ir.Expr], analyzer: Analyzer) -> bool:
    """Whether an integer division may have the divisor 0."""
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
    """Require that no statement in `within` writes a buffer from which loop bounds are loaded,
    because the step re-evaluates the bounds in between."""
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
                help=f"let the loop read its bounds from a copy of {buffer.name} that no statement "
                "in it writes",
            )


def memory(state: StepState, buffers: Iterable[ir.Buffer]) -> set[ir.Buffer]:
    """The root buffers whose memory these buffers alias."""
    return {state.roots.get(b, b) for b in buffers}


def evaluated_early(state: StepState, loop: ir.For, outer: Sequence[ir.For]) -> ir.For:
    """The loop with bounds that can be evaluated even if the loops around it do not run: divisors
    that may be 0 become `max(d, 1)`."""
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
            help="declare by an assertion or in tir_var_lower_bound that the outer loop runs, or "
            "use bounds without loads",
        )
    return loop.replace(min=low, extent=extent)


def _is_input_element(state: StepState, node: ir.Node, analyzer: Analyzer) -> bool:
    """Whether a node is a provably in-bounds load from a read-only parameter."""
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

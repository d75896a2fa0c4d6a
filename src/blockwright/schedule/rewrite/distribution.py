"""Loop distribution: move the statements beside a nest to separate loops, to make it perfect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from blockwright import ir
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.state import StepState
from blockwright.schedule.legality.checks import (
    require_chain,
    require_known_kind,
    require_only_blocks,
    require_plain_loop,
)
from blockwright.schedule.legality.interleaving import require_legal_interleaving


def loose_chain(state: StepState, loops: Sequence[ir.For]) -> list[ir.For]:
    """The loops of a possibly imperfect nest, from the outermost to the innermost given loop."""
    wanted = set(loops)
    inner = max(loops, key=lambda f: state.tree.order[f])
    path = [inner]
    for above in state.tree.ancestors(inner):
        if wanted <= set(path) or not isinstance(above, (ir.For, ir.SeqStmt)):
            break
        if isinstance(above, ir.For):
            path.append(above)
    if len(wanted) != len(loops) or not wanted <= set(path):
        return require_chain(state, loops)  # raises with the reason
    return path[::-1]


def require_distributable(state: StepState, path: Sequence[ir.For]) -> None:
    """Require that the statements beside the loops of a path may be distributed."""
    for outer, before, inner, after in _levels(path):
        if not before and not after:
            continue
        loops = path[: path.index(outer) + 1]
        for loop in loops:
            require_plain_loop(state, loop)
        groups = [
            [b for stmt in side for b in require_only_blocks(state, stmt)]
            for side in (before, [inner], after)
        ]
        flow = state.flow_at(outer)
        for block in (b for group in groups for b in group):
            require_known_kind(state, flow, block)
        require_legal_interleaving(
            state,
            state,
            groups,
            loops,
            help=f"the statements beside loop {inner.loop_var.name} cannot be distributed into "
            "separate loops; reorder loops on one side of that place only, or before other blocks "
            f"move into {outer.loop_var.name}",
        )


def beside(edit: Edit, path: Sequence[ir.For]) -> tuple[list[ir.Stmt], list[ir.Stmt]]:
    """The distributed statements: copies in separate loops, to run before and after the path."""
    early: list[ir.Stmt] = []
    late: list[ir.Stmt] = []
    for outer, before, _, after in _levels(path):
        loops = path[: path.index(outer) + 1]
        if before:
            early.append(_copied(edit, loops, before))
        if after:
            late.insert(0, _copied(edit, loops, after))
    return early, late


def _levels(
    path: Sequence[ir.For],
) -> Iterator[tuple[ir.For, list[ir.Stmt], ir.For, list[ir.Stmt]]]:
    """Yields (outer loop, statements before inner, inner loop, statements after inner)."""
    for outer, inner in pairwise(path):
        parts = list(outer.body.seq) if isinstance(outer.body, ir.SeqStmt) else [outer.body]
        at = parts.index(inner)
        yield outer, parts[:at], inner, parts[at + 1 :]


def _copied(edit: Edit, loops: Sequence[ir.For], stmts: Sequence[ir.Stmt]) -> ir.Stmt:
    """The statements in fresh copies of the given loops."""
    fresh: dict[ir.Var, ir.Expr] = {
        f.loop_var: ir.Var(f.loop_var.name, f.loop_var.type) for f in loops
    }
    body: ir.Stmt = edit.substitute(ir.seq(stmts), fresh)
    for loop in reversed(loops):
        low, extent = (ir.substitute(e, fresh) for e in (loop.min, loop.extent))
        var = fresh[loop.loop_var]
        assert isinstance(var, ir.Var)
        body = loop.replace(loop_var=var, min=low, extent=extent, body=body)
    return body

"""merge: fuse adjacent loop nests into one nest that runs their bodies one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from blockwright import ir
from blockwright.analysis import BlockScope
from blockwright.arith.text import expr_text
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import require_only_blocks, require_plain_loop
from blockwright.schedule.legality.guards import require_lasting
from blockwright.schedule.legality.interleaving import meet, require_legal_interleaving
from blockwright.schedule.legality.remedies import in_step
from blockwright.schedule.rewrite.loops import simplified_bindings


class Merge(Primitive, frozen=True, eq=False):
    """Merge adjacent loop nests (classic loop fusion), from the outermost to the given loops.

    The outer loops of each nest are merged too, up to the sequence that contains the nests. The
    merged loops have the bounds of the first nest. A nest with other start values, such as a piece
    of `loop_partition`, keeps its offset.

    Args:
        loops: one loop of each nest, in program order.

    Requires:
    - the nests are in one sequence of statements; statements between them do not access elements
      that the nests write, or write elements that the nests access (BW316);
    - from the outermost loop of each nest down to the given one, the loops are perfectly nested,
      serial and not annotated (BW310, BW312);
    - loops of the same depth have the same extent (BW355), which is not loaded from memory that the
      nests write (BW350);
    - if two blocks of different nests access the same element and one of them writes it, they do so
      in the same iteration of the merged loops (BW316).

    Before::

        @T.prim_func
        def main(A: T.Buffer((16, 8), "float32"), B: T.Buffer((16, 8), "float32"),
                 C: T.Buffer((16, 4), "float32")):
            for i, j in T.grid(16, 8):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj] + 1.0
            for i, j in T.grid(16, 4):
                with T.block("C"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = B[vi, vj * 2] * 2.0

    Steps::

        sch.merge(sch.get_loops(sch.get_block("B"))[0], sch.get_loops(sch.get_block("C"))[0])

    After::

        @T.prim_func
        def main(A: T.Buffer((16, 8), "float32"), B: T.Buffer((16, 8), "float32"),
                 C: T.Buffer((16, 4), "float32")):
            for i_m in range(16):
                for j in range(8):
                    with T.block("B"):
                        vi, vj = T.axis.remap("SS", [i_m, j])
                        B[vi, vj] = A[vi, vj] + 1.0
                for j in range(4):
                    with T.block("C"):
                        vi, vj = T.axis.remap("SS", [i_m, j])
                        C[vi, vj] = B[vi, vj * 2] * 2.0
    """

    method: ClassVar[str] = "merge"
    returns: ClassVar[Returns] = "loop"
    variadic: ClassVar[str] = "loops"

    loops: tuple[LoopRV, ...]

    def apply(self, state: StepState) -> StepResult:
        if len(self.loops) < 2:
            state.fail(
                "merge needs at least two loops",
                code="BW304",
                help="pass one loop of each nest to merge",
            )
        loops = [state.loop(handle) for handle in self.loops]
        nests = _nests(state, loops)
        require_lasting(state, [f for nest in nests for f in nest], _from_to(state, nests))
        _same_bounds(state, nests)
        blocks = [require_only_blocks(state, nest[0]) for nest in nests]
        flow = state.flow_at(loops[0])
        place = _place(state, flow, nests)
        fresh = [ir.Var(f"{f.loop_var.name}_m", f.loop_var.type) for f in nests[0]]
        edit = Edit(state)
        merged: ir.Stmt = ir.seq([_over(state, edit, nest, nests[0], fresh) for nest in nests])
        running = dict(zip((f.loop_var for f in nests[0]), fresh, strict=True))
        for loop, var in reversed(list(zip(nests[0], fresh, strict=True))):
            low, extent = (ir.substitute(e, running) for e in (loop.min, loop.extent))
            merged = loop.replace(loop_var=var, min=low, extent=extent, body=merged)
        for nest in nests:
            edit.replace(nest[0], merged if nest is place else None)
        step = edit.finish(fresh[-1])
        after = state.following(step.func)
        merged_loops = [after.tree.loops[v] for v in fresh]
        require_legal_interleaving(state, after, blocks, merged_loops, edit.latest)
        return step


def _nests(state: StepState, loops: Sequence[ir.For]) -> list[list[ir.For]]:
    """Return, for each loop, its nest: the loops below the common sequence down to it."""
    above = [list(state.tree.ancestors(loop)) for loop in loops]
    common = next((a for a in above[0] if all(a in other for other in above[1:])), None)
    if not isinstance(common, ir.SeqStmt):
        state.fail(
            "the loops are not in adjacent nests",
            code="BW310",
            guilty=loops,
            help="merge joins different nests; fuse joins the loops of one nest",
        )
    nests: list[list[ir.For]] = []
    for loop, path in zip(loops, above, strict=True):
        nest = [loop]
        for node in path[: path.index(common)]:
            if not isinstance(node, ir.For):
                state.fail(
                    f"a loop around {loop.loop_var.name} contains other statements too, or a "
                    "block is between the loops",
                    code="BW310",
                    guilty=[loop],
                    help="merge the outer loops first",
                )
            nest.append(node)
        for each in nest:
            require_plain_loop(state, each)
        nests.append(nest[::-1])
    starts = [state.tree.order[nest[0]] for nest in nests]
    if starts != sorted(set(starts)):
        state.fail(
            "the loops are not given in program order, one of each nest",
            code="BW310",
            guilty=loops,
            help="pass one loop of each nest, first nest first",
        )
    return nests


def _from_to(state: StepState, nests: list[list[ir.For]]) -> list[ir.Stmt]:
    """Return the statements from the first nest to the last."""
    parent = state.tree.parent[nests[0][0]]
    assert isinstance(parent, ir.SeqStmt)
    first, last = (parent.seq.index(nests[k][0]) for k in (0, -1))
    return list(parent.seq[first : last + 1])


def _same_bounds(state: StepState, nests: list[list[ir.For]]) -> None:
    first = nests[0]
    analyzer = state.loop_facts(first[0])
    for nest in nests[1:]:
        if len(nest) != len(first):
            state.fail(
                f"loop {nest[-1].loop_var.name} is at depth {len(nest)} of its nest, loop "
                f"{first[-1].loop_var.name} at depth {len(first)}",
                code="BW310",
                guilty=[first[-1], nest[-1]],
                help="pass loops of the same depth",
            )
        renamed: dict[ir.Var, ir.Expr] = {}
        for mine, theirs in zip(first, nest, strict=True):
            extent = ir.substitute(theirs.extent, renamed)
            if not analyzer.prove_equal(*ir.match_types(mine.extent, extent)):
                state.fail(
                    f"loops {_around(state, mine)} and {_around(state, theirs)} do not "
                    f"run equally often: {_bounds(mine)} and {_bounds(theirs)}",
                    code="BW355",
                    guilty=[mine, theirs],
                    help=in_step(state, [n[-1] for n in nests], mine, theirs),
                )
            renamed[theirs.loop_var] = _shifted(mine, mine.loop_var, theirs, renamed)


def _shifted(
    mine: ir.For,
    var: ir.Expr,
    theirs: ir.For,
    renamed: Mapping[ir.Var, ir.Expr],
    running: Mapping[ir.Var, ir.Expr] | None = None,
) -> ir.Expr:
    """Return the value of a loop of another nest when the loop of the first nest is at `var`."""
    dtype = theirs.loop_var.type
    low = ir.substitute(mine.min, dict(running or {}))
    late = ir.substitute(theirs.min, dict(renamed)) - ir.cast_to(low, dtype)
    return ir.add(ir.cast_to(var, dtype), late)


def _over(
    state: StepState, edit: Edit, nest: list[ir.For], first: list[ir.For], fresh: list[ir.Var]
) -> ir.Stmt:
    """Rewrite the body of a nest in terms of the merged loops."""
    renamed: dict[ir.Var, ir.Expr] = {}
    if all(_starts_alike(mine, theirs) for mine, theirs in zip(first, nest, strict=True)):
        for theirs, var in zip(nest, fresh, strict=True):
            renamed[theirs.loop_var] = ir.cast_to(var, theirs.loop_var.type)
        return edit.substitute(nest[-1].body, renamed)
    analyzer = state.loop_facts(first[0])
    running: dict[ir.Var, ir.Expr] = {}  # loops of the first nest → the merged ones
    for mine, theirs, var in zip(first, nest, fresh, strict=True):
        value = _shifted(mine, var, theirs, renamed, running)
        low, extent = (ir.substitute(e, running) for e in (mine.min, mine.extent))
        analyzer.bind(var, ir.Range(low, extent))
        running[mine.loop_var] = var
        renamed[theirs.loop_var] = analyzer.simplify(value)
    body = edit.substitute(nest[-1].body, renamed)
    late = any(not isinstance(v, (ir.Var, ir.Cast)) for v in renamed.values())
    return simplified_bindings(body, set(fresh), analyzer) if late else body


def _starts_alike(mine: ir.For, theirs: ir.For) -> bool:
    """Whether two loops start at the same constant."""
    start = ir.const_int(mine.min)
    return start is not None and start == ir.const_int(theirs.min)


def _around(state: StepState, loop: ir.For) -> str:
    """Format a loop with its blocks, for messages."""
    names = ", ".join(b.name for b in state.tree.child_blocks(loop))
    return f"{loop.loop_var.name} (block {names})"


def _bounds(loop: ir.For) -> str:
    return f"from {expr_text(loop.min)}, {expr_text(loop.extent)} iterations"


def _place(state: StepState, flow: BlockScope, nests: list[list[ir.For]]) -> list[ir.For]:
    """Return the nest at whose position the merged nest can go: the first, or else the last."""
    holder = state.tree.parent[nests[0][0]]
    assert isinstance(holder, ir.SeqStmt)
    tops = [nest[0] for nest in nests]
    parts = holder.seq[holder.seq.index(tops[0]) : holder.seq.index(tops[-1]) + 1]
    result: list[ir.For] | None = None
    obstacle: ir.Stmt = tops[0]
    for nest, order in ((nests[0], parts), (nests[-1], parts[::-1])):
        passed: list[ir.Stmt] = []  # statements that the next nest must move past
        free = True
        for part in order:
            if part not in tops:
                passed.append(part)
            elif any(_conflict(state, part, other) for other in passed):
                free, obstacle = False, passed[0]
        if free:
            result = nest
            break
    if result is None:
        who = " and ".join(f"block {b.name}" for b in state.tree.child_blocks(obstacle))
        over = f" (loop {obstacle.loop_var.name})" if isinstance(obstacle, ir.For) else ""
        state.fail(
            f"{who or 'a statement'}{over} is between the nests and conflicts with them: one "
            "accesses what the other writes",
            code="BW316",
            guilty=[obstacle, *tops],
            help="merge a loop of that statement as well, or move it away first "
            "(compute_at, reverse_compute_at)",
        )
    return result


def _conflict(state: StepState, a: ir.Stmt, b: ir.Stmt) -> bool:
    """Whether two statements cannot be reordered."""
    if not all(isinstance(s, (ir.For, ir.BlockRealize)) for s in (a, b)):
        return True
    for stmt in (a, b):
        if isinstance(stmt, ir.For):
            require_only_blocks(state, stmt)
    pairs = [(x, y) for x in state.tree.child_blocks(a) for y in state.tree.child_blocks(b)]
    return any(meet(state, x, y, a) for x, y in pairs)

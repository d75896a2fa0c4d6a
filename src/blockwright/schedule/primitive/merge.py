"""merge: loops of several nests become one loop that runs the bodies one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import ClassVar

import msgspec

from blockwright import ir
from blockwright.analysis import Scope
from blockwright.arith.text import expr_text
from blockwright.schedule.advice import in_step
from blockwright.schedule.checks import (
    require_known_kind,
    require_only_blocks,
    require_plain_loop,
)
from blockwright.schedule.edit import Edit
from blockwright.schedule.handle import LoopRV
from blockwright.schedule.record import Primitive, Returns
from blockwright.schedule.state import State, Step


class Merge(Primitive, frozen=True, eq=False):
    """Merge loops of nests that stand side by side, together with the loops around them up to
    the statement that holds the nests.

    Args:
        loops: one loop of each nest, in program order.

    Requires:
    - the nests stand in one sequence of statements, and what stands between them touches nothing
      that they write, and writes nothing that they touch;
    - from the nest's outermost loop down to the given one each loop is the only statement of the
      one before it, and all are serial and not annotated;
    - loops of the same depth have the same bounds;
    - the blocks below are complete, reductions or updates, and an iteration of the merged loops
      reads what its own iteration, or nothing of the merged nest, writes.

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

    def apply(self, state: State) -> Step:
        if len(self.loops) < 2:
            state.fail("at least two loops are merged", code="BW304",
                       help="give one loop of each nest that shall become one")  # fmt: skip
        loops = [state.loop(handle) for handle in self.loops]
        nests = _nests(state, loops)
        _same_bounds(state, nests)
        blocks = [require_only_blocks(state, nest[0]) for nest in nests]
        flow = state.data_flow(state.scope(loops[0]))
        for block in (b for group in blocks for b in group):
            require_known_kind(state, flow, block)
        place = _place(state, flow, nests)
        fresh = [ir.Var(f"{f.loop_var.name}_m", f.loop_var.type) for f in nests[0]]
        edit = Edit(state)
        bodies: list[ir.Stmt] = []
        for nest in nests:
            renamed = {f.loop_var: ir.cast_to(v, f.loop_var.type)
                       for f, v in zip(nest, fresh, strict=True)}  # fmt: skip
            bodies.append(edit.substitute(nest[-1].body, renamed))
        merged: ir.Stmt = ir.seq(bodies)
        for loop, var in reversed(list(zip(nests[0], fresh, strict=True))):
            merged = loop.replace(loop_var=var, body=merged)
        for nest in nests:
            edit.replace(nest[0], merged if nest is place else None)
        step = edit.finish(fresh[-1])
        after = State(step.func, lambda _: fresh[-1], state.step_name, state.memo)
        _Order(state, after, edit, fresh).require(blocks)
        return step


def _nests(state: State, loops: Sequence[ir.For]) -> list[list[ir.For]]:
    """For each loop the loops from the statement that holds all nests down to it."""
    above = [list(state.tree.ancestors(loop)) for loop in loops]
    common = next((a for a in above[0] if all(a in other for other in above[1:])), None)
    if not isinstance(common, ir.SeqStmt):
        state.fail("the loops do not stand in nests side by side", code="BW310", guilty=loops,
                   help="merge joins different nests; fuse joins loops of one")  # fmt: skip
    nests: list[list[ir.For]] = []
    for loop, path in zip(loops, above, strict=True):
        nest = [loop]
        for node in path[: path.index(common)]:
            if not isinstance(node, ir.For):
                state.fail(f"a loop around {loop.loop_var.name} holds other statements too, or a "
                           "block stands between the loops", code="BW310", guilty=[loop],
                           help="merge the loops outside first")  # fmt: skip
            nest.append(node)
        for each in nest:
            require_plain_loop(state, each)
        nests.append(nest[::-1])
    starts = [state.tree.order[nest[0]] for nest in nests]
    if starts != sorted(set(starts)):
        state.fail("the loops are not given in program order, one of each nest", code="BW310",
                   guilty=loops,
                   help="give one loop of each nest, first nest first")  # fmt: skip
    return nests


def _same_bounds(state: State, nests: list[list[ir.For]]) -> None:
    first = nests[0]
    analyzer = state.analyzer(first[0])
    for nest in nests[1:]:
        if len(nest) != len(first):
            state.fail(f"loop {nest[-1].loop_var.name} stands {len(nest)} deep in its nest, loop "
                       f"{first[-1].loop_var.name} {len(first)} deep", code="BW310",
                       guilty=[first[-1], nest[-1]],
                       help="give loops of the same depth")  # fmt: skip
        renamed: dict[ir.Var, ir.Expr] = {}
        for mine, theirs in zip(first, nest, strict=True):
            for a, b in ((mine.min, theirs.min), (mine.extent, theirs.extent)):
                b = ir.substitute(b, renamed)
                if not analyzer.prove_equal(a, b):
                    state.fail(f"loops {_around(state, mine)} and {_around(state, theirs)} do not "
                               f"have the same bounds: {_bounds(mine)} and {_bounds(theirs)}",
                               code="BW355", guilty=[mine, theirs],
                               help=in_step(state, [n[-1] for n in nests], mine, theirs)
                               )  # fmt: skip
            renamed[theirs.loop_var] = ir.cast_to(mine.loop_var, theirs.loop_var.type)


def _around(state: State, loop: ir.For) -> str:
    """A loop with the blocks that it runs."""
    names = ", ".join(b.name for b in state.tree.child_blocks(loop))
    return f"{loop.loop_var.name} (block {names})"


def _bounds(loop: ir.For) -> str:
    return f"from {expr_text(loop.min)}, {expr_text(loop.extent)} iterations"


def _place(state: State, flow: Scope, nests: list[list[ir.For]]) -> list[ir.For]:
    """The nest at whose place the merged one may stand: the first, or else the last."""
    holder = state.tree.parent[nests[0][0]]
    assert isinstance(holder, ir.SeqStmt)
    tops = [nest[0] for nest in nests]
    parts = holder.seq[holder.seq.index(tops[0]) : holder.seq.index(tops[-1]) + 1]
    found: list[ir.For] | None = None
    obstacle: ir.Stmt = tops[0]
    for nest, order in ((nests[0], parts), (nests[-1], parts[::-1])):
        passed: list[ir.Stmt] = []  # statements that the next nest has to move past
        free = True
        for part in order:
            if part not in tops:
                passed.append(part)
            elif any(_conflict(state, part, other) for other in passed):
                free, obstacle = False, passed[0]
        if free and found is None:
            found = nest
    if found is None:
        who = " and ".join(f"block {b.name}" for b in state.tree.child_blocks(obstacle))
        over = f" (loop {obstacle.loop_var.name})" if isinstance(obstacle, ir.For) else ""
        state.fail(f"{who or 'a statement'}{over} stands between the nests and touches what they "
                   "write, or they what it writes", code="BW316", guilty=[obstacle, *tops],
                   help="give a loop of that statement to merge too, or bring it out of the way "
                   "first (compute_at, reverse_compute_at)")  # fmt: skip
    return found


def _conflict(state: State, a: ir.Stmt, b: ir.Stmt) -> bool:
    """Whether two statements may not change places."""
    if not all(isinstance(s, (ir.For, ir.BlockRealize)) for s in (a, b)):
        return True
    reads: list[set[ir.Buffer]] = []
    writes: list[set[ir.Buffer]] = []
    for stmt in (a, b):
        if isinstance(stmt, ir.For):
            require_only_blocks(state, stmt)
        blocks = state.tree.child_blocks(stmt)
        reads.append({r.buffer for block in blocks for r in block.reads})
        writes.append({r.buffer for block in blocks for r in block.writes})
    return bool(writes[0] & (reads[1] | writes[1]) or writes[1] & reads[0])


class _Conflict(msgspec.Struct, frozen=True):
    """Two blocks of different nests that touch one buffer, at least one of them writing."""

    kind: str  # "flow", "anti" or "output": what the first does before what the second does
    first: ir.Block
    second: ir.Block
    region: ir.BufferRegion


class _Order:
    """Whether blocks of different nests may take turns in the merged loops."""

    def __init__(self, state: State, after: State, edit: Edit, loops: list[ir.Var]) -> None:
        self.state = state
        self.edit = edit
        self.loops = [after.tree.loops[v] for v in loops]
        self.flow = after.data_flow(after.scope(self.loops[0]))

    def require(self, nests: list[list[ir.Block]]) -> None:
        for earlier, later in combinations(nests, 2):
            for a in earlier:
                for b in later:
                    self._pair(a, b)

    def _pair(self, a: ir.Block, b: ir.Block) -> None:
        for conflict in _conflicts(self.edit.latest(a), self.edit.latest(b)):
            if not self._kept(conflict):
                done = {"flow": "reads what", "anti": "writes what", "output": "writes what"}
                other = "reads" if conflict.kind == "anti" else "writes"
                self.state.fail(
                    f"block {b.name} {done[conflict.kind]} block {a.name} {other} in other "
                    f"iterations of the merged loops ({conflict.region.buffer.name})",
                    code="BW316",
                    guilty=[self.state.tree.realize(a), self.state.tree.realize(b)],
                    help="merge loops further outside only, whose iterations keep to their own "
                    f"elements of {conflict.region.buffer.name}; or compute_at block {a.name} at a "
                    f"loop of {b.name}, which computes all that an iteration reads"
                    if conflict.kind == "flow"
                    else "merge loops further outside only, whose "
                    f"iterations keep to their own elements of {conflict.region.buffer.name}",
                )

    def _kept(self, conflict: _Conflict) -> bool:
        """Whether what the second block does at an element still comes after the first."""
        first, second, region = conflict.first, conflict.second, conflict.region
        if conflict.kind == "flow":  # all is there that the same iteration reads
            return self.flow.covers([first], second, region)
        if conflict.kind == "output" and self.flow.disjoint(first, second, region.buffer):
            return True
        return self._apart(second) and self.flow.covers([second], first, region)

    def _apart(self, block: ir.Block) -> bool:
        """Whether iterations of the merged loops write different elements in the block."""
        realize = self.flow.tree.realize(block)
        variables = {f.loop_var for f in self.loops}
        for it, value in zip(block.iter_vars, realize.iter_values, strict=True):
            if it.iter_type is not ir.IterType.SPATIAL and ir.uses_var(value, variables):
                return False
        return all(ir.is_const_int(f.extent, 1) or self.flow.separates(f, block)
                   for f in self.loops)  # fmt: skip


def _conflicts(first: ir.Block, second: ir.Block) -> Iterator[_Conflict]:
    cases = (("flow", first.writes, second.reads), ("anti", second.writes, first.reads),
             ("output", second.writes, first.writes))  # fmt: skip
    for kind, writes, others in cases:
        written = {r.buffer for r in writes}
        for region in others:
            if region.buffer in written:
                yield _Conflict(kind, first, second, region)

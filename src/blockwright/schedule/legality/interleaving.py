"""Legality of loop fusion and distribution: groups of blocks in shared loops or in separate ones.

The interleaved and the separate order are equivalent if no two blocks of different groups have a
loop-carried dependence in the shared loops: conflicting accesses to an element must be in the same
iteration. The check runs on the program with shared loops, and its result holds in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from blockwright import ir
from blockwright.analysis import BlockKind
from blockwright.analysis.dataflow.dependences import Boxes, Conflict, conflicts
from blockwright.schedule.engine.state import StepState


def require_legal_interleaving(
    state: StepState,
    shared: StepState,
    groups: Sequence[Sequence[ir.Block]],
    loops: Sequence[ir.For],
    latest: Callable[[ir.Block], ir.Block] = lambda block: block,
    help: str | None = None,
) -> None:
    """Require that interleaving the groups in shared loops is equivalent to running them in turn.

    Args:
        state: the program that errors show.
        shared: the program in which the groups share the loops.
        groups: blocks of `state`, in program order.
        loops: the shared loops, in `shared`.
        latest: maps a block of `state` to the block in `shared`.
        help: help text for errors; by default one for merged loops.
    """
    order = _Order(shared, list(loops))
    for earlier, later in combinations(groups, 2):
        for a in earlier:
            for b in later:
                conflict = order.problem(latest(a), latest(b))
                if conflict is not None:
                    done = {"flow": "reads what", "anti": "writes what", "output": "writes what"}
                    other = "reads" if conflict.kind == "anti" else "writes"
                    name = loops[-1].loop_var.name
                    state.fail(
                        f"block {b.name} {done[conflict.kind]} block {a.name} {other} in other "
                        f"iterations of loop {name} ({conflict.mine.buffer.name})",
                        code="BW316",
                        guilty=[state.tree.realize(a), state.tree.realize(b)],
                        help=help or _merge_less(conflict),
                    )


def _merge_less(conflict: Conflict) -> str:
    """Help: alternatives to merging the loops of two blocks."""
    name = conflict.mine.buffer.name
    less = f"merge only loops further outside, whose iterations use separate elements of {name}"
    if conflict.kind != "flow":
        return less
    return (
        f"{less}; or compute_at block {conflict.first.name} at a loop of "
        f"{conflict.second.name}, which computes all that an iteration reads"
    )


def meet(state: StepState, a: ir.Block, b: ir.Block, at: ir.Stmt) -> bool:
    """Whether two blocks of a scope may conflict: access a common element, one of them writing,
    within one iteration of the loops around the statement `at`."""
    flow, outer = state.flow_at(at), state.tree.loops_above(at)
    analyzer = state.analyzer(at)
    return any(not flow.apart_within(outer, c, analyzer) for c in conflicts(a, b))


class _Order:
    """Finds dependences carried by the shared loops."""

    def __init__(self, shared: StepState, loops: list[ir.For]) -> None:
        self.shared, self.loops = shared, loops
        self.flow = shared.flow_at(loops[0])
        self.outer = shared.tree.loops_above(loops[0])
        self.analyzer = shared.analyzer(loops[0])
        self.boxes: Boxes = {}

    def problem(self, first: ir.Block, second: ir.Block) -> Conflict | None:
        """The first loop-carried conflict of two blocks."""
        return next((c for c in conflicts(first, second) if not self._kept(c)), None)

    def _kept(self, conflict: Conflict) -> bool:
        """Whether the conflict keeps its order, because it is not loop-carried."""
        first, second = conflict.first, conflict.second
        if self.flow.apart_within(self.outer, conflict, self.analyzer, self.boxes):
            return True
        if conflict.kind == "flow":  # reads are covered in the same iteration, and values final
            stays = self.flow.final(first, conflict.mine, self.loops)
            return stays and self.flow.covers([first], second, conflict.theirs)
        alone = self._apart(second, conflict.theirs)
        return alone and self.flow.covers([second], first, conflict.mine)

    def _apart(self, block: ir.Block, region: ir.BufferRegion) -> bool:
        """Whether iterations of the shared loops write different elements of a region.

        Instances of a block of known kind write different elements. For other blocks, such as one
        duplicated by pipelining, the indices are compared.
        """
        if self.flow.kind(block) is BlockKind.OTHER:
            return self.flow.apart_in(block, region, self.loops)
        realize = self.flow.tree.realize(block)
        variables = {f.loop_var for f in self.loops}
        for it, value in zip(block.iter_vars, realize.iter_values, strict=True):
            if it.iter_type is not ir.IterType.SPATIAL and ir.uses_var(value, variables):
                return False
        return all(
            ir.is_const_int(f.extent, 1) or self.flow.separates(f, block) for f in self.loops
        )

"""Whether groups of blocks may take turns in shared loops, or run each in loops of its own.

Both orders compute the same when, for any two blocks of different groups that touch an element
which one of them writes, no iteration of the loops but the same one decides what is there: the
question is put to the program in which the loops are shared, and the answer holds both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import msgspec

from blockwright import ir
from blockwright.analysis import BlockKind, BlockScope
from blockwright.analysis.access.cover import apart
from blockwright.arith import Analyzer
from blockwright.schedule.engine.state import StepState

_Boxes = dict[tuple[ir.Block, ir.BufferRegion], ir.BufferRegion]
"""Boxes that regions of blocks touch, worked out once for all pairs."""


class _Conflict(msgspec.Struct, frozen=True):
    """Two blocks of different groups that touch one buffer, at least one of them writing."""

    kind: str  # "flow", "anti" or "output": what the first does before what the second does
    first: ir.Block
    second: ir.Block
    mine: ir.BufferRegion  # what the first one touches
    theirs: ir.BufferRegion  # what the second one touches


def require_turns(
    state: StepState,
    shared: StepState,
    groups: Sequence[Sequence[ir.Block]],
    loops: Sequence[ir.For],
    latest: Callable[[ir.Block], ir.Block] = lambda block: block,
    help: str | None = None,
) -> None:
    """The groups may take turns in the loops, or run one after the other, each in all iterations.

    Args:
        state: the program that errors show.
        shared: the program in which the groups share the loops.
        groups: blocks of `state`, in program order.
        loops: the shared loops, in `shared`.
        latest: a block of `state` → the same in `shared`.
        help: what to do instead, for errors; for merged loops when not given.
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


def _merge_less(conflict: _Conflict) -> str:
    """What to do instead of merging the loops of two blocks."""
    name = conflict.mine.buffer.name
    less = (
        f"merge loops further outside only, whose iterations keep to their own elements of {name}"
    )
    if conflict.kind != "flow":
        return less
    return (
        f"{less}; or compute_at block {conflict.first.name} at a loop of "
        f"{conflict.second.name}, which computes all that an iteration reads"
    )


def meet(state: StepState, a: ir.Block, b: ir.Block, at: ir.Stmt) -> bool:
    """Whether two blocks of a scope may touch an element that one of them writes, within one
    iteration of the loops around the statement `at`."""
    flow, outer = state.flow_at(at), state.tree.loops_above(at)
    analyzer = state.analyzer(at)
    return any(not _elsewhere(flow, outer, c, analyzer, {}) for c in _conflicts(a, b))


class _Order:
    """What the blocks of one iteration leave to those of another."""

    def __init__(self, shared: StepState, loops: list[ir.For]) -> None:
        self.shared, self.loops = shared, loops
        self.flow = shared.flow_at(loops[0])
        self.outer = shared.tree.loops_above(loops[0])
        self.analyzer = shared.analyzer(loops[0])
        self.boxes: _Boxes = {}

    def problem(self, first: ir.Block, second: ir.Block) -> _Conflict | None:
        """The first conflict of two blocks that more than one iteration decides."""
        return next((c for c in _conflicts(first, second) if not self._kept(c)), None)

    def _kept(self, conflict: _Conflict) -> bool:
        """Whether what the second block does at an element still comes after the first."""
        first, second = conflict.first, conflict.second
        if _elsewhere(self.flow, self.outer, conflict, self.analyzer, self.boxes):
            return True
        if conflict.kind == "flow":  # all is there that the same iteration reads, and stays
            stays = self.flow.final(first, conflict.mine, self.loops)
            return stays and self.flow.covers([first], second, conflict.theirs)
        alone = self._apart(second, conflict.theirs)
        return alone and self.flow.covers([second], first, conflict.mine)

    def _apart(self, block: ir.Block, region: ir.BufferRegion) -> bool:
        """Whether iterations of the shared loops write different elements of a region.

        A block of a known kind writes different elements in different instances; of others, such
        as one that stands in several places since its loop was pipelined, the indices decide.
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


def _elsewhere(
    flow: BlockScope,
    outer: Sequence[ir.For],
    conflict: _Conflict,
    analyzer: Analyzer,
    known: _Boxes,
) -> bool:
    """Whether the two blocks meet in no element, whatever the loops inside `outer` do."""
    sides = (conflict.first, conflict.mine), (conflict.second, conflict.theirs)
    for side in sides:
        if side not in known:
            known[side] = flow.region_under(outer, *side, analyzer)
    return apart(known[sides[0]], known[sides[1]], analyzer)


def _conflicts(first: ir.Block, second: ir.Block) -> Iterator[_Conflict]:
    cases = (
        ("flow", first.writes, second.reads),
        ("anti", first.reads, second.writes),
        ("output", first.writes, second.writes),
    )
    for kind, left, right in cases:
        for mine in left:
            for theirs in right:
                if mine.buffer is theirs.buffer:
                    yield _Conflict(kind, first, second, mine, theirs)

"""Loops that carry no dependence of a nest whose blocks read and write the same buffers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blockwright import ir
from blockwright.analysis import BlockKind
from blockwright.schedule.engine.state import StepState
from blockwright.schedule.legality.disjoint_slices import common_indices, determined_loops


def keeps_carried_order(
    state: StepState, path: Sequence[ir.For], order: Sequence[ir.For], blocks: Sequence[ir.Block]
) -> bool:
    """Whether a reordering keeps all dependences of a nest with a recurrence or scatter.

    Iterations that access the same element of a written buffer agree in all loops that carry no
    dependence (`uncarried_loops`). Their order is that of the other loops, which must not change.

    Args:
        path, order: the loops before and after, outermost first.
        blocks: all blocks below the loops.
    """
    flow = state.flow_at(path[-1])
    if all(flow.kind(block) is not BlockKind.OTHER for block in blocks):
        return False  # complete blocks and reductions have rules of their own
    if any(block.init is not None or _has_effects(block) for block in blocks):
        return False
    if any(loop.kind is not ir.ForKind.SERIAL for loop in path):
        return False
    free = uncarried_loops(state, path, blocks)
    return [f for f in path if f not in free] == [f for f in order if f not in free]


def uncarried_loops(
    state: StepState, path: Sequence[ir.For], blocks: Iterable[ir.Block]
) -> set[ir.For]:
    """The loops of a nest that carry no dependence between its blocks.

    For each written buffer, the indices that are the same in all accesses determine the values of
    these loops: accesses of one element are in iterations that differ in other loops only.
    """
    found = set(path)
    for indices in common_indices(state, blocks).values():
        found &= determined_loops(state, path[0], indices)
    return found


def _has_effects(block: ir.Block) -> bool:
    """Whether a block does anything but store values."""
    return any(
        isinstance(node, (ir.Block, ir.Evaluate, ir.AssertStmt))
        or (isinstance(node, ir.Call) and ir.op_has_effect(node.op))
        for node in ir.walk(block.body)
    )

"""Instances that may run in any order although they are repeated: affine bindings, atomics."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.analysis.validate.atomics import free_updates
from blockwright.arith import detect_iter_map
from blockwright.schedule.engine.state import StepState


def affine_within(state: StepState, block: ir.Block, loops: Sequence[ir.For]) -> bool:
    """Whether the block's bindings are an iterator map of the given innermost loops, in each
    iteration of the loops outside them."""
    realize = state.tree.realize(block)
    first = min(loops, key=lambda f: state.tree.order[f])
    predicate = None if ir.is_const_int(realize.predicate) else realize.predicate
    domains = {f.loop_var: f.dom for f in loops}
    return detect_iter_map(
        realize.iter_values, domains, predicate, state.facts(first), "surjective"
    ).ok


def freely_updated(block: ir.Block, beside: Sequence[ir.Block]) -> frozenset[ir.Buffer]:
    """The buffers that a block updates atomically, if it does nothing else and all sibling blocks
    access them only by the same atomic operation; else empty."""
    mine = free_updates(block)
    if mine is None:
        return frozenset()
    for other in beside:
        touched = {r.buffer for r in (*other.reads, *other.writes)} & mine.keys()
        theirs = free_updates(other) or {} if touched else {}
        if any(theirs.get(buffer) != mine[buffer] for buffer in touched):
            return frozenset()
    return frozenset(mine)

"""Moves that place a computation elsewhere: compute_at, inlining, buffer placement."""

from __future__ import annotations

from collections.abc import Callable

from blockwright import ir
from blockwright.schedule import BlockRV, LoopRV
from blockwright.testing.moves.player import Move, NothingToTry, Player


def _loop_near(p: Player, blocks: list[BlockRV]) -> LoopRV:
    """Draw a loop, mostly one above one of the blocks."""
    if not p.likely():
        return p.loop()
    if not blocks:
        raise NothingToTry
    return p.chance.choice(p.loops(p.chance.choice(blocks)))


def _compute_at(p: Player) -> None:
    block = p.block()
    loop = _loop_near(p, p.sch.get_consumers(block))
    p.sch.compute_at(block, loop, p.chance.random() < 0.3, p.chance.choice([-1, -2]))


def _reverse_compute_at(p: Player) -> None:
    block = p.block()
    loop = _loop_near(p, p.sch.get_producers(block))
    p.sch.reverse_compute_at(block, loop, p.chance.random() < 0.3, p.chance.choice([-1, -2]))


def _written(p: Player) -> tuple[BlockRV, int]:
    """A block and one of its results; mostly a producer in a loop with its readers."""
    block, at, _ = p.region("write")
    if p.likely() and not p.sch.get_consumers(block):
        raise NothingToTry
    return block, at


def _inlinable(p: Player, near: Callable[[BlockRV], list[BlockRV]]) -> BlockRV:
    """Draw a block, mostly one without `init` next to another one without."""
    if not p.likely():
        return p.block()
    result = [
        b
        for b in p.blocks()
        if p.node(b).init is None and any(p.node(other).init is None for other in near(b))
    ]
    if not result:
        raise NothingToTry
    return p.chance.choice(result)


def _compute_inline(p: Player) -> None:
    p.sch.compute_inline(_inlinable(p, lambda b: p.sch.get_consumers(b)))


def _reverse_compute_inline(p: Player) -> None:
    """Inline mostly a single store that is the only reader of another block's result."""
    result = [
        b
        for b in p.blocks()
        if isinstance(p.node(b).body, ir.BufferStore)
        for maker in p.sch.get_producers(b)[-1:]
        if p.node(b).init is p.node(maker).init is None
        and isinstance(p.node(maker).body, ir.BufferStore)
        and len(p.sch.get_consumers(maker)) == 1
    ]
    if not p.likely():
        result = p.blocks()
    if not result:
        raise NothingToTry
    p.sch.reverse_compute_inline(p.chance.choice(result))


def _computed(p: Player, overlapping: bool) -> tuple[BlockRV, LoopRV]:
    """Move a producer into a loop of its last consumer.

    With `overlapping`, do so only if the regions that successive iterations read move along an axis
    and overlap.
    """
    places = [
        (block, loop)
        for block in p.blocks()
        for consumer in p.sch.get_consumers(block)[-1:]
        for loop in p.sch.get_loops(consumer)
    ]
    p.chance.shuffle(places)
    for block, loop in places:
        told = p.sch.explain_compute_at(block, loop)
        again = told.recomputation is None or told.recomputation > 1
        moving = any(axis.follows and axis.made for axis in told.axes)
        if not told.refusal and ((again and moving) or not overlapping):
            p.sch.compute_at(block, loop)
            return block, loop
    raise NothingToTry


def _store_at(p: Player) -> None:
    if p.likely():
        p.kept(p.sch.store_at(*_computed(p, overlapping=False)))
        return
    block, at = _written(p)
    p.kept(p.sch.store_at(block, p.chance.choice(p.loops(block)), at))


def _rolling_buffer(p: Player) -> None:
    if p.likely(0.95):
        p.sch.rolling_buffer(_computed(p, overlapping=True)[0], 0)
        return
    block, at = _written(p)
    p.sch.rolling_buffer(block, at)


MOVES = {
    "compute_at": Move(_compute_at),
    "compute_inline": Move(_compute_inline),
    "reverse_compute_at": Move(_reverse_compute_at, reassociates=True),
    "reverse_compute_inline": Move(_reverse_compute_inline),
    "rolling_buffer": Move(_rolling_buffer),
    "store_at": Move(_store_at),
}

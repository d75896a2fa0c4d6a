"""Moves of a computation to another place."""

from __future__ import annotations

from blockwright.schedule import BlockRV, LoopRV
from blockwright.testing.moves.player import Move, NothingToTry, Player


def _loop_near(p: Player, blocks: list[BlockRV]) -> LoopRV:
    """Mostly a loop above one of the blocks."""
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


MOVES = {
    "compute_at": Move(_compute_at),
    "compute_inline": Move(lambda p: p.sch.compute_inline(p.block())),
    "reverse_compute_at": Move(_reverse_compute_at),
    "reverse_compute_inline": Move(lambda p: p.sch.reverse_compute_inline(p.block())),
}

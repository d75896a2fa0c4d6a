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


def _written(p: Player) -> tuple[BlockRV, int]:
    """A block and one of its results; mostly a producer that shares a loop with its readers."""
    block, at, _ = p.region("write")
    if p.likely() and not p.sch.get_consumers(block):
        raise NothingToTry
    return block, at


def _store_at(p: Player) -> None:
    block, at = _written(p)
    loop = p.chance.choice(p.loops(block)) if p.likely() else p.loop()
    p.kept(p.sch.store_at(block, loop, at))


def _rolling_buffer(p: Player) -> None:
    block, at = _written(p)
    if p.likely(0.5) and (consumers := p.sch.get_consumers(block)):
        p.sch.compute_at(block, p.chance.choice(p.loops(consumers[-1])))
    p.sch.rolling_buffer(block, at)


MOVES = {
    "compute_at": Move(_compute_at),
    "compute_inline": Move(lambda p: p.sch.compute_inline(p.block())),
    "reverse_compute_at": Move(_reverse_compute_at, reassociates=True),
    "reverse_compute_inline": Move(lambda p: p.sch.reverse_compute_inline(p.block())),
    "rolling_buffer": Move(_rolling_buffer),
    "store_at": Move(_store_at),
}

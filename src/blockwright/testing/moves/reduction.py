"""Moves of reductions."""

from __future__ import annotations

from blockwright import ir
from blockwright.schedule import BlockRV
from blockwright.testing.moves.player import Move, Player


def _reduction(p: Player) -> BlockRV:
    """Mostly a block with reduction iterators."""
    if not p.likely():
        return p.block()
    return p.block_where(lambda b: any(it.iter_type is ir.IterType.REDUCE for it in b.iter_vars))


def _decompose_reduction(p: Player) -> None:
    block = _reduction(p)
    p.kept(p.sch.decompose_reduction(block, p.chance.choice(p.loops(block))))


def _rfactor(p: Player) -> None:
    p.kept(p.sch.rfactor(p.chance.choice(p.loops(_reduction(p))), p.chance.choice([0, 1, -1])))


MOVES = {
    "decompose_reduction": Move(_decompose_reduction),
    "rfactor": Move(_rfactor, reassociates=True),
}

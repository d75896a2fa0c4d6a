"""Moves of loops: shape, order and kind."""

from __future__ import annotations

from blockwright import ir
from blockwright.testing.moves.player import Move, NothingToTry, Player


def _split(p: Player) -> None:
    p.kept(*p.sch.split(p.loop(), [None, p.chance.choice([2, 3, 4])]))


def _fuse(p: Player) -> None:
    loops = p.loops(p.block(), at_least=2)
    at = p.chance.randrange(len(loops) - 1)
    p.kept(p.sch.fuse(*loops[at : at + 2]))


def _reorder(p: Player) -> None:
    loops = p.loops(p.block(), at_least=2)
    p.sch.reorder(*p.chance.sample(loops, p.chance.randint(2, len(loops))))


def _vectorize(p: Player) -> None:
    """Lanes that combine into one element are left to tests of the lowering."""
    block = p.block()
    iters = p.node(block).iter_vars
    if any(it.iter_type is ir.IterType.REDUCE for it in iters):
        raise NothingToTry
    p.sch.vectorize(p.chance.choice(p.loops(block)))


MOVES = {
    "add_unit_loop": Move(lambda p: p.kept(p.sch.add_unit_loop(p.block()))),
    "fuse": Move(_fuse),
    "parallel": Move(lambda p: p.sch.parallel(p.loop())),
    "reorder": Move(_reorder, reassociates=True),
    "split": Move(_split),
    "unroll": Move(lambda p: p.sch.unroll(p.loop())),
    "vectorize": Move(_vectorize),
}

"""Moves of blocks: grouping and padding."""

from __future__ import annotations

from blockwright.testing.moves.player import Move, Player


def _pad_einsum(p: Player) -> None:
    block = p.block()
    units = [p.chance.choice([1, 2, 4]) for _ in p.node(block).iter_vars]
    p.kept(*p.sch.pad_einsum(block, units, p.chance.choice(["zero", "clamp"])))


MOVES = {
    "blockize": Move(lambda p: p.kept(p.sch.blockize(p.loop()))),
    "pad_einsum": Move(_pad_einsum),
}

"""Moves of block primitives: grouping and padding."""

from __future__ import annotations

from blockwright.testing.moves.player import Move, Player


def _pad_einsum(p: Player) -> None:
    block = p.untouched() if p.likely() else p.block()
    units = [p.chance.choice([1, 2, 4]) for _ in p.node(block).iter_vars]
    p.kept(*p.sch.pad_einsum(block, units, p.chance.choice(["zero", "clamp"])))


def _blockize(p: Player) -> None:
    """Blockize a loop, or the blocks of one body."""
    keep = p.chance.random() < 0.7
    loop = p.loop()
    below = p.sch.get_child_blocks(loop)
    if len(below) > 1 or p.chance.random() < 0.2:
        p.kept(p.sch.blockize(below, preserve_unit_iters=keep))
    else:
        p.kept(p.sch.blockize(loop, preserve_unit_iters=keep))


MOVES = {
    "blockize": Move(_blockize),
    "pad_einsum": Move(_pad_einsum),
}

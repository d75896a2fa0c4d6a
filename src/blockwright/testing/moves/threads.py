"""Moves of threads: axes, atomic updates."""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis.kernels import AXES
from blockwright.testing.moves.player import Move, Player

_USUAL = ("blockIdx.x", "blockIdx.y", "threadIdx.x", "threadIdx.y")


def _bind(p: Player) -> None:
    """Mostly the outer loops, where axes belong."""
    loops = p.loops(p.block())
    loop = loops[0] if p.likely(0.6) else p.chance.choice(loops)
    p.sch.bind(loop, p.chance.choice(_USUAL if p.likely() else AXES))


def _atomic_update(p: Player) -> None:
    """Mostly of an update, as decompose_reduction leaves it."""

    def update(block: ir.Block) -> bool:
        reduces = any(it.iter_type is ir.IterType.REDUCE for it in block.iter_vars)
        return block.init is None and reduces

    block = p.block_where(update) if p.likely() else p.block()
    p.sch.atomic_update(block)


MOVES = {
    "atomic_update": Move(_atomic_update, reassociates=True),
    "bind": Move(_bind),
}

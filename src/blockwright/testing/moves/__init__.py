"""Random schedules: one move per primitive, a player that draws moves, and checks of the result.

A move draws arguments for its primitive and calls it; rejections are expected and counted. A new
primitive gets a move from the types of its parameters (`derived`). If random arguments are rejected
too often, or the step reassociates sums, add a line to `MOVES` of the file for its group.

    player = Player(random_program(seed), MOVES, seed, often=["fuse"])
    player.play(12)
    check(player, seed)
    print(player.tally.table())
"""

from blockwright.testing.moves import (
    blocks,
    location,
    loops,
    movement,
    overlap,
    reduction,
    storage,
    tensor,
    threads,
)
from blockwright.testing.moves.checks import check
from blockwright.testing.moves.derived import derived_moves
from blockwright.testing.moves.player import Move, NothingToTry, Player, Tally

_WRITTEN: dict[str, Move] = {
    **blocks.MOVES,
    **location.MOVES,
    **loops.MOVES,
    **movement.MOVES,
    **overlap.MOVES,
    **reduction.MOVES,
    **storage.MOVES,
    **tensor.MOVES,
    **threads.MOVES,
}

MOVES: dict[str, Move] = {**_WRITTEN, **derived_moves(_WRITTEN)}
"""Schedule method → move that tries it."""

__all__ = ["MOVES", "Move", "NothingToTry", "Player", "Tally", "check"]

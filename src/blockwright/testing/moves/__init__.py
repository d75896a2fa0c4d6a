"""Random schedules: one move per primitive, a player that draws moves, and checks of the result.

A move draws arguments for its primitive and calls it; rejections are expected and counted. To add
a new primitive to all random schedules, add a line to `MOVES` of the file for its group (or of a
new file, listed below). A test checks that every rewriting primitive has a move.

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
from blockwright.testing.moves.player import Move, NothingToTry, Player, Tally

MOVES: dict[str, Move] = {
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
"""Schedule method → move that tries it."""

__all__ = ["MOVES", "Move", "NothingToTry", "Player", "Tally", "check"]

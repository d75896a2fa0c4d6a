"""Random schedules: one move per primitive, a player that draws them, and the checks afterwards.

A move draws arguments for its primitive and calls it; refusals are welcome and counted. To make a
new primitive part of every random schedule, add a line to `MOVES` of the file for its group (or of
a new file, listed below). A test holds that every primitive that rewrites has a move.

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
"""Method of the schedule → how to try it."""

__all__ = ["MOVES", "Move", "NothingToTry", "Player", "Tally", "check"]

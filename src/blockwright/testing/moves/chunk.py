"""A few random schedules in a process of their own: what became of the steps, and what failed."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright.testing.generators import random_program
from blockwright.testing.moves import MOVES, Player, Tally, check

CHUNK = 10


def play(first: int, often: Sequence[str], length: int) -> tuple[Tally, list[str]]:
    """A few seeds from `first` on: what became of the steps, and the failures in words."""
    tally, failures = Tally(), list[str]()
    for seed in range(first, first + CHUNK):
        player = Player(random_program(seed), MOVES, seed, often)
        try:
            player.play(length)
            check(player, seed)
        except Exception as error:  # noqa: BLE001  every failure is a finding, of any kind
            notes = "\n".join(getattr(error, "__notes__", ()))
            failures.append(f"seed {seed}: {type(error).__name__}: {error}\n{notes}")
        tally.add(player.tally)
    return tally, failures

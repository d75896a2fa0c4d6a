"""Composite calls and undo among random steps: same results, living or named handles, replay."""

from __future__ import annotations

import pytest

from blockwright.testing import random_program
from blockwright.testing.moves import MOVES, Player, Tally, check
from blockwright.testing.moves.compose import COMPOSED


@pytest.mark.fuzz
def test_composite_calls_keep_the_meaning(fuzz_factor: int) -> None:
    tally = Tally()
    for seed in range(20 * fuzz_factor):
        player = Player(random_program(seed), {**MOVES, **COMPOSED}, seed, list(COMPOSED))
        player.play(12)
        check(player, seed)
        tally.add(player.tally)
    never = COMPOSED.keys() - tally.accepted.keys()
    assert not never, f"never accepted: {sorted(never)}\n{tally.table()}"

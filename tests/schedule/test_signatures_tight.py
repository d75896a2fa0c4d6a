"""Steps leave blocks that promise what happens and no more."""

from __future__ import annotations

import pytest

from blockwright.testing.generators import random_program
from blockwright.testing.moves import MOVES, Player
from blockwright.testing.moves.slack import slack
from tests.schedule.refusals import function

WIDENS = "annotate_buffer_access"
"""The step that exists to state more."""
EXACT = """
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        vj = T.axis.spatial(32, j)
        T.reads(A[vi, vj])
        T.writes(B[vi, vj])
        B[vi, vj] = A[vi, vj]
"""


@pytest.mark.parametrize("seed", range(900, 930))
def test_no_random_step_widens_a_signature(seed: int) -> None:
    """Regions are those that bodies touch, and loops come to the end of every domain that a step
    makes up: later steps rest on both."""
    moves = {name: move for name, move in MOVES.items() if name != WIDENS}
    names = sorted(moves)
    player = Player(random_program(seed), moves, seed, [names[seed % len(names)]])
    for _ in range(8):
        before = player.sch.func
        player.play(1)
        assert slack(before, player.sch.func) == [], player.taken


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("A[vi, vj])", "A[vi, vj : vj + 2])", "B states"),
        ("T.writes(B[vi, vj])", "T.writes(B[vi, 0:32])", "B states"),
        ("spatial(32, j)", "spatial(33, j)", "B does not reach the end of vj"),
    ],
    ids=["reads", "writes", "domain"],
)
def test_what_is_too_wide_is_seen(old: str, new: str, what: str) -> None:
    before, after = function(EXACT), function(EXACT.replace(old, new, 1))
    (found,) = slack(before, after)
    assert found.startswith(what)
    assert slack(before, before) == slack(after, after) == []

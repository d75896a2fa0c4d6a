"""Random programs under random schedules: same results, living or named handles, replay, script.

`testing/moves` draws the steps and makes the checks; `python -m fuzzing.schedules` does the
same at length and prints what was refused.
"""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.schedule import RECORDS
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.primitive.split import Split
from blockwright.testing import random_program
from blockwright.testing.moves import MOVES, Player, Tally, check

CHANGES_NOTHING = {"annotate", "unannotate"}


@pytest.mark.fuzz
def test_random_schedules_keep_the_meaning(fuzz_factor: int) -> None:
    tally = Tally()
    names = sorted(MOVES)

    def play(seed: int, often: list[str]) -> None:
        player = Player(random_program(seed), MOVES, seed, often)
        player.play(14)
        check(player, seed)
        tally.add(player.tally)

    for seed in range(len(names) * fuzz_factor):
        play(seed, [names[seed % len(names)]])  # each of them has its turn
    for seed in range(1000, 1200):  # what few programs allow gets more tries
        rare = sorted(MOVES.keys() - tally.accepted.keys())
        if not rare:
            break
        play(seed, rare)
    never = MOVES.keys() - tally.accepted.keys()
    assert not never, f"never accepted: {sorted(never)}\n{tally.table()}"


def test_every_primitive_that_rewrites_has_a_move() -> None:
    rewriting = {n for n in RECORDS if not n.startswith(("get_", "sample_", "unsafe."))}
    assert rewriting - CHANGES_NOTHING == MOVES.keys()


def test_a_failing_schedule_names_its_first_wrong_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule with a step that breaks the program, as a bug in a primitive would."""

    def forget_the_last_element(self: Split, state: StepState) -> StepResult:
        loop = state.loop(self.loop)
        edit = Edit(state)
        edit.replace(loop, loop.replace(extent=ir.sub(loop.extent, 1)))
        return edit.finish(loop.loop_var, loop.loop_var)

    program = random_program(3, stages=2, symbolic=False)
    player = Player(program, MOVES, 3)
    player.sch.add_unit_loop(player.block())
    check(player, 3)
    monkeypatch.setattr(Split, "apply", forget_the_last_element)
    player.sch.split(player.loop(), [None, 2])
    with pytest.raises(Exception, match="seed 3") as failure:
        check(player, 3)
    last = len(player.sch.trace) - 1
    assert f"seed 3, first wrong after step {last}" in "\n".join(failure.value.__notes__)

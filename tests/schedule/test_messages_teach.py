"""Errors teach: each names the rule, marks what breaks it, says what to do, and has a code."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from blockwright import ir
from blockwright.ir.printer import script
from blockwright.schedule import Schedule, ScheduleError
from blockwright.script.ir import from_source
from tests.schedule.refused_schedules import CASES

NAMES = [schedule.__name__ for _, schedule, _ in CASES]
UNMARKED = {"misspelt_block"}
"""What is wrong in these stands nowhere in the program."""


def start(program: str) -> Schedule:
    found = from_source(program)
    assert isinstance(found, ir.PrimFunc)
    return Schedule(found)


@pytest.mark.parametrize(("program", "schedule", "code"), CASES, ids=NAMES)
def test_a_refusal_names_the_rule_marks_the_nodes_and_says_what_to_do(
    program: str, schedule: Callable[[Schedule], None], code: str
) -> None:
    sch = start(program)
    with pytest.raises(ScheduleError) as caught:
        schedule(sch)
    (problem,) = caught.value.diagnostics
    assert problem.code == code
    assert re.match(r"[a-z_]+: .", problem.message), "the step, then the rule"
    assert problem.help
    if schedule.__name__ in UNMARKED:
        return
    (note,) = problem.notes
    marks = [line for line in note.splitlines() if re.fullmatch(r" *\^[ ^]*", line)]
    assert marks, "guilty nodes are underlined"
    lines = [line for line in note.splitlines()[1:] if line not in marks]
    assert "\n".join(lines).strip() == script(sch.func).strip(), "the program as it still is"


@pytest.mark.parametrize(("program", "schedule", "code"), CASES, ids=NAMES)
def test_what_a_terminal_shows_is_all_of_it(
    program: str, schedule: Callable[[Schedule], None], code: str
) -> None:
    with pytest.raises(ScheduleError) as caught:
        schedule(start(program))
    text = str(caught.value)
    assert text.startswith(f"error[{code}]: ")
    assert "\n  help: " in text


def test_a_dead_handle_shows_what_has_taken_its_place() -> None:
    program, schedule, _ = CASES[NAMES.index("loop_that_was_split")]
    with pytest.raises(ScheduleError, match="step 2, split, consumed it, loop i") as caught:
        schedule(start(program))
    assert "what split returned (i_0, i_1)" in str(caught.value.help)


def test_a_name_that_a_block_does_not_read_leads_to_the_blocks_that_do() -> None:
    program, schedule, _ = CASES[NAMES.index("cache_what_is_not_read")]
    with pytest.raises(ScheduleError) as caught:
        schedule(start(program))
    assert caught.value.help == "choose what it reads, X, S, or a block that reads G: norm"

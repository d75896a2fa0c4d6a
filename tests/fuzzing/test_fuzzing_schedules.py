"""The fuzzer finds faults that are put in, reduces them, and remembers them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from blockwright import ir
from blockwright.ir.printer import script
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.primitive.split import Split
from blockwright.support import InterpretError
from blockwright.testing.arrays import Fenced
from blockwright.testing.check import Reference
from blockwright.testing.generators import random_program
from fuzzing.schedules.case import Case, outcome
from fuzzing.schedules.corpus import Corpus
from fuzzing.schedules.isolate import Death, in_processes, isolated
from fuzzing.schedules.native import load_compiler
from fuzzing.schedules.play import Failure, Played, Settings, play_chunk
from fuzzing.schedules.reduce import reduced


def _forget_the_last_element(self: Split, state: StepState) -> StepResult:
    """A fault as a primitive might have it."""
    loop = state.loop(self.loop)
    edit = Edit(state)
    edit.replace(loop, loop.replace(extent=ir.sub(loop.extent, 1)))
    return edit.finish(loop.loop_var, *[loop.loop_var for _ in self.factors[1:]])


def _raise_something(self: Split, state: StepState) -> StepResult:
    raise KeyError(self.loop)


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    load_compiler()


def test_right_primitives_pass_and_some_programs_are_compiled() -> None:
    played = play_chunk(4000, 5, Settings(length=8, native=0.3))
    assert not played.failures, played.failures[0].words
    assert played.tally.steps > 8
    assert played.native > 0


@pytest.mark.parametrize("fault", [_forget_the_last_element, _raise_something])
def test_a_faulty_step_is_found_and_reduced(fault: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Split, "apply", fault)
    settings = Settings(length=10, native=0, often=("split",))
    failure = next(f for seed in range(4000, 4040) for f in play_chunk(seed, 1, settings).failures)
    steps = [line for line in failure.script.splitlines() if "sch." in line and "get_" not in line]
    assert any("sch.split(" in line for line in steps)
    assert len(steps) <= 3, failure.script  # the step, and perhaps a check of the schedule
    assert len(failure.script.splitlines()) <= 45, failure.script
    with pytest.raises((AssertionError, KeyError, InterpretError)):
        exec(failure.script, {})


def test_what_is_left_cannot_be_made_smaller() -> None:
    """A program fails when it holds tanh; the smallest one that does is a single stage."""
    program = next(
        p
        for p in map(random_program, range(100))
        if "tanh" in script(p) and len(ir.blocks(p.body)) > 4
    )

    def fails(case: Case) -> bool:
        try:
            Reference(case.program, seed=1)
        except Exception:  # noqa: BLE001  no program
            return False
        return "tanh" in script(case.program)

    small = reduced(Case(program, (), "meaning", 1), fails).program
    assert len(ir.blocks(small.body)) == 2  # the root and the one with tanh
    assert all(ir.const_int(n) == 1 for b in small.buffers for n in b.shape)


def test_a_crash_and_a_hang_are_answers() -> None:
    assert isolated(lambda: 3) == 3
    assert isolated(lambda: os.kill(os.getpid(), signal.SIGSEGV)) == Death("SIGSEGV")
    assert isolated(lambda: signal.pause(), seconds=0.2) == Death("too slow")

    def work(item: int) -> int:
        if item == 3:
            os._exit(7)
        return item * item

    found = dict(in_processes(work, range(1, 6), jobs=2, seconds=60))
    assert found == {1: 1, 2: 4, 3: Death("exit code 7"), 4: 16, 5: 25}


def test_a_crash_of_compiled_code_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(reference: Reference, after: ir.PrimFunc) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    monkeypatch.setattr("fuzzing.schedules.play.check_native", crash)
    monkeypatch.setattr("fuzzing.schedules.case.check_native", crash)
    monkeypatch.setattr("fuzzing.schedules.play.reduced", lambda case, fails: case)
    settings = Settings(length=4, native=1.0)
    failure = next(f for seed in range(4000, 4010) for f in play_chunk(seed, 1, settings).failures)
    assert failure.symptom == "native: SIGSEGV"
    assert "check_native(" in failure.script


def test_a_case_that_is_refused_does_not_fail() -> None:
    assert outcome(Case(random_program(1), (), "meaning", 1)) is None


def test_the_corpus_goes_on_and_tries_known_failures_first(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, seed=100)
    bad = Failure(113, "meaning: AssertionError", "differs", "raise SystemExit(1)\n")
    corpus.note(110, 10, Played(native=2, failures=[bad]))
    assert corpus.state.next == 100  # a chunk before it is still under way
    assert not corpus.done(100)
    corpus.note(100, 10, Played())
    again = Corpus(tmp_path, seed=7)
    assert again.state.next == 120
    again.try_again()
    assert [found.symptom for found in again.open] == ["meaning: AssertionError"]
    refused = "raise SystemExit('blockwright.ScheduleError: error[BW366]: after the step')"
    (tmp_path / again.open[0].file).write_text(refused)  # the steps are refused by now
    again.try_again()
    assert not again.open
    (tmp_path / again.state.found[0].file).write_text("raise SystemExit(1)\n")
    again.try_again()
    assert again.open
    (tmp_path / again.open[0].file).write_text("")  # as if the fault were mended
    again.try_again()
    assert not Corpus(tmp_path, seed=0).open


def test_the_command_reports_and_exits(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fuzzing.schedules", "--corpus", str(tmp_path)]
    first = subprocess.run(
        [*command, "--steps", "20", "--jobs", "1", "--native", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert first.returncode == 0, first.stdout + first.stderr
    assert "0 failures open" in first.stdout
    (tmp_path / "old.py").write_text("raise SystemExit(1)\n")
    corpus = Corpus(tmp_path, 0)
    reached = corpus.state.next
    corpus.note(reached, 10, Played(failures=[Failure(1, "meaning", "", "raise ValueError\n")]))
    second = subprocess.run(
        [*command, "--minutes", "0", "--native", "0"], capture_output=True, text=True, check=False
    )
    assert second.returncode == 1, second.stdout + second.stderr
    assert "still fails" in second.stdout


def test_writes_around_arguments_are_seen() -> None:
    one, other = np.ones((2, 3), "float32"), np.ones((), "int8")
    fenced = Fenced([one, other, one])
    assert fenced.arrays[0] is fenced.arrays[2]
    np.testing.assert_array_equal(fenced.arrays[0], one)
    fenced.arrays[0][...] = 5
    assert one.max() == 1
    assert not fenced.broken()
    np.lib.stride_tricks.as_strided(fenced.arrays[1], (2,), (1,))[1] = 0
    assert fenced.broken() == [1]

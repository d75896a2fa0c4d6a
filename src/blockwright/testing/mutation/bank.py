"""Uses of the primitives: what a record was applied to, and whether and where it was refused."""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

import msgspec

from blockwright import ir
from blockwright.schedule import Handle, Schedule, ScheduleError, core
from blockwright.schedule.placing import applied
from blockwright.schedule.record import Primitive
from blockwright.schedule.state import State, Step, Target
from blockwright.schedule.substitute import used_handles
from blockwright.testing.generators import random_program
from blockwright.testing.moves import MOVES, Player

PER_PLACE = 6
"""Uses kept of each place that refuses, from players and from each path of tests."""
PER_PRIMITIVE = 20
"""Accepted uses kept of each primitive, likewise."""
_LARGEST = 40_000
"""Instances of a block above which a program takes too long to run."""
_PACKAGE = "schedule"

Place = tuple[str, int]
"""File and line of a call."""


class Use(msgspec.Struct, frozen=True, eq=False):
    """A primitive applied to a program.

    Attributes:
        func, record, targets: the program, the record, what its handles stand for.
        refused: the calls that led to the refusal, outermost first; empty when it was accepted.
        after: the program that came out.
        test: the test that took the step, if one did.
    """

    func: ir.PrimFunc
    record: Primitive
    targets: dict[Handle, Target]
    refused: tuple[Place, ...] = ()
    after: ir.PrimFunc | None = None
    test: str = ""

    @property
    def name(self) -> str:
        return self.record.path()

    def again(self) -> ir.PrimFunc:
        """Apply the record once more, as the code is now; raises what that raises."""
        state = State(self.func, self.targets.__getitem__, self.name)
        return applied(self.record, state).func


class Bank:
    """Uses, as many of each kind as are wanted."""

    def __init__(self) -> None:
        self.refusals: dict[Place, dict[str, list[Use]]] = {}
        self.accepted: dict[str, list[Use]] = {}
        self.functions: dict[str, list[Use]] = {}
        self.tests: dict[str | Place, dict[str, None]] = {}
        """The tests that use a primitive, and those that a place refuses."""
        self.steps: Counter[str] = Counter()
        """How many steps each test takes."""
        self.source = ""

    # ------------------------------------------------------------------ gathering
    @contextmanager
    def recording(self, source: str) -> Generator[None]:
        """Every step that any schedule takes inside is noted."""
        self.source = source
        number: Any = getattr(core, "applied")  # noqa: B009  exchanged for a while

        def watched(record: Primitive, state: State) -> Step:
            try:
                step = applied(record, state)
            except ScheduleError as error:
                self._note(record, state, error.__traceback__, None)
                raise
            self._note(record, state, None, step.func)
            return step

        setattr(core, "applied", watched)  # noqa: B010
        try:
            yield
        finally:
            setattr(core, "applied", number)  # noqa: B010

    def play(self, seeds: Sequence[int], length: int) -> None:
        """Uses by random players; every second program has stages of the unusual kinds too."""
        with self.recording("players"):
            for seed in seeds:
                names = sorted(MOVES)
                often = [names[seed % len(names)]]
                program = random_program(seed, unusual=seed % 2 == 1)
                player = Player(program, MOVES, seed, often, schedule=Schedule(program))
                with contextlib.suppress(Exception):  # faults of steps are the fuzzer's business
                    player.play(length)

    def test(self, paths: Sequence[str]) -> None:
        """Uses by tests, which run here; of each path as many as are wanted."""
        for path in paths:
            with self.recording(path):
                run_tests([path])

    def _note(
        self, record: Primitive, state: State, trace: TracebackType | None,
        after: ir.PrimFunc | None,
    ) -> None:  # fmt: skip
        places = _places(trace)
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" ", 1)[0]
        self.steps[test] += 1
        for key in (record.path(),) if after is not None else places:
            self.tests.setdefault(key, {}).update({test: None} if test else {})
        if record.pure or record.namespace or not _small(state.func):
            return
        rows = [self.refusals.setdefault(place, {}).setdefault(self.source, [])
                for place in places]  # fmt: skip
        key = f"{record.path()} {self.source}"
        if after is not None and after is not state.func:
            rows = [self.accepted.setdefault(key, [])]
        most = PER_PLACE if after is None else PER_PRIMITIVE
        if all(len(row) >= most for row in rows):
            return
        known = getattr(state, "_resolve")  # noqa: B009  what the schedule knows of its handles
        targets: dict[Handle, Target] = {
            h: known(h) for h in used_handles(record) if not isinstance(h, ir.Var)
        }
        use = Use(state.func, record, targets, places, after, test)
        for row in rows:
            if len(row) < most:
                row.append(use)

    # ------------------------------------------------------------------ lookup
    def cover(self) -> None:
        """Find out which functions each accepted use runs through."""
        for use in [u for row in self.accepted.values() for u in row]:
            seen: set[str] = set()

            def note(frame: FrameType, event: str, arg: Any, seen: set[str] = seen) -> None:
                del arg
                if event == "call" and f"{os.sep}{_PACKAGE}{os.sep}" in frame.f_code.co_filename:
                    module = frame.f_globals["__name__"]
                    seen.add(f"{module}:{frame.f_code.co_qualname.split('.<locals>')[0]}")

            sys.setprofile(note)
            try:
                use.again()
            except ScheduleError:
                continue
            finally:
                sys.setprofile(None)
            for name in seen:
                self.functions.setdefault(name, []).append(use)

    def uses_of(self, module: str, function: str) -> list[Use]:
        """Accepted uses that run through a function; primitives and sources take turns."""
        rows: dict[tuple[str, bool], list[Use]] = {}
        for use in self.functions.get(f"{module}:{function}", ()):
            rows.setdefault((use.name, bool(use.test)), []).append(use)
        return _in_turns(rows.values())

    def refused_at(self, module: str, line: int) -> list[Use]:
        """Uses that a call on this line has refused; the sources take turns."""
        return _in_turns(self.refusals.get(_place(module, line), {}).values())

    def tests_of(self, uses: Iterable[Use]) -> list[str]:
        """The tests of the primitives that are used; those of the fewest steps come first, for
        they are about a step and not on their way to another."""
        names = {use.name: None for use in uses}
        found = dict.fromkeys(test for name in names for test in self.tests.get(name, ()))
        return sorted(found, key=self.steps.__getitem__)

    def tests_refused_at(self, module: str, line: int) -> list[str]:
        """The tests that a call on this line refuses something."""
        return list(self.tests.get(_place(module, line), ()))


def _place(module: str, line: int) -> Place:
    return str(importlib.import_module(module).__file__), line


def _in_turns(rows: Iterable[list[Use]]) -> list[Use]:
    """The first of each row, then the second of each, and so on."""
    return [use for turn in itertools.zip_longest(*rows) for use in turn if use is not None]


def run_tests(names: Sequence[str], *options: str) -> bool:
    """Run tests in this process; whether all passed."""
    import pytest

    with contextlib.redirect_stdout(io.StringIO()):
        code = pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", "-m",
                            "not fuzz and not slow", *options, *names])  # fmt: skip
    return code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def _places(trace: TracebackType | None) -> tuple[Place, ...]:
    """The lines of the schedule room that a refusal came through."""
    found: list[Place] = []
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if f"{os.sep}{_PACKAGE}{os.sep}" in path:
            found.append((path, trace.tb_lineno))
        trace = trace.tb_next
    return tuple(found)


def _small(func: ir.PrimFunc) -> bool:
    """Whether it runs on the interpreter in no time."""
    total = 0
    for block in ir.blocks(func.body):
        instances = 1
        for it in block.iter_vars:
            instances *= ir.const_int(it.dom.extent) or 9
        total = max(total, instances)
    return total <= _LARGEST

"""Collect uses of the primitives: programs and records of steps, with the lines they executed.

For a refused step, the place of the refusal is recorded instead.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import os
import sys
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

import msgspec

from blockwright import ir
from blockwright.schedule import Handle, Schedule, ScheduleError
from blockwright.schedule import session as core
from blockwright.schedule.apply_step import applied
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.remap_handles import used_handles
from blockwright.schedule.engine.state import StepResult, StepState, Target
from blockwright.testing.generators import random_program
from blockwright.testing.moves import MOVES, Player

PER_PLACE = 6
"""Uses kept per refusing place, separately for players and for each test path."""
PER_LINE = 200
"""Accepted uses kept per executed line, separately for players and for each test path."""
_LARGEST = 40_000
"""Instances of a block above which a program takes too long to run."""
_PACKAGE = f"{os.sep}schedule{os.sep}"

Place = tuple[str, int]
"""File and line."""


class Use(msgspec.Struct, frozen=True, eq=False):
    """A primitive applied to a program.

    Attributes:
        func, record, targets: the program, the record, the targets of its handles.
        refused: the calls that led to the refusal, outermost first; empty if it was accepted.
        after: the resulting program.
        test: the test that took the step, if any.
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
        """Apply the record again with the current code; errors propagate."""
        state = StepState(self.func, self.targets.__getitem__, self.name)
        return applied(self.record, state).func

    def repeats(self) -> bool:
        """Whether it reproduces its result, so that a different result is due to a fault."""
        try:
            return self.after is not None and ir.structural_equal(self.again(), self.after)
        except Exception:  # noqa: BLE001
            return False


class _Rows:
    """Uses and tests by place, for accepted or refused steps."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.uses: dict[Place, dict[str, list[Use]]] = {}
        """By place and source."""
        self.tests: dict[Place, dict[str, None]] = {}

    def open(self, places: Iterable[Place], source: str) -> list[list[Use]]:
        """The rows of these places that have room for another use."""
        rows = [self.uses.setdefault(p, {}).setdefault(source, []) for p in places]
        return [row for row in rows if len(row) < self.most]


class Bank:
    """Collects a limited number of uses per place."""

    def __init__(self) -> None:
        self.refused = _Rows(PER_PLACE)
        """By the calls that led to the refusal."""
        self.accepted = _Rows(PER_LINE)
        """By the lines that they executed."""
        self.steps: Counter[str] = Counter()
        """Number of steps that each test takes."""
        self.source = ""

    # ------------------------------------------------------------------ gathering
    @contextmanager
    def recording(self, source: str) -> Generator[None]:
        """Record every step that any schedule takes in this context."""
        self.source = source
        number: Any = getattr(core, "applied")  # noqa: B009  patched in this context

        def watched(record: Primitive, state: StepState) -> StepResult:
            try:
                with _lines() as lines:
                    step = applied(record, state)
            except ScheduleError as error:
                self._note(self.refused, _places(error.__traceback__), record, state, None)
                raise
            self._note(self.accepted, lines, record, state, step.func)
            return step

        setattr(core, "applied", watched)  # noqa: B010
        try:
            yield
        finally:
            setattr(core, "applied", number)  # noqa: B010

    def play(self, seeds: Sequence[int], length: int) -> None:
        """Collect uses from random players; every second program has unusual stages too."""
        with self.recording("players"):
            for seed in seeds:
                names = sorted(MOVES)
                often = [names[seed % len(names)]]
                program = random_program(seed, unusual=seed % 2 == 1)
                player = Player(program, MOVES, seed, often, schedule=Schedule(program))
                with contextlib.suppress(Exception):  # the fuzzer reports faults of steps
                    player.play(length)

    def test(self, paths: Sequence[str]) -> None:
        """Collect uses from tests, which run in this process."""
        for path in paths:
            with self.recording(path):
                run_tests([path])

    def _note(
        self,
        rows: _Rows,
        places: Collection[Place],
        record: Primitive,
        state: StepState,
        after: ir.PrimFunc | None,
    ) -> None:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" ", 1)[0]
        self.steps[test] += 1
        if test:
            for place in places:
                rows.tests.setdefault(place, {})[test] = None
        if record.pure or record.namespace or after is state.func or not _small(state.func):
            return
        open_ = rows.open(places, self.source)
        if not open_:
            return
        known = getattr(state, "_resolve")  # noqa: B009  resolves the schedule's handles
        targets: dict[Handle, Target] = {
            h: known(h) for h in used_handles(record) if not isinstance(h, ir.Var)
        }
        refused = tuple(places) if after is None else ()
        use = Use(state.func, record, targets, refused, after, test)
        for row in open_:
            row.append(use)

    # ------------------------------------------------------------------ lookup
    def uses_at(self, module: str, line: int) -> list[Use]:
        """Accepted uses that execute a line; primitives and sources alternate."""
        rows: dict[tuple[str, bool], list[Use]] = {}
        for row in self.accepted.uses.get(_place(module, line), {}).values():
            for use in row:
                rows.setdefault((use.name, bool(use.test)), []).append(use)
        return _in_turns(rows.values())

    def refused_at(self, module: str, line: int) -> list[Use]:
        """Uses that a call on this line refused; sources alternate."""
        return _in_turns(self.refused.uses.get(_place(module, line), {}).values())

    def tests_at(self, module: str, line: int, refused: bool) -> list[str]:
        """The tests whose steps execute a line, or are refused there.

        Tests with the fewest steps come first: they target a step instead of passing it on the way
        to another.
        """
        rows = self.refused if refused else self.accepted
        return sorted(rows.tests.get(_place(module, line), ()), key=self.steps.__getitem__)


def _place(module: str, line: int) -> Place:
    return str(importlib.import_module(module).__file__), line


def _in_turns(rows: Iterable[list[Use]]) -> list[Use]:
    """Interleave rows: the first of each row, then the second of each, and so on."""
    return [use for turn in itertools.zip_longest(*rows) for use in turn if use is not None]


def run_tests(names: Sequence[str], *options: str) -> bool:
    """Run tests in this process; return whether all passed."""
    import pytest

    with contextlib.redirect_stdout(io.StringIO()):
        code = pytest.main(
            [
                "-q",
                "--no-header",
                "-p",
                "no:cacheprovider",
                "-m",
                "not fuzz and not slow",
                *options,
                *names,
            ]
        )
    return code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


@contextmanager
def _lines() -> Generator[set[Place]]:
    """Collect the lines of the `schedule` package executed in this context."""
    result: set[Place] = set()
    before = sys.gettrace()

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        del event, arg
        result.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame: FrameType, event: str, arg: Any) -> Any:
        del event, arg
        return line if _PACKAGE in frame.f_code.co_filename else None

    sys.settrace(call)
    try:
        yield result
    finally:
        sys.settrace(before)


def _places(trace: TracebackType | None) -> tuple[Place, ...]:
    """The lines of the `schedule` package in the traceback of a refusal."""
    result: list[Place] = []
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if _PACKAGE in path:
            result.append((path, trace.tb_lineno))
        trace = trace.tb_next
    return tuple(result)


def _small(func: ir.PrimFunc) -> bool:
    """Whether the interpreter runs the program quickly."""
    total = 0
    for block in ir.blocks(func.body):
        instances = 1
        for it in block.iter_vars:
            instances *= ir.const_int(it.dom.extent) or 9
        total = max(total, instances)
    return total <= _LARGEST

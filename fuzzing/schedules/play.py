"""Play one random schedule with checks; record its steps and the case that fails."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from blockwright.schedule import Schedule
from blockwright.schedule.engine.instruction import Instruction
from blockwright.schedule.engine.record import Primitive
from blockwright.testing.generators import random_program
from blockwright.testing.moves import MOVES, Player, Tally, lowering_hints
from blockwright.testing.moves.checks import (
    FORMS,
    check_handles,
    check_meaning,
    check_replay,
    check_text,
)
from blockwright.testing.moves.compose import COMPOSED
from fuzzing.schedules.case import Case, exact, outcome, references
from fuzzing.schedules.finding import Finding, symptom
from fuzzing.schedules.isolate import Death, isolated
from fuzzing.schedules.lowering import check_lowering
from fuzzing.schedules.native import check_native
from fuzzing.schedules.reduce import reduced
from fuzzing.schedules.report import as_script, by_seed

ALL_MOVES = {**MOVES, **COMPOSED}
LOWERING = "(lowering)"
"""Name under which refusals of lowering are counted."""
_WISHES = 6
"""Maximum number of steps tried that give work to lowering."""
_COMPILED = 4
"""Probability of compiling a lowered program, relative to that of compiling after a step."""


_TYPES, _WEIGHTS = ("float32", "float16", "float64"), (0.84, 0.08, 0.08)
"""Element types of the programs, with their probabilities."""
_FOCUS = (
    "halo",
    "halo",
    "compute_at",
    "compute_inline",
    "parallel",
    "transform_block_layout",
    "transform_layout",
)
"""Steps that few programs allow; in some programs one of them is drawn half of the time."""
_FOCUSED = 0.4
"""Fraction of these programs."""


class Settings(msgspec.Struct, frozen=True):
    """Options of a run.

    Attributes:
        length: steps tried per program.
        native: fraction of steps whose program is compiled.
        often: names drawn half of the time.
        lowered: fraction of programs that are lowered.
    """

    length: int = 12
    native: float = 0.05
    often: tuple[str, ...] = ()
    lowered: float = 0.0


class Failure(msgspec.Struct, frozen=True):
    """A seed whose schedule failed: symptom, text of the error, and a script that reproduces it."""

    seed: int
    symptom: str
    words: str
    script: str


class Played(msgspec.Struct):
    """Results of some seeds: steps by outcome, compiled steps, lowered programs, and failures."""

    tally: Tally = msgspec.field(default_factory=Tally)
    native: int = 0
    lowered: int = 0
    failures: list[Failure] = []

    def add(self, other: Played) -> None:
        self.tally.add(other.tally)
        self.native += other.native
        self.lowered += other.lowered
        self.failures += other.failures


class WatchedSchedule(Schedule):
    """A schedule that records the last step tried."""

    attempted: Primitive | None = None

    def _run(self, record: Primitive) -> Any:
        self.attempted = record
        return super()._run(record)


class _Game:
    """One seed: a player whose program is compared after each step."""

    def __init__(self, seed: int, settings: Settings, played: Played) -> None:
        self.seed, self.settings, self.played = seed, settings, played
        dtype = random.Random(f"{seed} element type").choices(_TYPES, _WEIGHTS)[0]
        program = random_program(seed, unusual=True, dtype=dtype)
        self.sch = WatchedSchedule(program, verify="full")
        often = settings.often or _focus(seed)
        self.player = Player(program, ALL_MOVES, seed, often, schedule=self.sch)
        self.player.tally = played.tally
        self.references = references(program, seed)
        self.phase, self.reference = "step", self.references[0]

    def play(self) -> None:
        """Take all steps, each followed by comparisons; raise if one fails."""
        chance = random.Random(f"{self.seed} lowered")
        if chance.random() < self.settings.lowered:
            self._steps(chance.choice([0, chance.randint(0, self.settings.length)]))
            self._lower(chance)
        else:
            self._steps(self.settings.length)
        self.phase = "handles"
        check_handles(self.sch, self.player.handles)
        form = list(FORMS)[self.seed % len(FORMS)]
        self.phase = f"replay as {form}"
        check_replay(self.player.program, self.sch.trace, self.sch.func, form)
        self.phase = "text"
        check_text(self.sch.func)

    def _steps(self, count: int) -> None:
        for turn in range(count):
            before = self.sch.func
            self.phase = "step"
            self.player.play(1)
            if self.sch.func is before:
                continue
            self.phase, self.reference = "meaning", self.references[turn % len(self.references)]
            taken = [step.record.path() for step in self.sch.trace]
            check_meaning(self.reference, self.sch.func, exact(taken))
            if self.player.chance.random() < self.settings.native:
                self.phase = "native"
                self._compile()

    def _lower(self, chance: random.Random) -> None:
        """Take steps that give work to lowering, then check its passes."""
        self.phase = "step"
        self.player.moves = lowering_hints.WISHES
        self.player.often = list(lowering_hints.OFTEN)
        self.player.play(chance.randint(1, _WISHES))
        self.phase = "lowering"
        refused = check_lowering(self.player.program, self.sch.func, self.reference.seed)
        if refused is not None:
            self.player.tally.refuse(LOWERING, refused)
            return
        self.played.lowered += 1
        if chance.random() < _COMPILED * self.settings.native:
            self.phase = "native"
            self._compile()

    def _compile(self) -> None:
        """Compile and check in a separate process, which the compiled code may crash."""

        def work() -> tuple[str, str] | None:
            try:
                check_native(self.reference, self.sch.func)
            except Exception as error:  # noqa: BLE001  every failure is a finding, of any kind
                return symptom(error), str(error)
            return None

        result = isolated(work)
        if isinstance(result, Death):
            raise Finding(result.why, f"compiled code ended with {result.why}")
        if result is not None:
            raise Finding(*result)
        self.played.native += 1

    def case(self) -> Case:
        """The case that failed last."""
        steps = self.sch.trace.instructions
        if self.phase == "step" and self.sch.attempted is not None:
            steps = (*steps, Instruction(self.sch.attempted))
        return Case(self.player.program, steps, self.phase, self.reference.seed)


def _focus(seed: int) -> tuple[str, ...]:
    chance = random.Random(f"{seed} focus")
    return (chance.choice(_FOCUS),) if chance.random() < _FOCUSED else ()


def play(seed: int, settings: Settings, played: Played) -> None:
    """Play one seed and record the results in `played`; reduce a failure."""
    game: _Game | None = None
    try:
        game = _Game(seed, settings, played)
        game.play()
    except Exception as error:  # noqa: BLE001  every failure is a finding, of any kind
        wanted = f"{'program' if game is None else game.phase}: {symptom(error)}"
        script = None if game is None else _reduced_script(game.case(), wanted, seed)
        if script is None:
            script = by_seed(wanted, str(error), seed, repr(settings))
        played.failures.append(Failure(seed, wanted, str(error), script))


def _reduced_script(case: Case, wanted: str, seed: int) -> str | None:
    """The script of the reduced case; None if the steps alone do not fail."""

    def fails(candidate: Case) -> bool:
        return outcome(candidate) == wanted

    return as_script(reduced(case, fails), wanted, seed) if fails(case) else None


def play_chunk(first: int, count: int, settings: Settings) -> Played:
    """Play the `count` seeds from `first` on."""
    played = Played()
    for seed in range(first, first + count):
        play(seed, settings, played)
    return played

"""A program and steps that fail, and the check that fails."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from blockwright import ir
from blockwright.analysis import check_well_formed
from blockwright.schedule import Schedule, ScheduleError, Trace
from blockwright.schedule.engine.instruction import Instruction
from blockwright.testing.arrays import small_sizes
from blockwright.testing.check import Reference
from blockwright.testing.moves import MOVES
from blockwright.testing.moves.checks import (
    FORMS,
    check_handles,
    check_meaning,
    check_replay,
    check_text,
)
from fuzzing.schedules.finding import symptom
from fuzzing.schedules.isolate import Death, isolated
from fuzzing.schedules.lowering import check_lowering
from fuzzing.schedules.native import check_native


class Case(msgspec.Struct, frozen=True, eq=False):
    """A program, steps, and the check to run after them.

    Attributes:
        program, steps: the program and its schedule.
        phase: a key of `PHASES`, or "step" if the last step itself raises an error that is not a
            refusal.
        seed: seed of the inputs; more seeds and small sizes are tried as well.
    """

    program: ir.PrimFunc
    steps: tuple[Instruction, ...]
    phase: str
    seed: int

    @property
    def exact(self) -> bool:
        """Whether the steps preserve results bit for bit."""
        return exact([step.record.path() for step in self.steps])


def exact(steps: list[str]) -> bool:
    """Whether none of the steps may regroup a sum."""
    return not any(name in MOVES and MOVES[name].reassociates for name in steps)


def refusal(error: ScheduleError) -> bool:
    """Whether the error rejects a step; otherwise the step was taken and failed."""
    return error.code.startswith("BW3") and error.code != "BW309"


def references(program: ir.PrimFunc, seed: int) -> list[Reference]:
    """Results of a program for two sets of inputs, and for small values of its symbolic sizes."""
    usual = [Reference(program, seed=seed + k) for k in range(2)]
    small = small_sizes(program, seed)
    return [*usual, *(Reference(program, seed=seed, sizes=sizes) for sizes in small)]


def _meaning(case: Case, sch: Schedule) -> None:
    for reference in references(case.program, case.seed):
        check_meaning(reference, sch.func, case.exact)


def _native(case: Case, sch: Schedule) -> None:
    check_native(Reference(case.program, seed=case.seed), sch.func)


def _lowering(case: Case, sch: Schedule) -> None:
    check_lowering(case.program, sch.func, case.seed)


def _handles(case: Case, sch: Schedule) -> None:
    check_handles(sch, [handle for step in sch.trace for handle in step.outputs])


def _replays(form: str) -> Callable[[Case, Schedule], None]:
    def check(case: Case, sch: Schedule) -> None:
        check_replay(case.program, sch.trace, sch.func, form)

    return check


PHASES: dict[str, Callable[[Case, Schedule], None]] = {
    "meaning": _meaning,
    "native": _native,
    "lowering": _lowering,
    "handles": _handles,
    "text": lambda _, sch: check_text(sch.func),
    **{f"replay as {form}": _replays(form) for form in FORMS},
}
"""Checks after the last step; each raises if it fails."""


def failure(case: Case) -> str | None:
    """The symptom of the case; None if it passes or its steps are refused."""
    try:
        check_well_formed(case.program)
        Reference(case.program, seed=case.seed)
        check_text(case.program)  # the report contains the program as text
    except Exception:  # noqa: BLE001  an invalid program cannot have a wrong schedule
        return None
    sch = Schedule(case.program, verify="full")
    try:
        sch.replay(Trace(case.steps))
    except ScheduleError as error:
        return None if refusal(error) else f"step: {symptom(error)}"
    except Exception as error:  # noqa: BLE001  any other error of a step is a fault
        return f"step: {symptom(error)}"
    if case.phase == "step":
        return None
    try:
        PHASES[case.phase](case, sch)
    except Exception as error:  # noqa: BLE001  every failure is a finding, of any kind
        return f"{case.phase}: {symptom(error)}"
    return None


def outcome(case: Case) -> str | None:
    """`failure`, evaluated in a separate process; a process that dies has failed too."""
    result = isolated(lambda: failure(case))
    return f"{case.phase}: {result.why}" if isinstance(result, Death) else result

"""What a schedule has been: stages, and the difference between two of them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

import msgspec

from blockwright import ir
from blockwright.ir.printer import script
from blockwright.schedule.display import Shown
from blockwright.schedule.engine.instruction import CompositeCall
from blockwright.schedule.serialize.python import call_text, short_value
from blockwright.schedule.session import Session
from blockwright.support import ScheduleError


class Stage(msgspec.Struct, frozen=True, eq=False):
    """The programs after a call that changed one of them.

    Attributes:
        number: position in the history; 0 is the start.
        call: the call that led here, a composite one as a whole.
        step: how many steps the trace had then.
        functions: the tensor programs by name.
        function: the one that the call changed.
    """

    number: int
    call: str
    step: int
    functions: Mapping[str, ir.PrimFunc]
    function: str

    @property
    def func(self) -> ir.PrimFunc:
        """The program that the call changed, as it was then."""
        return self.functions[self.function]

    def script(self) -> str:
        """Its text."""
        return script(self.func)

    def __repr__(self) -> str:
        return f"<stage {self.number}: {self.call}>"


class Difference(Shown):
    """A unified difference of two programs; false when they read the same."""

    language = "diff"

    def __init__(self, text: str) -> None:
        self._text = text

    def text(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__


def history(core: Session) -> list[Stage]:
    """The start and the programs after each call that changed something."""
    functions = dict(core.functions)
    for change in reversed(core.changes):
        functions[change.function] = change.before
    first = core.changes[0].function if core.changes else core.work_on
    stages = [Stage(0, "the start", 0, dict(functions), first)]
    call: CompositeCall | None = None
    for number, (step, change) in enumerate(zip(core.steps, core.changes, strict=True), 1):
        if change.after is change.before:
            continue
        functions[change.function] = change.after
        text = step.call.text if step.call else call_text(step.record, short_value)
        if step.call is not None and step.call is call:
            stages.pop()  # the call goes on: its last step is its stage
        call = step.call
        stages.append(Stage(len(stages), text, number, dict(functions), change.function))
    return stages


def steps_before(core: Session, calls: int) -> int:
    """How many steps stay when the last changing calls are taken back."""
    groups: list[tuple[int, CompositeCall | None]] = []
    for number, (step, change) in enumerate(zip(core.steps, core.changes, strict=True)):
        if step.call is not None and groups and groups[-1][1] is step.call:
            continue
        if change.after is not change.before:
            groups.append((_first_of(core, number), step.call))
    if not 1 <= calls <= len(groups):
        raise ScheduleError(
            f"undo: {calls} calls cannot be taken back, {len(groups)} have changed the program",
            code="BW304",
            help="sch.history lists them",
        )
    return groups[-calls][0]


def _first_of(core: Session, number: int) -> int:
    """The first step of the composite call that a step is part of."""
    call = core.steps[number].call
    while call is not None and number > 0 and core.steps[number - 1].call is call:
        number -= 1
    return number


def difference(stages: Sequence[Stage], before: int, after: int, context: int) -> Difference:
    """How the program reads after one stage and after another."""
    chosen: list[Stage] = []
    for name, number in (("before", before), ("after", after)):
        if not -len(stages) <= number < len(stages):
            raise ScheduleError(
                f"diff: there is no stage {number} for {name!r}, the schedule has {len(stages)}",
                code="BW304",
                help="sch.history lists them; -1 is the last",
            )
        chosen.append(stages[number])
    old, new = chosen
    lines: list[str] = []
    for name in old.functions:
        a, b = old.functions[name], new.functions[name]
        if a is not b:
            lines += difflib.unified_diff(
                script(a).splitlines(),
                script(b).splitlines(),
                f"{old.number}: {old.call}",
                f"{new.number}: {new.call}",
                lineterm="",
                n=context,
            )
    return Difference("\n".join(lines))

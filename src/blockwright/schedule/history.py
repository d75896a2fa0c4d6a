"""The history of a schedule: its stages, and the difference between two of them."""

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
    """A snapshot of the programs after a call that changed one of them.

    Attributes:
        number: position in the history; 0 is the start.
        call: the call that produced this stage; a composite call is one stage.
        step: the length of the trace at this stage.
        functions: the tensor programs by name.
        function: the name of the program that the call changed.
    """

    number: int
    call: str
    step: int
    functions: Mapping[str, ir.PrimFunc]
    function: str

    @property
    def func(self) -> ir.PrimFunc:
        """The program that the call changed, at this stage."""
        return self.functions[self.function]

    def script(self) -> str:
        """The script of `func`."""
        return script(self.func)

    def __repr__(self) -> str:
        return f"<stage {self.number}: {self.call}>"


class Difference(Shown):
    """A unified diff of two programs; false if their text is the same."""

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
    """The initial stage and one stage per call that changed a program."""
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
            stages.pop()  # one stage per composite call: keep its last step
        call = step.call
        stages.append(Stage(len(stages), text, number, dict(functions), change.function))
    return stages


def steps_before(core: Session, calls: int) -> int:
    """The number of steps that remain once the last `calls` changing calls are undone."""
    groups: list[tuple[int, CompositeCall | None]] = []
    for number, (step, change) in enumerate(zip(core.steps, core.changes, strict=True)):
        if step.call is not None and groups and groups[-1][1] is step.call:
            continue
        if change.after is not change.before:
            groups.append((_first_of(core, number), step.call))
    if not 1 <= calls <= len(groups):
        raise ScheduleError(
            f"undo: cannot undo {calls} calls, {len(groups)} have changed the program",
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
    """The textual difference of the programs at two stages."""
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

"""The trace: every step of a schedule as a record, to be read, stored, changed and replayed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from blockwright import ir
from blockwright.schedule.engine.handle import Handle
from blockwright.schedule.engine.instruction import Instruction
from blockwright.schedule.engine.record import Primitive, fields_of
from blockwright.schedule.engine.remap_handles import used_handles
from blockwright.schedule.serialize.json import steps_as_json, steps_from_json
from blockwright.schedule.serialize.python import steps_as_python
from blockwright.schedule.session import Session, Verify
from blockwright.support import ScheduleError


class Trace:
    """The steps of a schedule in order. Traces are immutable; each change makes another one."""

    def __init__(self, instructions: tuple[Instruction, ...] = ()) -> None:
        self.instructions = instructions

    def __len__(self) -> int:
        return len(self.instructions)

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions)

    def __repr__(self) -> str:
        return self.as_python()

    # ------------------------------------------------------------------ forms
    def as_python(self, schedule: str = "sch") -> str:
        """The calls that repeat the steps, one per line.

        They run where `schedule` is a schedule of the same program, and give the same program;
        `T` must be there too when an expression needs it (`T.min(n, 8)`).
        """
        return steps_as_python(self.instructions, schedule)

    def as_json(self) -> list[Any]:
        """Plain data: `[step, {parameter: value}, [handle, …]]` each, and the composite call."""
        return steps_as_json(self.instructions)

    @staticmethod
    def from_json(
        steps: list[Any], records: Mapping[str, type[Primitive]], func: ir.PrimFunc
    ) -> Trace:
        """A trace from its plain form; symbols are those of `func`, by name."""
        return Trace(steps_from_json(steps, records, func))

    # ------------------------------------------------------------------ replay
    def apply_to(
        self, func: ir.PrimFunc, *, verify: Verify = "check", seed: int | None = 0
    ) -> ir.PrimFunc:
        """The program that these steps make of `func`; `seed` is for draws without a decision."""
        core = Session({func.name: func}, verify, seed)
        core.replay(self.instructions)
        return core.functions[func.name]

    # ------------------------------------------------------------------ decisions
    @property
    def decisions(self) -> dict[int, Any]:
        """What was drawn, by the number of the step that drew it."""
        return {
            number: getattr(step.record, "decision")  # noqa: B009  only records that draw have it
            for number, step in enumerate(self.instructions)
            if _draws(step.record)
        }

    def with_decision(self, number: int, decision: Any) -> Trace:
        """The trace with another decision at a step that draws; None to draw anew on replay."""
        if not (0 <= number < len(self) and _draws(self.instructions[number].record)):
            known = ", ".join(map(str, self.decisions)) or "none"
            raise ScheduleError(
                f"step {number} of the trace draws nothing",
                code="BW306",
                help=f"steps that draw: {known}",
            )
        step = self.instructions[number]
        record = msgspec.structs.replace(step.record, decision=_frozen(decision))
        changed = msgspec.structs.replace(step, record=record)
        before, after = self.instructions[:number], self.instructions[number + 1 :]
        return Trace((*before, changed, *after))

    def without_decisions(self) -> Trace:
        """The trace that draws everything anew."""
        result = self
        for number in self.decisions:
            result = result.with_decision(number, None)
        return result

    # ------------------------------------------------------------------ dead steps
    def simplified(self) -> Trace:
        """The trace without queries and draws whose results nothing uses.

        Steps that change the program stay, and so do queries that feed them.
        """
        used: set[Handle] = set()
        kept: list[Instruction] = []
        for step in reversed(self.instructions):
            if step.record.pure and used.isdisjoint(step.outputs):
                continue
            used.update(used_handles(step.record))
            kept.append(step)
        return Trace(tuple(reversed(kept)))


def _draws(record: Primitive) -> bool:
    return any(name == "decision" for name, _ in fields_of(type(record)))


def _frozen(decision: Any) -> Any:
    return tuple(cast("list[Any]", decision)) if isinstance(decision, list) else decision

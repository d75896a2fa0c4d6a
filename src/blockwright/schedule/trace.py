"""Traces: the steps of a schedule as records, to inspect, serialize, edit and replay."""

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
    """The steps of a schedule in order. Traces are immutable; each edit returns a new one."""

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
        """Python calls that repeat the steps, one per line.

        They run where the variable `schedule` is a schedule of the same program, and produce the
        same result. An expression such as `T.min(n, 8)` also needs `T` in scope.
        """
        return steps_as_python(self.instructions, schedule)

    def as_json(self) -> list[Any]:
        """JSON data: `[step, {parameter: value}, [handle, …]]` per step, plus the composite call
        as `[number, text]` where there is one."""
        return steps_as_json(self.instructions)

    @staticmethod
    def from_json(
        steps: list[Any], records: Mapping[str, type[Primitive]], func: ir.PrimFunc
    ) -> Trace:
        """Deserialize a trace; symbols are resolved in `func` by name."""
        return Trace(steps_from_json(steps, records, func))

    # ------------------------------------------------------------------ replay
    def apply_to(
        self, func: ir.PrimFunc, *, verify: Verify = "check", seed: int | None = 0
    ) -> ir.PrimFunc:
        """Apply the steps to `func`; `seed` is for sampling steps without a decision."""
        core = Session({func.name: func}, verify, seed)
        core.replay(self.instructions)
        return core.functions[func.name]

    # ------------------------------------------------------------------ decisions
    @property
    def decisions(self) -> dict[int, Any]:
        """The sampling decisions, by step number."""
        return {
            number: getattr(step.record, "decision")  # noqa: B009  only sampling steps have it
            for number, step in enumerate(self.instructions)
            if _draws(step.record)
        }

    def with_decision(self, number: int, decision: Any) -> Trace:
        """The trace with another decision at a sampling step; None to resample on replay."""
        if not (0 <= number < len(self) and _draws(self.instructions[number].record)):
            known = ", ".join(map(str, self.decisions)) or "none"
            raise ScheduleError(
                f"step {number} of the trace is not a sampling step",
                code="BW306",
                help=f"sampling steps: {known}",
            )
        step = self.instructions[number]
        record = msgspec.structs.replace(step.record, decision=_frozen(decision))
        changed = msgspec.structs.replace(step, record=record)
        before, after = self.instructions[:number], self.instructions[number + 1 :]
        return Trace((*before, changed, *after))

    def without_decisions(self) -> Trace:
        """The trace without decisions: replay resamples all of them."""
        result = self
        for number in self.decisions:
            result = result.with_decision(number, None)
        return result

    # ------------------------------------------------------------------ dead steps
    def simplified(self) -> Trace:
        """The trace without queries and sampling steps whose results are unused.

        Steps that change the program stay, and so do the queries they use.
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

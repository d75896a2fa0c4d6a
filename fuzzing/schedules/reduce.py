"""Reduce a case to the smallest one found that fails in the same way.

First steps are removed, the latest first, each with those that use its handles; then the program
shrinks (`shrink`). A candidate is accepted if it fails with the same symptom. Candidates need not
be valid: an invalid program does not count as failing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import cast

import msgspec

from blockwright import ir
from blockwright.schedule import BlockRV, Handle, Schedule, ScheduleError, Trace
from blockwright.schedule.engine.instruction import Instruction
from blockwright.schedule.engine.remap_handles import translated, used_handles
from blockwright.schedule.primitive.get_block import GetBlock
from fuzzing.schedules.case import Case
from fuzzing.schedules.shrink import smaller

Fails = Callable[[Case], bool]


def reduced(case: Case, fails: Fails, seconds: float = 60) -> Case:
    """Reduce a case until no candidate fails in the same way.

    Args:
        case: the failing case.
        fails: whether a candidate fails in the same way.
        seconds: time limit, after which the best case so far is returned.
    """
    deadline = time.monotonic() + seconds
    named = by_names(case)
    best = named if named is not None and fails(named) else case
    while time.monotonic() < deadline:
        for candidate in _candidates(best):
            if time.monotonic() >= deadline:
                break
            if fails(candidate):
                best = candidate
                break
        else:
            break
    return best


def _candidates(case: Case) -> Iterator[Case]:
    yield from _fewer_steps(case)
    for program in smaller(case.program):
        yield msgspec.structs.replace(case, program=program)


def _fewer_steps(case: Case) -> Iterator[Case]:
    """The case without one of its steps and those that depend on it, last steps first."""
    for number in reversed(range(len(case.steps))):
        if case.steps[number].record.pure:
            continue
        yield msgspec.structs.replace(case, steps=without(case.steps, number))


def without(steps: tuple[Instruction, ...], number: int) -> tuple[Instruction, ...]:
    """The steps without one, without those that use its handles, and without unused queries."""
    gone: set[Handle] = set(steps[number].outputs)
    kept = list(steps[:number])
    for step in steps[number + 1 :]:
        if gone.isdisjoint(used_handles(step.record)):
            kept.append(step)
        else:
            gone.update(step.outputs)
    return _simplified(tuple(kept))


def _simplified(steps: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    return Trace(steps).simplified().instructions


def by_names(case: Case) -> Case | None:
    """Replace all other block queries of the case by `get_block`.

    The result of a query depends on the whole program, a name does not: with names, unrelated
    stages can be removed. None if the steps do not run or names are not unique.
    """
    sch = Schedule(case.program)
    done: list[Instruction] = []
    known: dict[Handle, Handle] = {}
    for step in case.steps:
        if step is case.steps[-1] and case.phase == "step":
            done.append(step)  # the failing step
            break
        try:
            result = _repeat(sch, step, known)
        except Exception:  # noqa: BLE001  keep the steps as they were
            return None
        asked = step.record.pure and step.record.returns == "blocks"
        if not asked:
            done.append(step)
            continue
        names = {b.name for b in ir.blocks(sch.func)}
        for mine, theirs in zip(step.outputs, result, strict=True):
            node = sch.get(theirs)
            assert isinstance(mine, BlockRV)
            assert isinstance(node, ir.Block)
            if node.name not in names or not _unique(sch, node.name):
                return None
            done.append(Instruction(GetBlock(node.name), (mine,)))
    return msgspec.structs.replace(case, steps=_simplified(tuple(done)))


def _unique(sch: Schedule, name: str) -> bool:
    try:
        sch.get_block(name)
    except ScheduleError:
        return False
    return True


def _repeat(sch: Schedule, step: Instruction, known: dict[Handle, Handle]) -> list[Handle]:
    """Apply a step of a trace to a schedule; add its handles to `known`."""
    given = sch.take(translated(step.record, known, sch.func))
    result: list[Handle] = []
    if given is not None:
        result = cast("list[Handle]", given if isinstance(given, list) else [given])
    known.update(zip(step.outputs, result, strict=True))
    return result

"""Rank plans by the cost model's estimate of what they schedule; refuse plans that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from blockwright import ir
from blockwright.cost import estimate
from blockwright.schedule import Schedule
from blockwright.strategies.strategy import Plan
from blockwright.support import ScheduleError
from blockwright.target import Target

P = TypeVar("P", bound=Plan)


def ranked(
    func: ir.PrimFunc,
    target: Target,
    apply: Callable[[Schedule, Target, P], None],
    best: P,
    others: Iterable[P],
) -> Iterator[P]:
    """The best plan, then the others that schedule the program, in order of predicted time.

    The others are scheduled when the second plan is asked for. Plans with the schedule of an
    earlier one are dropped. Symbolic sizes are estimated at typical values.
    """
    yield best
    done: set[str] = set()
    timed: list[tuple[float, P]] = []
    for plan in (best, *others):
        sch = Schedule(func)
        try:
            apply(sch, target, plan)
        except ScheduleError:
            continue
        steps = sch.trace.as_python()
        if steps not in done and plan is not best:
            timed.append((estimate(sch.func, target).seconds, plan))
        done.add(steps)
    yield from (plan for _, plan in sorted(timed, key=lambda entry: entry[0]))


def refuse_below_one(plan: msgspec.Struct, *names: str) -> None:
    """Check that fields of a plan are at least one.

    Raises: ScheduleError BW342: one is not.
    """
    for name in names:
        if getattr(plan, name) < 1:
            raise misfit(f"{name}={getattr(plan, name)}", f"give a {name} of at least 1")


def misfit(what: str, remedy: str) -> ScheduleError:
    """The error for a plan that does not fit a program."""
    return ScheduleError(f"the plan does not fit the program: {what}", code="BW342", help=remedy)

"""Schedule strategies: their interface, and the driver that tries them in order.

A strategy looks at one tensor program and either schedules it or returns the reason why it does not
apply. It uses schedule primitives only, so every decision is in the trace and can be printed,
changed and replayed.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from blockwright import ir
from blockwright.schedule import Schedule, Trace
from blockwright.strategies.match.blocks import has_empty_axis
from blockwright.strategies.multiversion import chosen_at_entry
from blockwright.support import ScheduleError
from blockwright.support.stack import deep, has_room
from blockwright.target import Target


class Variant(msgspec.Struct, frozen=True):
    """Another schedule of a program, for the sizes that satisfy the condition `when`."""

    when: ir.Expr
    apply: Callable[[Schedule, Target], None]


def _none(func: ir.PrimFunc, target: Target) -> Sequence[Variant]:
    return ()


class Strategy(msgspec.Struct, frozen=True):
    """A named schedule strategy.

    Attributes:
        name: for traces, notes and `disabled_strategies`.
        refuses: returns the reason why the program does not match; "" if it does.
        apply: schedules the program in place.
        note: text for the user when the strategy was used; "" for none.
        variants: other schedules for some sizes. The first one whose condition holds at a call is
            run; the schedule of `apply` serves all other sizes.
    """

    name: str
    refuses: Callable[[ir.PrimFunc, Target], str]
    apply: Callable[[Schedule, Target], None]
    note: str = ""
    variants: Callable[[ir.PrimFunc, Target], Sequence[Variant]] = _none


class StrategyResult(msgspec.Struct, frozen=True):
    """A scheduled program.

    Attributes:
        strategy: name of the strategy that scheduled it.
        trace: of the schedule for all sizes without a variant.
        note: text for the user.
        variants: conditions on sizes, each with the trace of its schedule.
        refusals: the strategies that were tried before, each with the reason why it does not match.
        faults: strategies that raised an unexpected exception, each with its location. A fault is a
            bug in the strategy, not in the program.
    """

    func: ir.PrimFunc
    strategy: str
    trace: Trace
    note: str = ""
    variants: tuple[tuple[ir.Expr, Trace], ...] = ()
    refusals: tuple[tuple[str, str], ...] = ()
    faults: tuple[tuple[str, str], ...] = ()


class _Asked(msgspec.Struct):
    """Outcomes of the strategies so far; the fields are those of `StrategyResult`."""

    notes: list[str] = []
    refusals: list[tuple[str, str]] = []
    faults: list[tuple[str, str]] = []


@deep
def try_strategies(rules: Sequence[Strategy], func: ir.PrimFunc, target: Target) -> StrategyResult:
    """Schedule the program with the first strategy that matches it.

    If the checker rejects a step of a matching strategy, the note says so, and the next strategy is
    tried; the last strategy matches everything. If a step of a variant is rejected, the strategy
    goes without that variant. Any other exception is a bug in the strategy: it is recorded in
    `faults`, and the next strategy is tried, so that the program compiles all the same.
    """
    if has_empty_axis(func):
        return StrategyResult(func, "empty", Schedule(func).trace)
    asked = _Asked()
    for rule in rules:
        try:
            result = _tried(rule, func, target, asked)
        except Exception as error:
            if isinstance(error, RecursionError) and not has_room():
                raise  # not a bug in the strategy: it is retried with a larger stack
            asked.faults.append((rule.name, _fault(error)))
            result = None
        if result is not None:
            return result
    sch = Schedule(func)
    asked.notes = asked.notes or ["no strategy applies"]
    return _result(asked, sch.func, "unscheduled", sch.trace)


def _tried(
    rule: Strategy, func: ir.PrimFunc, target: Target, asked: _Asked
) -> StrategyResult | None:
    """Try one strategy; None if it does not schedule the program, with the reason in `asked`."""
    if reason := rule.refuses(func, target):
        asked.refusals.append((rule.name, reason))
        return None
    sch = _scheduled(func, rule.apply, target, f"strategy {rule.name}", asked.notes)
    if sch is None:
        return None
    notes = [rule.note] if rule.note else []
    others: list[tuple[ir.Expr, Schedule]] = []
    try:
        for variant in rule.variants(func, target):
            name = f"strategy {rule.name}, where {variant.when!r},"
            other = _scheduled(func, variant.apply, target, name, notes)
            others += [] if other is None else [(variant.when, other)]
    except Exception as error:
        if isinstance(error, RecursionError) and not has_room():
            raise
        asked.faults.append((rule.name, _fault(error)))
    result = chosen_at_entry(sch.func, [(when, other.func) for when, other in others])
    asked.notes += notes
    return _result(
        asked, result, rule.name, sch.trace, tuple((when, other.trace) for when, other in others)
    )


def _result(
    asked: _Asked,
    func: ir.PrimFunc,
    rule: str,
    trace: Trace,
    variants: tuple[tuple[ir.Expr, Trace], ...] = (),
) -> StrategyResult:
    return StrategyResult(
        func,
        rule,
        trace,
        "; ".join(asked.notes),
        variants,
        tuple(asked.refusals),
        tuple(asked.faults),
    )


def _fault(error: Exception) -> str:
    """Describe an exception: its text, the strategy's line on the stack, and the raising line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "strategies" in Path(f.filename).parts]
    lines = dict.fromkeys((Path(f.filename), f.lineno) for f in (*own[-1:], frames[-1]))
    place = ", ".join(f"{'/'.join(file.parts[-2:])}:{line}" for file, line in lines)
    text = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__} at {place}: {text}".rstrip(": ")


def _scheduled(
    func: ir.PrimFunc,
    apply: Callable[[Schedule, Target], None],
    target: Target,
    name: str,
    notes: list[str],
) -> Schedule | None:
    """Schedule the program; None, with a note, if the checker rejects a step."""
    sch = Schedule(func)
    try:
        apply(sch, target)
    except ScheduleError as error:
        notes.append(f"{name} gave up: [{error.code}] {error.message.splitlines()[0]}")
        return None
    return sch

"""What a schedule rule is, and how rules are tried.

A rule looks at one tensor program and either writes a schedule for it or says why it does not
apply. It works only through schedule primitives, so each decision stands in the trace, can be
printed, changed and replayed.
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
    """Another schedule of a program, for some of its sizes: `when`, a condition on them."""

    when: ir.Expr
    apply: Callable[[Schedule, Target], None]


def _none(func: ir.PrimFunc, target: Target) -> Sequence[Variant]:
    return ()


class Strategy(msgspec.Struct, frozen=True):
    """A named rule.

    Attributes:
        name: for traces, notes and `disabled_strategies`.
        refuses: reason why the program is not this rule's business; "" when it is.
        apply: schedules the program in place.
        note: what to tell the user when the rule was used; "" for nothing.
        variants: other schedules for some sizes, the first of which that applies is taken when the
            program is called; `apply` makes the one for all others.
    """

    name: str
    refuses: Callable[[ir.PrimFunc, Target], str]
    apply: Callable[[Schedule, Target], None]
    note: str = ""
    variants: Callable[[ir.PrimFunc, Target], Sequence[Variant]] = _none


class StrategyResult(msgspec.Struct, frozen=True):
    """A scheduled program.

    Attributes:
        strategy: that made it.
        trace: of the schedule for all sizes that no variant is for.
        note: what the user should know.
        variants: conditions on sizes, and the traces of the schedules for these.
        refusals: the rules that were asked before, and why each said no.
        faults: rules that broke off with an error of their own, and where: faults of a rule, not of
            the program.
    """

    func: ir.PrimFunc
    strategy: str
    trace: Trace
    note: str = ""
    variants: tuple[tuple[ir.Expr, Trace], ...] = ()
    refusals: tuple[tuple[str, str], ...] = ()
    faults: tuple[tuple[str, str], ...] = ()


class _Asked(msgspec.Struct):
    """What has become of the rules so far; the fields are those of `StrategyResult`."""

    notes: list[str] = []
    refusals: list[tuple[str, str]] = []
    faults: list[tuple[str, str]] = []


@deep
def try_strategies(rules: Sequence[Strategy], func: ir.PrimFunc, target: Target) -> StrategyResult:
    """The first rule that takes the program schedules it.

    A rule that takes a program and then meets a step the checker refuses is reported in the note,
    and the next rule is tried; the last rule takes everything. Where that happens to a variant, the
    rule does without it. A rule that fails in any other way has a fault, which stands in `faults`;
    the program can be compiled all the same, because the next rule is tried for it too.
    """
    if has_empty_axis(func):
        return StrategyResult(func, "empty", Schedule(func).trace)
    asked = _Asked()
    for rule in rules:
        try:
            result = _tried(rule, func, target, asked)
        except Exception as error:
            if isinstance(error, RecursionError) and not has_room():
                raise  # no fault of the rule: it is tried again with a larger stack
            asked.faults.append((rule.name, _fault(error)))
            result = None
        if result is not None:
            return result
    sch = Schedule(func)
    asked.notes = asked.notes or ["no rule applies"]
    return _result(asked, sch.func, "unscheduled", sch.trace)


def _tried(
    rule: Strategy, func: ir.PrimFunc, target: Target, asked: _Asked
) -> StrategyResult | None:
    """What one rule makes of a program; None, and the reason in `asked`, where it makes nothing."""
    if reason := rule.refuses(func, target):
        asked.refusals.append((rule.name, reason))
        return None
    sch = _scheduled(func, rule.apply, target, f"rule {rule.name}", asked.notes)
    if sch is None:
        return None
    notes = [rule.note] if rule.note else []
    others: list[tuple[ir.Expr, Schedule]] = []
    try:
        for variant in rule.variants(func, target):
            name = f"rule {rule.name}, where {variant.when!r},"
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
    """An error, the rule's line that led to it, and the one that raised it."""
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
    """The program's schedule; None, and a note, where the checker refuses a step."""
    sch = Schedule(func)
    try:
        apply(sch, target)
    except ScheduleError as error:
        notes.append(f"{name} gave up: [{error.code}] {error.message.splitlines()[0]}")
        return None
    return sch

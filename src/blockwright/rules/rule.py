"""What a schedule rule is, and how rules are tried.

A rule looks at one tensor program and either writes a schedule for it or says why it does not
apply. It works only through schedule primitives, so each decision stands in the trace, can be
printed, changed and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from blockwright import ir
from blockwright.rules.facts import has_empty_axis
from blockwright.schedule import Schedule, Trace
from blockwright.support import ScheduleError
from blockwright.target import Target


class Rule(msgspec.Struct, frozen=True):
    """A named rule.

    Attributes:
        name: for traces, notes and `disabled_rules`.
        refuses: reason why the program is not this rule's business; "" when it is.
        apply: schedules the program in place.
        note: what to tell the user when the rule was used; "" for nothing.
    """

    name: str
    refuses: Callable[[ir.PrimFunc, Target], str]
    apply: Callable[[Schedule, Target], None]
    note: str = ""


class RuleResult(msgspec.Struct, frozen=True):
    """A scheduled program: the rule that made it, its trace, and what the user should know."""

    func: ir.PrimFunc
    rule: str
    trace: Trace
    note: str = ""


def try_rules(rules: Sequence[Rule], func: ir.PrimFunc, target: Target) -> RuleResult:
    """The first rule that takes the program schedules it.

    A rule that takes a program and then meets a step the checker refuses is reported in the note,
    and the next rule is tried; the last rule takes everything.
    """
    notes: list[str] = []
    if has_empty_axis(func):
        return RuleResult(func, "empty", Schedule(func).trace)
    for rule in rules:
        if rule.refuses(func, target):
            continue
        sch = Schedule(func)
        try:
            rule.apply(sch, target)
        except ScheduleError as error:
            reason = error.message.splitlines()[0]
            notes.append(f"rule {rule.name} gave up: [{error.code}] {reason}")
            continue
        notes += [rule.note] if rule.note else []
        return RuleResult(sch.func, rule.name, sch.trace, "; ".join(notes))
    sch = Schedule(func)
    return RuleResult(sch.func, "unscheduled", sch.trace, "; ".join(notes) or "no rule applies")

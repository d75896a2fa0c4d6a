"""Schedule strategies: their interface, and the driver that tries them in order.

A strategy matches a tensor program, proposes plans for it, best first, and schedules it by one:

    match(program, target) → facts, or the reason why the strategy does not apply
    plans(facts, target)   → records of named decisions, ranked by the cost model
    apply(schedule, target, plan)

Without tuning, the first plan is used. A plan is a value: it can be printed, stored as JSON,
changed, and given to `apply_plan`. `apply` uses schedule primitives only, so the trace shows what
the plan led to.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from blockwright import ir
from blockwright.schedule import Schedule, Trace
from blockwright.strategies.match.blocks import has_empty_axis
from blockwright.strategies.multiversion import chosen_at_entry
from blockwright.support import ScheduleError
from blockwright.support.stack import deep, has_room
from blockwright.target import Target


class Plan(msgspec.Struct, frozen=True):
    """Named decisions of a strategy for one program.

    Subclasses are frozen records of numbers, names and other such records.
    """

    def to_json(self) -> str:
        """The decisions as a JSON object; `Strategy.plan_from_json` reads it."""
        return msgspec.json.encode(self).decode()


class NoDecision(Plan, frozen=True):
    """The plan of a strategy that has one schedule for a program."""


class Refused(msgspec.Struct, frozen=True):
    """The reason why a strategy does not apply to a program."""

    reason: str


Facts = TypeVar("Facts")
P = TypeVar("P", bound=Plan)


def facts_unless(
    why_not: Callable[[ir.PrimFunc, Target], str],
) -> Callable[[ir.PrimFunc, Target], ir.PrimFunc | Refused]:
    """The `match` of a strategy whose facts are the program itself.

    `why_not` returns the reason against it; "" if there is none.
    """

    def match(func: ir.PrimFunc, target: Target) -> ir.PrimFunc | Refused:
        reason = why_not(func, target)
        return Refused(reason) if reason else func

    return match


def _first(facts: Any, target: Target) -> Iterable[Any]:
    return (NoDecision(),)


def _none(facts: Any, target: Target) -> Sequence[Any]:
    return ()


class FusedTime(NamedTuple):
    """Predicted seconds of two programs in one kernel, and of a kernel for each."""

    together: float
    apart: float


def _loads_nothing(func: ir.PrimFunc, operand: int, target: Target) -> bool:
    return False


def _joins_nothing(
    producer: ir.PrimFunc, consumer: ir.PrimFunc, operand: int, target: Target
) -> FusedTime | None:
    return None


class Fusion(msgspec.Struct, frozen=True):
    """What a strategy computes in one kernel with a program; operator fusion asks for it.

    Attributes:
        computes_operand: whether the strategy, which matches `func`, computes a light producer of
            the operand `func.buffers[operand]` once per element, while it loads the operand.
        joins: predicted times if the strategy schedules a producer that reduces, too, in one kernel
            with the consumer that reads it as `consumer.buffers[operand]`; None if it does not.
    """

    computes_operand: Callable[[ir.PrimFunc, int, Target], bool] = _loads_nothing
    joins: Callable[[ir.PrimFunc, ir.PrimFunc, int, Target], FusedTime | None] = _joins_nothing


class Strategy(msgspec.Struct, Generic[Facts, P], frozen=True):
    """A named schedule strategy.

    Attributes:
        name: for traces, notes and `disabled_strategies`.
        match: returns facts about a program that it can schedule; `Refused` for others.
        apply: schedules a program in place by a plan.
        plan: the type of its plans.
        plans: plans for a program, the one that the cost model prefers first.
        note: text for the user when the strategy was used; "" for none.
        variants: plans for some sizes, each with its condition. The first one whose condition holds
            at a call is run; the first of `plans` serves all other sizes.
        fusion: what it computes in one kernel with the programs that it matches.
    """

    name: str
    match: Callable[[ir.PrimFunc, Target], Facts | Refused]
    apply: Callable[[Schedule, Target, P], None]
    plan: type[P] = NoDecision  # type: ignore[assignment]
    plans: Callable[[Facts, Target], Iterable[P]] = _first
    note: str = ""
    variants: Callable[[Facts, Target], Sequence[tuple[ir.Expr, P]]] = _none
    fusion: Fusion = Fusion()

    def plan_from_json(self, text: str) -> P:
        """Read a plan that `Plan.to_json` wrote.

        Raises: ScheduleError BW340: the text is no plan of this strategy.
        """
        try:
            return msgspec.json.decode(text, type=self.plan)
        except msgspec.MsgspecError as error:
            raise ScheduleError(
                f"not a plan of strategy {self.name}: {error}",
                code="BW340",
                help=f"write it with to_json of a {self.plan.__name__}",
            ) from None


class StrategyResult(msgspec.Struct, frozen=True):
    """A scheduled program.

    Attributes:
        strategy: name of the strategy that scheduled it.
        plan: the decisions; None for programs without a strategy.
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
    plan: Plan | None = None
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
def try_strategies(
    rules: Sequence[Strategy[Any, Any]], func: ir.PrimFunc, target: Target
) -> StrategyResult:
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
        result = None
        with _recorded(asked, rule):
            result = _tried(rule, func, target, asked)
        if result is not None:
            return result
    sch = Schedule(func)
    asked.notes = asked.notes or ["no strategy applies"]
    return _result(asked, sch.func, "unscheduled", sch.trace)


def apply_plan(
    strategy: Strategy[Any, P], func: ir.PrimFunc, target: Target, plan: P
) -> StrategyResult:
    """Schedule a program by a given plan of a strategy.

    Raises: ScheduleError: a step is rejected; the plan does not fit the program or the target.
    """
    sch = Schedule(func)
    strategy.apply(sch, target, plan)
    return StrategyResult(sch.func, strategy.name, sch.trace, plan, strategy.note)


@contextmanager
def _recorded(asked: _Asked, rule: Strategy[Any, Any]) -> Generator[None, None, None]:
    """Record an exception as a fault of the strategy; a small stack is the driver's matter."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RecursionError) and not has_room():
            raise  # not a bug in the strategy: it is retried with a larger stack
        asked.faults.append((rule.name, fault_text(error)))


def _tried(
    rule: Strategy[Any, Any], func: ir.PrimFunc, target: Target, asked: _Asked
) -> StrategyResult | None:
    """Try one strategy; None if it does not schedule the program, with the reason in `asked`."""
    facts = rule.match(func, target)
    if isinstance(facts, Refused):
        asked.refusals.append((rule.name, facts.reason))
        return None
    name = f"strategy {rule.name}"
    with _given_up(name, asked.notes):
        plan = next(iter(rule.plans(facts, target)))
        sch = Schedule(func)
        rule.apply(sch, target, plan)
        return _with_variants(rule, func, facts, target, asked, (sch, plan))
    return None


def _with_variants(
    rule: Strategy[Any, Any],
    func: ir.PrimFunc,
    facts: Any,
    target: Target,
    asked: _Asked,
    first: tuple[Schedule, Plan],
) -> StrategyResult:
    """The scheduled program, with a version for each variant whose steps are accepted."""
    main, plan = first
    notes = [rule.note] if rule.note else []
    others: list[tuple[ir.Expr, Schedule]] = []
    with _recorded(asked, rule):
        for when, other in rule.variants(facts, target):
            with _given_up(f"strategy {rule.name}, where {when!r},", notes):
                sch = Schedule(func)
                rule.apply(sch, target, other)
                others.append((when, sch))
    result = chosen_at_entry(main.func, [(when, sch.func) for when, sch in others])
    asked.notes += notes
    traces = tuple((when, sch.trace) for when, sch in others)
    return _result(asked, result, rule.name, main.trace, plan, traces)


@contextmanager
def _given_up(name: str, notes: list[str]) -> Generator[None, None, None]:
    """Note a step that the checker rejects instead of raising."""
    try:
        yield
    except ScheduleError as error:
        notes.append(f"{name} gave up: [{error.code}] {error.message.splitlines()[0]}")


def _result(
    asked: _Asked,
    func: ir.PrimFunc,
    rule: str,
    trace: Trace,
    plan: Plan | None = None,
    variants: tuple[tuple[ir.Expr, Trace], ...] = (),
) -> StrategyResult:
    return StrategyResult(
        func,
        rule,
        trace,
        plan,
        "; ".join(asked.notes),
        variants,
        tuple(asked.refusals),
        tuple(asked.faults),
    )


def fault_text(error: Exception) -> str:
    """Describe an exception: its text, the strategy's line on the stack, and the raising line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "strategies" in Path(f.filename).parts]
    lines = dict.fromkeys((Path(f.filename), f.lineno) for f in (*own[-1:], frames[-1]))
    place = ", ".join(f"{'/'.join(file.parts[-2:])}:{line}" for file, line in lines)
    text = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__} at {place}: {text}".rstrip(": ")

"""Composite rules: functions that apply several steps and appear in the trace as one call.

    @composite
    def stage(sch: Schedule, block: BlockRV, buffer: str, scope: str, at: LoopRV) -> BlockRV:
        copy = sch.cache_read(block, buffer, scope)
        sch.compute_at(copy, at)
        return copy

The trace shows `# sch.stage(...)`, followed by the primitives; replay runs the primitives. If one
of them fails, the program is restored to its state before the call, and the error names the call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from blockwright.schedule.engine.state import explained
from blockwright.schedule.serialize.python import short_value

if TYPE_CHECKING:
    from blockwright.schedule.compose.methods import Compose

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
ScheduleT = TypeVar("ScheduleT", bound="Compose")


def composite(
    rule: Callable[Concatenate[ScheduleT, P], ResultT],
) -> Callable[Concatenate[ScheduleT, P], ResultT]:
    """Decorator: record the steps of `rule(sch, ...)` as one call, undone as a whole on failure."""

    @functools.wraps(rule)
    def call(sch: ScheduleT, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        with sch.as_one_call(_text(rule.__name__, args, kwargs)), explained(rule.__name__):
            return rule(sch, *args, **kwargs)

    return call


def _text(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    shown = [short_value(a) for a in args]
    shown += [f"{k}={short_value(v)}" for k, v in kwargs.items()]
    return f"{name}({', '.join(shown)})"

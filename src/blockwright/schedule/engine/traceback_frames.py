"""Tracebacks of refusals that end at the call that is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from blockwright.support import ScheduleError

VARIABLE = "BLOCKWRIGHT_TRACEBACK"
"""Environment variable: "full" keeps the scheduler's own frames, for those who work on it."""

P = ParamSpec("P")
R = TypeVar("R")


def ends_at_call(method: Callable[P, R]) -> Callable[P, R]:
    """The method, whose refusals show where it was called and not where it found out.

    What is refused, and why, is in the message; where the step was called is what a reader looks
    for.
    """

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except ScheduleError as error:
            if os.environ.get(VARIABLE) == "full":
                raise
            raise error.with_traceback(None) from None

    return call

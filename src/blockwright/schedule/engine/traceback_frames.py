"""Truncate tracebacks of schedule errors at the rejected call."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from blockwright.support import ScheduleError

VARIABLE = "BLOCKWRIGHT_TRACEBACK"
"""Environment variable: "full" keeps the scheduler's own frames, to debug the scheduler."""

P = ParamSpec("P")
R = TypeVar("R")


def ends_at_call(method: Callable[P, R]) -> Callable[P, R]:
    """Wrap a schedule method so that the traceback of a `ScheduleError` ends at its caller.

    The message says what was rejected and why; the traceback only has to show the call.
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

"""Run deeply recursive functions on a larger stack.

Programs are trees, and most passes traverse them recursively: a sum of 3,000 terms or 3,000 nested
statements needs more frames than Python allows by default, and possibly more stack than the calling
thread has. A function decorated with `@deep` first runs in the calling thread. If it raises
RecursionError, it is called again in a new thread with `BYTES` of stack and up to `FRAMES` frames.
Deeper recursion is rejected with BW001.

A decorated function may run twice, so it must be pure or undo its effects when it raises. Other
functions use `in_room`, which switches to the larger stack immediately.
"""

from __future__ import annotations

import contextvars
import ctypes
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from blockwright.support.errors import BlockwrightError

FRAMES = 100_000
"""Maximum number of Python frames of a deep call."""

BYTES = 512 << 20
"""Stack size of a deep call in bytes; only touched pages are committed.

A frame called from C code, such as `__call__`, uses up to 1 KiB of C stack; one called from
`sorted` uses up to 5 KiB.
"""

_COMMON = 5_000
"""Largest recursion limit for which the stack of an ordinary thread (8 MiB) suffices.

Above it (the user or another deep call raised the limit), Python might overflow the C stack before
it raises RecursionError, so deep calls switch to the larger stack immediately.
"""

P = ParamSpec("P")
R = TypeVar("R")

_lock = threading.Lock()
_rooms: set[int] = set()
"""Identifiers of the threads with the larger stack."""
_limit_before: list[int] = []


def deep(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: rerun the function on a larger stack if it raises RecursionError."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if sys.getrecursionlimit() <= _COMMON:
            try:
                return function(*args, **kwargs)
            except RecursionError:
                pass  # retry outside the handler, so that the failed frames are released
        return in_room(function, *args, **kwargs)

    return call


def in_room(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call the function on the larger stack and return its result.

    Raises: BlockwrightError BW001 if the program is nested too deeply even for that stack.
    """
    if has_room():
        return function(*args, **kwargs)
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    results: list[Any] = []
    errors: list[BaseException] = []
    thread = threading.Thread(target=_run, args=(call, results, errors), daemon=True)
    _start(thread, BYTES)
    _wait(thread)
    if not errors:
        return results[0]
    try:
        raise errors[0]
    except RecursionError as error:
        raise BlockwrightError(
            f"the program is nested too deeply: more than {FRAMES:,} calls for one walk",
            code="BW001",
            help="assign intermediate results to variables or buffers",
        ) from error.with_traceback(None)
    finally:
        errors.clear()


def has_room() -> bool:
    """Whether this thread has the larger stack. If so, a RecursionError is final."""
    return threading.get_ident() in _rooms


def start(thread: threading.Thread) -> None:
    """Start a thread with the same stack size as the calling thread."""
    if has_room():
        _start(thread, BYTES)
    else:
        thread.start()


def _run(call: Callable[[], Any], results: list[Any], errors: list[BaseException]) -> None:
    """Thread body: run the call under the raised recursion limit and store its outcome."""
    me = threading.get_ident()
    with _lock:
        if not _rooms:
            _limit_before[:] = [sys.getrecursionlimit()]
            sys.setrecursionlimit(max(FRAMES, _limit_before[0]))
        _rooms.add(me)
    try:
        results.append(call())
    except BaseException as error:  # noqa: BLE001  re-raised in the calling thread
        errors.append(error)
    finally:
        with _lock:
            _rooms.discard(me)
            if not _rooms:
                sys.setrecursionlimit(_limit_before[0])


def _start(thread: threading.Thread, size: int) -> None:
    with _lock:
        before = threading.stack_size(size)
        try:
            thread.start()
        except RuntimeError as error:
            raise BlockwrightError(
                "the program is nested too deeply for this thread, and no thread with "
                f"{size >> 20} MiB of stack can be started",
                code="BW001",
                help="allow the process more virtual memory (ulimit -v)",
            ) from error
        finally:
            threading.stack_size(before)


def _wait(thread: threading.Thread) -> None:
    """Join the thread. An interrupt of the caller, such as Ctrl-C, is forwarded to it."""
    try:
        thread.join()
    except BaseException as error:
        number = ctypes.c_ulong(thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(type(error)))
        thread.join()
        raise

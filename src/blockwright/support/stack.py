"""A larger stack for deep programs, taken when the caller's is used up.

Programs are trees, and most passes walk them by recursion: a sum of 3,000 terms or a chain of 3,000
nested statements needs more frames than Python allows by default, and more stack than the thread of
the caller may have. A function marked `@deep` runs in the caller's thread as long as that suffices.
When it ends in a RecursionError it is called again in a thread of its own with `BYTES` of stack,
where `FRAMES` frames are allowed; what is deeper than that is refused with BW001.

A marked function must be one that can be called twice: it computes a result from its arguments, or
takes back what it did when it raises. (`in_room` takes the larger stack at once, for the others.)
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
"""Python frames that a deep call may have."""

BYTES = 512 << 20
"""Stack of a deep call; only what it touches becomes memory.

A frame whose caller is C code, such as `__call__`, takes up to 1 KiB of C stack, one that is called
by `sorted` up to 5 KiB.
"""

_COMMON = 5_000
"""A recursion limit up to which the stack of an ordinary thread (8 MiB) suffices.

Where the limit is higher, because the user or another deep call has raised it, Python might
overflow the C stack before it raises RecursionError: deep calls take the larger stack at once.
"""

P = ParamSpec("P")
R = TypeVar("R")

_lock = threading.Lock()
_rooms: set[int] = set()
"""Threads that have the larger stack."""
_limit_before: list[int] = []


def deep(function: Callable[P, R]) -> Callable[P, R]:
    """Call the function with a larger stack when the caller's does not suffice."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if sys.getrecursionlimit() <= _COMMON:
            try:
                return function(*args, **kwargs)
            except RecursionError:
                pass  # called again below, without the frames of the attempt
        return in_room(function, *args, **kwargs)

    return call


def in_room(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """The function's result, computed with the larger stack.

    Raises: BlockwrightError BW001 for what is nested too deeply even so.
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
            help="give intermediate results names or buffers of their own",
        ) from error.with_traceback(None)
    finally:
        errors.clear()


def has_room() -> bool:
    """Whether this thread has the larger stack, so that a RecursionError is final here."""
    return threading.get_ident() in _rooms


def start(thread: threading.Thread) -> None:
    """Start a thread with a stack as large as the caller's."""
    if has_room():
        _start(thread, BYTES)
    else:
        thread.start()


def _run(call: Callable[[], Any], results: list[Any], errors: list[BaseException]) -> None:
    """Body of a thread with the larger stack."""
    me = threading.get_ident()
    with _lock:
        if not _rooms:
            _limit_before[:] = [sys.getrecursionlimit()]
            sys.setrecursionlimit(max(FRAMES, _limit_before[0]))
        _rooms.add(me)
    try:
        results.append(call())
    except BaseException as error:  # noqa: BLE001  raised again in the caller's thread
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
    """Wait for the thread's end; what interrupts the caller, such as Ctrl-C, interrupts it too."""
    try:
        thread.join()
    except BaseException as error:
        number = ctypes.c_ulong(thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(type(error)))
        thread.join()
        raise

"""Run work in forked processes, one per item; crashes and hangs are reported as results."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


TOO_SLOW = "too slow"


class Death(msgspec.Struct, frozen=True):
    """A process that returned no result: how it ended, or that it took too long."""

    why: str


class _Running(msgspec.Struct, frozen=True, eq=False):
    item: Any
    pid: int
    answers: Connection
    deadline: float


def isolated(work: Callable[[], T], seconds: float = 60) -> T | Death:
    """The result of `work()`, run in a separate process."""
    running = _start(None, lambda _: work(), seconds)
    while not wait([running.answers], max(0.0, running.deadline - time.monotonic())):
        if time.monotonic() >= running.deadline:
            break
    return _answer(running)


def in_processes(
    work: Callable[[T], Any], items: Iterable[T], jobs: int, seconds: float
) -> Iterator[tuple[T, Any]]:
    """Yield `(item, work(item))` in order of completion, `jobs` at a time; `Death` on a crash.

    Items are drawn on demand, so the supply may be infinite.
    """
    supply, running = iter(items), list[_Running]()
    try:
        while True:
            while len(running) < jobs:
                item = next(supply, None)
                if item is None:
                    break
                running.append(_start(item, work, seconds))
            if not running:
                return
            soonest = min(r.deadline for r in running)
            ready = wait([r.answers for r in running], max(0.0, soonest - time.monotonic()))
            now = time.monotonic()
            for one in [r for r in running if r.answers in ready or now >= r.deadline]:
                running.remove(one)
                yield one.item, _answer(one)
    finally:
        for one in running:
            _end(one)


def _start(item: Any, work: Callable[[Any], Any], seconds: float) -> _Running:
    receiver, sender = Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        sender.close()
        return _Running(item, pid, receiver, time.monotonic() + seconds)
    status = 1
    try:
        receiver.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts
        sender.send(work(item))
        status = 0
    except BrokenPipeError:
        pass  # the parent has ended and waits for no result
    except BaseException:  # noqa: BLE001  reported; no code of the parent may run here
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _answer(running: _Running) -> Any:
    """The result that the process sent, after waiting for its end."""
    if not running.answers.poll():
        _end(running)
        return Death(TOO_SLOW)
    try:
        result = running.answers.recv()
    except EOFError:
        _, status = os.waitpid(running.pid, 0)
        running.answers.close()
        number = os.waitstatus_to_exitcode(status)
        return Death(signal.Signals(-number).name if number < 0 else f"exit code {number}")
    os.waitpid(running.pid, 0)
    running.answers.close()
    return result


def _end(running: _Running) -> None:
    os.kill(running.pid, signal.SIGKILL)
    os.waitpid(running.pid, 0)
    running.answers.close()


def limit_memory(gibibytes: int = 6) -> None:
    """Limit further growth of this process's address space."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + gibibytes * 2**30, hard))

"""Branches of a condition that wait for each other: one half of the threads produces, one consumes.

Threads run in step as long as nothing parts them. Where a condition does, its branches are mostly
run one after the other. That is not enough where one waits at a counting barrier for what another
one does: such branches take turns, each running until it has to wait. Python threads hold their
places in the program, but only one of them ever runs.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence

from blockwright.support.stack import start


class _Cancelled(BaseException):
    """Ends a branch whose result is no longer wanted."""


class _Branch:
    """A branch that can be left in the middle and resumed."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.ended = False
        self.hopeless = False  # nothing that it waits for will come
        self.cancelled = False
        self.error: BaseException | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        context = contextvars.copy_context()  # NumPy keeps its error state there
        self._thread = threading.Thread(target=context.run, args=(self._run, act), daemon=True)
        self._started = False

    def _run(self, act: Callable[[], None]) -> None:
        self._go.acquire()
        try:
            act()
        except _Cancelled:
            pass
        except BaseException as error:  # noqa: BLE001  handed on to whoever resumed the branch
            self.error = error
        self.ended = True
        self._back.release()

    def resume(self) -> None:
        """Run until it ends or waits; raises what it raises."""
        if not self._started:
            self._started = True
            start(self._thread)
        self._go.release()
        self._back.acquire()
        if self.error is not None:
            raise self.error

    def pause(self) -> None:
        """Let others run."""
        self._back.release()
        self._go.acquire()
        if self.cancelled:
            raise _Cancelled

    def cancel(self) -> None:
        """End it wherever it is."""
        self.cancelled = True
        if self._started and not self.ended:
            self.resume()


class Branches:
    """The branches of a block that are open.

    Attributes:
        news: counts what somebody may have waited for.
    """

    def __init__(self) -> None:
        self.news = 0
        self._running: list[_Branch] = []

    def run(self, acts: Sequence[Callable[[], None]]) -> None:
        """Run branches until all have ended."""
        open_ = [_Branch(act) for act in acts]
        try:
            while open_:
                before, count = self.news, len(open_)
                for branch in list(open_):
                    self._resume(branch)
                    if branch.ended:
                        open_.remove(branch)
                if open_ and self.news == before and len(open_) == count and not self.wait():
                    for branch in open_:
                        branch.hopeless = True
        finally:
            for branch in open_:
                branch.cancel()

    def _resume(self, branch: _Branch) -> None:
        self._running.append(branch)
        try:
            branch.resume()
        finally:
            self._running.pop()

    def wait(self) -> bool:
        """Let other branches run; False when that is of no use."""
        if not self._running or self._running[-1].hopeless:
            return False
        branch = self._running[-1]
        branch.pause()
        return not branch.hopeless

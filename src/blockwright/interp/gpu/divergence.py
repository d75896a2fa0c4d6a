"""Run divergent branches that wait for each other, such as producer and consumer threads.

Threads run in lockstep until they diverge at a condition; its branches usually run one after the
other. That is not enough if one branch waits at a counting barrier for the other: such branches
alternate, each running until it must wait. They are implemented as Python threads that hold their
position in the program; only one of them runs at a time.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence

from blockwright.support.stack import start


class _Cancelled(BaseException):
    """Ends a branch whose result is no longer needed."""


class _Branch:
    """A branch that can be suspended and resumed."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.ended = False
        self.hopeless = False  # nothing can release its wait
        self.cancelled = False
        self.error: BaseException | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        context = contextvars.copy_context()  # holds NumPy's error state
        self._thread = threading.Thread(target=context.run, args=(self._run, act), daemon=True)
        self._started = False

    def _run(self, act: Callable[[], None]) -> None:
        self._go.acquire()
        try:
            act()
        except _Cancelled:
            pass
        except BaseException as error:  # noqa: BLE001  re-raised in `resume`
            self.error = error
        self.ended = True
        self._back.release()

    def resume(self) -> None:
        """Run until the branch ends or waits; re-raise its exception."""
        if not self._started:
            self._started = True
            start(self._thread)
        self._go.release()
        self._back.acquire()
        if self.error is not None:
            raise self.error

    def pause(self) -> None:
        """Suspend the branch and let others run."""
        self._back.release()
        self._go.acquire()
        if self.cancelled:
            raise _Cancelled

    def cancel(self) -> None:
        """End the branch at its current position."""
        self.cancelled = True
        if self._started and not self.ended:
            self.resume()


class Branches:
    """The open branches of a block.

    Attributes:
        news: counter of events that a branch may be waiting for.
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
        """Let other branches run; False if none of them can make progress."""
        if not self._running or self._running[-1].hopeless:
            return False
        branch = self._running[-1]
        branch.pause()
        return not branch.hopeless

"""One peer of a comparison, in its own process: ``python -m benchmarks.worker PEER CASE``.

The harness talks to it over standard input and output, one JSON object per line:

======== ================================== ==============================================
request  fields                             answer (always with ``ok``)
======== ================================== ==============================================
setup    ``options``                        ``about``: versions and settings of the peer
prepare  ``point``, ``warmup_s``            ``calls``: warm-up calls made; ``ready_s``: seconds to
                                            the end of the first call, without the subject's
                                            ``made_s`` if it has one; ``about`` as after setup
measure  ``budget_s``, ``min_calls``,       ``seconds``: one figure per call
         ``clock``, ``flush``
output   ``path``                           the last result, saved as ``.npy``; several results
                                            are concatenated
close                                       the process ends
======== ================================== ==============================================

An answer that is not ``ok`` has ``error`` and ``trace``.

Between requests the process sleeps in a read, so an idle peer uses no processor time. The output of
libraries goes to standard error and cannot disturb the protocol.

A case is a module with ``PEERS: dict[str, Callable[[options], Subject]]``; a plain name is looked
up in this package, a dotted name is imported unchanged.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

MAX_CALLS = 20_000
LONG_S = 4.0


class Subject(Protocol):
    """A peer: its description, and a prepared call for each point."""

    def about(self) -> dict[str, Any]: ...

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]: ...


def timed_calls(
    call: Callable[[], Any],
    budget_s: float,
    min_calls: int,
    clock: str = "wall",
    flush: Callable[[], None] | None = None,
) -> list[float]:
    """Call until ``budget_s`` has passed and ``min_calls`` were made; return seconds per call.

    If ``min_calls`` would take longer than `LONG_S`, fewer calls are made, but at least one.

    The clock "processor" counts the processor time of all threads of this process instead of
    elapsed time. ``flush`` runs before each call, outside its time.
    """
    now = {"wall": time.perf_counter, "processor": time.process_time}[clock]
    seconds: list[float] = []
    start = time.perf_counter()
    passed = 0.0
    while (
        not seconds
        or (len(seconds) < min_calls and passed < LONG_S)
        or (len(seconds) < MAX_CALLS and passed < budget_s)
    ):
        if flush is not None:
            flush()
        before = now()
        call()
        seconds.append(now() - before)
        passed = time.perf_counter() - start
    return seconds


class Flush:
    """Flushes the caches by writing more data than they hold, on every core."""

    def __init__(self, size: int) -> None:
        cores = len(os.sched_getaffinity(0))
        self._parts = [np.zeros(size // 4, np.float32) for _ in range(cores)]

    def __call__(self) -> None:
        threads = [Thread(target=_touch, args=(part,)) for part in self._parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _touch(part: NDArray[np.float32]) -> None:
    part += 1  # NumPy releases the interpreter lock here


def flat(result: Any) -> NDArray[Any]:
    """A result as one array; several results are concatenated."""
    if isinstance(result, (tuple, list)) or type(result).__name__ == "Array":
        return np.concatenate([flat(part).ravel() for part in result])
    return result.numpy() if hasattr(result, "numpy") else np.asarray(result)


def reason(error: Exception) -> str:
    """Type and message of an error; with the failing line if it has no message."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{frame.line} (line {frame.lineno} of {os.path.basename(frame.filename)})"
    return f"{type(error).__name__}: {error if str(error) else place}"


class Worker:
    """Answers the requests of one harness, in order."""

    def __init__(self, factory: Callable[[Mapping[str, Any]], Subject]) -> None:
        self.factory = factory
        self.subject: Subject | None = None
        self.call: Callable[[], Any] | None = None
        self.flush: Flush | None = None

    def setup(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.subject = self.factory(request["options"])
        return {"about": self.subject.about()}

    def prepare(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self.subject is None:
            raise RuntimeError("prepare before setup")
        start = time.perf_counter()
        self.call = self.subject.prepare(request["point"])
        self.call()
        made_s = getattr(self.subject, "made_s", 0.0)
        ready_s = time.perf_counter() - start - made_s
        calls = 1 + len(timed_calls(self.call, request["warmup_s"], 1))
        return {"calls": calls, "ready_s": ready_s, "about": self.subject.about()}

    def measure(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request["flush"] and self.flush is None:
            self.flush = Flush(request["flush"])
        flush = self.flush if request["flush"] else None  # this process may time both ways
        limits = request["budget_s"], request["min_calls"]
        return {"seconds": timed_calls(self._ready(), *limits, request["clock"], flush)}

    def output(self, request: Mapping[str, Any]) -> dict[str, Any]:
        np.save(request["path"], flat(self._ready()()))
        return {}

    def _ready(self) -> Callable[[], Any]:
        if self.call is None:
            raise RuntimeError("no point is prepared")
        return self.call


def main(peer: str, case: str) -> None:
    """Serve requests until ``close`` or the end of standard input."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # child processes of a library must not read it either
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    module = importlib.import_module(case if "." in case else f"benchmarks.{case}")
    worker = Worker(module.PEERS[peer])
    handlers: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
        "setup": worker.setup,
        "prepare": worker.prepare,
        "measure": worker.measure,
        "output": worker.output,
    }
    for line in requests:
        request = json.loads(line)
        if request["op"] == "close":
            break
        try:
            answer = {"ok": True, **handlers[request["op"]](request)}
        except Exception as error:  # noqa: BLE001  the harness raises it with the peer's name
            answer = {"ok": False, "error": reason(error), "trace": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

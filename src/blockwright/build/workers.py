"""A pool of worker processes, one per core, started when there are enough jobs."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from blockwright.build.worker import Answer, Job, read_message, write_message
from blockwright.support import BuildError

_WORTH_IT = 6
"""Smallest number of jobs that is sent to workers, because a worker takes some 0.3 s to start."""


class _Worker:
    """A worker process; used by one thread at a time."""

    def __init__(self) -> None:
        self.process = _start()

    def run(self, job: Job) -> bytes:
        try:
            write_message(cast(BinaryIO, self.process.stdin), msgspec.msgpack.encode(job))
            body = read_message(cast(BinaryIO, self.process.stdout))
        except OSError:
            body = None
        if body is None:
            status = self.process.wait()
            raise BuildError(
                f"the worker ended with status {status} while it processed {job.what}",
                code="BW641",
                help="compile again; if it happens again, please report the program",
            )
        answer = msgspec.msgpack.decode(body, type=Answer)
        if answer.message:
            raise BuildError(answer.message, code=answer.code)
        return answer.data

    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        if self.alive():
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def restart(self) -> None:
        """Replace a dead process."""
        self.stop()
        self.process = _start()


def _start() -> subprocess.Popen[bytes]:
    package_root = str(Path(__file__).resolve().parents[2])
    paths = [package_root, os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    return subprocess.Popen(
        [sys.executable, "-m", "blockwright.build.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


class WorkerPool:
    """Runs jobs in parallel. Workers live until `close` and are replaced when they die."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or len(os.sched_getaffinity(0))
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def worth_it(self, jobs: int) -> bool:
        """Whether this number of jobs is run by workers."""
        return self.count > 1 and jobs >= _WORTH_IT

    def start(self, job: Job) -> None:
        """Start a worker ahead of time with a job whose result is discarded. Does nothing when this
        process would run all jobs itself, or when a worker is idle."""
        with self._lock:
            if self.count == 1 or (self._idle and self._owner == os.getpid()):
                return

        def begin() -> None:
            worker = self._take()
            with contextlib.suppress(BuildError):
                worker.run(job)
            self._return_workers([worker])

        threading.Thread(target=begin, daemon=True).start()

    def run(
        self, jobs: Sequence[Job], done: Callable[[], None] | None = None, here: bool = False
    ) -> list[bytes]:
        """Run the jobs and return their results in order; `done` is called after each. With `here`,
        this process replaces one worker.

        Raises: the first BuildError; others are dropped.
        """
        progress = done or (lambda: None)
        if not self.worth_it(len(jobs)):
            results_here: list[bytes] = []
            for job in jobs:
                results_here.append(job.run())
                progress()
            return results_here
        results: list[bytes | BaseException | None] = [None] * len(jobs)
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        # Longest jobs first, to shorten the critical path.
        for index in sorted(range(len(jobs)), key=lambda i: -jobs[i].weight):
            waiting.put(index)
        busy = [self._take() for _ in range(min(self.count, len(jobs)) - here)]
        threads = [
            threading.Thread(
                target=self._serve, args=(w, jobs, waiting, results, progress), daemon=True
            )
            for w in busy
        ]
        try:
            for thread in threads:
                thread.start()
            if here:
                self._serve(None, jobs, waiting, results, progress)
            for thread in threads:
                thread.join()
        except BaseException:
            for worker in busy:
                worker.stop()
            raise
        self._return_workers(busy)
        out: list[bytes] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            assert result is not None
            out.append(result)
        return out

    def _serve(
        self,
        worker: _Worker | None,
        jobs: Sequence[Job],
        waiting: queue.SimpleQueue[int],
        results: list[bytes | BaseException | None],
        progress: Callable[[], None],
    ) -> None:
        while True:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                results[index] = worker.run(jobs[index]) if worker else jobs[index].run()
            except BuildError as error:
                results[index] = error
                if worker and not worker.alive():
                    worker.restart()
            progress()

    def _take(self) -> _Worker:
        with self._lock:
            if self._owner != os.getpid():  # after fork, the pipes belong to the parent
                self._idle, self._owner = [], os.getpid()
            while self._idle:
                worker = self._idle.pop()
                if worker.alive():
                    return worker
                worker.stop()
        return _Worker()

    def _return_workers(self, workers: Sequence[_Worker]) -> None:
        with self._lock:
            self._idle.extend(workers)

    def close(self) -> None:
        """Stop all idle workers."""
        with self._lock:
            workers, self._idle = self._idle, []
        if self._owner == os.getpid():
            for worker in workers:
                worker.stop()


POOL = WorkerPool()
atexit.register(POOL.close)

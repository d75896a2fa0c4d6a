"""Fair timing of several engines on one small machine.

Each peer has its own process for the whole comparison, so that allocators, thread pools and code
caches do not mix. Peers are timed in turns (A B A B ...), with a pause before each turn: slow
drifts of the machine (clock, neighbors) then affect all peers alike, and the previous peer has put
its threads to sleep. A peer that keeps a core busy outside its turn would spoil the figures of
others, so the processor time of idle peers is measured and reported. So is the time of all other
programs on the machine: spinning thread pools suffer from them out of proportion, and ratios
measured next to a busy program mean nothing.

A round's figure is the median of the calls of one turn; a peer's figure is the median over the
rounds. Peers must agree on the answer before anything is timed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import select
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
QUIET = 0.1
"""Number of cores that other programs may use before a result counts as disturbed."""


class PeerError(RuntimeError):
    """A peer failed or died; the message contains its traceback.

    ``title`` names the peer; ``reason`` is its error without the traceback.
    """

    def __init__(self, message: str, title: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.title = title
        self.reason = reason or message


@dataclass(frozen=True)
class Settings:
    """Duration and number of measurements.

    A turn lasts ``budget_s`` seconds and at least ``min_calls`` calls. The clock "processor" counts
    processor time instead of elapsed time: with one thread it compares the work that peers do, even
    next to busy programs, but says nothing about their use of several cores. Before every call each
    core writes ``flush`` bytes, so that caches are cold; 0 leaves the caches as they are. A request
    that takes longer than ``limit_s`` ends the peer.
    """

    rounds: int = 7
    budget_s: float = 0.4
    min_calls: int = 3
    pause_s: float = 0.15
    warmup_s: float = 0.5
    clock: str = "wall"
    flush: int = 0
    limit_s: float = 600.0


@dataclass(frozen=True)
class Peer:
    """One side of a comparison: its name in the case's ``PEERS``, and its options.

    ``python`` is its interpreter; ``label`` names it if one peer takes part twice.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    python: str = sys.executable
    label: str = ""

    @property
    def title(self) -> str:
        return self.label or self.name


@dataclass(frozen=True)
class Timing:
    """One peer at one point: medians and means of the calls of each round, in seconds."""

    rounds: tuple[float, ...]
    calls: int
    idle_share: float  # processor time used while the other peers were timed, per second
    means: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def mean(self) -> float:
        """The median of the rounds' means, which count delayed calls as well."""
        return statistics.median(self.means or self.rounds)

    @property
    def spread(self) -> float:
        """Half the distance between slowest and fastest round, relative to the median."""
        return (max(self.rounds) - min(self.rounds)) / 2 / self.median


@dataclass(frozen=True)
class PointResult:
    """All peers at one point, and the largest difference of their answers.

    ``others`` is the number of cores that programs outside the comparison kept busy.
    """

    point: Mapping[str, Any]
    timings: Mapping[str, Timing]
    largest_difference: float
    others: float

    @property
    def disturbed(self) -> bool:
        """Whether other programs used more of the machine than a comparison tolerates."""
        return self.others > QUIET

    def ratio(self, name: str, reference: str) -> float:
        """Median of ``name`` over median of ``reference``: below 1 means faster."""
        return self.timings[name].median / self.timings[reference].median

    def as_json(self) -> dict[str, Any]:
        """Plain data, with medians and spreads included."""
        return {
            "point": dict(self.point),
            "largest_difference": self.largest_difference,
            "others": self.others,
            "peers": {
                name: {**asdict(timing), "median": timing.median, "spread": timing.spread}
                for name, timing in self.timings.items()
            },
        }


class WorkerProcess:
    """The harness's end of one peer; a context manager that ends the process."""

    def __init__(self, peer: Peer, case: str, threads: int, path: Sequence[str] = ()) -> None:
        self.peer = peer
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        count = str(threads)
        env = {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}
        paths = [*path, str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(entry for entry in paths if entry)
        self._process = subprocess.Popen(
            [peer.python, "-m", "benchmarks.worker", peer.name, case],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=env,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()  # a healthy worker ends at the end of its input
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def ask(self, op: str, *, limit_s: float = 600.0, **fields: Any) -> dict[str, Any]:
        """Send one request and wait for its answer; end a peer that takes too long."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **fields}) + "\n")
            self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], limit_s)[0]:
                self._process.kill()
                reason = f"{op!r} took longer than {limit_s:.0f} s"
                raise PeerError(f"peer {self.peer.title!r}: {reason}", self.peer.title, reason)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._log.seek(0)
            tail = self._log.read()[-4000:].decode(errors="replace")
            reason = f"died during {op!r}:\n{tail}"
            raise PeerError(f"peer {self.peer.title!r} {reason}", self.peer.title, reason)
        answer: dict[str, Any] = json.loads(line)
        if not answer["ok"]:
            message = f"peer {self.peer.title!r} failed in {op!r}:\n{answer['trace']}"
            raise PeerError(message, self.peer.title, answer["error"])
        return answer

    def memory(self, what: str) -> int:
        """Bytes of memory: "VmRSS" now, "VmHWM" peak so far."""
        text = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        (line,) = (line for line in text.splitlines() if line.startswith(what))
        return int(line.split()[1]) * 1024

    def cpu_seconds(self) -> float:
        """Processor time used so far by all threads."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii")
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare(
    case: str,
    peers: Sequence[Peer],
    points: Sequence[Mapping[str, Any]],
    *,
    threads: int = 2,
    tolerance: float = 1e-4,
    settings: Settings | None = None,
    on_point: Callable[[PointResult], None] | None = None,
    path: Sequence[str] = (),
) -> tuple[list[PointResult], dict[str, Any]]:
    """Time all ``peers`` at all ``points``.

    Returns the results in the order of ``points``, and each peer's description of itself. Raises
    ``PeerError`` if a peer fails or if the answers differ by more than ``tolerance``.
    """
    chosen = settings or Settings()
    results: list[PointResult] = []
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(WorkerProcess(peer, case, threads, path)) for peer in peers]
        about = {
            worker.peer.name: worker.ask("setup", options=dict(worker.peer.options))["about"]
            for worker in workers
        }
        for point in points:
            result = _time_point(workers, point, tolerance, chosen)
            results.append(result)
            if on_point is not None:
                on_point(result)
    return results, about


def _time_point(
    workers: Sequence[WorkerProcess],
    point: Mapping[str, Any],
    tolerance: float,
    settings: Settings,
) -> PointResult:
    for worker in workers:
        limits = {"limit_s": settings.limit_s, "warmup_s": settings.warmup_s}
        worker.ask("prepare", point=dict(point), **limits)
    difference = _largest_difference([answer_of(worker) for worker in workers])
    if not difference <= tolerance:
        raise PeerError(f"answers at {dict(point)} differ by {difference:.3g} > {tolerance:.3g}")
    timings, others = take_turns(workers, settings)
    return PointResult(dict(point), timings, difference, others)


def take_turns(
    workers: Sequence[WorkerProcess],
    settings: Settings,
    beaten: float = math.inf,
    probes: Sequence[WorkerProcess] = (),
) -> tuple[dict[str, Timing], float]:
    """Time prepared peers.

    Returns timings by title, and the number of cores that other programs kept busy.

    A peer that takes ``beaten`` times as long as the fastest has no turn after its first.
    ``probes`` take turns too, but are not compared.
    """
    racing = workers
    workers = [*probes, *workers]
    rounds: dict[str, list[float]] = {worker.peer.title: [] for worker in workers}
    means: dict[str, list[float]] = {title: [] for title in rounds}
    calls = dict.fromkeys(rounds, 0)
    idle = dict.fromkeys(rounds, 0.0)
    waited = dict.fromkeys(rounds, 0.0)
    began, foreign = time.perf_counter(), _foreign_seconds(workers)
    for _ in range(settings.rounds):
        fastest = min((min(rounds[w.peer.title], default=math.inf) for w in racing), default=0)
        for worker in workers:
            mine = rounds[worker.peer.title]
            if worker in racing and mine and min(mine) > beaten * fastest:
                continue
            time.sleep(settings.pause_s)
            resting = {other: other.cpu_seconds() for other in workers if other is not worker}
            start = time.perf_counter()
            seconds = worker.ask(
                "measure",
                limit_s=settings.limit_s,
                budget_s=settings.budget_s,
                min_calls=settings.min_calls,
                clock=settings.clock,
                flush=settings.flush,
            )["seconds"]
            took = time.perf_counter() - start
            mine.append(statistics.median(seconds))
            means[worker.peer.title].append(statistics.fmean(seconds))
            calls[worker.peer.title] += len(seconds)
            for other, before in resting.items():
                idle[other.peer.title] += other.cpu_seconds() - before
                waited[other.peer.title] += took
    timings = {
        name: Timing(
            tuple(values), calls[name], idle[name] / max(waited[name], 1e-9), tuple(means[name])
        )
        for name, values in rounds.items()
    }
    others = (_foreign_seconds(workers) - foreign) / (time.perf_counter() - began)
    return timings, max(others, 0.0)


def _foreign_seconds(workers: Sequence[WorkerProcess]) -> float:
    """Processor time used so far by all but the peers, on all cores, including stolen time."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, interrupts, soft, stolen = (int(value) for value in fields[:8])
    busy = (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")
    return busy - sum(worker.cpu_seconds() for worker in workers)


def answer_of(worker: WorkerProcess) -> NDArray[Any]:
    """The answer of a prepared peer."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "answer.npy")
        worker.ask("output", path=path)
        return np.load(path)


def _largest_difference(answers: Sequence[NDArray[Any]]) -> float:
    first = answers[0].astype(np.float64)
    return max((float(np.abs(other - first).max()) for other in answers[1:]), default=0.0)


def machine() -> dict[str, Any]:
    """The machine of a result, and its current load."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
    }

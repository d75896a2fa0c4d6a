"""Run one case on all engines: check against double precision, then time in turns with the machine.

Engines that cannot do a case, or do it wrongly, stay in the result with the reason. The machine's
arithmetic peak and its bandwidth (over as many bytes as the case moves) take their turns like the
engines, so a slow phase of the machine affects limit and engine alike.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import environments, harness
from benchmarks.built_for import NATIVE
from benchmarks.peers import ENGINES, FALLBACK, HELPERS, OURS, Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from benchmarks.cases import Case

ERROR = 1e-4
"""Largest error, relative to the largest value of the answer. Sums of up to 4096 products in single
precision have an error of about 1e-6, and of 2.4e-4 if every rounding went the same way; silent
computation in bfloat16 has 4e-3."""

DRIFT, ATTEMPTS = 0.05, 3
"""A case is timed again while the machine's peak drifts by more than `DRIFT`, `ATTEMPTS`
times at most."""

BEATEN = 8.0
"""An engine that takes this many times as long as the fastest is timed in one turn only."""

SEARCH_FACTOR = 12
"""Factor on the time limit of preparation for engines that search."""


@dataclass
class Column:
    """One engine on one case.

    Attributes:
        status: "" if it took part, else the reason.
        warm_s: seconds of a second compilation, in a new process with the cache of the first.
        direct_error: error of the plain sum, if a method with fewer multiplications is used.
    """

    engine: str
    memory_format: str = "contiguous"
    status: str = ""
    timing: harness.Timing | None = None
    error: float = math.nan
    compile_s: float = math.nan
    warm_s: float = math.nan
    direct_error: float = math.nan
    memory: int = 0
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def title(self) -> str:
        plain = self.memory_format == "contiguous"
        return self.engine if plain else f"{self.engine}, {self.memory_format}"

    @property
    def seconds(self) -> float:
        return self.timing.median if self.timing else math.inf

    @property
    def code_bytes(self) -> int | None:
        """Bytes of object code; None if the engine does not report them."""
        return self.about.get("code_bytes")

    @property
    def external(self) -> tuple[str, ...]:
        """Libraries that its calls run through: their time is not ours, so it does not count."""
        return tuple(self.about.get("external", ()))

    def as_json(self) -> dict[str, Any]:
        timing = self.timing
        figures = {"median": timing.median, "spread": timing.spread} if timing else {}
        values = {**asdict(self), **figures}
        return {key: None if value != value else value for key, value in values.items()}


@dataclass(frozen=True)
class Result:
    """All engines on one case, and the machine's limits in the same turns."""

    case: Case
    columns: tuple[Column, ...]
    flops: float
    moved: int
    peak: float  # operations per second
    bandwidth: float  # bytes per second
    drift: float
    others: float

    @property
    def ours(self) -> Column:
        """Our column with the better memory format."""
        mine = [column for column in self.columns if column.engine == OURS]
        return min(mine, key=lambda one: one.seconds)

    @property
    def best(self) -> Column | None:
        """The fastest other engine, in its better memory format."""
        timed = [c for c in self.peers if c.timing]
        return min(timed, key=lambda one: one.seconds, default=None)

    @property
    def peers(self) -> list[Column]:
        """The other engines, each in all of its memory formats."""
        return [c for c in self.columns if ENGINES[c.engine].environment != "own"]

    @property
    def fallback(self) -> Column | None:
        """Our column without the strategies for patterns, if requested."""
        return next((column for column in self.columns if column.engine == FALLBACK), None)

    @property
    def roofline(self) -> float:
        """Lower bound on the seconds, by the machine's peak and bandwidth."""
        return max(self.flops / self.peak, self.moved / self.bandwidth)

    @property
    def expected(self) -> float | None:
        """The time that the cost model expects, relative to the measured one."""
        seconds = self.ours.about.get("expected_s")
        return seconds / self.ours.seconds if seconds and self.ours.timing else None

    @property
    def ratio(self) -> float | None:
        """Ours / best: below 1 means faster."""
        best, ours = self.best, self.ours
        counts = best is not None and ours.timing is not None and not ours.external
        return ours.seconds / best.seconds if counts and best else None

    @property
    def score(self) -> float | None:
        """Ours / goal: 0.9 of the best, or near the roofline. The goal is reached at 1 or less."""
        best = self.best
        if best is None or self.ratio is None:
            return None
        return self.ours.seconds / max(0.9 * best.seconds, self.roofline / 0.92)

    def as_json(self) -> dict[str, Any]:
        best = self.best
        return {
            "case": self.case.name,
            "flops": self.flops,
            "moved": self.moved,
            "peak": self.peak,
            "bandwidth": self.bandwidth,
            "drift": self.drift,
            "others": self.others,
            "roofline_s": self.roofline,
            "best": best.title if best else None,
            "ratio": self.ratio,
            "expected": self.expected,
            "score": self.score,
            "columns": [column.as_json() for column in self.columns],
        }


class Comparison:
    """The worker processes for all cases of a run; a context manager that ends them.

    A case is timed once with each of the `settings`, which differ in how they time; it is prepared
    with the first. Timing runs inside the context manager that `beside` returns, up to `attempts`
    times. Code is built for `target` by us, and by peers that accept a target.
    """

    def __init__(
        self,
        family: str,
        peers: Sequence[str],
        threads: int,
        settings: Sequence[harness.Settings],
        *,
        target: str = NATIVE,
        attempts: int = ATTEMPTS,
        beside: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self._attempts, self._beside = attempts, beside
        self._family = family
        self._threads, self._target = threads, target
        self._settings = settings
        self._names = (OURS, *(name for name in peers if name != OURS))
        self._pythons = {
            engine.environment: environments.interpreter(engine.environment)
            for engine in (*HELPERS.values(), *(ENGINES[name] for name in self._names))
        }
        self._stack = contextlib.ExitStack()
        self._helpers: dict[str, harness.WorkerProcess] = {}

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, case: Case) -> list[Result]:
        """Prepare, check and time one case; returns a result for each of the settings."""
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            point = {"family": self._family, "case": case.name, "folder": folder}
            told = self._prepare(self._helper("reference"), point)["about"]
            reference = harness.answer_of(self._helper("reference"))
            ready: list[tuple[Column, harness.WorkerProcess]] = []
            columns: list[Column] = []
            for column in self._columns(case):
                columns.append(column)
                engine = ENGINES[column.engine]
                if told["export"] and engine.environment not in ("own", "torch"):
                    column.status = f"no ONNX model: {told['export']}"
                    continue
                worker = stack.enter_context(self._start(column.engine, engine, column.title))
                if self._admit(column, worker, point, reference):
                    ready.append((column, worker))
                    if column.engine == OURS:
                        self._again(case, column, point, reference)
            return [
                self._time(case, columns, ready, told["flops"], told["moved"], settings)
                for settings in self._settings
            ]

    def _columns(self, case: Case) -> list[Column]:
        return [
            Column(name, memory_format)
            for name in self._names
            for memory_format in (case.formats if ENGINES[name].formats else case.formats[:1])
        ]

    def _start(
        self, name: str, engine: Engine, label: str = "", options: Mapping[str, Any] | None = None
    ) -> harness.WorkerProcess:
        python = self._pythons[engine.environment]
        given = {"threads": self._threads, "target": self._target, **(options or {})}
        peer = harness.Peer(name, given, python, label)
        return harness.WorkerProcess(peer, "peers", self._threads)

    def _helper(self, name: str) -> harness.WorkerProcess:
        """A helper process that lives as long as the run; started at first use."""
        if name not in self._helpers:
            worker = self._stack.enter_context(self._start(name, HELPERS[name]))
            worker.ask("setup", options=dict(worker.peer.options))
            self._helpers[name] = worker
        return self._helpers[name]

    def _prepare(self, worker: harness.WorkerProcess, point: Mapping[str, Any]) -> dict[str, Any]:
        engine = {**ENGINES, **HELPERS}[worker.peer.name]
        settings = self._settings[0]
        limit_s = settings.limit_s * (SEARCH_FACTOR if engine.searches else 1)
        return worker.ask("prepare", limit_s=limit_s, point=dict(point), warmup_s=settings.warmup_s)

    def _admit(
        self,
        column: Column,
        worker: harness.WorkerProcess,
        point: Mapping[str, Any],
        reference: NDArray[Any],
    ) -> bool:
        """Prepare an engine and check its result; a failure becomes its status."""
        try:
            worker.ask("setup", options=dict(worker.peer.options))
            idle = worker.memory("VmRSS")
            told = self._prepare(worker, {**point, "format": column.memory_format})
            column.about, column.compile_s = told["about"], told["ready_s"]
            answer = harness.answer_of(worker)
            column.memory = worker.memory("VmHWM") - idle
        except harness.PeerError as failure:
            refused = "error[" in failure.reason  # one of our diagnostics
            absent = failure.reason.startswith("AbsentError")
            kind = "unsupported" if refused else "absent" if absent else "failed"
            column.status = f"{kind}: {_headlines(failure.reason)}"
            return False
        column.error = relative_error(answer, reference)
        if not column.error <= ERROR:
            column.status = f"wrong: error {column.error:.1e} is above {ERROR:.0e}"
        return not column.status

    def _again(
        self, case: Case, column: Column, point: Mapping[str, Any], reference: NDArray[Any]
    ) -> None:
        """Run our additional checks, in processes that end before anything is timed.

        They are a second compilation of a model, and the error of the plain sum if another method
        is faster.
        """
        where = {**point, "format": column.memory_format}
        try:
            if case.model:
                with self._another(column, {"cache": column.about["cache"]}) as worker:
                    column.warm_s = self._prepare(worker, where)["ready_s"]
            elif "winograd" in column.about["rules"].values():
                with self._another(column, {"direct": True}) as worker:
                    self._prepare(worker, where)
                    column.direct_error = relative_error(harness.answer_of(worker), reference)
        except harness.PeerError as failure:
            column.status = f"failed the second time: {_headlines(failure.reason)}"

    @contextlib.contextmanager
    def _another(
        self, column: Column, options: Mapping[str, Any]
    ) -> Generator[harness.WorkerProcess]:
        """Start another process of an engine, with further options."""
        with self._start(column.engine, ENGINES[column.engine], column.title, options) as worker:
            worker.ask("setup", options=dict(worker.peer.options))
            yield worker

    def _time(
        self,
        case: Case,
        columns: Sequence[Column],
        ready: Sequence[tuple[Column, harness.WorkerProcess]],
        flops: float,
        moved: int,
        settings: harness.Settings,
    ) -> Result:
        # With cold caches, even small data is read at memory speed.
        point = {"moved": max(moved, 2 * settings.flush)}
        operations = self._prepare(self._helper("fma"), point)["about"]["operations"]
        read = self._prepare(self._helper("bandwidth"), point)["about"]["bytes"]
        with self._beside():
            drift, timings, others = self._steady(
                [one for one in ready if not one[0].status], settings
            )
        peak = operations / timings["fma"].median
        bandwidth = read / timings["bandwidth"].median
        timed = (replace(c, timing=None if c.status else timings.get(c.title)) for c in columns)
        return Result(case, tuple(timed), flops, moved, peak, bandwidth, drift, others)

    def _steady(
        self, ready: list[tuple[Column, harness.WorkerProcess]], settings: harness.Settings
    ) -> tuple[float, dict[str, harness.Timing], float]:
        """Take turns until the machine's peak is stable; return the steadiest attempt.

        An engine that fails meanwhile leaves the comparison.
        """
        best: tuple[float, dict[str, harness.Timing], float] | None = None
        attempts = 0
        while attempts < self._attempts:
            helpers = [self._helper("fma"), self._helper("bandwidth")]
            try:
                workers = [worker for _, worker in ready]
                timings, others = harness.take_turns(workers, settings, BEATEN, helpers)
            except harness.PeerError as failure:
                guilty = [one for one in ready if one[0].title == failure.title]
                if not guilty:
                    raise
                guilty[0][0].status = f"failed while it was timed: {_headlines(failure.reason)}"
                ready.remove(guilty[0])
                continue
            attempts += 1
            drift = 2 * timings["fma"].spread
            if best is None or drift < best[0]:
                best = drift, timings, others
            if drift <= DRIFT:
                break
        assert best is not None
        return best


def _headlines(reason: str) -> str:
    """The diagnostics of a message without their notes, or its first line."""
    lines = reason.splitlines() or [""]
    found = [line[line.index("error[") :] for line in lines if "error[" in line]
    return "; ".join(found) or lines[0]


def relative_error(answer: NDArray[Any], reference: NDArray[Any]) -> float:
    """The largest difference over the largest value; infinite if the numbers of values differ."""
    if answer.size != reference.size:
        return math.inf
    difference = np.abs(answer.ravel().astype(np.float64) - reference.ravel())
    return float(difference.max() / np.abs(reference).max())


def quick(settings: harness.Settings, rounds: int) -> harness.Settings:
    """Shorter turns than in a comparison of two engines: there are many engines and cases."""
    return replace(
        settings, rounds=rounds, budget_s=0.2, min_calls=5, pause_s=0.1, warmup_s=0.2, limit_s=300
    )

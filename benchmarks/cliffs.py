"""Performance cliffs: cases with slightly changed extents, and matrix products against the peak.

A case and its neighbors (`extents`) are compiled in this process and timed in turns with the
machine's FMA peak, so that a slow phase affects all of them. A neighbor's figure is its speed in
operations of the plain method per second, relative to that of its original case. Products with a
constant operand and random extents are compared with the peak itself, on one thread and on all.
Every result is compared with the same module in double precision before timing.

The last-level cache is shared with other users of a machine, whose traffic the peak does not show.
So a program that reads from this cache takes turns as well. Timings taken while it was slow are
repeated, a few times at most; the attempt with the fastest cache counts. Cases that still miss
their bound are timed once more at the end, because some slow phases show in neither probe
(processors that are farther apart for a while, memory in small pages): a case misses only if it
does so both times.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import cases, harness, operators, record
from benchmarks.built_for import NATIVE, built_for
from benchmarks.comparison import ERROR
from benchmarks.extents import neighbours
from benchmarks.worker import flat, timed_calls
from blockwright.measure import peak_call, read_call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.cases import Case

KEPT = 0.85
"""Share of its speed that a case must keep when an extent changes."""

MEDIAN, TENTH, WORST = 0.88, 0.80, 0.65
"""Shares of the peak that half, nine of ten, and all random products must reach."""

LEAST, MOST = 256, 2048  # extents of random products
_TURN_S, _CALLS = 0.02, 3  # seconds of one call in one turn; calls per turn
_CACHED = 8 << 20  # bytes that fit in the last-level cache and in no nearer one
# smallest ratio to the fastest reading of this cache in a run; attempts
_QUIET, _ATTEMPTS = 0.85, 3


@dataclass(frozen=True)
class Plan:
    """Options of the command line: `products` random products, drawn with `seed`."""

    only: Sequence[str] = ()
    threads: int = 2
    rounds: int = 5
    products: int = 200
    seed: int = 0
    clock: str = "wall"
    target: str = NATIVE


@dataclass(frozen=True)
class Speed:
    """Speed of a case in operations per second.

    Attributes:
        share: of the peak with as many threads, in the same turns.
        kept: relative to the original case of this neighbor; 1 for that case itself.
        cache: bytes per second read from the last-level cache in the same turns.
        status: "" or the reason why there is no figure.
    """

    name: str
    moved: str
    threads: int
    speed: float = math.nan
    share: float = math.nan
    kept: float = math.nan
    cache: float = math.nan
    status: str = ""


@dataclass(frozen=True)
class Turns:
    """Seconds per call and of the peak, per turn; and the speed of the last-level cache."""

    calls: list[list[float]]
    peak: list[float]
    cache: float


@dataclass(frozen=True)
class Limits:
    """Calls that probe the machine, each with its number of operations or bytes."""

    peak: tuple[Callable[[], Any], float]
    cache: tuple[Callable[[], Any], float]


@dataclass
class _Runner:
    """Compiles cases, checks them, and times them in turns."""

    plan: Plan
    limits: dict[int, Limits] = field(default_factory=dict[int, Limits])
    # last-level cache, by threads
    fastest: dict[int, float] = field(default_factory=dict[int, float])

    def ready(self, case: Case) -> Callable[[], Any]:
        """A call of the compiled case; raises ValueError if its result is wrong."""
        import torch

        import blockwright as bw
        from benchmarks.modules import build

        arrays = case.arrays()
        module, tensors = build(case), [torch.from_numpy(array) for array in arrays]
        exe = bw.compile(
            module, tensors, target=built_for(self.plan.target), options={"fallback": "error"}
        )
        found = flat(exe(*arrays))
        exact = flat(module.double()(*(tensor.double() for tensor in tensors)))
        error = float(np.abs(found - exact).max() / max(np.abs(exact).max(), 1e-30))
        if not error <= ERROR:
            raise ValueError(f"error {error:.1e} relative to double precision")
        return lambda: exe(*arrays)

    def turns(self, calls: Sequence[Callable[[], Any]], threads: int) -> Turns:
        """Time the calls until the last-level cache is as fast as before; the best attempt."""
        tried: list[Turns] = []
        while len(tried) < _ATTEMPTS:
            tried.append(self._once(calls, threads))
            best = max(self.fastest.get(threads, 0.0), tried[-1].cache)
            self.fastest[threads] = best
            if tried[-1].cache >= _QUIET * best:
                break
        return max(tried, key=lambda one: one.cache)

    def _once(self, calls: Sequence[Callable[[], Any]], threads: int) -> Turns:
        import blockwright as bw

        if threads not in self.limits:
            peak = peak_call(threads, built_for(self.plan.target))
            self.limits[threads] = Limits(peak, read_call(threads, _CACHED))
        bw.set_num_threads(threads)
        limits = self.limits[threads]
        every = [*calls, limits.peak[0], limits.cache[0]]
        seconds: list[list[float]] = [[] for _ in every]
        for _ in range(self.plan.rounds):
            for call, own in zip(every, seconds, strict=True):
                own.append(statistics.median(timed_calls(call, _TURN_S, _CALLS, self.plan.clock)))
        *own, peak, cache = seconds
        return Turns(own, peak, limits.cache[1] / statistics.median(cache))

    def share(self, flops: float, seconds: list[float], peak: list[float], threads: int) -> float:
        """Share of the peak, the median over turns."""
        at_peak = flops / self.limits[threads].peak[1]
        return statistics.median(at_peak * p / s for p, s in zip(peak, seconds, strict=True))


def main(plan: Plan) -> bool:
    """Measure, print and write; return whether every bound holds."""
    before = harness.machine()
    runner = _Runner(plan)
    missed: list[str] = []
    beside: list[Speed] = []
    for case in cases.selected(operators.CASES, plan.only):
        beside += _beside(runner, case)
    again = {one.name for one in beside if one.kept < KEPT}
    for case in cases.selected(operators.CASES, plan.only):
        if case.name in again:
            print(f"{case.name}: once more", flush=True)
            beside = _better(beside, _beside(runner, case))
    beside.sort(key=lambda one: one.kept if one.kept == one.kept else -1.0)
    for one in beside:
        print(_line(one), flush=True)
        if one.status or one.kept < KEPT:
            missed.append(f"{one.name}, {one.moved}: {one.status or f'keeps {one.kept:.0%}'}")
    sample = _products(runner)
    for threads in sorted({one.threads for one in sample}):
        missed += judge([one for one in sample if one.threads == threads], threads)
    found = {
        "settings": asdict(plan),
        "missed": missed,
        "neighbours": [_as_json(one) for one in beside],
        "products": [_as_json(one) for one in sample],
    }
    record.write(record.name_of("cliffs", plan.threads, plan.target), before, found)
    for problem in missed:
        print(f"missed: {problem}")
    return not missed


def _beside(runner: _Runner, case: Case) -> list[Speed]:
    """Time a case and all its neighbors."""
    threads = runner.plan.threads
    known = [("", case), *((str(one), one.case) for one in neighbours(case))]
    calls: dict[str, Callable[[], Any]] = {}
    found: list[Speed] = []
    for moved, one in known:
        try:
            calls[moved] = runner.ready(one)
        except Exception as error:  # noqa: BLE001  a failing case is a line of the table
            found.append(
                Speed(case.name, moved, threads, status=f"{type(error).__name__}: {error}")
            )
    turns = runner.turns([*calls.values()], threads)
    seconds = dict(zip(calls, turns.calls, strict=True))
    flops = {moved: one.flops or math.nan for moved, one in known}
    for moved in calls:
        own, base = seconds[moved], seconds.get("", [math.nan] * runner.plan.rounds)
        kept = statistics.median(
            flops[moved] / flops[""] * b / s for b, s in zip(base, own, strict=True)
        )
        speed = flops[moved] / statistics.median(own)
        share = runner.share(flops[moved], own, turns.peak, threads)
        found.append(Speed(case.name, moved, threads, speed, share, kept, turns.cache))
    worst = min((one for one in found if one.moved), key=lambda one: one.kept, default=None)
    if worst is not None:
        print(f"{case.name}: worst of {len(found) - 1} neighbours {_line(worst)}", flush=True)
    return [one for one in found if one.moved or one.status]


def _better(first: Sequence[Speed], second: Sequence[Speed]) -> list[Speed]:
    """For each neighbor, the timing with the larger share kept."""
    other = {(one.name, one.moved): one for one in second}
    found: list[Speed] = []
    for one in first:
        twice = other.get((one.name, one.moved), one)
        found.append(twice if twice.kept > one.kept else one)
    return found


def _products(runner: _Runner) -> list[Speed]:
    """Random products with a constant operand, on one thread and on all."""
    plan = runner.plan
    random = np.random.default_rng(plan.seed)
    found: list[Speed] = []
    for _ in range(plan.products):
        drawn = np.exp(random.uniform(math.log(LEAST), math.log(MOST + 1), 3))
        rows, inner, columns = (int(size) for size in drawn)
        name = f"GMM {rows}x{inner}x{columns}"
        case = operators.product(name, rows, inner, columns, constant=True)
        call = runner.ready(case)
        assert case.flops is not None
        for threads in sorted({1, plan.threads}):
            turns = runner.turns([call], threads)
            (seconds,) = turns.calls
            share = runner.share(case.flops, seconds, turns.peak, threads)
            speed = case.flops / statistics.median(seconds)
            found.append(Speed(name, "", threads, speed, share, cache=turns.cache))
    return found


def judge(sample: Sequence[Speed], threads: int) -> list[str]:
    """Print the distribution of a sample's shares of the peak; return the bounds that it misses."""
    ordered = sorted(sample, key=lambda one: one.share)
    shares = [one.share for one in ordered]
    figures = {
        "median": (statistics.median(shares), MEDIAN),
        "10th percentile": (float(np.percentile(shares, 10)), TENTH),
        "worst": (shares[0], WORST),
    }
    what = f"{len(sample)} random products, {threads} thread{'s' * (threads > 1)}"
    text = ", ".join(f"{name} {value:.1%}" for name, (value, _) in figures.items())
    print(f"{what}: {text} of the peak")
    slowest, fastest = (pick(one.cache for one in sample) / 1e9 for pick in (min, max))
    print(f"    the last-level cache delivered {slowest:.0f} to {fastest:.0f} GB/s")
    for one in ordered[:10]:
        print(f"    {one.name} {one.share:.1%}, last-level cache at {one.cache / 1e9:.0f} GB/s")
    return [
        f"{what}: {name} {value:.1%} of the peak is below {bound:.0%}"
        for name, (value, bound) in figures.items()
        if value < bound
    ]


def _line(one: Speed) -> str:
    if one.status:
        return f"{one.name:26} {one.moved:12} {' '.join(one.status.split())[:160]}"
    return (
        f"{one.name:26} {one.moved:12} keeps {one.kept:>6.1%}, {one.speed / 1e9:>6.1f} GFLOP/s, "
        f"{one.share:>6.1%} of the peak"
    )


def _as_json(one: Speed) -> dict[str, Any]:
    return {key: None if value != value else value for key, value in asdict(one).items()}

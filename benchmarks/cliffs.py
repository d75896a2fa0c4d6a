"""No cliffs: operators beside their neighbours, and random matrix products against the peak.

A case and its neighbours (`extents`) are compiled in this process and timed in turns with the
machine's FMA peak, so that a slow phase touches all of them. A neighbour's figure is its speed in
operations of the plain method per second, relative to that of the case it comes from. Products with
a constant operand and random extents are held against the peak itself, on one thread and on all.
Every answer is compared with the same module in double precision before it is timed.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import cases, harness, operators
from benchmarks.comparison import ERROR
from benchmarks.extents import neighbours
from benchmarks.report import RESULTS
from benchmarks.worker import flat, timed_calls
from blockwright.measure import peak_call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.cases import Case

KEPT = 0.85
"""Of its speed that a case must keep when an extent moves."""

MEDIAN, TENTH, WORST = 0.88, 0.80, 0.65
"""Of the peak that random products must reach: half, nine of ten, and all of them."""

LEAST, MOST = 256, 2048  # extents of random products
_TURN_S, _CALLS = 0.02, 3  # of one call in one turn


@dataclass(frozen=True)
class Plan:
    """What the command line asks for: `products` random products, drawn by `seed`."""

    only: Sequence[str] = ()
    threads: int = 2
    rounds: int = 5
    products: int = 200
    seed: int = 0
    clock: str = "wall"


@dataclass(frozen=True)
class Speed:
    """A case in operations per second.

    Attributes:
        share: of the peak of as many threads, in the same turns.
        kept: relative to the case it is a neighbour of; 1 for that case itself.
        status: "" or why there is no figure.
    """

    name: str
    moved: str
    threads: int
    speed: float = math.nan
    share: float = math.nan
    kept: float = math.nan
    status: str = ""


@dataclass
class _Runner:
    """Compiles cases, checks them, and times them in turns."""

    plan: Plan
    peaks: dict[int, tuple[Callable[[], Any], float]] = field(
        default_factory=dict[int, "tuple[Callable[[], Any], float]"]
    )

    def ready(self, case: Case) -> Callable[[], Any]:
        """A call of the compiled case; raises ValueError when its answer is wrong."""
        import torch

        import blockwright as bw
        from benchmarks.modules import build

        arrays = case.arrays()
        module, tensors = build(case), [torch.from_numpy(array) for array in arrays]
        exe = bw.compile(module, tensors)
        found = flat(exe(*arrays))
        exact = flat(module.double()(*(tensor.double() for tensor in tensors)))
        error = float(np.abs(found - exact).max() / max(np.abs(exact).max(), 1e-30))
        if not error <= ERROR:
            raise ValueError(f"error {error:.1e} relative to double precision")
        return lambda: exe(*arrays)

    def turns(self, calls: Sequence[Callable[[], Any]], threads: int) -> list[list[float]]:
        """Seconds of each call, and last those of the peak, per turn."""
        import blockwright as bw

        if threads not in self.peaks:
            self.peaks[threads] = peak_call(threads)
        bw.set_num_threads(threads)
        all_calls = [*calls, self.peaks[threads][0]]
        seconds: list[list[float]] = [[] for _ in all_calls]
        for _ in range(self.plan.rounds):
            for call, own in zip(all_calls, seconds, strict=True):
                own.append(statistics.median(timed_calls(call, _TURN_S, _CALLS, self.plan.clock)))
        return seconds

    def share(self, flops: float, seconds: list[float], peak: list[float], threads: int) -> float:
        """Of the peak, the median over turns."""
        at_peak = flops / self.peaks[threads][1]
        return statistics.median(at_peak * p / s for p, s in zip(peak, seconds, strict=True))


def main(plan: Plan) -> bool:
    """Measure, print, write; whether every bound holds."""
    before = harness.machine()
    runner = _Runner(plan)
    missed: list[str] = []
    beside: list[Speed] = []
    for case in cases.selected(operators.CASES, plan.only):
        beside += _beside(runner, case)
    beside.sort(key=lambda one: one.kept if one.kept == one.kept else -1.0)
    for one in beside:
        print(_line(one), flush=True)
        if one.status or one.kept < KEPT:
            missed.append(f"{one.name}, {one.moved}: {one.status or f'keeps {one.kept:.0%}'}")
    sample = _products(runner)
    for threads in sorted({one.threads for one in sample}):
        missed += judge([one for one in sample if one.threads == threads], threads)
    record = {
        "case": "cliffs",
        "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "machine": {**before, "load_after": harness.machine()["load"]},
        "settings": asdict(plan),
        "missed": missed,
        "neighbours": [_as_json(one) for one in beside],
        "products": [_as_json(one) for one in sample],
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"cliffs-{plan.threads}-threads.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for problem in missed:
        print(f"missed: {problem}")
    return not missed


def _beside(runner: _Runner, case: Case) -> list[Speed]:
    """A case and all its neighbours."""
    threads = runner.plan.threads
    known = [("", case), *((str(one), one.case) for one in neighbours(case))]
    calls: dict[str, Callable[[], Any]] = {}
    found: list[Speed] = []
    for moved, one in known:
        try:
            calls[moved] = runner.ready(one)
        except Exception as error:  # noqa: BLE001  a case that we cannot do is a line of the table
            found.append(
                Speed(case.name, moved, threads, status=f"{type(error).__name__}: {error}")
            )
    seconds = dict(zip([*calls, "peak"], runner.turns([*calls.values()], threads), strict=True))
    flops = {moved: one.flops or math.nan for moved, one in known}
    for moved in calls:
        own, base = seconds[moved], seconds.get("", [math.nan] * runner.plan.rounds)
        kept = statistics.median(flops[moved] / flops[""] * b / s
                                 for b, s in zip(base, own, strict=True))  # fmt: skip
        speed = flops[moved] / statistics.median(own)
        share = runner.share(flops[moved], own, seconds["peak"], threads)
        found.append(Speed(case.name, moved, threads, speed, share, kept))
    worst = min((one for one in found if one.moved), key=lambda one: one.kept, default=None)
    if worst is not None:
        print(f"{case.name}: worst of {len(found) - 1} neighbours {_line(worst)}", flush=True)
    return [one for one in found if one.moved or one.status]


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
            seconds, peak = runner.turns([call], threads)
            share = runner.share(case.flops, seconds, peak, threads)
            speed = case.flops / statistics.median(seconds)
            found.append(Speed(name, "", threads, speed, share))
    return found


def judge(sample: Sequence[Speed], threads: int) -> list[str]:
    """Print how a sample lies below the peak; the bounds it misses."""
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
    for one in ordered[:10]:
        print(f"    {one.name} {one.share:.1%}")
    return [f"{what}: {name} {value:.1%} of the peak is below {bound:.0%}"
            for name, (value, bound) in figures.items() if value < bound]  # fmt: skip


def _line(one: Speed) -> str:
    if one.status:
        return f"{one.name:26} {one.moved:12} {' '.join(one.status.split())[:160]}"
    return (
        f"{one.name:26} {one.moved:12} keeps {one.kept:>6.1%}, {one.speed / 1e9:>6.1f} GFLOP/s, "
        f"{one.share:>6.1%} of the peak"
    )


def _as_json(one: Speed) -> dict[str, Any]:
    return {key: None if value != value else value for key, value in asdict(one).items()}

"""Operators and models while another program keeps one core of the machine busy.

The other program never sleeps. It is pinned to a core, or placed by the system. Each engine uses as
many threads as without it. A call that waits for a thread on that core is delayed by the scheduler,
so the mean of the calls is shown next to the median.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from benchmarks import cases, harness, record, report
from benchmarks.comparison import Comparison, quick

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from benchmarks.comparison import Column, Result
    from benchmarks.versus import Plan

CASES = {
    "operators": ("GMM 1024 constant", "C2D 56x64-64 k3", "attention 12x128", "softmax 1536x128",
                  "layer_norm 128x1024"),
    "models": ("MiniLM 1x128", "ResNet-50 b1"),
}  # fmt: skip
PLACES = ("pinned", "free")
"""Placement of the other program: on the last core, or chosen by the system."""

_ENDLESS = "while True: pass"


@contextlib.contextmanager
def neighbour(place: str) -> Generator[None]:
    """A process that keeps one core busy."""
    last = max(os.sched_getaffinity(0))
    pin = f"import os; os.sched_setaffinity(0, [{last}])\n" if place == "pinned" else ""
    with subprocess.Popen([sys.executable, "-c", pin + _ENDLESS]) as process:
        time.sleep(0.2)
        try:
            yield
        finally:
            process.kill()


def main(plan: Plan, settings: harness.Settings) -> bool:
    """Compare all engines next to a busy program; return whether none was faster than ours."""
    timing = replace(quick(settings, max(plan.rounds, 5)), budget_s=0.5, min_calls=5)
    chosen = {
        family: [case for case in cases.selected(cases.table(family), plan.only)
                 if case.name in names]
        for family, names in CASES.items()
    }  # fmt: skip
    width = max(map(len, sum(CASES.values(), ())))
    print(header(width), flush=True)
    results: list[tuple[str, Result]] = []
    before = harness.machine()
    for place in PLACES:
        for family, some in chosen.items():
            if not some:
                continue
            with Comparison(
                family,
                plan.peers,
                plan.threads,
                [timing],
                attempts=1,
                target=plan.target,
                beside=lambda place=place: neighbour(place),
            ) as comparison:
                for case in some:
                    (result,) = comparison.run(case)
                    results.append((place, result))
                    print(row(place, result, width), flush=True)
    name = record.name_of("busy", plan.threads, plan.target)
    found = [result for _, result in results]
    report.write(name, found, {**asdict(plan), "caches": ["hot"], **asdict(timing)}, before)
    problems = [line for place, result in results for line in missed(place, result)]
    for problem in problems:
        print(f"missed: {problem}")
    return bool(results) and not problems


def header(width: int) -> str:
    return (
        f"{'case':{width}} {'other':>7} {'ours':>9} {'mean':>9} {'best':>9} {'mean':>9}"
        f" {'ratio':>6} {'mean':>6}  all: median, mean in ms"
    )


def row(place: str, result: Result, width: int) -> str:
    """One line of the table."""
    ours, best, mean = result.ours, result.best, least_mean(result)
    if ours.timing is None or best is None or mean is None:
        return f"{result.case.name:{width}} {place:>7} {ours.status or 'no peer'}"
    peers = "  ".join(f"{c.title} {_both(c)}" for c in result.columns if c is not ours)
    return (
        f"{result.case.name:{width}} {place:>7} {ours.seconds * 1e3:>9.3f}"
        f" {ours.timing.mean * 1e3:>9.3f} {best.seconds * 1e3:>9.3f} {mean * 1e3:>9.3f}"
        f" {ours.seconds / best.seconds:>6.2f} {ours.timing.mean / mean:>6.2f}  {peers}"
    )


def _both(column: Column) -> str:
    if column.timing is None:
        return column.status.partition(":")[0]
    return f"{column.seconds * 1e3:.3f}, {column.timing.mean * 1e3:.3f}"


def least_mean(result: Result) -> float | None:
    """The smallest mean of the other engines."""
    means = [c.timing.mean for c in result.peers if c.timing]
    return min(means, default=None)


def missed(place: str, result: Result) -> Sequence[str]:
    """Cases that are slower than the best other engine, one sentence each."""
    name, ours, best = result.case.name, result.ours, result.best
    if ours.timing is None:
        return [f"{name}: {' '.join(ours.status.split())[:300]}"]
    if best is None:
        return [f"{name}: no peer to compare with"]
    ratio = ours.seconds / best.seconds
    return [f"{name}, other program {place}: {ratio:.2f} of {best.title}"] if ratio > 1 else []

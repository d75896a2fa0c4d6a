"""Operators or models against other engines: the run over a table of cases."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from benchmarks import cases, harness, report
from benchmarks.comparison import Comparison, quick

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.comparison import Result

COLD_FACTOR = 2
"""How many times the last-level cache each core writes to make the caches cold."""


@dataclass(frozen=True)
class Plan:
    """What the command line asks for."""

    only: Sequence[str] = ()
    peers: Sequence[str] = ()
    threads: int = 2
    rounds: int = 3
    cold: bool = False


def main(family: str, plan: Plan, settings: harness.Settings) -> bool:
    """Compare, print the table, write the files; whether every bound holds."""
    chosen = cases.selected(cases.table(family), plan.only)
    if not chosen:
        print(f"No case of {family} has a name that contains {' or '.join(plan.only)}.")
        return False
    timing = quick(settings, plan.rounds)
    if plan.cold:
        timing = replace(timing, flush=COLD_FACTOR * last_level_cache())
    before = harness.machine()
    width = max(len(case.name) for case in chosen)
    results: list[Result] = []
    name = "-".join([family, *(["cold"] if plan.cold else []), f"{plan.threads}-threads"])
    with Comparison(family, plan.peers, plan.threads, timing) as comparison:
        print(report.header(width), flush=True)
        for case in chosen:
            result = comparison.run(case)
            results.append(result)
            print(report.row(result, width), flush=True)
            report.write(name, results, {**asdict(plan), **asdict(timing)}, before)
    print(report.summary(results))
    problems = report.missed(results)
    for problem in problems:
        print(f"missed: {problem}")
    if any(result.others > harness.QUIET for result in results):
        print("Other programs kept the machine busy (column others: cores); measure again later.")
    return not problems


def last_level_cache() -> int:
    """Bytes of the largest cache of this machine."""
    import blockwright as bw

    return max(cache.size for cache in bw.Target("native").caches)

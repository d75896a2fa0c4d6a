"""Run a table of cases, operators or models, against other engines."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from benchmarks import cases, harness, record, report
from benchmarks.built_for import NATIVE
from benchmarks.comparison import Comparison, quick

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.comparison import Result

COLD_FACTOR = 2
"""Bytes that each core writes to flush the caches, as a multiple of the last-level cache."""


HOT, COLD = "hot", "cold"


@dataclass(frozen=True)
class Plan:
    """Options of the command line.

    `caches` are the states of the caches to time, `HOT` or `COLD`; `target` is the target of our
    code, and of peers that accept one.
    """

    only: Sequence[str] = ()
    peers: Sequence[str] = ()
    threads: int = 2
    rounds: int = 3
    caches: Sequence[str] = (HOT, COLD)
    target: str = NATIVE


def main(family: str, plan: Plan, settings: harness.Settings) -> bool:
    """Compare, print the tables, write the files; return whether every bound holds.

    Bounds are for caches as the last call left them, unless only cold ones are requested.
    """
    from blockwright.target import last_cache_bytes

    chosen = cases.selected(cases.table(family), plan.only)
    if not chosen:
        print(f"No case of {family} has a name that contains {' or '.join(plan.only)}.")
        return False
    usual = quick(settings, plan.rounds)
    cold = replace(usual, flush=COLD_FACTOR * last_cache_bytes())
    timings = {state: cold if state == COLD else usual for state in plan.caches}
    before = harness.machine()
    results: dict[str, list[Result]] = {state: [] for state in timings}
    titles = {state: f", {state}" if state != plan.caches[0] else "" for state in timings}
    width = max(len(case.name) for case in chosen) + max(map(len, titles.values()))
    with Comparison(
        family, plan.peers, plan.threads, [*timings.values()], target=plan.target
    ) as comparison:
        print(report.header(width), flush=True)
        for case in chosen:
            for state, result in zip(timings, comparison.run(case), strict=True):
                results[state].append(result)
                print(report.row(result, width, titles[state]), flush=True)
                table = f"{family}-{COLD}" if state == COLD else family
                report.write(
                    record.name_of(table, plan.threads, plan.target),
                    results[state],
                    {**asdict(plan), **asdict(timings[state])},
                    before,
                )
    for state, found in results.items():
        print(f"{state} caches: {report.summary(found)}")
    first, *rest = ((state, report.missed(found)) for state, found in results.items())
    for problem in first[1]:
        print(f"missed: {problem}")
    for state, problems in rest:
        for problem in problems:
            print(f"with {state} caches, not counted: {problem}")
    every = [result for found in results.values() for result in found]
    if any(result.others > harness.QUIET for result in every):
        print("Other programs kept the machine busy (column others: cores); measure again later.")
    return not first[1]

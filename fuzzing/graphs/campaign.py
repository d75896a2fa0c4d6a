"""Test many random graph functions, each chunk in its own process, and report the results."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from fuzzing.graphs.draw import draw
from fuzzing.graphs.judge import GraphVerdict, as_script, judge, reduced
from fuzzing.graphs.program import Graph
from fuzzing.schedules.isolate import Death, in_processes, isolated
from fuzzing.schedules.native import load_compiler

CHUNK = 10
FOLDER = Path("build/graphs")
"""Default folder for scripts."""
_SECONDS = 600
_NUMBER = re.compile(r"\b[a-z]*\d+\b")


class GraphResult(msgspec.Struct, frozen=True):
    """The verdict on a seed; `script` is set for findings."""

    seed: int
    verdict: GraphVerdict
    script: str = ""

    @property
    def is_finding(self) -> bool:
        return self.verdict.what in ("wrong", "internal")


def play(seed: int) -> GraphResult:
    """Draw and judge a graph; reduce it if it is a finding."""
    graph = draw(seed)
    verdict = judge(graph)
    if verdict.what in ("passed", "refused"):
        return GraphResult(seed, verdict)
    small = reduced(graph, lambda smaller: judge(smaller).symptom == verdict.symptom)
    last = judge(small)
    return GraphResult(seed, last, as_script(small, last, seed))


def judge_graphs(
    graphs: int, minutes: float | None, seed: int, jobs: int, folder: Path = FOLDER
) -> int:
    """Judge graphs up to a number or a time limit and report; return 1 if one is wrong, else 0."""
    load_compiler()
    folder.mkdir(parents=True, exist_ok=True)
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    verdicts: Counter[tuple[str, str]] = Counter()
    chunks = _chunks(range(seed, seed + graphs, CHUNK), deadline)
    for first, done in in_processes(_played, chunks, jobs, _SECONDS):
        for result in _one_by_one(first) if isinstance(done, Death) else done:
            verdict = result.verdict
            reason = _NUMBER.sub("_", verdict.words) if verdict.what == "refused" else ""
            verdicts[verdict.symptom, reason[:90]] += 1
            if result.is_finding:
                path = folder / f"seed_{result.seed}.py"
                path.write_text(result.script, encoding="utf-8")
                sys.stdout.write(f"{path}: {verdict.symptom}: {verdict.words}\n")
                sys.stdout.flush()
    for (symptom, reason), count in sorted(verdicts.items()):
        sys.stdout.write(f"{count:6}  {symptom}  {reason}\n")
    bad = sum(n for (s, _), n in verdicts.items() if s.startswith(("wrong", "internal")))
    sys.stdout.write(f"{verdicts.total()} graphs, {bad} wrong or internal errors\n")
    return 1 if bad else 0


def _played(first: int) -> list[GraphResult]:
    return [play(seed) for seed in range(first, first + CHUNK)]


def _one_by_one(first: int) -> list[GraphResult]:
    """Repeat a chunk whose process died, with one process per seed."""
    result: list[GraphResult] = []
    for seed in range(first, first + CHUNK):
        done = isolated(lambda seed=seed: play(seed), _SECONDS / 5)
        if isinstance(done, Death):
            verdict = GraphVerdict("internal", done.why, "the process died")
            done = GraphResult(seed, verdict, as_script(_reduced_apart(seed), verdict, seed))
        result.append(done)
    return result


def _reduced_apart(seed: int) -> Graph:
    """The smallest graph found that ends its process."""

    def dies(graph: Graph) -> bool:
        return isinstance(isolated(lambda: judge(graph), _SECONDS / 10), Death)

    return reduced(draw(seed), dies)


def _chunks(firsts: Iterable[int], deadline: float | None) -> Iterator[int]:
    for first in firsts:
        if deadline is not None and time.monotonic() >= deadline:
            return
        yield first

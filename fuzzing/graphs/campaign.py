"""The campaign over random graph functions."""

from __future__ import annotations

from pathlib import Path

from fuzzing.campaign import SECONDS, Campaign, SeedResult
from fuzzing.eager.outcome import Outcome
from fuzzing.graphs.draw import draw
from fuzzing.graphs.judge import as_script, judge, reduced
from fuzzing.graphs.program import Graph
from fuzzing.schedules.isolate import Death, isolated
from fuzzing.schedules.native import load_compiler


def play(seed: int) -> SeedResult:
    """Draw and judge a graph; reduce it if it is a finding."""
    graph = draw(seed)
    verdict = judge(graph)
    if not verdict.is_finding:
        return SeedResult(seed, verdict)
    small = reduced(graph, lambda smaller: judge(smaller).symptom == verdict.symptom)
    last = judge(small)
    return SeedResult(seed, last, as_script(small, last, seed))


def _died(seed: int, why: str) -> SeedResult:
    """The finding of a seed that ends its process, with the smallest graph that does."""

    def dies(graph: Graph) -> bool:
        return isinstance(isolated(lambda: judge(graph), SECONDS / 10), Death)

    verdict = Outcome("internal", why, "the process died")
    return SeedResult(seed, verdict, as_script(reduced(draw(seed), dies), verdict, seed))


CAMPAIGN = Campaign("graphs", Path("build/graphs"), play, _died, load_compiler)

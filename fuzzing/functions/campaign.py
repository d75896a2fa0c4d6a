"""The campaign over random modules of graph functions."""

from __future__ import annotations

from pathlib import Path

from fuzzing.campaign import SECONDS, Campaign, SeedResult
from fuzzing.eager.outcome import Outcome
from fuzzing.functions.draw import Module, draw
from fuzzing.functions.judge import judge
from fuzzing.graphs.judge import as_script, reduced
from fuzzing.schedules.isolate import Death, isolated
from fuzzing.schedules.native import load_compiler


def play(seed: int) -> SeedResult:
    """Draw and judge a module; reduce it if it is a finding."""
    module = draw(seed)
    verdict = judge(module)
    if not verdict.is_finding:
        return SeedResult(seed, verdict)
    small = reduced(module, lambda smaller: judge(smaller).symptom == verdict.symptom)
    last = judge(small)
    return SeedResult(seed, last, as_script(small, last, seed))


def _died(seed: int, why: str) -> SeedResult:
    """The finding of a seed that ends its process, with the smallest module that does."""

    def dies(graph: Module) -> bool:
        return isinstance(isolated(lambda: judge(graph), SECONDS / 10), Death)

    verdict = Outcome("internal", why, "the process died")
    return SeedResult(seed, verdict, as_script(reduced(draw(seed), dies), verdict, seed))


CAMPAIGN = Campaign("programs", Path("build/functions"), play, _died, load_compiler)

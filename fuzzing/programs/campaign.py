"""The campaign over random low-level programs."""

from __future__ import annotations

from pathlib import Path

from fuzzing.campaign import Campaign, SeedResult
from fuzzing.eager.outcome import Outcome
from fuzzing.programs.draw import draw, script
from fuzzing.programs.judge import judge
from fuzzing.schedules.native import load_compiler
from fuzzing.statements import Statement, reduced, reduced_death

_NOTHING = "T.evaluate(0)"
"""What is left of a body; a condition of it need not be evaluated, and is not checked."""


def play(seed: int) -> SeedResult:
    """Draw and judge a program; reduce it if it is a finding."""
    program = draw(seed)
    verdict = judge(program, seed)
    if not verdict.is_finding:
        return SeedResult(seed, verdict)

    def fails(less: list[Statement]) -> bool:
        more = script(less).count(_NOTHING) > script(program).count(_NOTHING)
        return not more and judge(less, seed).symptom == verdict.symptom

    small = reduced(program, script, fails)
    return SeedResult(seed, verdict, _as_script(small, judge(small, seed), seed))


def _died(seed: int, why: str) -> SeedResult:
    """The finding of a seed that ends its process, with the smallest program that does."""
    verdict = Outcome("internal", why, "the process died")
    small = reduced_death(draw(seed), script, lambda program: judge(program, seed))
    return SeedResult(seed, verdict, _as_script(small, verdict, seed))


def _as_script(program: list[Statement], verdict: Outcome, seed: int) -> str:
    """A script that fails as long as the fault exists."""
    words = (verdict.words.splitlines() or [""])[0]
    return f'''# {verdict.symptom}: {words}
from fuzzing.programs.judge import judge_text

PROGRAM = """
{script(program)}"""

verdict = judge_text(PROGRAM, {seed})
assert verdict.what == "passed", verdict
'''


CAMPAIGN = Campaign("programs", Path("build/programs"), play, _died, load_compiler)

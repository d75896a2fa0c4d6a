"""The campaign over random programs whose control flow reads what they write."""

from __future__ import annotations

from pathlib import Path

from fuzzing.campaign import Campaign, SeedResult
from fuzzing.control.draw import draw, script
from fuzzing.control.judge import judge
from fuzzing.eager.outcome import Outcome
from fuzzing.schedules.native import load_compiler
from fuzzing.statements import Statement, reduced, reduced_death


def play(seed: int) -> SeedResult:
    """Draw and judge a program; reduce it if it is a finding."""
    program = draw(seed)
    verdict = judge(program, seed)
    if not verdict.is_finding:
        return SeedResult(seed, verdict)
    small = reduced(program, script, lambda less: judge(less, seed).symptom == verdict.symptom)
    return SeedResult(seed, verdict, _as_script(small, verdict, seed))


def _died(seed: int, why: str) -> SeedResult:
    """The finding of a seed that ends its process, with the smallest program that does."""
    verdict = Outcome("internal", why, "the process died")
    small = reduced_death(draw(seed), script, lambda program: judge(program, seed))
    return SeedResult(seed, verdict, _as_script(small, verdict, seed))


def _as_script(program: list[Statement], verdict: Outcome, seed: int) -> str:
    """A script that fails as long as the fault exists."""
    return f'''"""{verdict.symptom}: {verdict.words.splitlines()[0]}"""

from fuzzing.control.judge import judge_text

PROGRAM = """
{script(program)}"""

verdict = judge_text(PROGRAM, {seed})
assert verdict.what == "passed", verdict
'''


CAMPAIGN = Campaign("programs", Path("build/control"), play, _died, load_compiler)

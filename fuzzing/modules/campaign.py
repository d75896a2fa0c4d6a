"""The campaign over random modules."""

from __future__ import annotations

from pathlib import Path

from fuzzing.campaign import SECONDS, Campaign, SeedResult
from fuzzing.eager.outcome import Outcome, load
from fuzzing.modules.draw import draw
from fuzzing.modules.judge import judge
from fuzzing.modules.reduce import reduced
from fuzzing.modules.script import as_script
from fuzzing.schedules.isolate import Death, isolated, limit_memory

_BY_SEED = """from fuzzing.modules.campaign import play

play({seed})
"""


def play(seed: int) -> SeedResult:
    """Draw and judge a program; reduce it if it is a finding."""
    program = draw(seed)
    verdict = judge(program)
    if not verdict.is_finding:
        return SeedResult(seed, verdict)
    small = reduced(program, lambda p: judge(p).symptom == verdict.symptom)
    last = judge(small)
    return SeedResult(seed, last, as_script(small, last, seed))


def _died(seed: int, why: str) -> SeedResult:
    """The result of a seed that ends its process: no finding if PyTorch alone does."""
    lives = isolated(lambda: bool(draw(seed)), SECONDS / 5)
    what = "eager" if isinstance(lives, Death) else "internal"
    return SeedResult(seed, Outcome(what, why, "the process died"), _BY_SEED.format(seed=seed))


CAMPAIGN = Campaign("modules", Path("build/modules"), play, _died, load, limit_memory)

"""Test many random modules, each chunk in its own process, and report the results."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from fuzzing.eager.outcome import limit_memory, load
from fuzzing.modules.draw import draw
from fuzzing.modules.judge import ModuleVerdict, judge
from fuzzing.modules.reduce import reduced
from fuzzing.modules.script import as_script
from fuzzing.schedules.isolate import Death, in_processes, isolated

CHUNK = 10
FOLDER = Path("build/modules")
"""Default folder for scripts."""
_SECONDS = 600
_NUMBER = re.compile(r"_?\d+")


class SeedResult(msgspec.Struct, frozen=True):
    """The verdict on a seed; `script` is set for findings."""

    seed: int
    verdict: ModuleVerdict
    script: str = ""


def play(seed: int) -> SeedResult:
    """Draw and judge a program; reduce it if it is a finding."""
    program = draw(seed)
    verdict = judge(program)
    if verdict.what not in ("wrong", "internal"):
        return SeedResult(seed, verdict)
    small = reduced(program, lambda p: judge(p).symptom == verdict.symptom)
    last = judge(small)
    return SeedResult(seed, last, as_script(small, last, seed))


def _played(first: int, count: int) -> list[SeedResult]:
    limit_memory()
    return [play(seed) for seed in range(first, first + count)]


def judge_modules(
    modules: int, minutes: float | None, seed: int, jobs: int, folder: Path = FOLDER
) -> int:
    """Judge modules up to a number or a time limit and report; return 1 if one is wrong, else 0."""
    load()
    folder.mkdir(parents=True, exist_ok=True)
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    chunks = _chunks(range(seed, seed + modules, CHUNK), deadline)
    verdicts: Counter[tuple[str, str]] = Counter()
    for first, done in in_processes(lambda first: _played(first, CHUNK), chunks, jobs, _SECONDS):
        for result in _one_by_one(first) if isinstance(done, Death) else done:
            verdict = result.verdict
            reason = _NUMBER.sub("", verdict.words) if verdict.what == "refused" else ""
            verdicts[verdict.symptom, reason[:90]] += 1
            if verdict.what in ("wrong", "internal"):
                path = folder / f"seed_{result.seed}.py"
                path.write_text(result.script, encoding="utf-8")
                sys.stdout.write(f"{path}: {verdict.symptom}: {verdict.words}\n")
                sys.stdout.flush()
    for (symptom, reason), count in sorted(verdicts.items()):
        sys.stdout.write(f"{count:6}  {symptom}  {reason}\n")
    bad = sum(n for (s, _), n in verdicts.items() if s.startswith(("wrong", "internal")))
    sys.stdout.write(f"{verdicts.total()} modules, {bad} wrong or internal errors\n")
    return 1 if bad else 0


def _one_by_one(first: int) -> list[SeedResult]:
    """Repeat a chunk whose process died, with one process per seed."""
    result: list[SeedResult] = []
    for seed in range(first, first + CHUNK):
        done = isolated(lambda seed=seed: play(seed), _SECONDS / 5)
        if isinstance(done, Death):
            lives = isolated(lambda seed=seed: bool(draw(seed)), _SECONDS / 5)
            what = "eager" if isinstance(lives, Death) else "internal"
            done = SeedResult(
                seed, ModuleVerdict(what, done.why, "the process died"), _BY_SEED.format(seed=seed)
            )
        result.append(done)
    return result


_BY_SEED = """from fuzzing.modules.campaign import play

play({seed})
"""


def _chunks(firsts: Iterable[int], deadline: float | None) -> Iterator[int]:
    for first in firsts:
        if deadline is not None and time.monotonic() >= deadline:
            return
        yield first

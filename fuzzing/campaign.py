"""Campaigns over random seeds: draw and judge in processes, save and count the findings."""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from fuzzing.eager.outcome import Outcome
from fuzzing.schedules.isolate import Death, in_processes, isolated

CHUNK = 10
"""Seeds per process."""
SECONDS = 600
"""Time limit of a chunk."""
_NUMBER = re.compile(r"\b[a-z]*\d+\b|_\d+")
_REASON = 90  # characters of a refusal that distinguish it from others


class SeedResult(msgspec.Struct, frozen=True):
    """The outcome of a seed; `script` reproduces it and is set for findings."""

    seed: int
    verdict: Outcome
    script: str = ""


class Campaign(msgspec.Struct, frozen=True):
    """What a campaign runs.

    Attributes:
        what: plural of what is drawn, for the report.
        folder: default folder for scripts.
        play: draws and judges a seed, and reduces a finding.
        died: the result of a seed whose process died, given the reason.
        load: imports what all processes need, before they are forked.
        prepare: runs in each process before its seeds.
    """

    what: str
    folder: Path
    play: Callable[[int], SeedResult]
    died: Callable[[int, str], SeedResult]
    load: Callable[[], None]
    prepare: Callable[[], None] = lambda: None

    def run(
        self, count: int, minutes: float | None, seed: int, jobs: int, folder: Path | None = None
    ) -> int:
        """Judge seeds up to a number or a time limit; return 1 if there is a finding, else 0."""
        self.load()
        folder = folder or self.folder
        folder.mkdir(parents=True, exist_ok=True)
        deadline = None if minutes is None else time.monotonic() + 60 * minutes
        chunks = _until(range(seed, seed + count, CHUNK), deadline)
        seen: dict[tuple[str, str], list[int]] = {}
        findings = 0
        with suppress(KeyboardInterrupt):  # what is done is reported
            for first, done in in_processes(self._chunk, chunks, jobs, SECONDS):
                for result in self._one_by_one(first) if isinstance(done, Death) else done:
                    verdict: Outcome = result.verdict
                    reason = _NUMBER.sub("_", verdict.words) if verdict.what == "refused" else ""
                    seen.setdefault((verdict.symptom, reason[:_REASON]), []).append(result.seed)
                    if verdict.is_finding:
                        findings += 1
                        _save(result, folder)
        for (symptom, reason), seeds in sorted(seen.items()):
            example = f" (seed {min(seeds)})" if reason else ""
            sys.stdout.write(f"{len(seeds):6}  {symptom}  {reason}{example}\n")
        total = sum(map(len, seen.values()))
        sys.stdout.write(f"{total} {self.what}, {findings} wrong or internal errors\n")
        return 1 if findings else 0

    def _chunk(self, first: int) -> list[SeedResult]:
        self.prepare()
        return [self.play(seed) for seed in range(first, first + CHUNK)]

    def _one_by_one(self, first: int) -> list[SeedResult]:
        """Repeat a chunk whose process died, with one process per seed."""
        result: list[SeedResult] = []
        for seed in range(first, first + CHUNK):
            done = isolated(lambda seed=seed: self.play(seed), SECONDS / 5)
            result.append(self.died(seed, done.why) if isinstance(done, Death) else done)
        return result

    def main(self, program: str, default: int) -> int:
        """Command line: parse the options and run the campaign."""
        parser = argparse.ArgumentParser(prog=f"python -m {program}")
        parser.add_argument(f"--{self.what}", dest="count", type=int, default=default)
        parser.add_argument("--minutes", type=float, help="start no new work after this time")
        parser.add_argument("--seed", type=int, default=0, help="first seed")
        parser.add_argument("--folder", type=Path, default=self.folder, help="folder for scripts")
        parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
        options = parser.parse_args()
        return self.run(options.count, options.minutes, options.seed, options.jobs, options.folder)


def _save(result: SeedResult, folder: Path) -> None:
    path = folder / f"seed_{result.seed}.py"
    path.write_text(result.script, encoding="utf-8")
    sys.stdout.write(f"{path}: {result.verdict.symptom}: {result.verdict.words}\n")
    sys.stdout.flush()


def _until(firsts: Iterable[int], deadline: float | None) -> Iterator[int]:
    for first in firsts:
        if deadline is not None and time.monotonic() >= deadline:
            return
        yield first

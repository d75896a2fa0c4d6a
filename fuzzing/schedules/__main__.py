"""Command line of `fuzzing.schedules`: see the package."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fuzzing.annotations.bank import imported, scripts
from fuzzing.annotations.run import fuzz_annotations, write_findings
from fuzzing.schedules.corpus import Corpus
from fuzzing.schedules.isolate import Death, in_processes, isolated
from fuzzing.schedules.native import load_compiler
from fuzzing.schedules.play import ALL_MOVES, Failure, Played, Settings, play_chunk
from fuzzing.schedules.report import by_seed

CHUNK = 10
_SECONDS = 900


def main() -> int:
    """Repeat known failures, then play until enough steps are accepted; report.

    The exit code is 1 if a failure is open, else 0.
    """
    options = _options()
    if options.annotations is not None:
        return _annotations(options)
    corpus = Corpus(options.corpus, options.seed)
    corpus.try_again()
    for result in corpus.state.found:
        word = "mended" if result.mended else "still fails"
        sys.stdout.write(f"{word}: {options.corpus / result.file}: {result.symptom}\n")
    if options.native:
        load_compiler()
    start, taken, compiled, lowered = time.monotonic(), 0, 0, 0
    settings = Settings(options.length, options.native, tuple(options.often), options.lowered)
    chunks = _chunks(corpus, None if options.minutes is None else start + 60 * options.minutes)
    for first, played in in_processes(
        lambda first: play_chunk(first, CHUNK, settings), chunks, options.jobs, _SECONDS
    ):
        known = len(corpus.state.found)
        if isinstance(played, Death):
            played = _one_by_one(first, settings)
        corpus.note(first, CHUNK, played)
        taken += played.tally.steps
        compiled += played.native
        lowered += played.lowered
        for result in corpus.state.found[known:]:
            sys.stdout.write(f"FAILS: {options.corpus / result.file}: {result.symptom}\n")
            sys.stdout.flush()
        if options.steps is not None and taken >= options.steps:
            break
    seconds = time.monotonic() - start
    sys.stdout.write(
        f"{corpus.tally.table()}\n{taken} steps accepted, {compiled} of them compiled "
        f"too, {lowered} programs lowered, {len(corpus.open)} failures open, "
        f"{seconds:.0f} s; in all runs {corpus.tally.steps}, {corpus.state.native} "
        f"and {corpus.state.lowered}\n"
    )
    return 1 if corpus.open else 0


def _annotations(options: argparse.Namespace) -> int:
    """Mutate annotations of valid modules instead of scheduling programs."""
    load_compiler()
    outcome = fuzz_annotations(
        {**scripts(), **imported()}, options.annotations, options.seed, options.jobs
    )
    write_findings(outcome, options.corpus)
    sys.stdout.write(f"{outcome.table()}\n")
    for result in outcome.findings:
        sys.stdout.write(f"\n{result}")
    return 1 if outcome.findings else 0


def _one_by_one(first: int, settings: Settings) -> Played:
    """Repeat a chunk whose process died or hung, with one process per seed."""
    whole = Played()
    for seed in range(first, first + CHUNK):
        played = isolated(lambda seed=seed: play_chunk(seed, 1, settings), _SECONDS / CHUNK)
        if isinstance(played, Death):
            symptom = f"schedule: {played.why}"
            text = by_seed(symptom, played.why, seed, repr(settings))
            played = Played(failures=[Failure(seed, symptom, played.why, text)])
        whole.add(played)
    return whole


def _chunks(corpus: Corpus, deadline: float | None) -> Iterator[int]:
    """First seeds of the chunks not yet done, until time is up."""
    for first in itertools.count(corpus.state.next, CHUNK):
        if deadline is not None and time.monotonic() >= deadline:
            return
        if not corpus.done(first):
            yield first


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzzing.schedules")
    parser.add_argument("--steps", type=int, help="accepted steps to take in this run")
    parser.add_argument("--minutes", type=float, help="start no new work after this time")
    parser.add_argument("--seed", type=int, default=0, help="first seed of a new corpus")
    parser.add_argument(
        "--corpus",
        type=Path,
        default=Path("build/fuzz"),
        help="folder of state and scripts",
    )
    parser.add_argument("--native", type=float, default=0.05, help="fraction of steps compiled too")
    parser.add_argument(
        "--lowered", type=float, default=0.3, help="fraction of programs lowered pass by pass"
    )
    parser.add_argument("--length", type=int, default=12, help="steps tried per program")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--often", action="append", default=[], choices=sorted(ALL_MOVES))
    parser.add_argument(
        "--annotations",
        type=int,
        nargs="?",
        const=10_000,
        metavar="COUNT",
        help="judge this many mutants of annotated modules instead",
    )
    options = parser.parse_args()
    if options.steps is None and options.minutes is None:
        options.steps = 20_000
    return options


if __name__ == "__main__":
    sys.exit(main())

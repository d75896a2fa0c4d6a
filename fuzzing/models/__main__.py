"""Command line of `fuzzing.models`: see the package."""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from blockwright.build.workers import POOL
from fuzzing.conformance.store import source_digest
from fuzzing.eager import outcome
from fuzzing.eager.outcome import Outcome
from fuzzing.models.catalog import CATALOG
from fuzzing.models.page import page
from fuzzing.models.trial import ROUTES, Trial, attempt
from fuzzing.schedules.isolate import Death, in_processes, limit_memory


class Records(msgspec.Struct):
    """What a file of records holds: the sources that they were made from, and the trials."""

    digest: str
    trials: list[Trial]


def main() -> int:
    """Try architectures until all are done or time is up.

    The exit code is 1 if trials are left, wrong or end in internal errors; else 0.
    """
    options = _options()
    patterns = options.models.split(",")
    routes = options.routes.split(",")
    chosen = [
        (name, route)
        for name in CATALOG
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        for route in routes
    ]
    done = {(t.architecture, t.route): t for t in _kept(options)}
    todo = [key for key in chosen if key not in done]
    if todo:
        _load()
    deadline = time.monotonic() + 60 * options.minutes

    def work(key: tuple[str, str]) -> Trial:
        limit_memory(options.memory)
        return attempt(CATALOG[key[0]], key[1])

    supply = (key for key in todo if time.monotonic() < deadline)
    for key, result in in_processes(work, supply, options.jobs, options.seconds):
        trial = (
            Trial(*key, Outcome("internal", "", result.why))
            if isinstance(result, Death)
            else result
        )
        done[key] = trial
        found = trial.outcome
        sys.stdout.write(
            f"{trial.architecture:32} {trial.route:8} {found.what:9} {found.code} {found.words}"
            f" [{trial.error:.0e}, {trial.seconds:.0f} s]\n"
        )
        sys.stdout.flush()
        _save(options.file, list(done.values()))
    trials = [done[key] for key in chosen if key in done]
    counts = Counter(t.outcome.what for t in trials)
    listed = ", ".join(f"{n} {what}" for what, n in counts.most_common())
    sys.stdout.write(f"{len(trials)} of {len(chosen)} trials: {listed}\n")
    if options.page:
        options.page.write_text(page([t for t in done.values() if t.architecture in CATALOG]))
    return int(counts["wrong"] + counts["internal"] > 0 or len(trials) < len(chosen))


def _load() -> None:
    """Import what all trials need, so that the forked processes inherit it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers  # noqa: F401  # pyright: ignore[reportUnusedImport]

        POOL.count = 1
        outcome.load()


def _kept(options: argparse.Namespace) -> list[Trial]:
    try:
        records = msgspec.json.decode(options.file.read_bytes(), type=Records)
    except (FileNotFoundError, msgspec.DecodeError):
        return []
    if options.fresh or (records.digest != source_digest() and not options.any_sources):
        return []
    return records.trials


def _save(file: Path, trials: list[Trial]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(Records(source_digest(), trials)))
    part.replace(file)


def _options() -> Any:
    parser = argparse.ArgumentParser(prog="python -m fuzzing.models")
    parser.add_argument("--models", default="*", help="names, may contain *: llama*,t5")
    parser.add_argument("--routes", default=",".join(ROUTES), help="static,dynamic,onnx")
    parser.add_argument("--minutes", type=float, default=60, help="start no new trial after this")
    parser.add_argument("--seconds", type=float, default=600, help="time limit of a trial")
    parser.add_argument("--memory", type=int, default=8, help="memory limit of a trial in GiB")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--file", type=Path, default=Path("build/models.json"), help="the records")
    parser.add_argument("--page", type=Path, help="write a page of all records")
    parser.add_argument("--fresh", action="store_true", help="forget all records")
    parser.add_argument("--any-sources", action="store_true", help="keep records of other sources")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Command line of `fuzzing.onnx_nodes`: see the package."""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import multiprocessing
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import blockwright
from blockwright.build.workers import POOL
from blockwright.frontend.onnx.model import onnx_package
from fuzzing.onnx_nodes.collect import collect
from fuzzing.onnx_nodes.judge import Record, judge
from fuzzing.schedules.isolate import Death, in_processes, limit_memory
from fuzzing.schedules.native import load_compiler

_ORDER = ("pass", "refused", "wrong", "crash", "out of scope")


class Records(msgspec.Struct):
    """What a file of records holds: the sources that they were made from, and the records."""

    digest: str
    records: dict[str, Record]


def main() -> int:
    """Judge tests until all are done or time is up.

    The exit code is 1 if tests are left, wrong or crash; else 0.
    """
    options = _options()
    chosen = [t for t in collect() if fnmatch.fnmatchcase(t.name, options.tests)]
    done = _kept(options)
    todo = [t for t in chosen if t.name not in done.records]
    POOL.count = 1
    deadline = time.monotonic() + 60 * options.minutes

    def work(test: Any) -> Record:
        limit_memory()
        warnings.simplefilter("ignore")
        return judge(test)

    def outcomes() -> Iterator[tuple[Any, Record | Death]]:
        """Interpreted tests run here, as no generated code can end the process."""
        supply = (t for t in todo if time.monotonic() < deadline)
        if not options.interpret:
            load_compiler()
            yield from in_processes(work, supply, options.jobs, options.seconds)
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield from ((test, judge(test, interpreted=True)) for test in supply)

    for count, (test, result) in enumerate(outcomes(), start=1):
        record = Record(test.name, "crash", "", result.why) if isinstance(result, Death) else result
        done.records[test.name] = record
        if record.what in ("refused", "wrong", "crash"):
            sys.stdout.write(f"{record.name}: {record.what} {record.code} {record.words}\n")
            sys.stdout.flush()
        if count % 20 == 0:
            _save(options.file, done)
    _save(options.file, done)
    records = [done.records[t.name] for t in chosen if t.name in done.records]
    sys.stdout.write(_summary(records, len(chosen)))
    bad = any(r.what in ("wrong", "crash") for r in records)
    return int(bad or len(records) < len(chosen))


def _summary(records: list[Record], total: int) -> str:
    counts = Counter(r.what for r in records)
    scope = len(records) - counts["out of scope"]
    fixed = sum(1 for r in records if r.what == "pass" and r.fixed)
    listed = ", ".join(f"{counts[what]} {what}" for what in _ORDER if counts[what])
    share = 100 * counts["pass"] / max(scope, 1)
    codes = Counter(r.code for r in records if r.what == "refused")
    return (
        f"{len(records)} of {total} tests: {listed}; {share:.2f} % of {scope} in scope pass\n"
        f"{fixed} pass with fixed inputs; refusals by code: {dict(codes.most_common())}\n"
    )


def _digest() -> str:
    digest = hashlib.sha256(onnx_package().__version__.encode())
    for root in (Path(blockwright.__file__).parent, Path(__file__).parent):
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _kept(options: argparse.Namespace) -> Records:
    """The records of an earlier run that still hold."""
    fresh = Records(_digest(), {})
    if options.fresh or not options.file.exists():
        return fresh
    earlier = msgspec.json.decode(options.file.read_bytes(), type=Records)
    if earlier.digest == fresh.digest:
        return earlier
    if options.any_sources:
        kept = ("pass", "out of scope")
        fresh.records = {n: r for n, r in earlier.records.items() if r.what in kept}
    return fresh


def _save(path: Path, done: Records) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(done)))
    part.replace(path)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzzing.onnx_nodes")
    parser.add_argument("--tests", default="*", help="names, may contain *: 'test_conv*'")
    parser.add_argument("--minutes", type=float, default=60, help="start no new test after this")
    parser.add_argument("--seconds", type=float, default=120, help="limit for one test")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument(
        "--file", type=Path, default=Path("build/onnx_nodes.json"), help="file of the records"
    )
    parser.add_argument(
        "--interpret",
        action="store_true",
        help="evaluate imported graphs with the NumPy oracles instead of compiling them",
    )
    again = parser.add_mutually_exclusive_group()
    again.add_argument(
        "--any-sources", action="store_true", help="keep passes of other sources as well"
    )
    again.add_argument("--fresh", action="store_true", help="drop all records first")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

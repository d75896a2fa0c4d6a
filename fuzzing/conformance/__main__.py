"""Command line of `fuzzing.conformance`: see the package."""

from __future__ import annotations

import argparse
import fnmatch
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.testing._internal.common_methods_invocations import op_db

from blockwright.build.workers import POOL
from fuzzing.conformance.operator import Record, record_of, types_of
from fuzzing.conformance.page import page, table, totals
from fuzzing.conformance.samples import DTYPES
from fuzzing.conformance.store import Store
from fuzzing.eager.outcome import load
from fuzzing.schedules.isolate import Death, in_processes, isolated, limit_memory


def main() -> int:
    """Judge operators until all are done or time is up; report.

    The exit code is 1 if operators are left, a sample is wrong or raises an internal error; else 0.
    """
    options = _options()
    names = options.dtypes.split(",") if options.dtypes else list(DTYPES)
    store = Store(options.folder, f"{options.samples}")
    if options.fresh:
        store.clear()
    chosen = [op for op in _operators() if _wanted(op.full_name, options.ops)]
    logging.disable(logging.ERROR)  # PyTorch logs every sample that it cannot export
    # Operators are compiled in parallel, each in one process: further workers do not pay.
    POOL.count = 1
    load()
    deadline = time.monotonic() + 60 * options.minutes
    kept = {op.full_name: store.get(op.full_name, options.any_sources) for op in chosen}
    todo = [op for op in chosen if _left(op, names, kept[op.full_name])]

    def work(op: Any, alone: bool = False) -> Record:
        limit_memory()
        before = kept[op.full_name]
        return record_of(op, _left(op, names, before), options.samples, store.digest, before, alone)

    for op, done in in_processes(work, _until(deadline, todo), options.jobs, options.seconds):
        if isinstance(done, Death):
            done = isolated(lambda op=op: work(op, alone=True), 4 * options.seconds)
        if isinstance(done, Death):
            sys.stdout.write(f"{op.full_name}: {done.why}\n")
            continue
        store.put(done)
        _tell(done, kept[op.full_name])
        kept[op.full_name] = done
    records = [r for r in kept.values() if r is not None]
    sys.stdout.write(f"{table(records)}\n{totals(records)}\n")
    untried = [op.full_name for op in chosen if not types_of(op, names)]
    left = sum(1 for op in chosen if _left(op, names, kept[op.full_name]))
    if left:
        sys.stdout.write(f"{left} operators are left; run the command again to go on\n")
    elif options.page is not None:
        options.page.write_text(page(records, options.samples, untried), encoding="utf-8")
    return 1 if left or any(r.findings for r in records) else 0


def _left(op: Any, names: list[str], record: Record | None) -> list[str]:
    """The types in which an operator still has to be judged."""
    if record is None:
        return types_of(op, names)
    done = {row.dtype for row in record.rows}
    return [name for name in types_of(op, names) if name not in done] if record.covered else []


def _tell(record: Record, before: Record | None) -> None:
    """Print the new findings."""
    for result in record.findings[len(before.findings) if before else 0 :]:
        sys.stdout.write(
            f"{record.operator} {result.dtype} {result.label}: {result.what} "
            f"{result.code} {result.words}\n"
        )
    sys.stdout.flush()


def _operators() -> list[Any]:
    """The operators of OpInfo, one per full name."""
    result: dict[str, Any] = {}
    for op in op_db:
        result.setdefault(op.full_name, op)
    return [result[name] for name in sorted(result)]


def _wanted(name: str, patterns: str) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(name, p) for p in patterns.split(","))


def _until(deadline: float, items: list[Any]) -> Iterator[Any]:
    for item in items:
        if time.monotonic() >= deadline:
            return
        yield item


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzzing.conformance")
    parser.add_argument("--ops", default="", help="names, may contain *: add,nn.functional.*")
    parser.add_argument("--dtypes", default="", help="element types: float32,int64")
    parser.add_argument(
        "--samples",
        type=int,
        default=12,
        help="samples per operator in float32 and int64; other types: a third",
    )
    parser.add_argument("--minutes", type=float, default=60, help="start no new work after this")
    parser.add_argument(
        "--seconds",
        type=float,
        default=300,
        help="limit per operator; four times that if its samples are tried one by one",
    )
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument(
        "--folder", type=Path, default=Path("build/conformance"), help="folder for the records"
    )
    parser.add_argument("--page", type=Path, help="write the page when all operators are done")
    again = parser.add_mutually_exclusive_group()
    again.add_argument(
        "--resume", action="store_true", help="keep records of the same sources (the default)"
    )
    again.add_argument(
        "--any-sources",
        action="store_true",
        help="keep records of other sources as well; the page then says so",
    )
    again.add_argument("--fresh", action="store_true", help="delete all records first")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Command line of `fuzzing.mutation`: see the package."""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fuzzing.mutation.bank import Bank
from fuzzing.mutation.nets import Catch, examine
from fuzzing.mutation.page import ARGUED, Result, page, problems
from fuzzing.mutation.sites import Mutant, modules, mutants
from fuzzing.schedules.isolate import TOO_SLOW, Death, in_processes

_TESTS = ("tests/schedule/test_schedule_documentation.py", "tests/schedule")
_SECONDS = 300


def main() -> int:
    """Try every fault and write the page.

    The exit code is 1 if an uncaught fault is not argued, or an argued one was caught.
    """
    options = _options()
    chosen = [m for m in modules() if not options.only or m.rsplit(".", 1)[-1] in options.only]
    faults = {m: mutants(m) for m in chosen}
    bank = Bank()
    _say(f"{sum(map(len, faults.values()))} faults")
    bank.play(range(options.programs), options.length)
    bank.test(options.tests)
    gc.freeze()  # the bank is permanent: collections in forked processes skip it
    _say(f"uses of {len(bank.accepted.uses)} lines, refusals at {len(bank.refused.uses)} places")
    known = _known(options.json)
    for mutant, result in _tried(bank, _todo(faults, known, options.unsettled), options.jobs):
        known[mutant.key] = Result(mutant.key, mutant.module, mutant.kind, result)
        if options.json is not None:
            text = msgspec.json.encode(list(known.values()))
            options.json.write_bytes(msgspec.json.format(text))
    results = _in_order(known)
    argued = json.loads(ARGUED.read_text(encoding="utf-8"))
    text = page(results, argued, options.tests, options.programs)
    if options.page is not None:
        options.page.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    wrong = problems(results, argued, whole=not options.only)
    for line in wrong:
        _say(line)
    return 1 if wrong else 0


def _known(path: Path | None) -> dict[str, Result]:
    """Results of earlier runs; a run of some modules replaces theirs and keeps the others."""
    if path is None or not path.exists():
        return {}
    return {r.key: r for r in msgspec.json.decode(path.read_bytes(), type=list[Result])}


def _todo(
    faults: dict[str, list[Mutant]], known: dict[str, Result], unsettled: bool
) -> list[Mutant]:
    """Select the faults to try now, and drop outdated results of their modules from `known`."""
    kept = {
        m.key
        for result in faults.values()
        for m in result
        if unsettled and m.key in known and known[m.key].settled
    }
    for key in [k for k, r in known.items() if r.module in faults and k not in kept]:
        del known[key]
    return [m for result in faults.values() for m in result if m.key not in kept]


def _in_order(known: dict[str, Result]) -> list[Result]:
    """Results by module and line, without those of faults that no longer exist."""
    return [known[m.key] for name in modules() for m in mutants(name) if m.key in known]


def _tried(bank: Bank, todo: list[Mutant], jobs: int) -> Iterator[tuple[Mutant, Catch]]:
    """Try each fault in a separate process: it may never terminate, or corrupt state."""
    start = time.monotonic()
    done = in_processes(lambda m: _try(bank, m), todo, jobs, _SECONDS)
    for count, (mutant, result) in enumerate(done, 1):
        if count % 50 == 0:
            _say(f"{time.monotonic() - start:6.0f} s: {count} of {len(todo)} faults")
        if isinstance(result, Death):
            # If it does not terminate, no check is known to catch it: count it as a survivor.
            result = Catch(tried=1, crashed=int(result.why != TOO_SLOW), example=result.why)
        yield mutant, result


def _try(bank: Bank, mutant: Mutant) -> Catch:
    """Run a fault on uses that execute its place."""
    refused = mutant.kind == "precondition"
    uses = (bank.refused_at if refused else bank.uses_at)(mutant.module, mutant.line)
    tests = bank.tests_at(mutant.module, mutant.line, refused)
    return examine(mutant, uses, tests) if uses or tests else Catch()


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzzing.mutation")
    parser.add_argument("--programs", type=int, default=600, help="random programs to collect uses")
    parser.add_argument("--length", type=int, default=12, help="steps tried on each program")
    parser.add_argument(
        "--tests", nargs="*", default=list(_TESTS), help="tests to collect uses from"
    )
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--only", nargs="*", help="last names of the modules to test")
    parser.add_argument(
        "--unsettled",
        action="store_true",
        help="keep the caught faults in the --json file and try only the others",
    )
    parser.add_argument("--page", type=Path, help="file for the page; default: standard output")
    parser.add_argument(
        "--json",
        type=Path,
        help="file for the results of each fault; results of modules that are not tried now are "
        "kept",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

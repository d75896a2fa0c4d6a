"""Command line of `fuzzing.proofs`: see the package."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.pool import Pool

import msgspec

from blockwright.testing.moves import MOVES
from fuzzing.proofs.chunk import CHUNK, HINTS, ProofSettings, Verdicts, judge
from fuzzing.proofs.wrong import judge_features

MOST_EMPTY = 10
"""Consecutive rounds without a step of the requested kind after which the search stops."""


def main() -> int:
    """Verify until enough steps are judged; report. The exit code is 1 if a verdict is wrong."""
    parser = argparse.ArgumentParser(prog="python -m fuzzing.proofs")
    parser.add_argument("--steps", type=int, default=2000, help="number of verdicts")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--length", type=int, default=12, help="steps tried per program")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--sizes", default="any", choices=("any", "static", "symbolic", "factors"))
    parser.add_argument("--mutants", action="store_true", help="inject an error into each result")
    parser.add_argument(
        "--features",
        action="store_true",
        help="verify mutants of small programs with bound values, atomic updates, views, "
        "assertions, vectors, empty domains and conversions; no schedules are drawn",
    )
    parser.add_argument(
        "--unusual",
        action="store_true",
        help="also draw blocks with conditions, loops and computed positions of their own",
    )
    parser.add_argument("--open", action="store_true", help="list every unknown verdict")
    parser.add_argument("--often", action="append", default=[], choices=sorted(MOVES))
    parser.add_argument(
        "--each",
        type=int,
        default=0,
        metavar="N",
        help="N verdicts for each primitive, or for each one given by --often",
    )
    options = parser.parse_args()
    settings = ProofSettings(
        options.length,
        tuple(options.often),
        sizes=options.sizes,
        mutants=options.mutants,
        unusual=options.unusual,
    )
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        if options.features:
            result = _judged(pool, options, judge_features, options.steps)
        elif not options.each:
            result = _judged(pool, options, partial(judge, settings=settings), options.steps)
        else:
            result = Verdicts()
            for name in options.often or sorted(set(MOVES) - HINTS):
                only = msgspec.structs.replace(settings, only=name)
                draw = partial(judge, settings=only)
                result.add(_judged(pool, options, draw, options.each))
    sys.stdout.write(f"{result.table()}\n{result.steps} verdicts, {len(result.wrong)} wrong\n")
    for text in result.open if options.open else ():
        sys.stdout.write(f"{text}\n")
    for text in result.broken:
        sys.stdout.write(f"no program: {text}\n")
    for text in result.wrong:
        sys.stdout.write(f"\n{text}\n")
    return 1 if result.wrong else 0


def _judged(
    pool: Pool, options: argparse.Namespace, draw: Callable[[int], Verdicts], wanted: int
) -> Verdicts:
    """Verdicts on random programs until there are enough, or steps become too rare."""
    result, first, empty = Verdicts(), options.seed, 0
    while result.steps < wanted and empty < MOST_EMPTY:
        chunks = [first + CHUNK * k for k in range(4 * options.jobs)]
        first = chunks[-1] + CHUNK
        before = result.steps
        for part in pool.imap(draw, chunks):
            result.add(part)
        empty = empty + 1 if result.steps == before else 0
    return result


if __name__ == "__main__":
    sys.exit(main())

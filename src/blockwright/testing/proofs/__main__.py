"""`python -m blockwright.testing.proofs`: see the package."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from functools import partial

from blockwright.testing.moves import MOVES
from blockwright.testing.proofs.chunk import CHUNK, Settings, Verdicts, judge


def main() -> int:
    """Prove until enough steps were judged; report. Exits with 1 when a verdict was wrong."""
    parser = argparse.ArgumentParser(prog="python -m blockwright.testing.proofs")
    parser.add_argument("--steps", type=int, default=2000, help="verdicts to reach")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--length", type=int, default=12, help="steps tried per program")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--sizes", choices=("any", "static", "symbolic"), default="any")
    parser.add_argument("--mutants", action="store_true", help="put an error into each result")
    parser.add_argument("--open", action="store_true", help="list every unknown verdict")
    parser.add_argument("--often", action="append", default=[], choices=sorted(MOVES))
    options = parser.parse_args()
    settings = Settings(options.length, tuple(options.often), options.sizes, options.mutants)
    found, first = Verdicts(), options.seed
    # Contexts of isl are never given back, so processes are: each judges a few hundred steps.
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=20) as pool:
        while found.steps < options.steps:
            chunks = [first + CHUNK * k for k in range(4 * options.jobs)]
            first = chunks[-1] + CHUNK
            for part in pool.imap(partial(judge, settings=settings), chunks):
                found.add(part)
    sys.stdout.write(f"{found.table()}\n{found.steps} verdicts, {len(found.wrong)} wrong\n")
    for text in found.open if options.open else ():
        sys.stdout.write(f"{text}\n")
    for text in found.wrong:
        sys.stdout.write(f"\n{text}\n")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

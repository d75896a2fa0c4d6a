"""Random schedules at length: `python -m blockwright.testing.moves --steps 20000`.

Prints per primitive how many steps were accepted and refused, and why; exits with 1 and the failing
schedules when one of them changed what a program computes. `--often NAME` draws a step more often.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from functools import partial

from blockwright.testing.moves import MOVES, Tally
from blockwright.testing.moves.chunk import CHUNK, play


def main() -> int:
    """Play until enough steps were accepted; report."""
    parser = argparse.ArgumentParser(prog="python -m blockwright.testing.moves")
    parser.add_argument("--steps", type=int, default=20_000, help="accepted steps to take")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--length", type=int, default=12, help="steps tried per program")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--often", action="append", default=[], choices=sorted(MOVES))
    options = parser.parse_args()
    tally, failures, start = Tally(), list[str](), time.monotonic()
    work = partial(play, often=options.often, length=options.length)
    first = options.seed
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=20) as pool:
        while tally.steps < options.steps:
            chunks = [first + CHUNK * k for k in range(4 * options.jobs)]
            first = chunks[-1] + CHUNK
            for part, found in pool.imap(work, chunks):
                tally.add(part)
                failures += found
                for failure in found:
                    sys.stdout.write(failure + "\n\n")
    seconds = time.monotonic() - start
    sys.stdout.write(f"{tally.table()}\n{tally.steps} steps accepted, {len(failures)} failures, "
                     f"{seconds:.0f} s\n")  # fmt: skip
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

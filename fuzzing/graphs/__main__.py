"""Command line of `fuzzing.graphs`: see the package."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path

from fuzzing.graphs.campaign import FOLDER, judge_graphs


def main() -> int:
    """Parse the options and test graph functions."""
    parser = argparse.ArgumentParser(prog="python -m fuzzing.graphs")
    parser.add_argument("--graphs", type=int, default=1000, help="number of graph functions")
    parser.add_argument("--minutes", type=float, help="start no new work after this time")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder for scripts")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    return judge_graphs(options.graphs, options.minutes, options.seed, options.jobs, options.folder)


if __name__ == "__main__":
    sys.exit(main())

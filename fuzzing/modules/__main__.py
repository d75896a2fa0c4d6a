"""`python -m fuzzing.modules`: see the package."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path

from fuzzing.modules.campaign import FOLDER, judge_modules


def main() -> int:
    """Read the options and judge modules."""
    parser = argparse.ArgumentParser(prog="python -m fuzzing.modules")
    parser.add_argument("--modules", type=int, default=3000, help="modules to judge")
    parser.add_argument("--minutes", type=float, help="begin nothing new after so long")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the scripts")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    options = parser.parse_args()
    return judge_modules(
        options.modules, options.minutes, options.seed, options.jobs, options.folder
    )


if __name__ == "__main__":
    sys.exit(main())

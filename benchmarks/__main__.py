"""Run every comparison: ``python -m benchmarks [CASE ...] [--artefact MODEL.bwx] [--threads N]``.

Without ``--artefact`` the model of case `minilm` is compiled first, in a process of its own, so
that what is timed is always the code of this tree. Results are written to ``benchmarks/results``;
the exit status is 1 when a case missed a figure it must reach.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks import gemm, harness, minilm, tools

CASES = ("gemm", "minilm", "tools")


def main() -> int:
    """Parse the command line, build what is missing, run the cases."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    names = ", ".join(CASES)
    parser.add_argument(
        "case", nargs="*", choices=[[], *CASES], metavar="CASE", help=f"of {names}; all by default"
    )
    parser.add_argument("--artefact", type=Path, help="a saved model to time; else one is built")
    parser.add_argument("--threads", type=int, default=2, help="of each peer (2)")
    parser.add_argument(
        "--clock",
        choices=("wall", "processor"),
        default="wall",
        help="what passes, or what the peer's threads use: the latter compares the work done, with "
        "--threads 1, even beside busy programs",
    )
    options = parser.parse_args()
    settings = harness.Settings(clock=options.clock)
    reached = True
    for name in options.case or CASES:
        print(f"==> {name}", flush=True)
        if name == "gemm":
            reached &= gemm.main(options.threads, settings)
        elif name == "minilm":
            minilm.main(options.artefact or _compiled(), options.threads, settings)
        else:
            reached &= tools.main()
    return 0 if reached else 1


def _compiled() -> Path:
    artefact = Path("build/minilm/benchmark.bwx")
    command = [sys.executable, "-m", "examples.minilm.compile_model", str(artefact)]
    subprocess.run(command, check=True)
    return artefact


if __name__ == "__main__":
    sys.exit(main())

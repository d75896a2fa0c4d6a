"""Run comparisons: ``python -m benchmarks [CASE ...] [--threads N]``.

The model of case `minilm` is compiled first, in a separate process, unless ``--artefact`` names
one: the timed code is always that of this source tree. The cases `operators` and `models` compare
with other engines, which are installed into separate virtual environments on first use. The cases
`cliffs` and `sweep` run only when named, because they compile hundreds of shapes.

Results are written to ``benchmarks/results``; the exit status is 1 if a case missed one of its
bounds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks import (
    busy,
    choice,
    cliffs,
    environments,
    gemm,
    harness,
    minilm,
    streams,
    sweep,
    symbolic,
    tools,
    versus,
)
from benchmarks.built_for import NATIVE, limits
from benchmarks.peers import DEFAULT, ENGINES, OURS

CASES = ("gemm", "minilm", "tools", "streams", "operators", "models", "symbolic", "busy")
CACHES = {"hot": (versus.HOT,), "cold": (versus.COLD,), "both": (versus.HOT, versus.COLD)}
NAMED = ("cliffs", "choice", "sweep")  # run only when named: they take long, or draw at random


def main() -> int:
    """Parse the command line, build what is missing, run the cases."""
    options = _parser().parse_args()
    os.environ.update(limits(options.target))
    environments.with_bytecode()
    settings = harness.Settings(clock=options.clock)
    reached = True
    for name in options.case or CASES:
        print(f"==> {name}", flush=True)
        if name == "gemm":
            reached &= gemm.main(options.threads, settings)
        elif name == "minilm":
            minilm.main(options.artefact or _compiled(), options.threads, settings)
        elif name == "symbolic":
            reached &= symbolic.main(
                options.only, options.shapes or 30, options.threads, settings, options.target
            )
        elif name == "tools":
            reached &= tools.main()
        elif name == "cliffs":
            products = options.gemm if options.gemm is not None else 0 if options.only else 200
            reached &= cliffs.main(
                cliffs.Plan(
                    options.only,
                    options.threads,
                    max(options.rounds, 5),
                    products,
                    options.seed,
                    options.clock,
                    options.target,
                )
            )
        elif name == "sweep":
            drawn = sweep.Plan(
                options.shapes or 400,
                options.threads,
                options.seed,
                options.target,
                options.any_size,
            )
            reached &= sweep.main(drawn)
        elif name == "streams":
            reached &= streams.main(options.threads, settings, options.only, options.target)
        elif name == "choice":
            study = choice.Plan(
                options.shapes or 200,
                options.schedules,
                options.seed,
                options.rounds + 2,
                options.threads,
                options.clock,
                options.target,
            )
            reached &= choice.main(study, options.resume)
        else:
            plan = versus.Plan(
                options.only,
                options.peers,
                options.threads,
                options.rounds,
                CACHES[options.cache],
                options.target,
            )
            compare = busy.main if name == "busy" else partial(versus.main, name)
            reached &= compare(plan, settings)
    return 0 if reached else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    names = f"{', '.join(CASES)}, all by default; and {', '.join(NAMED)}"
    parser.add_argument(
        "case", nargs="*", choices=[[], *CASES, *NAMED], metavar="CASE", help=f"one of {names}"
    )
    parser.add_argument(
        "--artefact", type=Path, help="a saved model to time; otherwise one is built"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of each peer (2)")
    parser.add_argument(
        "--clock",
        choices=("wall", "processor"),
        default="wall",
        help="elapsed time, or the processor time of the peer's threads, which compares the work "
        "done, with --threads 1 even next to busy programs",
    )
    parser.add_argument(
        "--shapes",
        type=int,
        help="of each model in symbolic (30), random matrix products in choice (200), and random "
        "operators in sweep (400)",
    )
    parser.add_argument(
        "--target",
        default=NATIVE,
        help="instruction set (native): for ours, for TVM, and for peers with an x86-64-v3 "
        "variable; ONNX Runtime and OpenVINO's matrix products use what they detect",
    )
    sample = parser.add_argument_group("cliffs")
    sample.add_argument(
        "--gemm",
        type=int,
        metavar="N",
        help="random products with constant weights (200; none with --only)",
    )
    others = parser.add_argument_group("streams, operators, models, busy and cliffs")
    others.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="cases whose names contain NAME; may be given several times",
    )
    others.add_argument(
        "--peers",
        type=_peers,
        default=DEFAULT,
        metavar="A,B",
        help=f"from {', '.join(name for name in ENGINES if name != OURS)}; {','.join(DEFAULT)} by "
        "default",
    )
    others.add_argument("--rounds", type=int, default=3, help="rounds of each engine (3)")
    others.add_argument(
        "--cache",
        choices=[*CACHES],
        default="both",
        help="caches as the last call left them, or filled with other data before each (both)",
    )
    parser.add_argument(
        "--any-size", action="store_true", help="in sweep, compile for symbolic sizes"
    )
    grid = parser.add_argument_group(
        "choice", "the strategy compared with a grid of other schedules"
    )
    grid.add_argument(
        "--schedules", type=int, default=20, help="schedules drawn for each product (20)"
    )
    grid.add_argument(
        "--seed", type=int, default=0, help="random seed of cliffs, choice and sweep (0)"
    )
    grid.add_argument("--resume", action="store_true", help="continue an interrupted study")
    return parser


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    unknown = [name for name in names if name not in ENGINES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown peer {', '.join(unknown)}")
    return names


def _compiled() -> Path:
    artefact = Path("build/minilm/benchmark.bwx")
    command = [sys.executable, "-m", "examples.minilm.compile_model", str(artefact)]
    subprocess.run(command, check=True)
    return artefact


if __name__ == "__main__":
    sys.exit(main())

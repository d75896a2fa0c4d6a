"""How long the tools take: parsing, printing, and each schedule primitive.

Random schedules on programs of ten stages, as people and rules write them; every accepted step is
timed. Nothing is compared with a peer: the bounds are what keeps a session interactive and a search
fast. Another program on the machine can only add to a figure, so the whole is done several times
and the smallest median counts.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import harness

if TYPE_CHECKING:
    from blockwright.ir import PrimFunc

RESULTS = Path(__file__).resolve().parent / "results"
ROUNDS = 3
PROGRAMS = 40
STEPS = 16

LOOP_STEPS = {"add_unit_loop", "annotate", "bind", "fuse", "loop_partition", "merge", "parallel",
              "reorder", "split", "unannotate", "unroll", "vectorize"}  # fmt: skip
LOOP_BOUND, OTHER_BOUND, LONGEST = 1e-3, 10e-3, 50e-3
PARSE_BOUND, PRINT_BOUND = 5e-3, 1e-3

MATMUL = """
@T.prim_func
def matmul(
    A: T.Buffer((128, 128), "float32"),
    B: T.Buffer((128, 128), "float32"),
    C: T.Buffer((128, 128), "float32"),
):
    for i, j, k in T.grid(128, 128, 128):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""


def median_of(call: Callable[[], Any], calls: int = 30) -> float:
    """The smallest median of a few rounds of calls, in seconds."""
    medians: list[float] = []
    for _ in range(ROUNDS):
        taken: list[float] = []
        for _ in range(calls):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
        medians.append(statistics.median(taken))
    return min(medians)


def step_times() -> dict[str, tuple[float, float, int]]:
    """Primitive → smallest median, longest step in the best round, and number of steps."""
    from blockwright.testing import random_program

    programs = [random_program(seed, stages=10) for seed in range(PROGRAMS)]
    rounds = [_round(programs) for _ in range(ROUNDS)]
    found: dict[str, tuple[float, float, int]] = {}
    for name in rounds[0]:
        # Step n of a round is the same step in every round: its best time is its time.
        best = [min(times) for times in zip(*(each[name] for each in rounds), strict=True)]
        found[name] = statistics.median(best), max(best), len(best)
    return found


def _round(programs: list[PrimFunc]) -> dict[str, list[float]]:
    from blockwright.schedule import Schedule
    from blockwright.testing.moves import MOVES, Player

    times: dict[str, list[float]] = {}

    class Timed(Schedule):
        def _run(self, record: Any) -> Any:
            start = time.perf_counter()
            outputs = super()._run(record)
            times.setdefault(record.method, []).append(time.perf_counter() - start)
            return outputs

    gc.collect()
    for seed, program in enumerate(programs):
        player = Player(program, MOVES, seed, schedule=Timed(program))
        player.play(STEPS)
    return times


def main() -> bool:
    """Measure, print the table, and say whether every bound holds."""
    from blockwright import from_source
    from blockwright.ir.printer import script

    matmul = from_source(MATMUL)
    rows: list[tuple[str, float, float, float]] = []
    took = median_of(lambda: from_source(MATMUL))
    rows.append(("parse a matrix product", took, took, PARSE_BOUND))
    took = median_of(lambda: script(matmul))
    rows.append(("print it", took, took, PRINT_BOUND))
    for name, (median, longest, count) in sorted(step_times().items()):
        bound = LOOP_BOUND if name in LOOP_STEPS or name.startswith("get_") else OTHER_BOUND
        rows.append((f"{name} ({count})", median, longest, bound))
    print(f"{'tool (steps timed)':36} {'median':>10} {'bound':>8} {'longest':>11}")
    missed: list[str] = []
    for name, median, longest, bound in rows:
        print(f"{name:36} {median * 1e3:>7.2f} ms {bound * 1e3:>5.0f} ms {longest * 1e3:>8.2f} ms")
        if median > bound or longest > LONGEST:
            missed.append(name)
    record = {
        "case": "tools",
        "machine": harness.machine(),
        "rows": [dict(zip(("name", "median", "longest", "bound"), r, strict=True)) for r in rows],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "tools.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if missed:
        print("above their bounds: " + ", ".join(missed))
    return not missed

"""Time of the tools: parsing, printing, and each schedule primitive.

Random schedules on programs of ten stages, like those that users and strategies write; every
accepted step is timed. So are the steps of two schedules with symbolic tile sizes: three levels of
a matrix product, and a convolution whose halo is computed per tile. There are no peers: the bounds
keep a session interactive and a search fast. Processor time is measured; for single-threaded tools
that do not wait, it is the elapsed time on an idle machine. Other programs can only add to it, so
the whole is repeated several times and the smallest median counts.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks import harness
from benchmarks.record import write

if TYPE_CHECKING:
    from blockwright.ir import Var
    from blockwright.schedule import Schedule

ROUNDS = 3
PROGRAMS = 160
STEPS = 16

LOOP_STEPS = {
    "add_unit_loop",
    "annotate",
    "bind",
    "fuse",
    "loop_partition",
    "merge",
    "parallel",
    "reorder",
    "split",
    "unannotate",
    "unroll",
    "vectorize",
}
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

LARGEST_TILE = 16
TILED_GEMM = """
@T.prim_func
def gemm(
    A: T.Buffer((30, 26), "float32"),
    B: T.Buffer((26, 22), "float32"),
    C: T.Buffer((30, 22), "float32"),
    i1: T.int32, i2: T.int32, j1: T.int32, j2: T.int32, k1: T.int32,
):
    for i, j, k in T.grid(30, 22, 26):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""
TILED_CONVOLUTION = """
@T.prim_func
def convolution(
    X: T.Buffer((3, 9, 11), "float32"),
    W: T.Buffer((5, 3, 3, 3), "float32"),
    Y: T.Buffer((5, 9, 11), "float32"),
    tf: T.int32, th: T.int32, tw: T.int32, tc: T.int32,
):
    P = T.alloc_buffer((3, 11, 13), "float32")
    for c, h, w in T.grid(3, 11, 13):
        with T.block("pad"):
            vc, vh, vw = T.axis.remap("SSS", [c, h, w])
            P[vc, vh, vw] = T.if_then_else(
                1 <= vh and vh < 10 and 1 <= vw and vw < 12, X[vc, vh - 1, vw - 1], 0.0
            )
    for f, h, w, c, r, s in T.grid(5, 9, 11, 3, 3, 3):
        with T.block("conv"):
            vf, vh, vw, vc, vr, vs = T.axis.remap("SSSRRR", [f, h, w, c, r, s])
            with T.init():
                Y[vf, vh, vw] = 0.0
            Y[vf, vh, vw] = Y[vf, vh, vw] + P[vc, vh + vr, vw + vs] * W[vf, vc, vr, vs]
"""


def tiled_gemm(sch: Schedule) -> None:
    """Three levels of spatial tiles, two of the reduction; operands and result staged."""
    i1, i2, j1, j2, k1 = _sizes(sch)
    block = sch.get_block("C")
    result = sch.cache_write(block, 0, "local")
    i, j, k = sch.get_loops(block)
    i_out, i_mid, i_in = sch.split(i, [None, i1, i2])
    j_out, j_mid, j_in = sch.split(j, [None, j1, j2])
    k_out, k_in = sch.split(k, [None, k1])
    sch.reorder(i_out, j_out, i_mid, j_mid, k_out, k_in, i_in, j_in)
    tile = sch.fuse(i_out, j_out)
    sch.reverse_compute_at(result, j_mid)
    sch.compute_at(sch.cache_read(block, 0, "global"), k_out)
    sch.compute_at(sch.cache_read(block, 1, "global"), tile)
    sch.decompose_reduction(block, k_out)
    _, lanes = sch.split(j_in, [None, 4])
    sch.vectorize(lanes)
    sch.parallel(tile)


def tiled_convolution(sch: Schedule) -> None:
    """Tiles of rows and columns; the padded input is computed per tile, with its halo."""
    tf, th, tw, tc = _sizes(sch)
    block = sch.get_block("conv")
    result = sch.cache_write(block, 0, "local")
    f, h, w, c, r, s = sch.get_loops(block)
    f_out, f_in = sch.split(f, [None, tf])
    h_out, h_in = sch.split(h, [None, th])
    w_out, w_in = sch.split(w, [None, tw])
    c_out, c_in = sch.split(c, [None, tc])
    sch.reorder(h_out, w_out, f_out, c_out, r, s, c_in, h_in, w_in, f_in)
    tile = sch.fuse(h_out, w_out)
    sch.reverse_compute_at(result, f_out)
    sch.compute_at(sch.get_block("pad"), tile)
    sch.compute_at(sch.cache_read(block, 1, "global"), c_out)
    sch.decompose_reduction(block, c_out)
    sch.parallel(tile)


def _sizes(sch: Schedule) -> list[Var]:
    """The tile sizes: the scalar parameters."""
    return [p for p in sch.func.params if p.dtype.is_int]


def median_of(call: Callable[[], Any], calls: int = 30) -> float:
    """The smallest median of a few rounds of calls, in seconds."""
    medians: list[float] = []
    for _ in range(ROUNDS):
        taken: list[float] = []
        for _ in range(calls):
            start = time.process_time()
            call()
            taken.append(time.process_time() - start)
        medians.append(statistics.median(taken))
    return min(medians)


Times = dict[str, list[float]]


def step_times() -> dict[str, tuple[float, float, int]]:
    """Primitive → smallest median, longest step in the best round, and number of steps."""
    from blockwright.testing import random_program
    from blockwright.testing.moves import MOVES, Player

    programs = [random_program(seed, stages=10) for seed in range(PROGRAMS)]

    def play(timed: type[Schedule]) -> None:
        for seed, program in enumerate(programs):
            gc.collect()  # garbage of earlier programs is not part of a step
            Player(program, MOVES, seed, schedule=timed(program)).play(STEPS)

    return _best(play)


def symbolic_times(source: str, steps: Callable[[Any], None]) -> tuple[float, float, int]:
    """Median, longest step and number of steps of one symbolic schedule, over all primitives."""
    from blockwright import from_source

    program: Any = from_source(source)
    names = [p.name for p in program.params if p.dtype.is_int]
    limits = {"tir_var_lower_bound": 1, "tir_var_upper_bound": LARGEST_TILE}
    bounded = program.with_attrs(**{key: dict.fromkeys(names, v) for key, v in limits.items()})
    found = _best(lambda timed: steps(timed(bounded)))
    count = sum(n for _, _, n in found.values())
    medians = [median for median, _, n in found.values() for _ in range(n)]
    return statistics.median(medians), max(longest for _, longest, _ in found.values()), count


def _best(play: Callable[[type[Schedule]], None]) -> dict[str, tuple[float, float, int]]:
    """Time the steps of `play` on an instrumented schedule class, best of several rounds."""
    rounds = [_round(play) for _ in range(ROUNDS)]
    found: dict[str, tuple[float, float, int]] = {}
    for name in rounds[0]:
        # Step n is the same step in every round: its best time counts.
        best = [min(times) for times in zip(*(each[name] for each in rounds), strict=True)]
        found[name] = statistics.median(best), max(best), len(best)
    return found


def _round(play: Callable[[type[Schedule]], None]) -> Times:
    from blockwright.schedule import Schedule

    times: Times = {}

    class Timed(Schedule):
        def _run(self, record: Any) -> Any:
            start = time.process_time()
            outputs = super()._run(record)
            times.setdefault(record.method, []).append(time.process_time() - start)
            return outputs

    gc.collect()
    play(Timed)
    return times


def main() -> bool:
    """Measure, print the table, and return whether every bound holds."""
    from blockwright import from_source
    from blockwright.ir.printer import script

    before = harness.machine()
    matmul = from_source(MATMUL)
    rows: list[tuple[str, float, float, float]] = []
    took = median_of(lambda: from_source(MATMUL))
    rows.append(("parse a matrix product", took, took, PARSE_BOUND))
    took = median_of(lambda: script(matmul))
    rows.append(("print it", took, took, PRINT_BOUND))
    for name, (median, longest, count) in sorted(step_times().items()):
        bound = LOOP_BOUND if name in LOOP_STEPS or name.startswith("get_") else OTHER_BOUND
        rows.append((f"{name} ({count})", median, longest, bound))
    symbolic = (
        ("symbolic GEMM", TILED_GEMM, tiled_gemm),
        ("symbolic convolution", TILED_CONVOLUTION, tiled_convolution),
    )
    for name, source, steps in symbolic:
        median, longest, count = symbolic_times(source, steps)
        rows.append((f"{name} ({count})", median, longest, LONGEST))
    print(f"{'tool (steps timed)':36} {'median':>10} {'bound':>8} {'longest':>11}")
    missed: list[str] = []
    for name, median, longest, bound in rows:
        print(f"{name:36} {median * 1e3:>7.2f} ms {bound * 1e3:>5.0f} ms {longest * 1e3:>8.2f} ms")
        if median > bound or longest > LONGEST:
            missed.append(name)
    columns = ("name", "median", "longest", "bound")
    found = {"rows": [dict(zip(columns, row, strict=True)) for row in rows]}
    write("tools", before, found)
    if missed:
        print("above their bounds: " + ", ".join(missed))
    return not missed

"""Compare the GEMM strategy's schedule with a grid of others, on random matrix products.

For every shape some points of the grid (`choice_grid`) are drawn, built, checked against the
product in float64 and timed in turns in this process. Then neighbors of the fastest point are tried
until none is faster. The fastest few and the strategy's schedule are timed once more, in turns,
which decides. Reported are the strategy's speed relative to the fastest, and how well the cost
model ranks the drawn points: within each shape, and over all shapes by predicted and measured
speed.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import repeat
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import harness, record
from benchmarks.built_for import NATIVE, built_for
from benchmarks.choice_grid import (
    Point,
    Shape,
    neighbours,
    program,
    random_point,
    random_shape,
    scheduled,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from numpy.typing import NDArray

    from blockwright.ir import PrimFunc
    from blockwright.target import Target

MEAN, WORST, RANKS = 0.95, 0.80, 0.80
"""Bounds: geometric mean and minimum of our speed relative to the best, rank correlation."""

_BUILDERS = 2  # processes that build kernels
_SHAPES_OF_A_PROCESS = 25
_FINAL = 4  # schedules timed once more together with the strategy's
_STEPS = 3  # rounds of trying the neighbors of the fastest
# largest rounding error of a step, relative to the sum, as all terms are positive
_ROUNDING = 2.0**-24


@dataclass(frozen=True)
class Plan:
    """Parameters of a study.

    Attributes:
        shapes, schedules: number of shapes, and of grid points drawn per shape.
        rounds: rounds of timing.
        clock: "wall"; with one thread also "processor".
        target: target to build for.
    """

    shapes: int = 6
    schedules: int = 16
    seed: int = 0
    rounds: int = 5
    threads: int = 2
    clock: str = "wall"
    target: str = NATIVE


@dataclass(frozen=True)
class Kernel:
    """A compiled function, as returned by the process that built it."""

    library: bytes
    name: str
    parameters: tuple[str, ...]

    @classmethod
    def built(cls, func: PrimFunc, target: Target) -> Kernel:
        import blockwright as bw

        module = bw.build(func, target)
        return cls(module.library_bytes, func.name, module[func.name].parameters)

    def loaded(self) -> Callable[..., Any]:
        from blockwright.runtime.arguments import NativeFunction
        from blockwright.runtime.library import load_image

        library = load_image(self.library)
        return NativeFunction(
            library.function(self.name), self.name, self.parameters, library=library
        )


@dataclass(frozen=True)
class Built:
    """A built schedule: its predicted time, its kernel, and its packing of the weights."""

    name: str
    predicted: float
    limits: str
    kernel: Kernel
    pack: Kernel | None
    packed: tuple[int, ...]


def built(shape: Shape, point: Point | None, target: Target) -> Built:
    """Build the product with the schedule of a grid point; with None, with the strategy's."""
    from blockwright.cost import estimate
    from blockwright.ir import const_int
    from blockwright.passes.hoist_weight_prepack import split_prologue
    from blockwright.strategies import CONSTANT_PARAMS, apply_strategies

    if point is None:
        func = program(shape)
        known = func.replace(attrs={**func.attrs, CONSTANT_PARAMS: (1,)})
        func = apply_strategies(known, target).func.replace(attrs=func.attrs)
    else:
        func = scheduled(shape, point, target)
    kernel, splits = split_prologue(func, {1})
    packs = splits[0].packs if splits else ()
    estimated = estimate(kernel, target)
    pack = Kernel.built(packs[0].func, target) if packs else None
    packed = tuple(const_int(d) or 0 for d in packs[0].packed.shape) if packs else ()
    return Built(
        str(point or "strategy"),
        estimated.seconds,
        estimated.limits,
        Kernel.built(kernel, target),
        pack,
        packed,
    )


class Candidate:
    """A schedule to time."""

    def __init__(self, made: Built) -> None:
        self.name, self.predicted, self.limits = made.name, made.predicted, made.limits
        self.times: list[float] = []
        self._run = made.kernel.loaded()
        self._pack = made.pack.loaded() if made.pack else None
        self._packed = made.packed

    @property
    def seconds(self) -> float:
        return statistics.median(self.times)

    def prepare(self, operands: Operands) -> None:
        """Pack the weights, and check the product."""
        a, w, c = operands.a, operands.w, operands.c
        if self._pack is not None:
            packed = np.zeros(self._packed, "float32")
            self._pack(w, packed)
            w = packed
        run = self._run
        self.call: Callable[[], Any] = lambda: run(a, w, c)
        c[:] = np.nan
        self.call()
        error = float(np.abs(c - operands.answer).max())
        if not error <= _ROUNDING * operands.a.shape[1] * operands.answer.max():
            raise AssertionError(f"{self.name}: the product is wrong by {error:.1e}")

    def time(self, clock: Callable[[], float]) -> None:
        start = clock()
        self.call()
        self.times.append(clock() - start)


class Operands:
    """Matrices for a shape, and their product in float64."""

    def __init__(self, shape: Shape) -> None:
        draw = np.random.default_rng(0)
        self.a = draw.random((shape.m, shape.k), np.float32)
        self.w = draw.random((shape.k, shape.n), np.float32)
        self.c = np.zeros((shape.m, shape.n), np.float32)
        self.answer: NDArray[np.float64] = self.a.astype(np.float64) @ self.w


@dataclass(frozen=True)
class Line:
    """One shape: the strategy's speed relative to the grid's best, and the drawn points."""

    shape: str
    share: float
    ours: float
    best: str
    gflops: float
    ranks: float
    points: tuple[str, ...]
    limits: tuple[str, ...]
    predicted: tuple[float, ...]
    measured: tuple[float, ...]

    def __str__(self) -> str:
        return (
            f"{self.shape:>16} {self.gflops:>8.1f} {self.share:>7.1%} {self.ranks:>7.2f}"
            f"  {self.best}"
        )


HEADER = f"{'shape':>16} {'GFLOP/s':>8} {'of best':>7} {'ranks':>7}  best of the grid"


@functools.cache
def _builders() -> Executor:
    """Processes that build kernels, and are idle while kernels are timed."""
    pool = ProcessPoolExecutor(_BUILDERS, multiprocessing.get_context("spawn"))
    # A process waits at exit for its child processes, so shut these down before.
    Finalize(None, pool.shutdown, exitpriority=20)  # before its queue closes, at 10
    return pool


def study(plan: Plan, number: int) -> Line:
    """Time the strategy's schedule and a part of the grid for one of a plan's shapes."""
    import blockwright as bw

    bw.set_num_threads(plan.threads)
    target = built_for(plan.target, plan.threads)
    draw = random.Random(f"{plan.seed} {number}")
    shape = random_shape(draw)
    operands = Operands(shape)
    points: dict[Point, Candidate] = {}

    def add(*new: Point | None) -> list[Candidate]:
        made = _builders().map(built, repeat(shape), new, repeat(target))
        candidates = [Candidate(one) for one in made]
        for point, candidate in zip(new, candidates, strict=True):
            candidate.prepare(operands)
            if point is not None:
                points[point] = candidate
        return candidates

    first: dict[Point, None] = {}
    while len(first) < plan.schedules:
        first[random_point(draw, shape, target)] = None
    ours, *drawn = add(None, *first)
    in_turns([ours, *drawn], plan)
    for _ in range(_STEPS):
        fastest = min(points, key=lambda p: points[p].seconds)
        near = [p for p in neighbours(fastest, shape, target) if p not in points]
        in_turns([points[fastest], *add(*near)], plan)
        if min(points, key=lambda p: points[p].seconds) == fastest:
            break
    final = sorted(points.values(), key=lambda c: c.seconds)[:_FINAL]
    measured = tuple(c.seconds for c in drawn)
    for candidate in (ours, *final):
        candidate.times.clear()
    in_turns([ours, *final], plan, 4)
    best = min(final, key=lambda c: c.seconds)
    return Line(
        str(shape),
        best.seconds / ours.seconds,
        ours.seconds,
        best.name,
        shape.operations / ours.seconds / 1e9,
        correlation([c.predicted for c in drawn], measured),
        tuple(c.name for c in drawn),
        tuple(c.limits for c in drawn),
        tuple(c.predicted for c in drawn),
        measured,
    )


def in_turns(candidates: Sequence[Candidate], plan: Plan, rounds: int = 1) -> None:
    """Time all candidates, one call after another, several times over."""
    clock = time.perf_counter if plan.clock == "wall" else time.process_time
    for _ in range(rounds * plan.rounds):
        for candidate in candidates:
            candidate.call()  # warms its code and data, which the candidate before has evicted
            candidate.time(clock)


def correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation; ties share their mean rank."""
    a, b = _ranks(first), _ranks(second)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values)
    return np.array([(array < v).sum() + ((array == v).sum() - 1) / 2 for v in array])


def studies(plan: Plan, first: int) -> Iterator[Line]:
    """Run the studies of a plan's shapes, starting with shape number `first`.

    A process runs only a few studies, because a loaded library stays in its process, and the system
    limits the memory mappings of a process.
    """
    for start in range(first, plan.shapes, _SHAPES_OF_A_PROCESS):
        numbers = range(start, min(start + _SHAPES_OF_A_PROCESS, plan.shapes))
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as timer:
            yield from timer.map(study, repeat(plan), numbers)


def main(plan: Plan, resume: bool = False) -> bool:
    """Run the study and print the table; return whether choice and ranking reach their bounds.

    Args:
        resume: continue after the shapes that an interrupted study with this plan has finished.
    """
    print(HEADER)
    before = harness.machine()
    lines = _done(plan) if resume else []
    for line in lines:
        print(line, flush=True)
    for line in studies(plan, len(lines)):
        lines.append(line)
        print(line, flush=True)
        # Write finished shapes at once, so that an interrupted study keeps them.
        found = {"plan": asdict(plan), "lines": [asdict(one) for one in lines]}
        record.write(_name(plan), before, found)
    return _verdict(lines)


def _name(plan: Plan) -> str:
    return record.name_of("choice", plan.threads, plan.target)


def _done(plan: Plan) -> list[Line]:
    """The finished lines of this study, from its record."""
    path = record.RESULTS / f"{_name(plan)}.json"
    if not path.exists():
        return []
    left = json.loads(path.read_text(encoding="utf-8"))
    if {**left["plan"], "shapes": plan.shapes} != asdict(plan):
        raise SystemExit(
            f"choice: {path.name} belongs to another plan: {left['plan']}; omit "
            "--resume to start over"
        )
    lines = [Line(**line) for line in left["lines"]]
    return lines[: plan.shapes]


def _verdict(lines: Sequence[Line]) -> bool:
    shares = [line.share for line in lines]
    mean, worst = statistics.geometric_mean(shares), min(shares)
    within = statistics.mean(line.ranks for line in lines)
    speeds = [
        [_work(line) / t for line in lines for t in getattr(line, side)]
        for side in ("predicted", "measured")
    ]
    together = correlation(*speeds)
    print(f"ours by the best of the grid: geometric mean {mean:.1%}, worst {worst:.1%}")
    print(f"correlation of ranks: {within:.2f} within a shape, {together:.2f} over all points")
    return mean >= MEAN and worst >= WORST and together >= RANKS


def _work(line: Line) -> float:
    m, n, k = map(int, line.shape.split("x"))
    return 2.0 * m * n * k

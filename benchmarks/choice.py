"""Is the choice good? The rule's schedule of random matrix products beside a grid of others.

For every shape some points of the grid (`choice_grid`) are drawn, built, checked against the
product in float64 and timed in turns in this process; then neighbours of the fastest are tried
until none is faster. The fastest few and the rule's schedule are timed once more, in turns, which
decides. Reported are the rule's speed by that of the fastest, and how well the cost model's
predictions rank the drawn points: within each shape, and all together by the speed predicted and
reached.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

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
    from numpy.typing import NDArray

    from blockwright.ir import PrimFunc
    from blockwright.target import Target

RESULTS = Path(__file__).resolve().parent / "results"
MEAN, WORST, RANKS = 0.95, 0.80, 0.80
"""What must be reached: geometric mean and worst of ours by the best, correlation of ranks."""

_FINAL = 4  # schedules timed once more beside the rule's
_STEPS = 3  # times that the neighbours of the fastest are tried
_ROUNDING = 2.0**-24  # of a sum at most, at each of its steps, as all terms are positive


@dataclass(frozen=True)
class Plan:
    """What to do: shapes, points drawn of the grid per shape, seed, rounds of timing, threads, the
    clock, which with one thread may be the processor's, and the target to build for."""

    shapes: int = 6
    schedules: int = 16
    seed: int = 0
    rounds: int = 5
    threads: int = 2
    clock: str = "wall"
    target: str = "native"


class Candidate:
    """A schedule, built: what is predicted for it and what was measured."""

    def __init__(self, name: str, func: PrimFunc, target: Target) -> None:
        import blockwright as bw
        from blockwright.cost import estimate
        from blockwright.ir import const_int
        from blockwright.passes.lift_packing import split_prologue

        kernel, packs = split_prologue(func, {1})
        estimated = estimate(kernel, target)
        self.name = name
        self.predicted = estimated.seconds
        self.limits = estimated.limits
        self.times: list[float] = []
        self._run = bw.build(kernel, target)[kernel.name]
        self._pack = bw.build(packs[0].pack, target)[packs[0].pack.name] if packs else None
        self._packed = [const_int(d) or 0 for d in packs[0].packed.shape] if packs else []

    @property
    def seconds(self) -> float:
        return statistics.median(self.times)

    def prepare(self, operands: Operands) -> None:
        """Pack the weights, and see that the product is right."""
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
    """Matrices for a shape, and their product from float64."""

    def __init__(self, shape: Shape) -> None:
        draw = np.random.default_rng(0)
        self.a = draw.random((shape.m, shape.k), np.float32)
        self.w = draw.random((shape.k, shape.n), np.float32)
        self.c = np.zeros((shape.m, shape.n), np.float32)
        self.answer: NDArray[np.float64] = self.a.astype(np.float64) @ self.w


@dataclass(frozen=True)
class Line:
    """One shape: the rule's share of the speed of the grid's best, and the drawn points."""

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
        return (f"{self.shape:>16} {self.gflops:>8.1f} {self.share:>7.1%} {self.ranks:>7.2f}"
                f"  {self.best}")  # fmt: skip


HEADER = f"{'shape':>16} {'GFLOP/s':>8} {'of best':>7} {'ranks':>7}  best of the grid"


def study(shape: Shape, plan: Plan, draw: random.Random, target: Target) -> Line:
    """Time the rule's schedule and a part of the grid for one shape."""
    from blockwright.rules import apply_rules

    operands = Operands(shape)
    ours = Candidate("rule", apply_rules(program(shape), target).func, target)
    ours.prepare(operands)
    points: dict[Point, Candidate] = {}
    while len(points) < plan.schedules:
        _add(points, random_point(draw, shape, target), shape, operands, target)
    in_turns([ours, *points.values()], plan)
    drawn = list(points.values())
    for _ in range(_STEPS):
        fastest = min(points, key=lambda p: points[p].seconds)
        near = [p for p in neighbours(fastest, shape, target) if p not in points]
        new = [_add(points, point, shape, operands, target) for point in near]
        in_turns([points[fastest], *new], plan)
        if min(points, key=lambda p: points[p].seconds) == fastest:
            break
    final = sorted(points.values(), key=lambda c: c.seconds)[:_FINAL]
    for candidate in (ours, *final):
        candidate.times.clear()
    in_turns([ours, *final], plan, 4)
    best = min(final, key=lambda c: c.seconds)
    predicted = tuple(c.predicted for c in drawn)
    measured = tuple(c.seconds for c in drawn)
    return Line(str(shape), best.seconds / ours.seconds, ours.seconds, best.name,
                shape.operations / ours.seconds / 1e9, correlation(predicted, measured),
                tuple(c.name for c in drawn), tuple(c.limits for c in drawn), predicted,
                measured)  # fmt: skip


def _add(
    points: dict[Point, Candidate], point: Point, shape: Shape, operands: Operands, target: Target
) -> Candidate:
    if point not in points:
        points[point] = Candidate(str(point), scheduled(shape, point, target), target)
        points[point].prepare(operands)
    return points[point]


def in_turns(candidates: Sequence[Candidate], plan: Plan, rounds: int = 1) -> None:
    """Time all candidates, one call after the other, several times over."""
    clock = time.perf_counter if plan.clock == "wall" else time.process_time
    for _ in range(rounds * plan.rounds):
        for candidate in candidates:
            candidate.call()  # its code and data are at hand, and not the one's before
            candidate.time(clock)


def correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: the correlation of ranks; ties share the mean of theirs."""
    a, b = _ranks(first), _ranks(second)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values)
    return np.array([(array < v).sum() + ((array == v).sum() - 1) / 2 for v in array])


def main(plan: Plan) -> bool:
    """Run the study and print the table; whether the choice and the ranking are good enough."""
    import blockwright as bw

    bw.set_num_threads(plan.threads)
    caches = bw.Target("native").caches  # of this machine, whatever is built for
    target = bw.Target(plan.target, num_threads=plan.threads, caches=caches)
    draw = random.Random(plan.seed)
    print(HEADER)
    lines: list[Line] = []
    RESULTS.mkdir(exist_ok=True)
    for _ in range(plan.shapes):
        lines.append(study(random_shape(draw), plan, draw, target))
        print(lines[-1], flush=True)
        # A shape takes most of a minute: what is done stays, also when the rest is not waited for.
        record = {"case": "choice", "plan": asdict(plan), "lines": [asdict(line) for line in lines]}
        (RESULTS / "choice.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return _verdict(lines)


def _verdict(lines: Sequence[Line]) -> bool:
    shares = [line.share for line in lines]
    mean, worst = statistics.geometric_mean(shares), min(shares)
    within = statistics.mean(line.ranks for line in lines)
    speeds = [[_work(line) / t for line in lines for t in getattr(line, side)]
              for side in ("predicted", "measured")]  # fmt: skip
    together = correlation(*speeds)
    print(f"ours by the best of the grid: geometric mean {mean:.1%}, worst {worst:.1%}")
    print(f"correlation of ranks: {within:.2f} within a shape, {together:.2f} over all points")
    return mean >= MEAN and worst >= WORST and together >= RANKS


def _work(line: Line) -> float:
    m, n, k = map(int, line.shape.split("x"))
    return 2.0 * m * n * k

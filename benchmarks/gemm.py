"""The matrix product of `docs/scheduling.md`: every step, a library, and the machine's peak.

All steps but the last run on one thread, the last on all; each is compared with the peak of as many
threads. The last step must reach 80 % of it, or the case fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import harness, record

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.worker import Subject

WANTED = 0.80
"""Share of the peak that the last step must reach."""

TOLERANCE = 2e-3
"""Sums of 1152 products of numbers below one: partial sums of 288, rounded 1152 times, are off by
at most 288 · 2⁻²⁴ · 1152 = 2e-2; a tenth of it is allowed, as roundings have either sign."""


def operands() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Two matrices, the same on every call."""
    from examples.gemm.programs_matmul import SIZE

    random = np.random.default_rng(0)
    return random.random((SIZE, SIZE), np.float32), random.random((SIZE, SIZE), np.float32)


class StepPeer:
    """One schedule of the guide."""

    def __init__(self, step: str, options: Mapping[str, Any]) -> None:
        import blockwright as bw
        from examples.gemm.steps import STEPS

        bw.set_num_threads(options["threads"])
        self._module = bw.build(STEPS[step]().func)

    def about(self) -> dict[str, Any]:
        return {"source": "examples/gemm/steps.py"}

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        a, b = operands()
        c = np.zeros_like(a)
        run = self._module["matmul"]

        def call() -> Any:
            run(a, b, c)
            return c

        return call


class NumpyPeer:
    """The BLAS library that NumPy was built with."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._threads = options["threads"]

    def about(self) -> dict[str, Any]:
        config: Any = np.show_config(mode="dicts")
        return {"version": np.__version__, "blas": config["Build Dependencies"]["blas"]["name"]}

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        a, b = operands()
        return lambda: a @ b


class PeakPeer:
    """The machine's FMA peak, without a matrix product; its answer is that of the library."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        from blockwright.measure import peak_call

        self._run, self._operations = peak_call(options["threads"])

    def about(self) -> dict[str, Any]:
        return {"operations": self._operations}

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        a, b = operands()
        answer = a @ b

        def call() -> Any:
            self._run()
            return answer

        return call


STEP_NAMES = ("naive", "vectorized", "in_registers", "packed", "parallel")
PEERS: dict[str, Callable[[Mapping[str, Any]], Subject]] = {
    **{name: partial(StepPeer, name) for name in STEP_NAMES},
    "numpy": NumpyPeer,
    "peak": PeakPeer,
}


@dataclass(frozen=True)
class Line:
    """One line of the table: a peer's speed, and its share of the peak of as many threads."""

    name: str
    threads: int
    gflops: float
    share: float
    spread: float
    others: float

    def __str__(self) -> str:
        return (
            f"{self.name:>14} {self.threads:>7} {self.gflops:>9.1f} {self.share:>8.1%}"
            f" {self.spread:>7.1%} {self.others:>6.2f}"
        )


HEADER = f"{'step':>14} {'threads':>7} {'GFLOP/s':>9} {'of peak':>8} {'spread':>7} {'others':>6}"


def measure(
    names: Sequence[str], threads: int, settings: harness.Settings
) -> tuple[list[Line], dict[str, Any]]:
    """Time some peers in turns with the peak of as many threads; the peak is the last line."""
    from examples.gemm.programs_matmul import SIZE

    peers = [harness.Peer(name, {"threads": threads}) for name in (*names, "peak")]
    results, about = harness.compare(
        "gemm", peers, [{"size": SIZE}], threads=threads, tolerance=TOLERANCE, settings=settings
    )
    (result,) = results
    peak = about["peak"]["operations"] / result.timings["peak"].median / 1e9
    lines: list[Line] = []
    for name, timing in result.timings.items():
        gflops = peak if name == "peak" else 2 * SIZE**3 / timing.median / 1e9
        share, others = gflops / peak, result.others
        lines.append(Line(name, threads, gflops, share, timing.spread, others))
    return lines, about


def main(threads: int, settings: harness.Settings) -> bool:
    """Measure and print the table; return whether the last step came near enough to the peak."""
    before = harness.machine()
    print(HEADER)
    lines: list[Line] = []
    about: dict[str, Any] = {}
    last = STEP_NAMES[-1]
    for names, count in (((*STEP_NAMES[:-1], "numpy"), 1), ((last, "numpy"), threads)):
        quick = replace(settings, min_calls=1, rounds=5)
        part, told = measure(names, count, quick)
        about |= told
        lines += part
        for line in part:
            print(line, flush=True)
    record.write("gemm", before, {"peers": about, "lines": [asdict(line) for line in lines]})
    share = next(line.share for line in lines if line.name == last)
    if share < WANTED:
        print(f"The last step reached {share:.0%} of the peak; the bound is {WANTED:.0%}.")
        if any(line.others > harness.QUIET for line in lines):
            print("Other programs kept the machine busy (last column: cores); measure again later.")
    return share >= WANTED

"""Random operators compared with PyTorch: find those that take several times as long.

Named cases and their neighbors cover only their surroundings. A strategy that matches a program it
is not made for, or gives up on one, shows in unusual programs: with few columns, odd axes, one
filter. So kinds and sizes are drawn, most of them small, half of them with other functions before
and after, and each result is compared with the same module in double precision.

Both engines take turns in one process, with the same number of threads. That is less precise than
the tables of `operators`: it looks for operators that take five times as long, not a tenth more.
Operators that both engines finish within some microseconds are not judged, because the overhead of
the call dominates.
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import harness, record
from benchmarks.built_for import NATIVE, built_for
from benchmarks.comparison import ERROR
from benchmarks.worker import flat, reason, timed_calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.modules.drawn import Drawn

MOST = 5.0
"""Bound on the ratio to PyTorch's time, the same as the fallback strategy's."""

_SHOWN = 1.5  # ratio from which a case is printed
# seconds by which ours may be slower at any ratio: the overhead of a call beside its kernels
_CALL_S = 20e-6
_TURNS, _TURN_S, _CALLS = 3, 0.01, 5


@dataclass(frozen=True)
class Plan:
    """Options of the command line: number of `cases`, drawn with `seed`.

    They are compiled for their own sizes, or for `any_size`.
    """

    cases: int = 400
    threads: int = 2
    seed: int = 0
    target: str = NATIVE
    any_size: bool = False


@dataclass(frozen=True)
class Found:
    """A case with the seconds per call, or the reason why there are none."""

    name: str
    ours: float = math.nan
    torch: float = math.nan
    status: str = ""

    @property
    def ratio(self) -> float:
        return self.ours / self.torch

    @property
    def missed(self) -> str:
        """The missed bound; "" for none."""
        if self.status:
            return f"{self.name}: {self.status}"
        slow = self.ratio > MOST and self.ours - self.torch > _CALL_S
        return f"{self.name}: {self.ratio:.1f} times as long as in PyTorch" if slow else ""


def main(plan: Plan) -> bool:
    """Draw, time, print and write; return whether every bound holds."""
    import torch

    import blockwright as bw
    from benchmarks.modules.drawn import draw

    before = harness.machine()
    bw.set_num_threads(plan.threads)
    torch.set_num_threads(plan.threads)
    torch.manual_seed(plan.seed)
    chance = random.Random(plan.seed)
    found: list[Found] = []
    for _ in range(plan.cases):
        one = draw(chance)
        try:
            found.append(_timed(one, plan))
        except Exception as error:  # noqa: BLE001  a failing case is a line of the table
            found.append(Found(one.name, status=reason(error)))
        if found[-1].missed or found[-1].ratio > _SHOWN:
            print(_line(found[-1]), flush=True)
    missed = summary(found)
    case = "sweep-any-size" if plan.any_size else "sweep"
    record.write(
        record.name_of(case, plan.threads, plan.target),
        before,
        {"settings": asdict(plan), "missed": missed, "operators": [asdict(one) for one in found]},
    )
    return not missed


def summary(found: Sequence[Found]) -> list[str]:
    """Print the distribution of ratios to PyTorch; return the missed bounds."""
    ratios = sorted(one.ratio for one in found if not one.status)
    missed = [one.missed for one in found if one.missed]
    if ratios:
        tenth = ratios[min(len(ratios) - 1, len(ratios) * 9 // 10)]
        print(
            f"{len(ratios)} operators: median {statistics.median(ratios):.2f} of PyTorch's time, "
            f"nine of ten within {tenth:.2f}, the worst {ratios[-1]:.2f}"
        )
    for problem in missed:
        print(f"missed: {problem}")
    return missed


def _timed(one: Drawn, plan: Plan) -> Found:
    """Compile, compare with double precision, and time in turns; the fastest turn of each counts.

    Raises ValueError if the result is wrong.
    """
    import torch

    import blockwright as bw

    module, inputs = one.module.eval().requires_grad_(False), one.inputs
    exe = bw.compile(
        module,
        list(inputs),
        dynamic_shapes=one.dynamic_shapes if plan.any_size else None,
        target=built_for(plan.target, plan.threads),
        options={"fallback": "error"},
    )
    arrays = [tensor.numpy() for tensor in inputs]
    with torch.inference_mode():
        calls = {"ours": lambda: exe(*arrays), "torch": lambda: module(*inputs)}
        found = flat(exe(*arrays))
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(_TURNS):
            for name, call in calls.items():
                seconds[name].append(statistics.median(timed_calls(call, _TURN_S, _CALLS)))
        wide = (t.double() if t.is_floating_point() else t for t in inputs)
        exact = flat(module.double()(*wide))
    error = _error(found, exact)
    if not error <= ERROR:
        raise ValueError(f"error {error:.1e} relative to double precision")
    return Found(one.name, min(seconds["ours"]), min(seconds["torch"]))


def _error(found: Any, exact: Any) -> float:
    """The largest difference, relative to the largest value."""
    if found.shape != exact.shape:
        raise ValueError(f"the result has shape {found.shape}, not {exact.shape}")
    if not exact.size:
        return 0.0
    return float(np.abs(found - exact).max() / max(float(np.abs(exact).max()), 1e-30))


def _line(one: Found) -> str:
    if one.status:
        return f"{one.name}: {one.status}"
    return (
        f"{one.name:58} {one.ratio:6.2f}  ours {one.ours * 1e6:9.1f}  "
        f"PyTorch {one.torch * 1e6:9.1f} µs"
    )

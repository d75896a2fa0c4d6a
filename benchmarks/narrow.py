"""Products and models of narrow types beside PyTorch: bfloat16, float16, bytes.

    python -m benchmarks.narrow [--only TEXT] [--rounds N] [--threads N]

Each line is one product of matrices (the right one constant) or one model of `benchmarks.models`,
in one type. Both engines run in turns in one process, on the same threads; a figure is the median
of the rounds, the spread half the distance between their quartiles. Floats are compared with a
float64 run: `error` is the ratio of the root mean squares, ours to PyTorch's. Sums of integers must
be equal.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

import blockwright as bw
from benchmarks.models import CASES

SHAPES = [(1024, 1024, 1024), (1021, 1019, 1027), (128, 768, 3072), (333, 1001, 777)]
MODELS = ("MiniLM 1x128", "BERT-base 1x128", "ViT-B/16 b1", "GPT-2 prefill 128", "ResNet-50 b1")
HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Line:
    """One comparison: a module, its inputs, and the operations of a call (0: not counted)."""

    name: str
    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    operations: float = 0.0


class Bytes(torch.nn.Module):
    """A product with a constant matrix of signed bytes, summed in int32."""

    weight: torch.Tensor

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 128, (k, n), dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._int_mm(x, self.weight)


def products() -> Iterator[Line]:
    torch.manual_seed(0)
    for m, n, k in SHAPES:
        size = f"{m}x{n}x{k}"
        for dtype in (torch.float32, *HALVES):
            module = torch.nn.Linear(k, n).to(dtype)
            x = torch.randn(m, k).to(dtype)
            yield Line(f"linear {size} {_name(dtype)}", module, (x,), 2.0 * m * n * k)
        for dtype, low, high in ((torch.uint8, 0, 256), (torch.int8, -128, 128)):
            x = torch.randint(low, high, (m, k)).to(dtype)
            yield Line(f"product {size} {_name(dtype)}", Bytes(k, n), (x,), 2.0 * m * n * k)


def models() -> Iterator[Line]:
    for case in CASES:
        if case.name not in MODELS:
            continue
        file, function = case.build.rsplit(".", 1)
        build = getattr(importlib.import_module(f"benchmarks.modules.{file}"), function)
        random = np.random.default_rng(0)
        inputs = [torch.from_numpy(one.draw(random)) for one in case.inputs]
        for dtype in HALVES:
            module = build(**case.settings).to(dtype)
            own = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
            yield Line(f"{case.name} {_name(dtype)}", module, own)


def compare(line: Line, rounds: int, threads: int) -> str:
    """Compile, check, and time in turns; one line of the table."""
    module = line.module.eval()
    target = bw.Target("native", num_threads=threads)
    with torch.no_grad():
        compiled = bw.compile(module, line.inputs, target=target)
        error = _error(module, line.inputs, compiled)
        ours, theirs = _in_turns(
            lambda: compiled(*line.inputs), lambda: module(*line.inputs), rounds
        )
    ratio = statistics.median(ours) / statistics.median(theirs)
    rate = f"{line.operations / statistics.median(ours) / 1e9:8.0f}" if line.operations else " " * 8
    return f"{line.name:36} {_spread(ours)} {_spread(theirs)}  {ratio:6.3f} {rate}  {error:>6}"


def _in_turns(
    a: Callable[[], Any], b: Callable[[], Any], rounds: int
) -> tuple[list[float], list[float]]:
    times: tuple[list[float], list[float]] = ([], [])
    for one in (a, b):
        one()
    for _ in range(rounds):
        for one, kept in zip((a, b), times, strict=True):
            start = time.perf_counter()
            one()
            kept.append(time.perf_counter() - start)
    return times


def _error(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], compiled: Any) -> str:
    """Ratio of our error to PyTorch's; "equal" for integers. Raises AssertionError if wrong."""
    ours, theirs = _tensors(compiled(*inputs)), _tensors(module(*inputs))
    if not theirs[0].is_floating_point():
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        return "equal"
    wide = copy.deepcopy(module).double()
    exact = _tensors(wide(*(x.double() if x.is_floating_point() else x for x in inputs)))
    pairs = [
        (_rms(a.double() - c), _rms(b.double() - c))
        for a, b, c in zip(ours, theirs, exact, strict=True)
        if c.is_floating_point()
    ]
    worst = max(a / max(b, 1e-30) for a, b in pairs)
    assert worst < 2, f"error {worst:.2f} times PyTorch's"
    return f"{worst:.2f}"


def _rms(x: torch.Tensor) -> float:
    return float((x**2).mean().sqrt())


def _tensors(value: Any) -> list[torch.Tensor]:
    leaves: list[Any] = pytree.tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _spread(times: list[float]) -> str:
    low, _, high = statistics.quantiles(times, n=4)
    return f"{1e3 * statistics.median(times):9.2f} ±{500 * (high - low):6.2f}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.narrow")
    parser.add_argument("--only", default="", help="compare lines whose name contains this text")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{'':36} {'ours, ms':>17} {'PyTorch, ms':>17}  {'ratio':>6} {'Gop/s':>8}  {'error':>6}")
    for make in (products, models):
        for line in make():
            if arguments.only in line.name:
                print(compare(line, arguments.rounds, arguments.threads), flush=True)


if __name__ == "__main__":
    main()

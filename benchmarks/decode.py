"""A row times weights of a few bits, which a hand-written program decodes: the bandwidth reached.

    python -m benchmarks.decode [--only TEXT] [--rounds N] [--threads N]

Each line is one module: a tensor program that decodes the weights, followed by a product with one
row, compiled by the default pipeline without tuning. The bytes of a call are those of the packed
weights, their scales and their zero points. A call reads another copy of them than the last one, so
that they come from memory; `read` is the speed at which the machine reads that many bytes, measured
in the same turns. Results are compared with NumPy in double precision.

Peers are PyTorch's decoding followed by its product, and its product with int4 weights. The latter
has its own layout, in groups of 32 along the reduction.

The exit status is 1 if a line of 4 bits is below 85 % of the read bandwidth.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import blockwright as bw
from benchmarks.harness import machine
from blockwright.measure import read_call
from blockwright.target import last_cache_bytes

WANTED = 0.85
"""Share of the read bandwidth that a line of 4 bits must reach."""

PEERS = ("PyTorch", "int4")
_TOLERANCE = {"float32": 1e-5, "float16": 2e-3}
_BEYOND = 4  # bytes of all copies, in last-level caches


@dataclass(frozen=True)
class Case:
    """Weights of `depth` × `columns` numbers, packed along the columns.

    Attributes:
        bits: of a number; `word`: bits of an element of the packed data.
        group: columns with a common scale.
        zeros: whether each group has a zero point of its own.
        dtype: of the row, the decoded weights and the result; scales are float16.
    """

    depth: int
    columns: int
    dtype: str
    bits: int = 4
    word: int = 32
    group: int = 32
    zeros: bool = False

    @property
    def name(self) -> str:
        zeros = " zero points" if self.zeros else ""
        return (
            f"{self.depth}x{self.columns} {self.bits} bits in uint{self.word}, "
            f"groups of {self.group}{zeros} {self.dtype}"
        )

    @property
    def middle(self) -> int:
        """The zero point of all groups without one of their own."""
        return (1 << self.bits - 1) - 1


CASES = (
    *(Case(4096, n, d) for n in (4096, 11008) for d in ("float32", "float16")),
    Case(4096, 4096, "float32", zeros=True),
    Case(4096, 4096, "float32", word=8, group=128),
    Case(4096, 4096, "float32", bits=8),
    Case(4096, 4096, "float32", bits=2, group=64),
)


def source(case: Case) -> str:
    """The module: `decode` writes the weights, `main` multiplies them."""
    k, n, dtype, word = case.depth, case.columns, case.dtype, f"uint{case.word}"
    share, groups = case.word // case.bits, case.columns // case.group
    shift = f' >> T.Cast("{word}", vj % {share} * {case.bits})'
    number = f"T.bitwise_and(data[vk, vj // {share}]{shift}, T.{word}({(1 << case.bits) - 1}))"
    scale = f"scales[vk, vj // {case.group}]"
    if dtype != "float16":
        scale = f'T.Cast("{dtype}", {scale})'
    zero = f"T.{dtype}({case.middle})"
    more, given, passed = "", "", ""
    if case.zeros:
        zero = f'T.Cast("{dtype}", zeros[vk, vj // {case.group}])'
        more = f', zeros: T.Buffer(({k}, {groups}), "uint8")'
        given, passed = f', zeros: R.Tensor(({k}, {groups}), "uint8")', ", zeros"
    return f'''
@I.ir_module
class Module:
    @T.prim_func
    def decode(
        data: T.Buffer(({k}, {n // share}), "{word}"),
        scales: T.Buffer(({k}, {groups}), "float16"){more},
        weights: T.Buffer(({k}, {n}), "{dtype}"),
    ):
        for k, j in T.grid({k}, {n}):
            with T.block("weights"):
                vk, vj = T.axis.remap("SS", [k, j])
                weights[vk, vj] = (T.Cast("{dtype}", {number}) - {zero}) * {scale}

    @R.function
    def main(
        x: R.Tensor((1, {k}), "{dtype}"),
        data: R.Tensor(({k}, {n // share}), "{word}"),
        scales: R.Tensor(({k}, {groups}), "float16"){given},
    ):
        weights = R.call_tir(
            cls.decode, (data, scales{passed}), R.Tensor(({k}, {n}), "{dtype}")
        )
        return R.matmul(x, weights)
'''


def arrays(case: Case) -> list[NDArray[Any]]:
    """A row, packed data, scales, and zero points if the case has them."""
    random = np.random.default_rng(0)
    k, n, groups = case.depth, case.columns, case.columns // case.group
    shape = (k, n * case.bits // case.word)
    result = [
        random.standard_normal((1, k)).astype(case.dtype),
        random.integers(0, 1 << case.word, shape, dtype=f"uint{case.word}"),
        random.uniform(0.01, 0.1, (k, groups)).astype("float16"),
    ]
    if case.zeros:
        result.append(random.integers(0, 1 << case.bits, (k, groups), dtype="uint8"))
    return result


def expected(case: Case, given: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """The product in double precision, of weights that are decoded in the case's type."""
    share = case.word // case.bits
    shifts = (np.arange(case.columns) % share * case.bits).astype(given[1].dtype)
    mask = np.array((1 << case.bits) - 1, given[1].dtype)
    numbers = (np.repeat(given[1], share, axis=1) >> shifts) & mask
    zeros = np.repeat(given[3], case.group, axis=1) if case.zeros else np.array(case.middle)
    scales = np.repeat(given[2], case.group, axis=1).astype(case.dtype)
    weights = (numbers.astype(case.dtype) - zeros.astype(case.dtype)) * scales
    return given[0].astype(np.float64) @ weights.astype(np.float64)


def decoded_by_torch(case: Case, given: Sequence[NDArray[Any]]) -> Callable[[], Any]:
    """PyTorch decodes all weights, and multiplies."""
    share = case.word // case.bits
    signed = f"int{case.word}" if case.word > 8 else "uint8"
    x, data, scales = (torch.from_numpy(a) for a in (given[0], given[1].view(signed), given[2]))
    zeros = torch.from_numpy(given[3]).unsqueeze(-1) if case.zeros else case.middle
    shifts = torch.arange(share, dtype=data.dtype) * case.bits
    kind, mask = getattr(torch, case.dtype), (1 << case.bits) - 1

    def call() -> Any:
        numbers = (data.unsqueeze(-1) >> shifts) & mask
        grouped = numbers.reshape(case.depth, -1, case.group).to(kind)
        weights = (grouped - zeros) * scales.unsqueeze(-1).to(kind)
        return x @ weights.reshape(case.depth, case.columns)

    return call


def int4_of_torch(case: Case) -> Callable[[], Any] | None:
    """PyTorch's product with int4 weights of the same size; None if it has none."""
    if case.bits != 4 or case.word != 32:
        return None
    kind, ops = getattr(torch, case.dtype), torch.ops.aten
    numbers = torch.randint(0, 16, (case.columns, case.depth), dtype=torch.int32)
    scales = torch.rand(case.depth // 32, case.columns, 2).to(kind)
    x = torch.randn(1, case.depth).to(kind)
    try:
        packed = ops._convert_weight_to_int4pack_for_cpu(numbers, 1)
        ops._weight_int4pack_mm_for_cpu(x, packed, 32, scales)
    except (AttributeError, RuntimeError, NotImplementedError):
        return None
    count = _copies(packed.nbytes + scales.nbytes)
    every = itertools.cycle([(packed.clone(), scales.clone()) for _ in range(count)])

    def call() -> Any:
        weights, own = next(every)
        return ops._weight_int4pack_mm_for_cpu(x, weights, 32, own)

    return call


def _copies(size: int) -> int:
    return max(2, -(-_BEYOND * last_cache_bytes() // size))


@dataclass(frozen=True)
class Line:
    """One line: seconds of each round by engine; bytes of a call."""

    case: Case
    size: int
    times: dict[str, list[float]]

    def speed(self, name: str) -> float:
        """Bytes per second; the median of the rounds."""
        return self.size / statistics.median(self.times[name])

    @property
    def share(self) -> float:
        """Our speed relative to the read bandwidth: the median of the ratios of each round."""
        pairs = zip(self.times["read"], self.times["ours"], strict=True)
        return statistics.median(read / ours for read, ours in pairs)

    def __str__(self) -> str:
        low, _, high = statistics.quantiles(self.times["ours"], n=4)
        spread = (high - low) / 2 / statistics.median(self.times["ours"])
        ours = statistics.median(self.times["ours"])
        ratios = "".join(
            f" {ours / statistics.median(self.times[name]):9.3f}"
            if name in self.times
            else " " * 10
            for name in PEERS
        )
        speeds = f"{self.speed('ours') / 1e9:7.1f} {self.speed('read') / 1e9:7.1f}"
        return (
            f"{self.case.name:60} {self.size / 1e6:6.1f} {1e3 * ours:8.3f} ±{spread:5.1%} {speeds} "
            f"{self.share:7.1%}{ratios}"
        )


def compare(case: Case, rounds: int, threads: int) -> Line:
    """Compile a case, check it, and time it in turns with the peers and the memory."""
    bw.set_num_threads(threads)
    exe = bw.compile(bw.from_source(source(case)), target=bw.Target("native", num_threads=threads))
    x, *weights = arrays(case)
    wanted = expected(case, [x, *weights])
    error = np.abs(exe(x, *weights) - wanted).max() / np.abs(wanted).max()
    assert error < _TOLERANCE[case.dtype], f"{case.name}: error {error:.2g}"
    size = sum(array.nbytes for array in weights)
    every = itertools.cycle([[a.copy() for a in weights] for _ in range(_copies(size))])
    read, amount = read_call(threads, _copies(size) * size)
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: exe(x, *next(every)),
        "PyTorch": decoded_by_torch(case, [x, *weights]),
    }
    own = int4_of_torch(case)
    if own is not None:
        calls["int4"] = own
    times: dict[str, list[float]] = {name: [] for name in ("read", *calls)}
    with torch.inference_mode():
        for _ in range(rounds):
            start = time.perf_counter()
            read()
            times["read"].append((time.perf_counter() - start) * size / amount)
            for name, call in calls.items():
                times[name].append(_median_of(call, 1 if name == "PyTorch" else 8))
    return Line(case, size, times)


def _median_of(call: Callable[[], Any], count: int) -> float:
    seconds: list[float] = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main(only: str = "", rounds: int = 15, threads: int = 2) -> bool:
    """Print the table; whether every line of 4 bits reached its share."""
    torch.set_num_threads(threads)
    print(f"{machine()['processor']}, {threads} threads, load {machine()['load']:.1f}")
    heads = "".join(f" {'/ ' + name:>9}" for name in PEERS)
    print(f"{'':60} {'MB':>6} {'ms':>15} {'GB/s':>7} {'read':>7} {'share':>7}{heads}")
    missed: list[str] = []
    for case in CASES:
        if only in case.name:
            line = compare(case, rounds, threads)
            print(line, flush=True)
            if case.bits == 4 and line.share < WANTED:
                missed.append(f"missed: {case.name}: {line.share:.0%} of the read bandwidth")
    print(*missed, sep="\n")
    return not missed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode")
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    sys.exit(0 if main(options.only, options.rounds, options.threads) else 1)

"""Operators whose data exceeds the caches, against the memory bandwidth in the same run.

The bound is a share of the read bandwidth, as in the other tables. The bandwidth of a memory
depends on the mix of accesses, though: some move more bytes when reads and writes are mixed, others
fewer. So a kernel that writes is also compared with a program that only reads and writes in the
same proportion, with the stores that are faster in this run: plain stores, which read each line
before they replace it, or non-temporal stores. Cases that fall short of that are reported as well.

Bytes are those of inputs, weights and results, each once. Every case moves at least four times the
size of the last-level cache.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import harness, record
from benchmarks.built_for import NATIVE, built_for
from benchmarks.cases import Case, Input, selected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from benchmarks.worker import Subject

WANTED = 0.85
"""Share of the read bandwidth that every case must reach; a goal only for the probe's speed."""

OURS = "blockwright"
TOLERANCE = 1e-3
"""Largest difference of the samples. Sums of 16384 products of numbers around one are about 128; in
single precision a rounding is up to 6e-6, and at most 1e-4 of them add up in one direction."""

SAMPLES = 4097
"""Stride of the elements that are compared: whole answers are hundreds of megabytes."""

MEBI = 1 << 20


@dataclass(frozen=True)
class Stream:
    """A case, and the number of bytes that it reads and writes."""

    case: Case
    read: int
    written: int

    @property
    def moved(self) -> int:
        return self.read + self.written

    @property
    def reads_only(self) -> bool:
        """Whether the bytes written are negligible compared with those read."""
        return 8 * self.written < self.read


def _stream(
    name: str,
    operator: str,
    shapes: Sequence[tuple[int, ...]],
    out: tuple[int, ...],
    settings: Mapping[str, Any] | None = None,
    weights: int = 0,
) -> Stream:
    inputs = tuple(Input(shape) for shape in shapes)
    read = 4 * (sum(int(np.prod(shape)) for shape in shapes) + weights)
    return Stream(
        Case(name, f"operators.{operator}", inputs, settings or {}), read, 4 * int(np.prod(out))
    )


def _map(operator: str, *shape: int, inputs: int = 1, **settings: Any) -> Stream:
    """An operator whose result has the shape of its inputs."""
    name = f"{operator} {'x'.join(map(str, shape))}"
    return _stream(name, operator, [shape] * inputs, shape, settings)


def _gemv(rows: int, columns: int, *, constant: bool) -> Stream:
    name = f"GEMV {rows}x{columns}" + (" constant" if constant else "")
    if constant:
        settings = {"inner": rows, "columns": columns}
        return _stream(name, "weight_product", [(1, rows)], (1, columns), settings, rows * columns)
    return _stream(name, "product", [(1, rows), (rows, columns)], (1, columns))


STREAMS: tuple[Stream, ...] = (
    _map("relu", 32 * MEBI),
    _map("relu", 4097, 8191),
    _map("add", 32 * MEBI, inputs=2),
    _map("add", 8192, 4096, inputs=2),
    _map("softmax", 32768, 1024, columns=1024),
    _map("softmax", 2048, 16384, columns=16384),
    _map("softmax", 512, 50257, columns=50257),
    _map("layer_norm", 32768, 1024, columns=1024),
    _map("layer_norm", 8192, 4096, columns=4096),
    _stream("row_sums 32768x1024", "row_sums", [(32768, 1024)], (32768,)),
    _gemv(4096, 8192, constant=True),
    _gemv(8192, 8192, constant=True),
    _gemv(4096, 8192, constant=False),
    _gemv(8192, 8192, constant=False),
)


def find(name: str) -> Stream:
    """A case by its name."""
    return next(stream for stream in STREAMS if stream.case.name == name)


def sample(result: Any) -> NDArray[np.float32]:
    """Some elements of a result."""
    return np.asarray(result).reshape(-1)[::SAMPLES]


class Compiled:
    """The operator as users compile it; its result is freed before the next call."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        import blockwright as bw

        bw.set_num_threads(options["threads"])
        self._target = built_for(options["target"])
        self._about: dict[str, Any] = {"version": bw.__version__}

    def about(self) -> dict[str, Any]:
        return self._about

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        import torch

        import blockwright as bw
        from benchmarks.modules import build

        case = find(point["case"]).case
        inputs = [torch.from_numpy(array) for array in case.arrays()]
        run = bw.compile(build(case), inputs, target=self._target, options={"fallback": "error"})

        def call() -> Any:
            return sample(run(*inputs))

        return call


class Eager:
    """PyTorch's own kernels, which also compute the reference answer."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        import torch

        torch.set_num_threads(options["threads"])

    def about(self) -> dict[str, Any]:
        import torch

        return {"version": torch.__version__}

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        import torch

        from benchmarks.modules import build

        case = find(point["case"]).case
        module = build(case)
        inputs = [torch.from_numpy(array) for array in case.arrays()]

        def call() -> Any:
            with torch.inference_mode():
                return sample(module(*inputs))

        return call


class Probe:
    """The machine, moving as many bytes as a case; its answer is PyTorch's."""

    def __init__(self, kind: str, options: Mapping[str, Any]) -> None:
        self._kind, self._options = kind, options

    def about(self) -> dict[str, Any]:
        return {"kind": self._kind}

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        from blockwright.measure import read_call, stream_call

        answer = Eager(self._options).prepare(point)()
        stream, threads = find(point["case"]), self._options["threads"]
        if self._kind == "read" or stream.reads_only:
            run, _ = read_call(threads, stream.moved)
        else:
            past = self._kind == "past caches"
            run, _ = stream_call(threads, stream.read, stream.written, nontemporal=past)

        def call() -> Any:
            run()
            return answer

        return call


PROBES = ("read", "plain", "past caches")
PEERS: dict[str, Callable[[Mapping[str, Any]], Subject]] = {
    OURS: Compiled,
    "torch": Eager,
    **{kind: partial(Probe, kind) for kind in PROBES},
}


@dataclass(frozen=True)
class Line:
    """One line of the table; speeds in bytes per second."""

    name: str
    moved: int
    ours: float
    torch: float
    read: float
    plain: float
    nontemporal: float
    spread: float
    others: float

    @property
    def share(self) -> float:
        """Our speed relative to the read bandwidth."""
        return self.ours / self.read

    @property
    def share_of_moves(self) -> float:
        """Our speed relative to a program that only moves as many bytes, in the same proportion.

        A kernel that only reads is compared with the read bandwidth alone: all three probes are
        then such a program, and the best of three would be luck.
        """
        if find(self.name).reads_only:
            return self.share
        return self.ours / max(self.plain, self.nontemporal)

    def __str__(self) -> str:
        speeds = (self.ours, self.torch, self.read, self.plain, self.nontemporal)
        return (
            f"{self.name:>26} {self.moved / 2**20:>6.0f} "
            + " ".join(f"{speed / 1e9:>8.1f}" for speed in speeds)
            + f" {self.share:>8.1%} {self.share_of_moves:>8.1%} {self.spread:>7.1%}"
            f" {self.others:>6.2f}"
        )


HEADER = (
    f"{'case':>26} {'MiB':>6} {'ours':>8} {'torch':>8} {'read':>8} {'plain':>8} {'past':>8}"
    f" {'of read':>8} {'of moves':>8} {'spread':>7} {'others':>6}   (speeds in GB/s)"
)


def _line(result: harness.PointResult) -> Line:
    stream = find(result.point["case"])
    speeds = {name: stream.moved / timing.median for name, timing in result.timings.items()}
    ours = result.timings[OURS]
    return Line(
        stream.case.name,
        stream.moved,
        speeds[OURS],
        speeds["torch"],
        speeds["read"],
        speeds["plain"],
        speeds["past caches"],
        ours.spread,
        result.others,
    )


def main(
    threads: int, settings: harness.Settings, only: Sequence[str] = (), target: str = NATIVE
) -> bool:
    """Measure and print the table; return whether every case reached its share of the bandwidth."""
    chosen = selected([stream.case for stream in STREAMS], only)
    if not chosen:
        print(f"No case of streams has a name that contains {' or '.join(only)}.")
        return False
    before = harness.machine()
    print(HEADER)
    lines: list[Line] = []

    def report(result: harness.PointResult) -> None:
        lines.append(_line(result))
        print(lines[-1], flush=True)

    options = {"threads": threads, "target": target}
    peers = [harness.Peer(name, options) for name in PEERS]
    quick = replace(settings, rounds=5, min_calls=3, budget_s=0.3, pause_s=0.05, warmup_s=0.1)
    _, about = harness.compare(
        "streams",
        peers,
        [{"case": case.name} for case in chosen],
        threads=threads,
        tolerance=TOLERANCE,
        settings=quick,
        on_point=report,
    )
    found = {
        "threads": threads,
        "target": target,
        "peers": about,
        "lines": [
            {**asdict(line), "share": line.share, "share_of_moves": line.share_of_moves}
            for line in lines
        ],
    }
    record.write(record.name_of("streams", threads, target), before, found)
    missed = [line for line in lines if line.share < WANTED]
    for line in missed:
        print(f"missed: {line.name}: {line.share:.0%} of the read bandwidth; bound {WANTED:.0%}")
    for line in lines:
        if line not in missed and line.share_of_moves < WANTED:
            share = f"{line.share_of_moves:.0%}"
            print(f"{line.name}: {share} of a program that moves as much and does nothing else")
    if any(line.others > harness.QUIET for line in lines):
        print("Other programs kept the machine busy (column others: cores); measure again later.")
    return not missed

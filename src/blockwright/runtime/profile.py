"""The profile of a model call, kernel by kernel, as a table or as a trace for viewers.

The compiled host program reads clocks between kernels, so no Python time is included in kernels.
The time before the first kernel and after the last one is attributed to named parts. The parts
cover a timed call completely: kernels and overhead add up to the duration of the call.
"""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from blockwright.runtime.roofline import Roofline

_T = TypeVar("_T")

BEFORE = ("arguments", "checks", "results", "arena")
"""Parts of a call before its first kernel: arguments are inspected, and copied where their layout
does not fit; the compiled code checks them, allocates the results, and allocates the arena for
intermediate values."""

AFTER = "return"
"""The part after the last kernel: memory is released and results are converted."""


class KernelCall(msgspec.Struct, frozen=True):
    """One call of a kernel.

    Attributes:
        kernel: kernel name; operators: the graph operators it computes.
        start, duration: nanoseconds; `start` counts from the start of the call.
        flops: floating-point operations; bytes: distinct bytes read and written.
        written: the part of `bytes` that is written.
        predicted: nanoseconds predicted by the cost model; 0 without a prediction.
    """

    kernel: str
    operators: tuple[str, ...]
    start: float
    duration: float
    flops: int = 0
    bytes: int = 0
    written: int = 0
    predicted: float = 0


class KernelSummary(msgspec.Struct, frozen=True):
    """All calls of one kernel: total seconds, share of the timed call, operations and bytes.

    `limit` is the lower bound of the roofline in seconds; None without a roofline.
    `predicted` is the time predicted by the cost model for the target's machine, in seconds; None
    without a prediction.
    """

    kernel: str
    operators: tuple[str, ...]
    calls: int
    seconds: float
    share: float
    gflops: float
    megabytes: float
    limit: float | None = None
    predicted: float | None = None


class Overhead(msgspec.Struct, frozen=True):
    """A named part of a call outside of kernels; times in nanoseconds, as for kernels."""

    name: str
    start: float
    duration: float


class Profile(msgspec.Struct, frozen=True):
    """A profile of one model on inputs of one shape.

    Attributes:
        calls: every kernel call in order.
        shapes: argument shapes, for the heading.
        repeats: number of timed runs. Times are means over the runs of the two middle quartiles by
            duration, so that they add up and interrupted runs do not count.
        copies: number of arguments per call that were copied because of their layout.
        overhead: the other parts of a call, by name.
        latency: seconds of an uninstrumented call, measured alternately with the timed runs.
        roofline: machine limits to compare kernels with.
    """

    calls: tuple[KernelCall, ...]
    shapes: tuple[str, ...] = ()
    repeats: int = 1
    copies: int = 0
    overhead: tuple[Overhead, ...] = ()
    latency: float = 0.0
    roofline: Roofline | None = None

    @property
    def kernel_calls(self) -> int:
        """Number of kernel calls per call of the model."""
        return len(self.calls)

    @property
    def seconds(self) -> float:
        """Time in kernels per call."""
        return sum(c.duration for c in self.calls) * 1e-9

    @property
    def overhead_seconds(self) -> float:
        """Time outside of kernels per call."""
        return sum(part.duration for part in self.overhead) * 1e-9

    @property
    def timed_seconds(self) -> float:
        """Duration of a timed call: kernels plus overhead. All shares refer to it."""
        return self.seconds + self.overhead_seconds

    @property
    def cover(self) -> float:
        """Kernels and overhead over latency. The excess over 1 is the cost of clock reads."""
        return self.timed_seconds / self.latency if self.latency else 0.0

    def kernels(self) -> list[KernelSummary]:
        """One row per kernel, most expensive first."""
        groups: dict[str, list[KernelCall]] = {}
        for call in self.calls:
            groups.setdefault(call.kernel, []).append(call)
        whole = max(self.timed_seconds, 1e-12)
        rows: list[KernelSummary] = []
        for name, calls in groups.items():
            spent = sum(c.duration for c in calls) * 1e-9
            rows.append(
                KernelSummary(
                    name,
                    calls[0].operators,
                    len(calls),
                    spent,
                    spent / whole,
                    sum(c.flops for c in calls) * 1e-9,
                    sum(c.bytes for c in calls) * 1e-6,
                    self._limit(calls),
                    sum(c.predicted for c in calls) * 1e-9 or None,
                )
            )
        return sorted(rows, key=lambda row: -row.seconds)

    def _limit(self, calls: Iterable[KernelCall]) -> float | None:
        line = self.roofline
        if line is None:
            return None
        return sum(line.seconds(c.flops, c.bytes - c.written, c.written) for c in calls)

    def text(self, width: int = 120) -> str:
        """The table as text."""
        from rich.console import Console

        target = io.StringIO()
        Console(file=target, width=width, color_system=None).print(self.table())
        return target.getvalue()

    __str__ = text

    def table(self) -> object:
        """A `rich` table of the kernels and the overhead."""
        from rich.table import Table

        title = (
            f"{self.kernel_calls} kernel calls, {self.seconds * 1e3:.3f} ms"
            f" ({', '.join(self.shapes)}; {self.repeats} runs)"
        )
        table = Table(title=title, caption="\n".join(self._notes()))
        for heading in ("kernel", "operators"):
            table.add_column(heading, overflow="fold")
        for heading in _COLUMNS:
            table.add_column(heading, justify="right")
        for row in self.kernels():
            cells = (cell(row) for cell in _COLUMNS.values())
            table.add_row(row.kernel, " ".join(row.operators), *cells)
        table.add_section()
        whole = max(self.timed_seconds, 1e-12)
        for part in self.overhead:
            share = part.duration * 1e-9 / whole
            table.add_row(
                part.name, "overhead", "", f"{part.duration * 1e-6:.3f}", "", f"{share:.1%}"
            )
        return table

    def _notes(self) -> list[str]:
        notes: list[str] = []
        whole = max(self.timed_seconds, 1e-12)
        notes.append(
            f"kernels {self.seconds / whole:.1%} and overhead {self.overhead_seconds / whole:.1%} "
            f"of a timed call's {whole * 1e3:.3f} ms"
        )
        if self.latency:
            notes.append(f"an uninstrumented call takes {self.latency * 1e3:.3f} ms")
        line = self.roofline
        if line is not None:
            notes.append(
                f"roofline: {line.flops * 1e-9:.0f} GFLOP/s, "
                f"{line.reads[-1][1] * 1e-9:.1f} GB/s read from memory by "
                f"{line.threads} threads"
            )
        if self.copies:
            notes.append(f"{self.copies} arguments copied because of their layout")
        return notes

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the parts as trace events for Perfetto and Chrome's tracing page."""
        events: list[dict[str, object]] = [
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "host"}}
        ]
        parts = sorted((*self.overhead, *self.calls), key=lambda part: part.start)
        events += [_event(part) for part in parts]
        document = {"traceEvents": events, "displayTimeUnit": "ns"}
        Path(path).write_text(json.dumps(document), encoding="utf-8")


def _event(part: KernelCall | Overhead) -> dict[str, object]:
    if isinstance(part, Overhead):
        name, kind, about = part.name, "overhead", dict[str, object]()
    else:
        name, kind = part.kernel, "kernel"
        about = {
            "operators": "+".join(part.operators),
            "flops": part.flops,
            "bytes": part.bytes,
            "predicted_us": part.predicted * 1e-3,
        }
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "pid": 1,
        "tid": 1,
        "ts": part.start * 1e-3,
        "dur": part.duration * 1e-3,
        "args": about,
    }


def _speed(amount: float, row: KernelSummary) -> str:
    return f"{amount / max(row.seconds, 1e-12):.1f}"


# Numeric columns in order: heading → cell of a kernel.
_COLUMNS: dict[str, Callable[[KernelSummary], str]] = {
    "calls": lambda row: str(row.calls),
    "ms": lambda row: f"{row.seconds * 1e3:.3f}",
    "predicted": lambda row: "" if row.predicted is None else f"{row.predicted * 1e3:.3f}",
    "share": lambda row: f"{row.share:.1%}",
    "GFLOP": lambda row: f"{row.gflops:.4f}",
    "GFLOP/s": lambda row: _speed(row.gflops, row),
    "MB": lambda row: f"{row.megabytes:.2f}",
    "GB/s": lambda row: _speed(row.megabytes * 1e-3, row),
    "roofline": lambda row: (
        "" if row.limit is None else f"{row.limit / max(row.seconds, 1e-12):.0%}"
    ),
}


class TimedRun(msgspec.Struct, frozen=True):
    """Clock readings of one timed call in nanoseconds: before, inside (in order) and after it."""

    begin: int
    ticks: Sequence[int]
    end: int


def timed_parts(
    calls: Sequence[KernelCall], runs: Sequence[TimedRun]
) -> tuple[tuple[KernelCall, ...], tuple[Overhead, ...]]:
    """Combine several timed runs into timed kernel calls and the overhead around them.

    The ticks of a run are: entry to the compiled code, arguments checked, results allocated, the
    start of the first kernel, and the end of each kernel.
    """
    lengths = [_steps(run) for run in runs]
    middle = middle_half(lengths, sum)
    steps = [sum(column) / len(middle) for column in zip(*middle, strict=True)]
    starts = [sum(steps[:place]) for place in range(len(steps))]
    first, last = len(BEFORE), len(steps) - 1
    overhead = [Overhead(BEFORE[k], starts[k], steps[k]) for k in range(first)]
    overhead.append(Overhead(AFTER, starts[last], steps[last]))
    timed = (
        msgspec.structs.replace(call, start=starts[k], duration=steps[k])
        for k, call in enumerate(calls, first)
    )
    return tuple(timed), tuple(overhead)


def _steps(run: TimedRun) -> list[int]:
    readings = [run.begin, *run.ticks, run.end]
    return [after - before for before, after in itertools.pairwise(readings)]


def middle_half(values: Sequence[_T], key: Callable[[_T], float]) -> list[_T]:
    """The values in the two middle quartiles."""
    ordered = sorted(values, key=key)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut]

"""What a profiled call of a model took, kernel by kernel: as a table, and as a trace for viewers.

Times are read between kernels inside the compiled host program, so nothing of Python is in them.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec


class KernelCall(msgspec.Struct, frozen=True):
    """One call of a kernel.

    Attributes:
        kernel: its name; operators: the graph operators it computes.
        start, duration: nanoseconds, from the start of the call.
        flops: floating-point operations; bytes: memory it reads and writes at least once.
    """

    kernel: str
    operators: tuple[str, ...]
    start: int
    duration: int
    flops: int = 0
    bytes: int = 0


class KernelSummary(msgspec.Struct, frozen=True):
    """All calls of one kernel: seconds together, share of the call, operations and bytes."""

    kernel: str
    operators: tuple[str, ...]
    calls: int
    seconds: float
    share: float
    gflops: float
    megabytes: float


class Profile(msgspec.Struct, frozen=True):
    """A profile of one model on inputs of one shape.

    Attributes:
        calls: every kernel call in order; durations are medians over `repeats` runs.
        shapes: of the arguments, for the heading.
        copies: arguments that one call had to copy because of their layout.
    """

    calls: tuple[KernelCall, ...]
    shapes: tuple[str, ...] = ()
    repeats: int = 1
    copies: int = 0

    @property
    def kernel_calls(self) -> int:
        """How many kernels one call of the model runs."""
        return len(self.calls)

    @property
    def seconds(self) -> float:
        """Time in kernels of one call."""
        return sum(c.duration for c in self.calls) * 1e-9

    def kernels(self) -> list[KernelSummary]:
        """One row per kernel, the most expensive first."""
        groups: dict[str, list[KernelCall]] = {}
        for call in self.calls:
            groups.setdefault(call.kernel, []).append(call)
        whole = max(self.seconds, 1e-12)
        rows: list[KernelSummary] = []
        for name, calls in groups.items():
            spent = sum(c.duration for c in calls) * 1e-9
            rows.append(KernelSummary(
                name, calls[0].operators, len(calls), spent, spent / whole,
                sum(c.flops for c in calls) * 1e-9, sum(c.bytes for c in calls) * 1e-6,
            ))  # fmt: skip
        return sorted(rows, key=lambda row: -row.seconds)

    def text(self, width: int = 120) -> str:
        """The table as text."""
        from rich.console import Console

        target = io.StringIO()
        Console(file=target, width=width, color_system=None).print(self.table())
        return target.getvalue()

    __str__ = text

    def table(self) -> object:
        """A `rich` table of the kernels."""
        from rich.table import Table

        title = (f"{self.kernel_calls} kernel calls, {self.seconds * 1e3:.3f} ms"
                 f" ({', '.join(self.shapes)}; median of {self.repeats})")  # fmt: skip
        caption = f"{self.copies} arguments copied for their layout" if self.copies else None
        table = Table(title=title, caption=caption)
        for heading in ("kernel", "operators"):
            table.add_column(heading, overflow="fold")
        for heading in ("calls", "ms", "share", "GFLOP", "GFLOP/s", "MB", "GB/s"):
            table.add_column(heading, justify="right")
        for row in self.kernels():
            busy = max(row.seconds, 1e-12)
            table.add_row(
                row.kernel, " ".join(row.operators), str(row.calls), f"{row.seconds * 1e3:.3f}",
                f"{row.share:.1%}", f"{row.gflops:.4f}", f"{row.gflops / busy:.1f}",
                f"{row.megabytes:.2f}", f"{row.megabytes * 1e-3 / busy:.1f}",
            )  # fmt: skip
        return table

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the calls as trace events, which Perfetto and Chrome's tracing page show."""
        events: list[dict[str, object]] = [
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "host"}}
        ]
        for call in self.calls:
            events.append({
                "name": call.kernel, "cat": "kernel", "ph": "X", "pid": 1, "tid": 1,
                "ts": call.start * 1e-3, "dur": call.duration * 1e-3,
                "args": {"operators": "+".join(call.operators), "flops": call.flops,
                         "bytes": call.bytes},
            })  # fmt: skip
        document = {"traceEvents": events, "displayTimeUnit": "ns"}
        Path(path).write_text(json.dumps(document), encoding="utf-8")


def median_calls(calls: Sequence[KernelCall], runs: Sequence[Sequence[int]]) -> list[KernelCall]:
    """The calls with the median duration of each over several runs of clock readings.

    `runs` holds, per run, one reading before the first call and one after each.
    """
    out: list[KernelCall] = []
    start = 0
    for index, call in enumerate(calls):
        taken = sorted(run[index + 1] - run[index] for run in runs)
        duration = taken[len(taken) // 2]
        out.append(msgspec.structs.replace(call, start=start, duration=duration))
        start += duration
    return out

"""What each pass of a compilation did: its time, sizes before and after, and changed functions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from blockwright import ir
from blockwright.passes.context import PassRun

_SHOWN = 4  # names of functions per row


class Size(msgspec.Struct, frozen=True):
    """Number of functions of a module, of bindings in graph functions, and of all IR nodes."""

    functions: int
    bindings: int
    nodes: int


class PassRow(msgspec.Struct, frozen=True):
    """What one pass did.

    Attributes:
        stage, name: the pass.
        seconds: its time.
        before, after: sizes of the module.
        added, removed, changed: names of functions; changed are those that differ in structure.
        skipped: an instrument skipped the pass.
    """

    stage: str
    name: str
    seconds: float
    before: Size
    after: Size
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    skipped: bool

    @property
    def effect(self) -> str:
        """The changes as text: "+name" is added, "-name" removed, "~name" changed."""
        if self.skipped:
            return "skipped"
        parts = (_names("+", self.added), _names("-", self.removed), _names("~", self.changed))
        return " ".join(part for part in parts if part) or "no change"


class PassReport:
    """The passes that ran, in order; `print(report)` shows a table.

    The rows are computed when they are first read.
    """

    def __init__(self, runs: Sequence[PassRun]) -> None:
        self.runs = tuple(runs)
        self._rows: tuple[PassRow, ...] | None = None

    @property
    def rows(self) -> tuple[PassRow, ...]:
        """One row for each pass."""
        if self._rows is None:
            sizes = _Sizes()
            self._rows = tuple(_row(run, sizes) for run in self.runs)
        return self._rows

    def __str__(self) -> str:
        """The rows as a table: numbers that a pass changes are shown as before → after."""
        heading = ("", "ms", "functions", "bindings", "nodes", "changes")
        table: list[tuple[str, ...]] = [heading]
        stage = ""
        for row in self.rows:
            if row.stage != stage:
                stage = row.stage
                table.append((stage,))
            sizes = map(msgspec.structs.astuple, (row.before, row.after))
            numbers = [f"{a}" if a == b else f"{a} → {b}" for a, b in zip(*sizes, strict=True)]
            table.append((f"  {row.name}", f"{row.seconds * 1e3:.1f}", *numbers, row.effect))
        return _aligned(table)


def _row(run: PassRun, sizes: _Sizes) -> PassRow:
    old, new = run.before.functions, run.after.functions
    return PassRow(
        run.stage,
        run.name,
        run.seconds,
        sizes.of(run.before),
        sizes.of(run.after),
        tuple(name for name in new if name not in old),
        tuple(name for name in old if name not in new),
        tuple(n for n, f in new.items() if n in old and not ir.structural_equal(old[n], f)),
        run.skipped,
    )


class _Sizes:
    """Sizes of modules; each function is counted once, as most passes keep most functions."""

    def __init__(self) -> None:
        self._nodes: dict[ir.Node, int] = {}

    def of(self, module: ir.IRModule) -> Size:
        functions = tuple(module.functions.values())
        bindings = sum(len(f.bindings) for f in functions if isinstance(f, ir.GraphFunction))
        return Size(len(functions), bindings, sum(map(self._count, functions)))

    def _count(self, function: ir.Node) -> int:
        if function not in self._nodes:
            self._nodes[function] = sum(1 for _ in ir.walk(function))
        return self._nodes[function]


def _names(sign: str, names: Sequence[str]) -> str:
    shown = [sign + name for name in names[:_SHOWN]]
    rest = len(names) - len(shown)
    return " ".join([*shown, f"{sign}{rest} more"] if rest else shown)


def _aligned(table: Sequence[tuple[str, ...]]) -> str:
    """Columns of equal width; the first and last are left-justified, numbers right-justified.

    A row of one cell is a heading.
    """
    full = [row for row in table if len(row) > 1]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    return "\n".join(row[0] if len(row) == 1 else _line(row, widths) for row in table)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    numbers = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
    return "  ".join([row[0].ljust(widths[0]), *numbers[1:-1], row[-1]]).rstrip()

"""What a run costs on the machine it is written for: accesses of shared memory that meet in a bank.

Shared memory has 32 banks of 4 bytes, which answer one word each at a time. An access by a warp
takes as many turns as the busiest bank has different words to give; threads that read the same word
share a turn. Accesses of more than 4 bytes per thread are made by half or quarter of a warp.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from blockwright.support import Span

Array = np.ndarray[Any, Any]
BANKS, WORD, WARP = 32, 4, 32


@dataclasses.dataclass
class BankRow:
    """Accesses of shared memory at one place of the program.

    Attributes:
        buffer: name of what is accessed, as it is written there.
        how: "read", "write" or "atomic".
        span: where in the source.
        block: the program's block around it; empty outside of blocks.
        requests: accesses by (parts of) warps.
        turns: how often the banks answer for them; `requests` when none meet.
    """

    buffer: str
    how: str
    span: Span | None
    block: str
    requests: int = 0
    turns: int = 0

    @property
    def conflicts(self) -> int:
        """Turns that would not be needed if no two threads met in a bank."""
        return self.turns - self.requests


class Report:
    """Counts of a run: `interpret(program, …, report=report)` fills it.

    Attributes:
        banks: one row per access of shared memory in the program, in order of first use.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[int, str], BankRow] = {}

    @property
    def banks(self) -> list[BankRow]:
        return list(self._rows.values())

    @property
    def conflicts(self) -> int:
        """Bank conflicts of all accesses together."""
        return sum(row.conflicts for row in self._rows.values())

    def row(self, number: int, buffer: str, how: str, span: Span | None, block: str) -> BankRow:
        """The row of an access, by the number of its place."""
        result = self._rows.get((number, how))
        if result is None:
            result = self._rows[number, how] = BankRow(buffer, how, span, block)
        return result

    def __str__(self) -> str:
        if not self._rows:
            return "no accesses of shared memory"
        lines = [
            f"{row.conflicts:>8} conflicts in {row.requests} {row.how}s of {row.buffer}"
            + (f" at {row.span.location()}" if row.span else "")
            for row in self._rows.values()
        ]
        return "\n".join(lines)


def bank_turns(threads: Array, first: Array, size: int) -> tuple[int, int]:
    """Requests and turns of one access: thread → first byte of `size` bytes in its bank memory.

    A thread that stands several times does so in accesses one after the other.
    """
    order = np.argsort(threads, kind="stable")
    threads, first = threads[order], first[order]
    turn = np.arange(len(threads)) - np.searchsorted(threads, threads)
    together = max(1, WARP * WORD // max(size, WORD))
    words = first[:, None] // WORD + np.arange(max(1, size // WORD))
    block = (int(threads.max(initial=0)) // WARP + 1) * WARP
    group = (turn * block + threads) // min(together, WARP)
    pairs = np.unique(np.stack([np.repeat(group, words.shape[1]), words.reshape(-1)]), axis=1)
    keys, counts = np.unique(pairs[0] * BANKS + pairs[1] % BANKS, return_counts=True)
    requests, place = np.unique(keys // BANKS, return_inverse=True)
    busiest = np.zeros(len(requests), np.int64)
    np.maximum.at(busiest, place, counts)
    return len(requests), int(busiest.sum())

"""Cost report of a run: bank conflicts in shared memory.

Shared memory has 32 banks of 4 bytes, each of which serves one word at a time. An access by a warp
takes as many turns as the number of distinct words in its busiest bank; threads that read the same
word share a turn. Accesses of more than 4 bytes per thread are split into half or quarter warps.
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
    """Shared memory accesses at one program location.

    Attributes:
        buffer: name of the accessed buffer in the source.
        how: "read", "write" or "atomic".
        span: source location.
        block: the enclosing block of the program; empty outside of blocks.
        requests: accesses by warps or parts of warps.
        turns: bank cycles for these requests; equal to `requests` without conflicts.
    """

    buffer: str
    how: str
    span: Span | None
    block: str
    requests: int = 0
    turns: int = 0

    @property
    def conflicts(self) -> int:
        """Turns in excess of one per request."""
        return self.turns - self.requests


class Report:
    """Counters of a run: `interpret(program, …, report=report)` fills it.

    Attributes:
        banks: one row per shared memory access of the program, in order of first use.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[int, str], BankRow] = {}

    @property
    def banks(self) -> list[BankRow]:
        return list(self._rows.values())

    @property
    def conflicts(self) -> int:
        """Bank conflicts of all accesses."""
        return sum(row.conflicts for row in self._rows.values())

    def row(self, number: int, buffer: str, how: str, span: Span | None, block: str) -> BankRow:
        """The row of an access, by the number of its program location."""
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


def bank_conflict_cycles(threads: Array, first: Array, size: int) -> tuple[int, int]:
    """Requests and turns of one access, from each thread and its first byte in banked memory.

    Args:
        threads: the accessing threads; repeated entries are successive accesses of one thread.
        first: the first byte of each access.
        size: bytes per access.
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

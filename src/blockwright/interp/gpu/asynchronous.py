"""State of asynchronous copies and of counting barriers.

A copy (`T.ptx_cp_async`) is in flight until its thread waits for its group, or until a thread waits
for a barrier at which the copy arrives. Meanwhile no thread may access the destination or write the
source. Counting barriers go through phases. A phase ends when the expected number of threads have
arrived and all announced bytes have been transferred. A thread that has waited sees everything the
others did before they arrived.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from blockwright.interp.memory import MemoryBlock, Touch, TypedView

Array = np.ndarray[Any, Any]

WRITES: dict[str, int] = {
    "ptx_cp_async": 0, "ptx_cp_async_bulk": 0, "ptx_ldmatrix": 3, "mma_fill": 1, "mma_store": 2,
    "tvm_load_matrix_sync": 0, "tvm_store_matrix_sync": 5, "tvm_fill_fragment": 0,
    "tvm_mma_sync": 0, "ptx_mma": 10,
}  # fmt: skip
"""Hardware operations that write memory → position of the destination argument."""


@dataclasses.dataclass(eq=False)
class Copy:
    """One copy by several threads. Arrays have one entry per element; `threads` holds its thread.

    Attributes:
        names: names of destination and source buffer in the program.
        group: number of groups that the thread had committed when the copy began.
        waiting: mask of the elements in flight.
        bulk: whether completion is signaled by a barrier only.
    """

    site: Any
    names: tuple[str, str]
    target: TypedView
    to: Array
    source: TypedView
    origin: Array
    threads: Array
    group: Array
    waiting: Array
    bulk: bool = False


class Copies:
    """The asynchronous copies of a block."""

    def __init__(self) -> None:
        self.open: list[Copy] = []
        self.committed: dict[int, int] = {}

    def groups(self, threads: Array) -> Array:
        """The number of groups that each thread has committed."""
        return np.array([self.committed.get(int(t), 0) for t in threads], np.int64)

    def commit(self, threads: Array) -> None:
        """Commit the copies that each thread has begun since its last group as a group."""
        for t in threads.tolist():
            self.committed[t] = self.committed.get(t, 0) + 1

    def begin(self, copy: Copy) -> None:
        self.open.append(copy)
        _mark(copy, copy.waiting, 1)

    def ended(self, threads: Array, upper_limit: int) -> list[tuple[Copy, Array]]:
        """Complete the copies of threads that allow `upper_limit` groups in flight; return them."""
        limit = np.full(int(threads.max(initial=0)) + 1, -1)
        limit[threads] = self.groups(threads) - 1 - upper_limit

        def which(copy: Copy) -> Array:
            return _below(copy, limit) & (not copy.bulk)

        return self._end(which)

    def arriving(self, threads: Array) -> list[tuple[Copy, Array]]:
        """Copies that threads have begun and not waited for."""
        return [
            (c, result)
            for c in self.open
            if not c.bulk and (result := c.waiting & np.isin(c.threads, threads)).any()
        ]

    def end(self, parts: list[tuple[Copy, Array]]) -> list[tuple[Copy, Array]]:
        """Complete the given elements; return those that were still in flight."""
        chosen = {id(copy): mask for copy, mask in parts}
        none: Array = np.zeros(1, bool)

        def which(copy: Copy) -> Array:
            return chosen.get(id(copy), none)

        return self._end(which)

    def _end(self, which: Callable[[Copy], Array]) -> list[tuple[Copy, Array]]:
        done: list[tuple[Copy, Array]] = []
        for copy in self.open:
            mask = copy.waiting & which(copy)
            if mask.any():
                _mark(copy, mask, -1)
                copy.waiting = copy.waiting & ~mask
                done.append((copy, mask))
        self.open = [c for c in self.open if c.waiting.any()]
        return done

    def meeting(self, view: TypedView, flat: Array, how: Touch) -> tuple[int, Copy, int] | None:
        """The first access that an in-flight copy forbids: (index, copy, thread of the copy)."""
        flight = view.storage.flight
        assert flight is not None
        bytes_ = flat * view.size + view.phase
        bad = flight[0][bytes_] > 0
        if how != "read":
            bad |= flight[1][bytes_] > 0
        if not bad.any():
            return None
        at = int(np.argmax(bad))
        for copy in self.open:
            ends = [(copy.target, copy.to)]
            if how != "read":
                ends.append((copy.source, copy.origin))
            for end, places in ends:
                if end.storage is view.storage:
                    start = places * end.size + end.phase
                    hit = copy.waiting & (start <= bytes_[at]) & (bytes_[at] < start + end.size)
                    if hit.any():
                        return at, copy, int(copy.threads[int(np.argmax(hit))])
        return None


def _below(copy: Copy, limit: Array) -> Array:
    known = copy.threads < len(limit)
    return known & (copy.group <= limit[np.minimum(copy.threads, len(limit) - 1)])


def _mark(copy: Copy, mask: Array, by: int) -> None:
    """Update the in-flight counters of elements in the storages at both ends."""
    for row, (view, places) in enumerate(((copy.target, copy.to), (copy.source, copy.origin))):
        storage: MemoryBlock = view.storage
        if storage.flight is None:
            storage.flight = np.zeros((2, len(storage.raw)), np.int16)
        for k in range(view.size):
            np.add.at(storage.flight[row], places[mask] * view.size + view.phase + k, by)


@dataclasses.dataclass
class BarrierPhase:
    """One phase of a barrier: arrivals, pending bytes, and the clock that waiters acquire."""

    arrived: int = 0
    bytes: int = 0
    known: Array | None = None
    copies: list[tuple[Copy, Array]] = dataclasses.field(default_factory=list[tuple[Copy, Array]])


class Barrier:
    """A counting barrier in shared memory.

    Attributes:
        expected: number of threads that have to arrive.
        begun: the thread that set this number, when, and at which program location.
        waited: number of phases that each thread has waited for.
    """

    def __init__(self, expected: int, count: int, begun: tuple[int, int, Any]) -> None:
        self.expected = expected
        self.begun = begun
        self.phases = [BarrierPhase()]
        self.waited = np.zeros(count, np.int64)

    @property
    def current(self) -> BarrierPhase:
        return self.phases[-1]

    def arrive(self, known: Array) -> None:
        """Record the arrival of one thread."""
        phase = self.current
        phase.known = known if phase.known is None else np.maximum(phase.known, known)
        phase.arrived += 1

    def settle(self) -> None:
        """Begin a new phase if the current one is complete."""
        if self.current.arrived >= self.expected and self.current.bytes == 0:
            self.phases.append(BarrierPhase())

    def over(self, threads: Array) -> Array:
        """Whether the next phase that each thread waits for is complete."""
        return self.waited[threads] < len(self.phases) - 1


class Waits:
    """The counting barriers of a block, by number."""

    def __init__(self) -> None:
        self.barriers: dict[int, Barrier] = {}

"""Races are found exactly where two accesses are ordered by nothing: compared with the definition.

The definition is executed literally: every thread has the set of accesses that it knows to have
happened; a barrier joins the sets of its members.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from blockwright.interp.gpu.vector_clock import Clock, ThreadShadow

THREADS, WARP, CELLS = 12, 4, 3
Access = tuple[int, int, int, str]  # number, thread, cell, how


class Definition:
    def __init__(self) -> None:
        self.done: list[Access] = []
        self.known: list[set[Access]] = [set() for _ in range(THREADS)]

    def races(self, threads: list[int], cells: list[int], how: str) -> bool:
        """Whether accesses at the same time race with each other or with earlier ones."""
        here = list(zip(threads, cells, strict=True))
        before = any(
            a not in self.known[thread] and self._conflict(a, cell, how)
            for thread, cell in here
            for a in self.done
            if a[1] != thread
        )
        return before or (how == "write" and len({c for _, c in here}) < len(here))

    def take(self, threads: list[int], cells: list[int], how: str) -> None:
        for thread, cell in zip(threads, cells, strict=True):
            access = (len(self.done), thread, cell, how)
            self.done.append(access)
            self.known[thread].add(access)

    @staticmethod
    def _conflict(first: Access, cell: int, how: str) -> bool:
        return first[2] == cell and not (first[3] == how and how in ("read", "atomic"))

    def join(self, members: list[int]) -> None:
        everything: set[Access] = set().union(*(self.known[m] for m in members))
        for m in members:
            self.known[m] = set(everything)


def barrier(chance: random.Random, whole_warps: bool) -> list[int]:
    kind = chance.random()
    if kind < 0.4:
        return list(range(THREADS))
    if kind < 0.8 or whole_warps:
        first = chance.randrange(THREADS // WARP) * WARP
        return list(range(first, first + WARP))
    return sorted(chance.sample(range(THREADS), chance.randint(2, THREADS)))


def play(chance: random.Random, whole_warps: bool) -> tuple[bool, bool]:
    """Random accesses and barriers until a race: (by definition, as found).

    Most accesses that would race are left out, so that there is a history.
    """
    wanted, clock = Definition(), Clock(np.arange(THREADS) // WARP, 7)
    shadow = ThreadShadow(CELLS)
    for number in range(80):
        if chance.random() < 0.45:
            members = barrier(chance, whole_warps)
            wanted.join(members)
            clock.join(np.array(members))
            continue
        how = chance.choices(["read", "write", "atomic"], [6, 2, 1])[0]
        threads = sorted(chance.sample(range(THREADS), chance.choice([1, 1, 1, 2, 4])))
        if chance.random() < 0.3:
            first = chance.randrange(THREADS // WARP) * WARP
            threads = list(range(first, first + WARP))
        cells = [chance.randrange(CELLS)] * len(threads)
        if chance.random() < 0.3:
            cells = [chance.randrange(CELLS) for _ in threads]
        races = wanted.races(threads, cells, how)
        if races and chance.random() < 0.97:
            continue
        wanted.take(threads, cells, how)
        met = shadow.touch(clock, np.array(cells), np.array(threads), how, number)
        if races or met is not None:
            return races, met is not None
    return False, False


@pytest.mark.parametrize("seed", range(4))
def test_with_barriers_of_warps_and_blocks_races_are_found_exactly(seed: int) -> None:
    chance = random.Random(seed)
    outcomes = [play(chance, whole_warps=True) for _ in range(200)]
    assert all(wanted == found for wanted, found in outcomes)
    assert 20 < sum(found for _, found in outcomes) < 200


@pytest.mark.parametrize("seed", range(4))
def test_with_barriers_of_any_threads_no_race_is_missed(seed: int) -> None:
    """Of many readers without order among them, only their warp is remembered."""
    chance = random.Random(seed)
    outcomes = [play(chance, whole_warps=False) for _ in range(200)]
    assert all(found or not wanted for wanted, found in outcomes)


def test_releases_order_what_was_done_before_them() -> None:
    clock, shadow = Clock(np.arange(4) // 2, 1), ThreadShadow(1)
    cell = np.zeros(1, int)

    def touch(thread: int, how: str) -> Any:
        return shadow.touch(clock, cell, np.array([thread]), how, 0)

    assert touch(0, "write") is None
    known = clock.released(np.array([0]))
    assert touch(0, "write") is None
    clock.acquire(np.array([1]), known)
    assert touch(1, "read") is not None  # the second write came after the release
    clock.acquire(np.array([2]), clock.released(np.array([0])))
    assert touch(2, "read") is None

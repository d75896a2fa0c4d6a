"""Footprints: how many lines of memory loops touch, and how much of a cache they occupy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable

import msgspec

from blockwright.cost.nest import AccessNode, LoopNode

CONFLICT = 1.25
"""Share of a level from which on nothing of a footprint stays in it."""


class CacheLevel(msgspec.Struct, frozen=True):
    """A cache, or a TLB whose lines are pages.

    Attributes:
        name: for reports.
        lines: capacity in lines, for one thread.
        line: bytes of a line.
        ways: lines per set.
        indexed: whether virtual addresses determine the set. With more than a page per way they do
            not, and conflicts are random.
        threads: that share it.
    """

    name: str
    lines: float
    line: int
    ways: int
    indexed: bool
    threads: int = 1


class Footprint(msgspec.Struct, frozen=True):
    """Distinct lines touched: contiguous runs of bytes, repeated at strides of at least a line.

    Attributes:
        lines: number of lines.
        run: bytes of a contiguous run.
        apart: (stride, count) pairs of the repetitions, smallest stride first.
    """

    lines: float
    run: float
    apart: tuple[tuple[float, float], ...]

    def share(self, level: CacheLevel) -> float:
        """Fraction of a level occupied: lines relative to the capacity of the sets they map to."""
        if not level.indexed or not self.run:
            return self.lines / level.lines
        sets = level.lines / level.ways
        covered = each = min(sets, math.ceil(self.run / level.line))
        common = 0  # greatest common divisor of the strides, in lines; 1 if one is no whole number
        for step, count in self.apart:
            lines = step / level.line
            whole = int(lines) if lines == int(lines) else 1
            common = math.gcd(common, whole)
            covered = min(sets, covered * min(count, sets / math.gcd(whole, int(sets))))
        covered = min(covered, each * sets / math.gcd(common, int(sets)))
        share = self.lines / (covered * level.ways)
        # Lines that share few sets evict each other in turn: all of them are lost at once.
        return max(share, CONFLICT) if share > 1 and covered < sets else share


class ReuseGroup(msgspec.Struct, frozen=True, eq=False):
    """Accesses of one buffer with the same strides and different offsets.

    Attributes:
        access: a representative.
        offsets: (distance, count) pairs that generate the offsets of the others.
        stored: whether any of them is a store.
    """

    access: AccessNode
    offsets: tuple[tuple[float, float], ...]
    stored: bool


def grouped(accesses: Iterable[AccessNode]) -> list[ReuseGroup]:
    """Group accesses with the same buffer and strides."""
    result: dict[tuple[object, ...], list[AccessNode]] = {}
    for access in accesses:
        key = (access.storage, access.scattered, frozenset(access.moves.items()))
        result.setdefault(key, []).append(access)
    return [
        ReuseGroup(same[0], _spacing(sorted({a.base for a in same})), any(a.stored for a in same))
        for same in result.values()
    ]


def _spacing(bases: list[float]) -> tuple[tuple[float, float], ...]:
    """Describe sorted offsets as repetitions of a distance; irregular ones approximately."""
    if len(bases) < 2:
        return ()
    gaps = {b - a for a, b in itertools.pairwise(bases)}
    nearest = min(gaps)
    if len(gaps) == 1:
        return ((nearest, len(bases)),)
    runs = 1 + sum(b - a > nearest for a, b in itertools.pairwise(bases))
    each = len(bases) / runs
    apart = (bases[-1] - bases[0] - nearest * (each - 1)) / max(1, runs - 1)
    return ((nearest, each), (apart, runs))


def footprint(group: ReuseGroup, still: Collection[LoopNode], times: float, line: int) -> Footprint:
    """Footprint of a group for one iteration of the loops in `still`.

    Args:
        group: accesses with the same strides.
        still: loops around it whose counters are fixed.
        times: total iterations of the other loops.
        line: bytes of a line.
    """
    access = group.access
    largest = max(1.0, access.storage.size / line)
    if access.scattered:  # expected number of distinct lines of random accesses
        return Footprint(largest * -math.expm1(-times / largest), 0, ())
    moved = [
        (abs(step), loop.count)
        for loop, step in access.moves.items()
        if loop.count > 1 and loop not in still
    ]
    run, apart = _merged(sorted([*moved, *group.offsets]), access.width, line)
    lines = max(1.0, run / line) * math.prod(count for _, count in apart)
    return Footprint(min(lines, largest), run, tuple(apart))


def _merged(
    moved: list[tuple[float, float]], width: float, line: int
) -> tuple[float, list[tuple[float, float]]]:
    """One contiguous run of bytes, repeated at strides of at least a line.

    A stride within the extent reached by smaller ones only extends that.
    """
    run = float(width)
    apart: list[tuple[float, float]] = []
    for step, count in moved:
        if not apart and step <= max(run, line):
            run += (count - 1) * step
        elif apart and step < apart[-1][0] * apart[-1][1]:
            first, many = apart[-1]
            apart[-1] = (first, many + (count - 1) * step / first)
        else:
            apart.append((step, count))
    return run, apart

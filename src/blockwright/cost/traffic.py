"""Count the lines that kernels fetch into each memory level, by the footprint method.

While one iteration of a loop fits into a level, data shared with the next iteration is still
there: the whole loop fetches each line that it touches once. Otherwise every iteration fetches its
lines anew. For footprints up to a quarter larger than the level, the result is interpolated.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright.cost.footprint import CONFLICT, CacheLevel
from blockwright.cost.kernels import CodeRegion
from blockwright.cost.nest import BufferNode, LoopNode
from blockwright.target import Target

Fetched = dict[tuple[int, BufferNode], float]
"""Lines by kernel (its position in program order) and buffer."""

_ROOMY, _CROWDED = 1.0, CONFLICT
_Members = Sequence[tuple[int, CodeRegion]]


def cache_levels(target: Target) -> list[CacheLevel]:
    """The data caches, nearest first, with the capacity available to one thread."""
    result: list[CacheLevel] = []
    for number, cache in enumerate(target.caches, 1):
        mine = cache.size / max(1, min(cache.shared_by, target.num_threads))
        indexed = cache.size // cache.ways <= target.core.page_bytes
        result.append(CacheLevel(f"L{number}", mine / cache.line, cache.line, cache.ways, indexed))
    return result


def page_levels(target: Target) -> list[CacheLevel]:
    """The TLBs, as caches whose lines are pages."""
    names = ("TLB", "second TLB")
    core = target.core
    return [
        CacheLevel(n, p, core.page_bytes, p, False)
        for n, p in zip(names, core.tlb_entries, strict=True)
    ]


def traffic(kernels: Sequence[CodeRegion], level: CacheLevel, again: bool = True) -> Fetched:
    """Lines fetched into a level by the busiest thread.

    Args:
        kernels: in program order.
        level: the cache that the lines are fetched into.
        again: whether the program runs repeatedly, so that a first access may hit, unless its
            buffer is uncached.
    """
    members = list(enumerate(kernels))
    touched = _Touched(level)
    result = _below(members, 0, touched)
    missed = 1 - _fits(touched.of(members, 0)[1]) if again else 1.0
    return {
        key: (1.0 if key[1].uncached else missed) * kernels[key[0]].share * lines
        for key, lines in result.items()
    }


class _Touched:
    """The distinct lines of kernels, computed once for each of the loops around them."""

    def __init__(self, level: CacheLevel) -> None:
        self.level = level
        self.known: dict[tuple[int, int, int], tuple[Fetched, float]] = {}

    def of(self, members: _Members, depth: int) -> tuple[Fetched, float]:
        """The result of `_distinct` for adjacent kernels."""
        key = members[0][0], members[-1][0], depth
        result = self.known.get(key)
        if result is None:
            result = self.known[key] = _distinct(members, depth, self.level)
        return result


def _below(members: _Members, depth: int, touched: _Touched) -> Fetched:
    """Lines that one iteration of the innermost of `depth` shared loops fetches."""
    total: Fetched = {}
    for loop, inside in _by_loop(members, depth):
        if loop is None:
            total |= touched.of(inside, depth)[0]
            continue
        whole, _ = touched.of(inside, depth)
        fits = _fits(touched.of(inside, depth + 1)[1])
        for key, lines in _below(inside, depth + 1, touched).items():
            each = loop.count * lines
            total[key] = fits * min(whole[key], each) + (1 - fits) * each
    return total


def _by_loop(
    members: _Members, depth: int
) -> list[tuple[LoopNode | None, list[tuple[int, CodeRegion]]]]:
    """Group adjacent kernels by their next shared loop."""
    result: list[tuple[LoopNode | None, list[tuple[int, CodeRegion]]]] = []
    for number, kernel in members:
        loop = kernel.loops[depth] if len(kernel.loops) > depth else None
        if not result or result[-1][0] is not loop:
            result.append((loop, []))
        result[-1][1].append((number, kernel))
    return result


def _distinct(members: _Members, depth: int, level: CacheLevel) -> tuple[Fetched, float]:
    """Distinct lines touched by the loops from a depth on, and the fraction of the level they fill.

    Kernels that access one buffer are assumed to touch the same part of it.
    """
    lines: Fetched = {}
    shares: dict[BufferNode, float] = {}
    largest: dict[BufferNode, float] = {}
    total: dict[BufferNode, float] = {}
    for number, kernel in members:
        for storage, (count, share) in kernel.occupied(depth, level).items():
            lines[number, storage] = count
            largest[storage] = max(largest.get(storage, 0), count)
            total[storage] = total.get(storage, 0) + count
            shares[storage] = max(shares.get(storage, 0), share)
    if len(members) > 1:
        lines = {key: count * largest[key[1]] / total[key[1]] for key, count in lines.items()}
    return lines, sum(shares.values())


def _fits(share: float) -> float:
    """Probability that data filling this fraction of a level stays there."""
    return min(1.0, max(0.0, (_CROWDED - share) / (_CROWDED - _ROOMY)))

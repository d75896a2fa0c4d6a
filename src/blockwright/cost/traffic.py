"""Count the lines that kernels fetch into each memory level, by the footprint method.

While one iteration of a loop fits into a level, data shared with the next iteration is still
there: the whole loop fetches each line that it touches once. Otherwise every iteration fetches its
lines anew, except for those that a part of the iteration leaves there for the next part. For
footprints up to a quarter larger than the level, the result is interpolated.
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
        threads = max(1, min(cache.shared_by, target.num_threads))
        mine = cache.size / threads
        indexed = cache.size // cache.ways <= target.core.page_bytes
        result.append(
            CacheLevel(f"L{number}", mine / cache.line, cache.line, cache.ways, indexed, threads)
        )
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
    whole = _distinct(members, 0, level)
    missed = 1 - _fits(whole[1]) if again else 1.0
    if not missed and not any(storage.uncached for _, storage in whole[0]):
        return dict.fromkeys(whole[0], 0.0)
    return {
        key: (1.0 if key[1].uncached else missed) * kernels[key[0]].share * lines
        for key, lines in _below(members, 0, level, whole).items()
    }


def _below(
    members: _Members, depth: int, level: CacheLevel, distinct: tuple[Fetched, float]
) -> Fetched:
    """Lines that one iteration of the innermost of `depth` shared loops fetches.

    Arguments: `distinct` are the lines that it touches, and the fraction of the level they fill.
    """
    total: Fetched = {}
    for loop, inside in _by_loop(members, depth):
        whole = distinct if len(inside) == len(members) else _distinct(inside, depth, level)
        if loop is None:
            total |= whole[0]
            continue
        iteration = _distinct(inside, depth + 1, level)
        fits = _fits(iteration[1])
        left = _left(inside, depth + 1, level) if fits < 1 else {}
        for key, lines in _below(inside, depth + 1, level, iteration).items():
            each = loop.count * lines * (1 - left.get(key, 0.0))
            total[key] = fits * min(whole[0][key], each) + (1 - fits) * each
    return total


def _left(members: _Members, depth: int, level: CacheLevel) -> Fetched:
    """What is left in a level of the data that the parts of an iteration pass on to each other.

    A part finds as much of a buffer as fits beside all else that is touched from the part that
    accessed it last until its own end: by kernel and buffer, as a fraction of the lines.
    """
    parts = [inside for _, inside in _by_loop(members, depth)]
    if len(parts) < 2:
        return {}
    touched = [_distinct(inside, depth, level) for inside in parts]
    buffers = [{storage for _, storage in lines} for lines, _ in touched]
    result: Fetched = {}
    for at, (lines, _) in enumerate(touched):
        for key in lines:
            earlier = (at - back for back in range(1, len(parts)))
            last = next((k for k in earlier if key[1] in buffers[k]), None)
            if last is not None:
                largest = max(touched[k][1] for k in range(last, at + 1))
                result[key] = min(1.0, 1 / largest)
    return result


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
    lines = {key: count * largest[key[1]] / total[key[1]] for key, count in lines.items()}
    return lines, sum(shares.values())


def _fits(share: float) -> float:
    """Probability that data filling this fraction of a level stays there."""
    return min(1.0, max(0.0, (_CROWDED - share) / (_CROWDED - _ROOMY)))

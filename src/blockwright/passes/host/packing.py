"""Assign offsets in shared memory to values with live ranges.

Values that are alive at the same time must not overlap. Offsets are sums of sizes: a value is
placed at the start of the memory or at the end of a value that is alive with it, where it is proved
to fit for every value of the symbols.

    a: n bytes, 0..1      a at 0
    b: n bytes, 1..2      b at n
    c: 2*n bytes, 2..3    c at 2*n, because b is alive       total 4*n
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from blockwright.arith.form import Poly
from blockwright.passes.host.size_order import SizeOrder


class Item(msgspec.Struct, frozen=True, eq=False):
    """Memory needed from binding `first` to binding `last`, both included.

    Attributes:
        size: bytes, rounded up to the alignment.
        exact: bytes that are accessed.
        align: bytes to which the start must be aligned; the arena is aligned for everything.
    """

    size: Poly
    exact: Poly
    first: int
    last: int
    align: int = 1


class Region(msgspec.Struct, frozen=True, eq=False):
    """Memory of a result, which is free until binding `until` writes it.

    Attributes:
        capacity: bytes of the result.
        align: bytes to which its start is aligned, whoever provides it.
    """

    capacity: Poly
    until: int
    align: int


class Placement(msgspec.Struct, frozen=True, eq=False):
    """An offset in a region, or in the arena if `region` is None; both in order of the items."""

    region: Region | None
    offset: Poly


class Packing(msgspec.Struct, frozen=True, eq=False):
    """Placements in the order of the items, and the bytes of the arena."""

    placements: tuple[Placement, ...]
    total: Poly


_ORDERS: tuple[Callable[[Item, int], tuple[int, ...]], ...] = (
    lambda item, size: (-size, item.first),
    lambda item, size: (item.first, -size),
    lambda item, size: (item.first - item.last, -size, item.first),
    lambda item, size: (-size * (item.last - item.first + 1), item.first),
)
"""Keys to sort items by before they are placed: size, definition, length of the live range, and
size times length. None of these orders is the best for all functions, so all are tried."""


_COMPLEX = 200
"""Operations of an offset. Offsets of models have fewer; those of dozens of incomparable sizes,
each a maximum of the others, would have billions."""

_CLIMBS = 4
"""Attempts to improve a packing by placing the item at its end first."""


def pack(items: Sequence[Item], regions: Sequence[Region], order: SizeOrder) -> Packing:
    """The smallest packing found by placing the items in several orders."""
    sizes = [order.value(item.size) for item in items]
    least = _least(items, regions, order)
    best: Packing | None = None
    for key in _ORDERS:
        keys = [
            (*key(item, size), n) for n, (item, size) in enumerate(zip(items, sizes, strict=True))
        ]
        sequence = sorted(range(len(items)), key=keys.__getitem__)
        for _ in range(_CLIMBS if key is _ORDERS[0] else 1):
            found = _placed(items, sequence, regions, order)
            if best is None or order.value(found.total) < order.value(best.total):
                best = found
            if order.spent or order.value(best.total) <= least:
                return best
            last = _at_end(items, found, order)
            sequence = [last, *(n for n in sequence if n != last)]
    assert best is not None
    return best


def _least(items: Sequence[Item], regions: Sequence[Region], order: SizeOrder) -> int:
    """Bytes that no packing is below, at a typical point: those alive together."""
    least = 0
    for position in {item.first for item in items}:
        alive = sum(order.value(i.size) for i in items if i.first <= position <= i.last)
        room = sum(order.value(r.capacity) for r in regions if r.until > position)
        least = max(least, alive - room)
    return least


def _at_end(items: Sequence[Item], packing: Packing, order: SizeOrder) -> int:
    """The item at the end of the arena."""
    ends = [
        order.value(order.add(p.offset, i.size)) if p.region is None else -1
        for i, p in zip(items, packing.placements, strict=True)
    ]
    return max(range(len(items)), key=ends.__getitem__)


def _placed(
    items: Sequence[Item], sequence: Sequence[int], regions: Sequence[Region], order: SizeOrder
) -> Packing:
    """Place items in a given order, each at the lowest offset where it provably fits.

    Items whose offsets would be nested maxima of incomparable sizes are placed behind the others:
    expressions of such offsets grow exponentially with the number of items.
    """
    result: dict[int, Placement] = {}
    total, waiting = order.zero, list(sequence)
    while waiting:
        inside: dict[Region | None, list[tuple[Item, Poly, Poly]]]
        inside = {r: [] for r in (*regions, None)}
        later: list[int] = []
        for number in waiting:
            item = items[number]
            for region in (*regions, None):
                offset = _offset(item, region, inside[region], order)
                if offset is not None:
                    inside[region].append((item, offset, order.add(offset, item.size)))
                    start = offset if region is not None else order.add(total, offset)
                    result[number] = Placement(region, start)
                    break
            else:
                later.append(number)
        total = order.add(total, order.maximum(end for _, _, end in inside[None]))
        waiting, regions = later, ()
    return Packing(tuple(result[n] for n in range(len(items))), total)


def _offset(
    item: Item, region: Region | None, placed: list[tuple[Item, Poly, Poly]], order: SizeOrder
) -> Poly | None:
    """The lowest offset at which the item fits; None if there is none.

    Arenas have room at the end of everything that is alive with the item, unless that end is too
    complex.
    """
    if region is not None and (item.align > region.align or item.last >= region.until):
        return None
    beside = [
        (start, end) for p, start, end in placed if p.first <= item.last and item.first <= p.last
    ]
    candidates = dict.fromkeys([order.zero, *(end for _, end in beside)])
    for offset in sorted(candidates, key=order.value):
        end = order.add(offset, item.size)
        if region is not None and not order.at_most(order.add(offset, item.exact), region.capacity):
            continue
        if all(order.at_most(end, s) or order.at_most(e, offset) for s, e in beside):
            return offset
    if region is not None:
        return None
    behind = order.maximum(end for _, end in beside)
    return behind if order.complexity(behind) <= _COMPLEX else None

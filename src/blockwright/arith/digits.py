"""Split overlapping digits of one iterator in a sum into common digits.

In canonical form `y // 3 * 6 + x // 5 * 3 + y % 3` is `y + y // 3 * 3 + x // 5 * 3`: remainders are
not atoms, so the digit `y % 3` is hidden in `y`. Over `y < 9`, the sum of `y` (factors 1 to 9) and
`y // 3 * 3` (factors 3 to 9) equals that of `y % 3` and `y // 3 * 6`, which a mixed-radix sum can
represent.
"""

from __future__ import annotations

from typing import Protocol

from blockwright.arith.form import Poly, Space
from blockwright.arith.itermark import IterMark

Terms = dict[tuple[IterMark, Poly, Poly], Poly]
"""(mark, lower factor, extent) of a split → its scale."""


class Divider(Protocol):
    """Interface of the iterator-map parser that this module uses."""

    space: Space

    def quotient(self, p: Poly, q: Poly) -> Poly | None: ...
    def extent_of(self, mark: IterMark) -> Poly: ...
    def at_least(self, p: Poly, q: Poly) -> bool: ...


def common_digits(parser: Divider, terms: Terms) -> Terms:
    """Split the terms of each mark at each other's boundaries so that they do not overlap.

    A mark keeps its terms if the boundaries do not form a divisibility chain.
    """
    marks = [mark for mark, _, _ in terms]
    if len(set(marks)) == len(marks):
        return terms
    out: Terms = {}
    for mark in dict.fromkeys(marks):
        own = {(low, extent): s for (m, low, extent), s in terms.items() if m is mark}
        divided = own if len(own) == 1 else _divided(parser, mark, own)
        out |= {(mark, low, extent): scale for (low, extent), scale in divided.items()}
    return out


_Digits = dict[tuple[Poly, Poly], Poly]


def _divided(parser: Divider, mark: IterMark, own: _Digits) -> _Digits:
    space = parser.space
    whole = parser.extent_of(mark)
    ends: dict[tuple[Poly, Poly], Poly | None] = {}  # None: the split reaches the end of the mark
    for low, extent in own:
        end = space.mul(low, extent)
        ends[low, extent] = None if parser.at_least(end, whole) else end
    cuts = _chain(parser, [*(low for low, _ in own), *(e for e in ends.values() if e is not None)])
    if cuts is None:
        return own
    tops = {low: extent for (low, extent), end in ends.items() if end is None}
    out: _Digits = {}
    for (low, extent), scale in own.items():
        end = ends[low, extent]
        first, last = cuts.index(low), len(cuts) if end is None else cuts.index(end)
        for k in range(first, last):
            part = cuts[k]
            if k + 1 < len(cuts):
                size = parser.quotient(cuts[k + 1], part)
            else:
                size = tops.get(part) or parser.quotient(whole, part)
            factor = parser.quotient(part, low)
            if size is None or factor is None:
                return own
            moved = space.mul(scale, factor)
            out[part, size] = space.add(out.get((part, size), space.zero), moved)
    return out


def _chain(parser: Divider, values: list[Poly]) -> list[Poly] | None:
    """The values in ascending order, each a multiple of the previous; None if impossible."""
    left, chain = list(dict.fromkeys(values)), list[Poly]()
    while left:
        result = next(
            (v for v in left if all(parser.quotient(w, v) is not None for w in left)), None
        )
        if result is None:
            return None
        left.remove(result)
        chain.append(result)
    return chain

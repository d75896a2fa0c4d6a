"""Sums of loops that reach every value of an interval, some of them more than once.

Tiles that overlap, as in `i0 * 4 + i1` with six values of `i1`, are no iterator map: iterations
meet at the same value. Yet nothing between the least and the greatest value is left out, as long as
each coefficient is at most one more than what the smaller ones reach together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blockwright.arith.analyzer import Analyzer
from blockwright.ir import (
    LE,
    Expr,
    Range,
    Var,
    add,
    const,
    const_int,
    match_types,
    mul,
    sub,
    substitute,
    uses_var,
)


def leaves_no_gap(indices: Sequence[Expr], iters: Mapping[Var, Range], analyzer: Analyzer) -> bool:
    """Whether the indices take every point of the box they span, points counted once or more.

    Args:
        indices: sums of iterators with constant coefficients, and of symbols that stay fixed.
        iters: iterators and their domains; one iterator may move one index only, and no domain
            another one.
        analyzer: what is known about the symbols.
    """
    if any(uses_var(domain, set(iters)) for domain in iters.values()):
        return False
    taken: set[Var] = set()
    for index in indices:
        used = {v: domain for v, domain in iters.items() if uses_var(index, v)}
        if not taken.isdisjoint(used) or not _steps_small(index, used, analyzer):
            return False
        taken.update(used)
    return True


def _steps_small(index: Expr, iters: Mapping[Var, Range], analyzer: Analyzer) -> bool:
    steps: list[tuple[int, Expr]] = []
    for var, domain in iters.items():
        moved = substitute(index, {var: add(var, 1)})
        step = const_int(analyzer.simplify(sub(moved, index)))
        if step is None or step < 1:
            return False
        steps.append((step, domain.extent))
    # Of equal steps those of known number come first: how many follow need not be known.
    steps.sort(key=lambda item: (item[0], const_int(item[1]) is None))
    reach: Expr = const(1, index.dtype)  # how many values the smaller steps take together
    for step, extent in steps:
        if not analyzer.prove(LE(*match_types(const(step, index.dtype), reach))):
            return False
        longer = mul(sub(*match_types(extent, const(1, index.dtype))), step)
        reach = add(*match_types(reach, longer))
    return True

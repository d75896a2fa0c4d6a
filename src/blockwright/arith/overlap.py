"""Coverage check for sums of loops that reach some values more than once.

Overlapping tiles, as in `i0 * 4 + i1` with `i1 < 6`, are not an iterator map, because several
iterations reach the same value. Still, every value between minimum and maximum is reached as long
as each coefficient exceeds the range of the smaller terms by at most one.
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
    """Whether the indices reach every point of their bounding box, possibly more than once.

    Args:
        indices: sums of iterators with constant coefficients and of loop-invariant symbols.
        iters: iterators and their domains; an iterator may occur in only one index, and domains
            must not depend on iterators.
        analyzer: knowledge about the symbols.
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
    # Among equal steps, constant extents come first, so that symbolic extents are not needed.
    steps.sort(key=lambda item: (item[0], const_int(item[1]) is None))
    reach: Expr = const(1, index.dtype)  # number of values that the smaller steps reach together
    for step, extent in steps:
        if not analyzer.prove(LE(*match_types(const(step, index.dtype), reach))):
            return False
        longer = mul(sub(*match_types(extent, const(1, index.dtype))), step)
        reach = add(*match_types(reach, longer))
    return True

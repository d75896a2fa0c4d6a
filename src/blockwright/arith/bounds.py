"""Constant bounds by interval arithmetic over regrouped summands, and congruences.

Bounds are inclusive; `None` means unbounded.
"""

from __future__ import annotations

from math import gcd, inf

from blockwright.arith.form import UNKNOWN, ArithContext, Atom, Bounds, Mono, Poly, Summand


def scaled(b: Bounds, k: int) -> Bounds:
    """Bounds of `k * x`."""
    low, high = b
    if k < 0:
        low, high = high, low
    return (None if low is None else low * k, None if high is None else high * k)


def added(a: Bounds, b: Bounds) -> Bounds:
    """Bounds of `x + y`."""
    return (
        None if a[0] is None or b[0] is None else a[0] + b[0],
        None if a[1] is None or b[1] is None else a[1] + b[1],
    )


def multiplied(a: Bounds, b: Bounds) -> Bounds:
    """Bounds of `x * y`."""
    if a == (1, 1):
        return b
    if b == (1, 1):
        return a
    ends_a = (-inf if a[0] is None else a[0], inf if a[1] is None else a[1])
    ends_b = (-inf if b[0] is None else b[0], inf if b[1] is None else b[1])
    corners = [x * y if x and y else 0 for x in ends_a for y in ends_b]
    low, high = min(corners), max(corners)
    return (
        low if isinstance(low, int) else None,  # integers stay exact; infinities are floats
        high if isinstance(high, int) else None,
    )


def divided(n: Bounds, d: Bounds) -> Bounds:
    """Bounds of `x // y` for positive y."""
    d_low = max(1, d[0] if d[0] is not None else 1)
    d_high = d[1]
    if n[0] is None:
        low = None
    elif n[0] < 0:
        low = n[0] // d_low
    else:
        low = 0 if d_high is None else n[0] // max(d_high, 1)
    if n[1] is None:
        high = None
    elif n[1] >= 0:
        high = n[1] // d_low
    else:
        high = -1 if d_high is None else n[1] // max(d_high, 1)
    return (low, high)


def smallest(all_bounds: list[Bounds]) -> Bounds:
    """Bounds of the minimum."""
    lows = [b[0] for b in all_bounds]
    highs = [b[1] for b in all_bounds if b[1] is not None]
    low = None if None in lows else min(x for x in lows if x is not None)
    return (low, min(highs) if highs else None)


def tighter(a: Bounds, b: Bounds) -> Bounds:
    """Intersection of two bounds."""
    lows = [x for x in (a[0], b[0]) if x is not None]
    highs = [x for x in (a[1], b[1]) if x is not None]
    return (max(lows) if lows else None, min(highs) if highs else None)


def poly_bounds(ctx: ArithContext, p: Poly) -> Bounds:
    """Bounds of a sum."""
    if not p.terms:
        return (p.const, p.const)
    total: Bounds = (0, 0)
    for unit in ctx.units(p):
        total = added(total, unit_bounds(ctx, unit))
        if total[0] is None and total[1] is None:
            return UNKNOWN
    return total


def unit_bounds(ctx: ArithContext, unit: Summand) -> Bounds:
    """Bounds of one summand."""
    result = mono_bounds(ctx, unit.rest)
    if unit.kind == "mod":
        result = multiplied(result, mod_bounds(ctx, *unit.operands))
    elif unit.kind == "min":
        result = multiplied(result, smallest([ctx.bounds(q) for q in unit.operands]))
    elif unit.kind == "max":
        negated = [scaled(ctx.bounds(q), -1) for q in unit.operands]
        result = multiplied(result, scaled(smallest(negated), -1))
    return scaled(result, unit.coefficient)


def mono_bounds(ctx: ArithContext, mono: Mono) -> Bounds:
    """Bounds of a product; even powers are non-negative."""
    result: Bounds = (1, 1)
    position = 0
    while position < len(mono):
        number = mono[position]
        count = mono.count(number)
        one = ctx.atom_bounds(ctx.space.atoms[number])
        power = one
        for _ in range(count - 1):
            power = multiplied(power, one)
        if count % 2 == 0:
            power = tighter(power, (0, None))
        result = multiplied(result, power)
        position += count
    return result


def mod_bounds(ctx: ArithContext, p: Poly, c: Poly) -> Bounds:
    """Bounds of `p % c`."""
    if c.terms:
        low, high = ctx.bounds(c)
        if low is None or low < 0:
            return UNKNOWN
        p_low, p_high = ctx.bounds(p)
        largest = None if high is None else high - 1
        if p_low is not None and p_low >= 0 and p_high is not None:
            largest = p_high if largest is None else min(largest, p_high)
        return (0, largest)
    k = c.const
    if k <= 0:
        return (k + 1, 0) if k < 0 else UNKNOWN
    low, high = ctx.bounds(p)
    if low is not None and high is not None and low // k == high // k:
        return (low % k, high % k)
    step, rest = modular(ctx, p)
    g = gcd(step, k)
    return (rest % g, k - g + rest % g) if g else (rest % k, rest % k)


def div_bounds(ctx: ArithContext, p: Poly, c: Poly) -> Bounds:
    """Bounds of `p // c`."""
    if not c.terms:
        if c.const <= 0:
            return UNKNOWN
        low, high = ctx.bounds(p)
        return (
            None if low is None else low // c.const,
            None if high is None else high // c.const,
        )
    d = ctx.bounds(c)
    if d[0] is None or d[0] < 0:
        return UNKNOWN
    return divided(ctx.bounds(p), d)


def min_bounds(ctx: ArithContext, atom: Atom) -> Bounds:
    """Bounds of `min(0, d1, ...)`."""
    return smallest([(0, 0), *(ctx.bounds(q) for q in atom.operands)])


def modular(ctx: ArithContext, p: Poly) -> tuple[int, int]:
    """`(c, r)` with `p` congruent to `r` modulo `c` and `0 <= r < c`; `c` is 0 for a constant."""
    step = 0
    for _, c in p.terms:
        step = gcd(step, c)
    return (step, p.const % step if step else p.const)

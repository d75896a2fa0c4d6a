"""Construct floor divisions and minima in canonical form.

Division rules, all exact for all integer values of the atoms (`c` is the divisor):

- extract whole multiples: `(a * c + b) // c` is `a + b // c`;
- cancel a common factor: `(g * a + r) // (g * c)` is `a // c` if `0 <= r < g`;
- drop low digits: `(g * hi + lo) // (g * c)` is `(lo // g + hi) // c`, used if `lo // g` is a
  constant or cancels against `hi`;
- merge nested divisions: `(p // a + b) // c` is `(p + a * b) // (a * c)` for positive `a`;
- a numerator known to lie within one period gives a constant.
"""

from __future__ import annotations

from collections import Counter
from math import gcd

from blockwright.arith.form import ArithContext, Mono, Poly, without

_MAX_MIN_OPERANDS = 8


def floordiv(ctx: ArithContext, p: Poly, c: Poly) -> Poly:
    """`p // c`, where `c` is not zero."""
    space = ctx.space
    if not c.terms:
        k = c.const
        if k == 1:
            return p
        if k == -1:
            return space.scale(p, -1)
        if k < 0:
            return _by_monomial(ctx, space.scale(p, -1), (), -k)
        if k == 0:  # undefined; kept as written
            return space.monomial((space.div_atom(p, c).id,))
        if not p.terms:
            return space.const(p.const // k)
        return _by_monomial(ctx, p, (), k)
    if p is c:
        return space.one
    if len(c.terms) == 1 and c.const == 0:
        mono, k = c.terms[0]
        if k < 0:
            return _by_monomial(ctx, space.scale(p, -1), mono, -k)
        return _by_monomial(ctx, p, mono, k)
    return _by_sum(ctx, p, c)


def _by_sum(ctx: ArithContext, p: Poly, c: Poly) -> Poly:
    """Division by a polynomial of several terms: extract multiples found by leading terms."""
    space = ctx.space
    lead, k = c.terms[0]
    high = space.zero
    for _ in range(8):
        for mono, a in p.terms:
            rest = without(mono, lead)
            if rest is not None and a % k == 0:
                part = space.monomial(rest, a // k)
                low = space.sub(p, space.mul(part, c))
                if len(low.terms) < len(p.terms) or (not low.terms and not low.const):
                    high, p = space.add(high, part), low
                    break
        else:
            break
    if _within(ctx, p, c):
        return high
    if _within(ctx, space.add(p, c), c):
        return space.add(high, space.const(-1))
    merged = _merge(ctx, p, c)
    rest = space.monomial((space.div_atom(p, c).id,)) if merged is None else merged
    return space.add(high, rest)


def _within(ctx: ArithContext, p: Poly, c: Poly) -> bool:
    """Whether `0 <= p < c` is known."""
    low, high = ctx.bounds(p)
    if low is not None and low < 0:
        return False
    if not c.terms:
        return low is not None and low >= 0 and high is not None and high < c.const
    if low is None and not ctx.nonneg(p):
        return False
    return ctx.nonneg(ctx.space.add(ctx.space.sub(c, p), ctx.space.const(-1)))


def _positive(ctx: ArithContext, c: Poly) -> bool:
    """Whether a divisor, known to be nonzero, is positive."""
    if not c.terms:
        return c.const > 0
    low = ctx.bounds(c)[0]
    return low is not None and low >= 0


def _by_monomial(ctx: ArithContext, p: Poly, mono: Mono, k: int) -> Poly:
    """`p // (k * mono)` for `k > 0`; `mono` may be empty."""
    space = ctx.space
    if not p.plain:
        leaving = _multiples(ctx, p, mono, k)
        if leaving is not None:
            high, rest = leaving
            return space.add(high, _by_monomial(ctx, rest, mono, k))
    high_terms: dict[Mono, int] = {}
    low: dict[Mono, int] = {}
    for m, a in p.terms:
        rest_mono = without(m, mono)
        if rest_mono is not None and a % k == 0:  # 16 * x stays whole in (16 * x + y) // 12
            high_terms[rest_mono] = a // k
        else:
            low[m] = a
    const, high_const = p.const, high_terms.pop((), 0)
    if not mono:
        high_const += const // k
        const %= k
    quotient = space.make(high_terms, high_const)
    if not low and const == 0:
        return quotient
    return space.add(quotient, _digits(ctx, space.make(low, const), mono, k))


def _multiples(ctx: ArithContext, p: Poly, mono: Mono, k: int) -> tuple[Poly, Poly] | None:
    """Extract remainders, minima and maxima that are whole multiples of the divisor.

    Their canonical sums share terms with others, so a term-by-term search would miss them. Returns
    the extracted quotient and the rest, or None.
    """
    space = ctx.space
    high, rest = space.zero, p
    for unit in ctx.units(p):
        outer = without(unit.rest, mono)
        if unit.kind == "mono" or outer is None or unit.coefficient % k:
            continue
        value = ctx.unit_value(unit)
        high = space.add(high, space.mul(space.monomial(outer, unit.coefficient // k), value))
        whole = space.mul(space.monomial(unit.rest, unit.coefficient), value)
        rest = space.sub(rest, whole)
    return (high, rest) if high is not space.zero and rest is not p else None


def _digits(ctx: ArithContext, p: Poly, mono: Mono, k: int) -> Poly:
    """`p // (k * mono)` if no term of `p` is a whole multiple of the divisor."""
    space = ctx.space
    divisor = space.monomial(mono, k)
    if not mono:
        low, high = ctx.bounds(p)
        if low is not None and high is not None and low // k == high // k:
            return space.const(low // k)
    elif _within(ctx, p, divisor):
        return space.zero
    if not p.terms:
        if _within(ctx, space.add(p, divisor), divisor):  # -1 // t
            return space.const(-1)
        known = ctx.whole_quotient(p.const, divisor)
        return space.monomial((space.div_atom(p, divisor).id,)) if known is None else known
    for part, g in _factors(p, mono, k):
        result = _drop_low(ctx, p, mono, k, part, g)
        if result is not None:
            return result
    merged = _merge(ctx, p, divisor)
    if merged is not None:
        return merged
    return space.monomial((space.div_atom(p, divisor).id,))


def _factors(p: Poly, mono: Mono, k: int) -> list[tuple[Mono, int]]:
    """Common factors of single terms with the divisor, largest first; distinct and not 1."""
    seen: dict[tuple[Mono, int], None] = {}
    if not mono:
        for _, a in p.terms:
            g = gcd(a, k)
            if 1 < g < k:
                seen[(), g] = None
        return sorted(seen, key=lambda f: f[1], reverse=True)
    for m, a in p.terms:
        shared = tuple(sorted((Counter(m) & Counter(mono)).elements()))
        g = gcd(a, k)
        for factor in ((shared, g), (shared, 1), ((), g)):
            if factor != ((), 1) and factor != (mono, k):
                seen[factor] = None
    if (g := gcd(p.const, k)) > 1:
        seen[(), g] = None
    return sorted(seen, key=lambda f: (len(f[0]), f[1]), reverse=True)


def _drop_low(ctx: ArithContext, p: Poly, mono: Mono, k: int, part: Mono, g: int) -> Poly | None:
    """Apply `(g * hi + lo) // (g * c) = (lo // g + hi) // c` if the result is smaller."""
    space = ctx.space
    factor = space.monomial(part, g)
    if not _positive(ctx, factor):
        return None
    high: dict[Mono, int] = {}
    low: dict[Mono, int] = {}
    for m, a in p.terms:
        rest = without(m, part)
        if rest is None or a % g:
            low[m] = a
        else:
            high[rest] = a // g
    const = p.const
    if part:
        high_const, low_const = 0, const
    else:
        high_const, low_const = divmod(const, g)
    high_const += high.pop((), 0)
    if not high and not high_const:
        return None
    rest_mono = without(mono, part)
    assert rest_mono is not None
    hi = space.make(high, high_const)
    lo = space.make(low, low_const)
    if lo.terms or lo.const:
        if not _positive(ctx, space.monomial(rest_mono, k // g)):
            return None
        carry = floordiv(ctx, lo, factor) if not _within(ctx, lo, factor) else space.zero
        total = space.add(hi, carry)
        if carry.terms and len(total.terms) > len(hi.terms):
            return None
        hi = total
    return floordiv(ctx, hi, space.monomial(rest_mono, k // g))


def _merge(ctx: ArithContext, p: Poly, divisor: Poly) -> Poly | None:
    """Apply `(n // a + b) // c = (n + a * b) // (a * c)`."""
    space = ctx.space
    for m, a in p.terms:
        if a != 1 or len(m) != 1:
            continue
        atom = space.atoms[m[0]]
        if atom.kind != "div":
            continue
        inner, by = atom.operands
        if not _positive(ctx, by) or not _positive(ctx, divisor):
            continue
        rest = space.sub(p, space.monomial(m))
        return floordiv(ctx, space.add(inner, space.mul(by, rest)), space.mul(by, divisor))
    return None


def minimum(ctx: ArithContext, operands: list[Poly]) -> Poly:
    """Minimum of the operands."""
    base, apart = _base_of_min(ctx, operands)
    flat = [f for d in apart for f in _flatten_min(ctx, d)]
    if len(apart) < len(flat) < _MAX_MIN_OPERANDS:
        # min(s - min(m, n), 0) gets the form of min(s, m, n) - min(m, n), which it equals.
        inner, apart = _base_of_min(ctx, [ctx.space.zero, *flat])
        base = ctx.space.add(base, inner)
    if not apart:
        return base
    differences = tuple(sorted(apart, key=lambda d: d.number))
    return ctx.space.add(base, ctx.space.monomial((ctx.space.min_atom(differences).id,)))


def _base_of_min(ctx: ArithContext, operands: list[Poly]) -> tuple[Poly, list[Poly]]:
    """One operand of a minimum, and the differences of the others to it."""
    space = ctx.space
    flat: list[Poly] = []
    for p in operands:
        flat.extend(_flatten_min(ctx, p))
    kept: list[Poly] = []
    for p in dict.fromkeys(flat):
        if any(ctx.known_nonneg(space.sub(p, q)) for q in kept):
            continue
        kept = [q for q in kept if not ctx.known_nonneg(space.sub(q, p))]
        kept.append(p)
    base = kept[0]
    for p in kept[1:]:
        if _leading(space.sub(p, base)) < 0:
            base = p
    return base, [space.sub(p, base) for p in kept if p is not base]


def _leading(p: Poly) -> int:
    """First coefficient; for a difference, its sign orders two polynomials.

    The order does not depend on common summands.
    """
    return p.terms[0][1] if p.terms else p.const


def _flatten_min(ctx: ArithContext, p: Poly) -> list[Poly]:
    """Operands whose minimum is `p`."""
    if p.plain:
        return [p]
    space = ctx.space
    for m, a in p.terms:
        if a == 1 and len(m) == 1 and space.atoms[m[0]].kind == "min":
            differences = space.atoms[m[0]].operands
            rest = space.sub(p, space.monomial(m))
            if len(differences) < _MAX_MIN_OPERANDS:
                return [rest, *(space.add(rest, d) for d in differences)]
    return [p]

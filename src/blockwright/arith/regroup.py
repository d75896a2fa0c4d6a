"""Recover remainders, minima and maxima from a canonical sum.

The canonical form writes `x % c` as `x - c * (x // c)` and `min(a, b)` as `a + min(0, b - a)`.
Bounds and printing need the short forms: `p - c * (p // c)` is at most `c - 1`, which intervals of
the single terms do not show. The result is a list of summands that add up to the polynomial.
"""

from __future__ import annotations

import math

from blockwright.arith.form import ArithContext, Mono, Poly, Summand


def regroup(ctx: ArithContext, p: Poly) -> tuple[Summand, ...]:
    """Summands of `p`; a constant is a "mono" summand with an empty monomial."""
    units: list[Summand] = []
    if not p.plain:
        p = _remainders(ctx, p, units)
        p = _minima(ctx, p, units)
    units.extend(Summand(c, m, "mono", ()) for m, c in p.terms)
    if p.const:
        units.append(Summand(p.const, (), "mono", ()))
    return tuple(units)


def unit_value(ctx: ArithContext, unit: Summand) -> Poly:
    """Value of a summand without its coefficient and factors."""
    space = ctx.space
    if unit.kind == "mono":
        return space.one
    if unit.kind == "mod":
        a, c = unit.operands
        return space.sub(a, space.mul(c, ctx.floordiv(a, c)))
    if unit.kind == "min":
        return ctx.minimum(list(unit.operands))
    negated = [space.scale(p, -1) for p in unit.operands]
    return space.scale(ctx.minimum(negated), -1)


def _remainders(ctx: ArithContext, p: Poly, units: list[Summand]) -> Poly:
    space = ctx.space
    tops = [
        (mono, position)
        for mono, _ in p.terms
        for position, number in enumerate(mono)
        if space.atoms[number].kind == "div"
    ]
    tops.sort(key=lambda t: _rank(space.atoms[t[0][t[1]]].operands[1]), reverse=True)
    for mono, position in tops:
        a = p.coefficient(mono)
        if not a:
            continue
        if _is_sum(space.atoms[mono[position]].operands[1]):
            p = _by_sum(ctx, p, mono, a, position, units)
            continue
        family = _family(ctx, p, mono, a, position)
        if family is not None:
            p = _digits(ctx, family, p, units)
    return _pairs(ctx, p, units) if len(tops) > 1 else p


def _pairs(ctx: ArithContext, p: Poly, units: list[Summand]) -> Poly:
    """Recover `k * (d % r)` from `k * d - k * r * e`, if `e` is another form of `d // r`."""
    space = ctx.space
    quotients = [(m, c) for m, c in p.terms if len(m) == 1 and space.atoms[m[0]].kind == "div"]
    for low, k in quotients:
        for high, a in quotients:
            width = -a // k
            if a % k or width < 2 or p.coefficient(low) != k or p.coefficient(high) != a:
                continue
            value, top = space.monomial(low), space.monomial(high)
            if ctx.floordiv(value, space.const(width)) is top:
                units.append(Summand(k, (), "mod", (value, space.const(width))))
                p = space.sub(space.add(p, value, -k), space.scale(top, a))
    return p


def _is_sum(divisor: Poly) -> bool:
    return len(divisor.terms) + bool(divisor.const) > 1


def _by_sum(
    ctx: ArithContext, p: Poly, mono: Mono, a: int, position: int, units: list[Summand]
) -> Poly:
    """Recover `k * outer * (n % c)` for a divisor of several terms.

    An example is the tile count `(n - 1) // t + 1`. The term of `c` with the most factors
    determines `k` and `outer`.
    """
    space = ctx.space
    numerator, divisor = space.atoms[mono[position]].operands
    lead, c = max(divisor.terms, key=lambda t: (len(t[0]), t[0]))
    left = list(mono[:position] + mono[position + 1 :])
    for s in lead:
        if s not in left:
            return p
        left.remove(s)
    factor = math.gcd(divisor.const, *(n for _, n in divisor.terms))
    if a % c and factor > 1:  # x // (7 * h + 14) is also (x // 7) // (h + 2)
        numerator = ctx.floordiv(numerator, space.const(factor))
        divisor = space.make({m: n // factor for m, n in divisor.terms}, divisor.const // factor)
        c //= factor
    if a % c:
        return p
    outer, k = tuple(left), -a // c
    whole = space.sub(numerator, space.mul(divisor, space.monomial((mono[position],))))
    rest = space.sub(p, space.mul(space.monomial(outer, k), whole))
    if len(rest.terms) >= len(p.terms):
        return p
    units.append(Summand(k, outer, "mod", (numerator, divisor)))
    return rest


def _rank(divisor: Poly) -> tuple[int, int]:
    """Sort key for divisors: symbolic above constant, then by size."""
    if not divisor.terms:
        return (0, divisor.const)
    return max((len(m), c) for m, c in divisor.terms)


class _Family:
    """Quotients `value[t] = n // divisor[t]` of one numerator, where each divisor divides the next.

    The sum contains `outer * sum(coefficient[t] * value[t])`; `rest` is the remainder of the sum.
    """

    def __init__(self, outer: Mono, rest: Poly) -> None:
        self.outer = outer
        self.rest = rest
        self.divisors: list[Poly] = []
        self.values: list[Poly] = []
        self.coefficients: list[Poly] = []


def _family(ctx: ArithContext, p: Poly, mono: Mono, a: int, position: int) -> _Family | None:
    """The family of the division at `mono[position]`, with the largest divisor last."""
    space = ctx.space
    numerator, divisor = space.atoms[mono[position]].operands
    if divisor is space.zero:
        return None
    left = list(mono[:position] + mono[position + 1 :])
    taken: list[int] = []
    for s in divisor.terms[0][0] if divisor.terms else ():
        if s in left:
            left.remove(s)
            taken.append(s)
    family = _Family(tuple(left), space.sub(p, space.monomial(mono, a)))
    members: list[tuple[Poly, Poly, Poly]] = []
    for inner in _inner_divisors(ctx, p, divisor):
        value = ctx.floordiv(numerator, inner)
        if value.terms:
            count = _multiple(family.rest, family.outer, value)
        else:
            count = _constant(family.rest, family.outer, value.const, -a, divisor)
        if count:
            part = space.mul(space.monomial(family.outer, count), value)
            family.rest = space.sub(family.rest, part)
            members.append((inner, value, space.const(count)))
    if not members:
        return None
    whole = space.monomial((mono[position],))
    members.insert(0, (divisor, whole, space.monomial(tuple(taken), a)))
    for inner, value, count in reversed(members):
        family.divisors.append(inner)
        family.values.append(value)
        family.coefficients.append(count)
    return family


def _inner_divisors(ctx: ArithContext, p: Poly, divisor: Poly) -> list[Poly]:
    """Divisors of other quotients in `p`, each dividing the previous one, then 1."""
    space = ctx.space
    matches = {
        space.atoms[n].operands[1] for m, _ in p.terms for n in m if space.atoms[n].kind == "div"
    }
    result: list[Poly] = []
    last = divisor
    for inner in sorted(matches, key=lambda c: (_rank(c), c.number), reverse=True):
        if inner is not divisor and _ratio(ctx, last, inner) is not None:
            result.append(inner)
            last = inner
    if _ratio(ctx, last, space.one) is not None:
        result.append(space.one)
    return result


def _ratio(ctx: ArithContext, c: Poly, inner: Poly) -> Poly | None:
    """`c / inner` if it is an integer monomial other than 1 and `inner` is positive."""
    if not c.terms and not inner.terms:
        whole = 0 < inner.const < c.const and c.const % inner.const == 0
        return ctx.space.const(c.const // inner.const) if whole else None
    if len(c.terms) != 1 or c.const or len(inner.terms) > 1 or (inner.terms and inner.const):
        return None
    low = ctx.bounds(inner)[0]
    if low is None or low < (0 if inner.terms else 1) or c is inner:
        return None
    (mono, k) = c.terms[0]
    part, g = inner.terms[0] if inner.terms else ((), inner.const)
    left = list(mono)
    for s in part:
        if s not in left:
            return None
        left.remove(s)
    return ctx.space.monomial(tuple(left), k // g) if k % g == 0 else None


def _multiple(p: Poly, outer: Mono, value: Poly) -> int:
    """Multiplicity of `outer * value` in `p`: common factor of its terms, 0 if one is missing."""
    count = 0
    for m, c in value.terms:
        have = p.coefficient(tuple(sorted(m + outer)) if outer else m)
        if have == 0 or have % c:
            return 0
        times = have // c
        if count == 0 or (times * count > 0 and abs(times) < abs(count)):
            count = times
        elif times * count < 0:
            return 0
    return count


def _constant(p: Poly, outer: Mono, value: int, a: int, divisor: Poly) -> int:
    """Multiplicity of `outer * value` in `p` for a constant, limited to that of the quotient.

    Example: `16 * (3 % n)` is `48 - 16 * n * (3 // n)`.
    """
    c = divisor.terms[0][1] if divisor.terms else divisor.const
    have = p.coefficient(outer) if outer else p.const
    count = 0 if a % c else a // c
    return count if have * count * value > 0 and abs(have) >= abs(count * value) else 0


def _digits(ctx: ArithContext, family: _Family, p: Poly, units: list[Summand]) -> Poly:
    """Rewrite a family as digits if that is shorter or removes a change of sign.

    `n // c[t]` is the sum of the digits `s >= t` times `c[s] / c[t]`, so digit `s` has the factor
    `sum over t <= s of coefficient[t] * c[s] / c[t]`. Adjacent digits of equal scale are merged.
    """
    space = ctx.space
    count = len(family.divisors)
    ratios = [_ratio(ctx, family.divisors[t + 1], family.divisors[t]) for t in range(count - 1)]
    factors = [family.coefficients[0]]
    for t in range(1, count):
        ratio = ratios[t - 1]
        if ratio is None:
            return p
        factors.append(space.add(family.coefficients[t], space.mul(factors[-1], ratio)))
    groups: list[tuple[int, int]] = []  # digits [start, end); `count` stands for the top
    for t in range(count):
        ratio = ratios[t - 1] if t else None
        if groups and ratio is not None and factors[t] is space.mul(factors[t - 1], ratio):
            groups[-1] = (groups[-1][0], t + 1)
        else:
            groups.append((t, t + 1))
    groups = [g for g in groups if factors[g[0]] is not space.zero]
    single = all(len(factors[g[0]].terms) + bool(factors[g[0]].const) == 1 for g in groups)
    steady = len({_sign(factors[g[0]]) for g in groups}) == 1
    mixed = len({_sign(c) for c in family.coefficients}) > 1
    shorter = len(groups) < count
    if not single or not (shorter or (steady and mixed and len(groups) == count)):
        return p
    rest = family.rest
    for start, end in groups:
        factor, value = factors[start], family.values[start]
        symbols, k = factor.terms[0] if factor.terms else ((), factor.const)
        outer = tuple(sorted(family.outer + symbols))
        if end < count:
            width = space.one
            for t in range(start, end):
                width = space.mul(width, ratios[t] or space.one)
            units.append(Summand(k, outer, "mod", (value, width)))
        else:
            rest = space.add(rest, space.mul(space.monomial(outer, k), value))
    return rest


def _sign(p: Poly) -> bool:
    return (p.terms[0][1] if p.terms else p.const) > 0


def _minima(ctx: ArithContext, p: Poly, units: list[Summand]) -> Poly:
    space = ctx.space
    for mono, a in p.terms:
        for position, number in enumerate(mono):
            atom = space.atoms[number]
            if atom.kind != "min" or p.coefficient(mono) != a:
                continue
            outer = mono[:position] + mono[position + 1 :]
            base = _base(ctx, p, mono, a, outer, atom.operands)
            operands = (base, *(space.add(base, d) for d in atom.operands))
            if a < 0:  # -min(...) is max of the negated operands
                unit = Summand(-a, outer, "max", tuple(space.scale(q, -1) for q in operands))
            else:
                unit = Summand(a, outer, "min", operands)
            units.append(unit)
            p = space.sub(p, space.monomial(mono, a))
            p = space.sub(p, space.mul(space.monomial(outer, a), base))
            break
    return p


def _base(
    ctx: ArithContext, p: Poly, mono: Mono, a: int, outer: Mono, differences: tuple[Poly, ...]
) -> Poly:
    """The other terms that are moved into the operands because they cancel there."""
    space = ctx.space
    taken: dict[Mono, int] = {}
    const = 0
    for d in differences:
        for m, c in d.terms:
            have = p.coefficient(tuple(sorted(m + outer)))
            want = -c * a
            if m not in taken and have * want > 0 and abs(have) >= abs(want) and m != mono:
                taken[m] = -c
        have = p.const if not outer else p.coefficient(outer)
        want = -d.const * a
        if not const and have * want > 0:
            const = -d.const
    return space.make(taken, const)

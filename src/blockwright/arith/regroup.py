"""Finding remainders, minima and maxima in a canonical sum.

The canonical form spells `x % c` as `x - c * (x // c)` and `min(a, b)` as `a + min(0, b - a)`.
Bounds and printing want the short forms back: `p - c * (p // c)` is at most `c - 1`, which term by
term intervals would not see. The result is a list of summands that add up to the polynomial.
"""

from __future__ import annotations

from blockwright.arith.form import Context, Mono, Poly, Unit


def regroup(ctx: Context, p: Poly) -> tuple[Unit, ...]:
    """Summands of `p`; a constant is a "mono" unit with an empty monomial."""
    units: list[Unit] = []
    if not p.plain:
        p = _remainders(ctx, p, units)
        p = _minima(ctx, p, units)
    units.extend(Unit(c, m, "mono", ()) for m, c in p.terms)
    if p.const:
        units.append(Unit(p.const, (), "mono", ()))
    return tuple(units)


def _remainders(ctx: Context, p: Poly, units: list[Unit]) -> Poly:
    space = ctx.space
    for _ in range(16):
        for mono, a in p.terms:
            found = None
            for position, number in enumerate(mono):
                if space.atoms[number].kind == "div":
                    rest = mono[:position] + mono[position + 1 :]
                    found = _remainder(ctx, p, mono, a, rest, number)
                    if found is not None:
                        break
            if found is not None:
                unit, p = found
                units.append(unit)
                break
        else:
            return p
    return p


def _remainder(
    ctx: Context, p: Poly, mono: Mono, a: int, rest: Mono, number: int
) -> tuple[Unit, Poly] | None:
    """A unit `k * rest' * (q % d)` that takes the term `a * mono` of `p` with it, and what stays."""
    space = ctx.space
    numerator, divisor = space.atoms[number].operands
    if not divisor.terms:
        scale, symbols = divisor.const, ()
        if scale == 0:
            return None
    elif len(divisor.terms) == 1 and divisor.const == 0:
        symbols, scale = divisor.terms[0]
    else:
        return None
    left = list(rest)
    for s in symbols:
        if s not in left:
            return _inner_remainder(ctx, p, mono, a, rest, numerator, divisor)
        left.remove(s)
    if a % scale == 0:
        k, outer = -a // scale, tuple(left)
        stays = _take(ctx, p, mono, a, outer, k, numerator)
        if stays is not None:
            return Unit(k, outer, "mod", (numerator, divisor)), stays
    return _inner_remainder(ctx, p, mono, a, rest, numerator, divisor)


def _inner_remainder(
    ctx: Context, p: Poly, mono: Mono, a: int, rest: Mono, numerator: Poly, divisor: Poly
) -> tuple[Unit, Poly] | None:
    """The same for `(n // s) % (c / s)`, which shows as `n // s - (c / s) * (n // c)`."""
    space = ctx.space
    seen: set[Poly] = set()
    for other_mono, _ in p.terms:
        for number in other_mono:
            atom = space.atoms[number]
            if atom.kind != "div" or atom.operands[1] in seen or atom.operands[1] is divisor:
                continue
            inner = atom.operands[1]
            seen.add(inner)
            ratio = _ratio(ctx, divisor, inner)
            if ratio is None:
                continue
            found = _with_ratio(ctx, p, mono, a, rest, ratio)
            if found is None:
                continue
            k, outer = found
            q = ctx.floordiv(numerator, inner)
            stays = _take(ctx, p, mono, a, outer, k, q)
            if stays is not None:
                return Unit(k, outer, "mod", (q, ratio)), stays
    return None


def _ratio(ctx: Context, c: Poly, inner: Poly) -> Poly | None:
    """`c / inner` when it is a whole monomial other than 1 and both are positive."""
    if not c.terms and not inner.terms:
        whole = inner.const > 0 and c.const > 0 and c.const % inner.const == 0
        return ctx.space.const(c.const // inner.const) if whole else None
    if len(c.terms) != 1 or c.const or len(inner.terms) > 1 or (inner.terms and inner.const):
        return None
    low = ctx.bounds(inner)[0]
    if low is None or low < 1:
        return None
    (mono, k) = c.terms[0]
    part, g = inner.terms[0] if inner.terms else ((), inner.const)
    left = list(mono)
    for s in part:
        if s not in left:
            return None
        left.remove(s)
    return ctx.space.monomial(tuple(left), k // g) if k % g == 0 else None


def _with_ratio(
    ctx: Context, p: Poly, mono: Mono, a: int, rest: Mono, ratio: Poly
) -> tuple[int, Mono] | None:
    """Coefficient and monomial left when `-ratio` is divided out of `a * rest`."""
    symbols, scale = ratio.terms[0] if ratio.terms else ((), ratio.const)
    left = list(rest)
    for s in symbols:
        if s not in left:
            return None
        left.remove(s)
    if a % scale:
        return None
    return -a // scale, tuple(left)


def _take(
    ctx: Context, p: Poly, mono: Mono, a: int, outer: Mono, k: int, q: Poly
) -> Poly | None:
    """`p` without `a * mono` and without `k * outer * q`, when that leaves fewer summands."""
    space = ctx.space
    part = space.mul(space.monomial(outer, k), q)
    gained, lost, inside = 0, 0, True
    for m, c in part.terms:
        have = p.coefficient(m)
        if have == c:
            gained += 1
        elif have == 0:
            lost += 1
        if have * c <= 0 or abs(have) < abs(c):
            inside = False
    if not part.terms or not (gained - lost >= 1 or inside):
        return None
    return space.sub(space.sub(p, space.monomial(mono, a)), part)


def _minima(ctx: Context, p: Poly, units: list[Unit]) -> Poly:
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
                unit = Unit(-a, outer, "max", tuple(space.scale(q, -1) for q in operands))
            else:
                unit = Unit(a, outer, "min", operands)
            units.append(unit)
            p = space.sub(p, space.monomial(mono, a))
            p = space.sub(p, space.mul(space.monomial(outer, a), base))
            break
    return p


def _base(
    ctx: Context, p: Poly, mono: Mono, a: int, outer: Mono, differences: tuple[Poly, ...]
) -> Poly:
    """The part of the other terms that goes into the operands because it cancels there."""
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

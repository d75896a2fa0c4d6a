"""Fast proof that a sum is non-negative: substitute bounds for atoms, one at a time.

With `p = v * a + b` and `a >= 0`, `p` is minimal where `v` is minimal. Bounds may be symbolic, so
this proves `i * n + j <= m * n - 1` for `i < m`, `j < n`. Each step is exact over the rationals. A
division `q = n // c` is replaced by `(n - c + 1) / c` or `n / c`, after scaling; since values are
integers, `s * p >= 0` follows from `s * p > -s`.
"""

from __future__ import annotations

from math import gcd

from blockwright.arith.form import ArithContext, Atom, Poly
from blockwright.ir import Var

_STEPS = 16


def nonneg(ctx: ArithContext, p: Poly) -> bool:
    """Whether `p >= 0` follows from bounds of single atoms."""
    space = ctx.space
    slack = 0  # proving p + slack >= 0 suffices
    for _ in range(_STEPS):
        low, high = ctx.bounds(p)
        if low is not None and low + slack >= 0:
            return True
        if not p.terms or (high is not None and high + slack < 0):
            return False
        numbers = {a for m, _ in p.terms for a in m}
        for number in sorted(numbers, reverse=True):
            if space.atoms[number].kind == "div":
                whole = without_symbolic_quotient(ctx, p, number, slack)
                if whole is not None:
                    p, slack = whole, 0
                    break
            step = _eliminate(ctx, p, space.atoms[number])
            if step is not None:
                p, factor = step
                slack = slack * factor + (factor - 1)
                break
        else:
            return False
    return False


def without_symbolic_quotient(
    ctx: ArithContext, p: Poly, number: int, slack: int = 0
) -> Poly | None:
    """A sum that is non-negative exactly if `p + slack` is, for `p = b - n // c` or `b + n // c`.

    `n // c <= b` is equivalent to `n < c * (b + 1)`. Products of symbols need this: `f < m * c`
    implies `f // c < m`. Applies only to symbolic `c`; constants are handled by scaling.
    """
    space = ctx.space
    n, c = space.atoms[number].operands
    if not c.terms or ctx.bounds(c)[0] is None or not ctx.nonneg(c):
        return None
    split = space.split_atom(p, number)
    if split is None or split[0].terms or abs(split[0].const) != 1:
        return None
    sign, b = split[0].const, space.add(split[1], space.const(slack))
    if sign > 0:
        return space.add(n, space.mul(c, b))
    limit = space.mul(c, space.add(b, space.one))
    return space.add(space.sub(limit, n), space.const(-1))


def _sign(ctx: ArithContext, a: Poly) -> int:
    low, high = ctx.bounds(a)
    if low is not None and low >= 0:
        return 1
    return -1 if high is not None and high <= 0 else 0


def _eliminate(ctx: ArithContext, p: Poly, atom: Atom) -> tuple[Poly, int] | None:
    """A lower bound of `factor * p` without the atom, and the factor."""
    if atom.kind == "opaque":
        return None
    space = ctx.space
    split = space.split_atom(p, atom.id)
    if split is None:
        return None
    a, b = split
    sign = _sign(ctx, a)
    if sign == 0:
        return None
    if atom.kind == "var":
        assert isinstance(atom.node, Var)
        end = 0 if sign > 0 else 1
        limit = ctx.limits(atom.node)[end]
        if limit is None and a.terms:  # a constant limit helps with products
            limit = ctx.const_limits(atom.node)[end]
        return None if limit is None else (space.add(b, space.mul(a, limit)), 1)
    if atom.kind == "min":
        if sign > 0:
            return None
        return _below_min(ctx, a, b, atom)
    return _replace_division(ctx, a, b, sign, atom)


def _below_min(ctx: ArithContext, a: Poly, b: Poly, atom: Atom) -> tuple[Poly, int] | None:
    """Bound `a * min(0, d, ...)` for `a <= 0`: the minimum is at most 0 and at most each `d`."""
    space = ctx.space
    best, best_size = b, len(b.terms)
    for d in atom.operands:
        candidate = space.add(b, space.mul(a, d))
        if len(candidate.terms) < best_size:
            best, best_size = candidate, len(candidate.terms)
    return best, 1


def _replace_division(
    ctx: ArithContext, a: Poly, b: Poly, sign: int, atom: Atom
) -> tuple[Poly, int] | None:
    space = ctx.space
    n, c = atom.operands
    if sign > 0:  # c * q >= n - (c - 1)
        n = space.add(space.sub(n, c), space.one)
    if not c.terms:
        k = c.const
        if k <= 0:
            return None
        g = k
        for _, x in (*a.terms, ((), a.const)):
            g = gcd(g, x)
        factor = k // g
        reduced = space.intern(tuple((m, x // g) for m, x in a.terms), a.const // g)
        return space.add(space.scale(b, factor), space.mul(reduced, n)), factor
    low = ctx.bounds(c)[0]
    if low is None or low < 0 or len(c.terms) != 1 or c.const:
        return None
    (mono, k) = c.terms[0]
    factor_terms: dict[tuple[int, ...], int] = {}
    for m, x in (*a.terms, *((((), a.const),) if a.const else ())):
        rest = list(m)
        for s in mono:
            if s not in rest:
                return None
            rest.remove(s)
        if x % k:
            return None
        factor_terms[tuple(rest)] = x // k
    const = factor_terms.pop((), 0)
    return space.add(b, space.mul(space.make(factor_terms, const), n)), 1

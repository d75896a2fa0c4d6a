"""Proof by Fourier-Motzkin elimination: facts and negated goal have no rational solution.

Rows are `sum + const >= 0` with monomials as unknowns. Only rows that can contribute to a
contradiction with the negated goal are collected (a monomial of one sign needs a row with the
opposite sign); then unknowns are eliminated, cheapest first. Every row is divided by the gcd of its
coefficients and its constant is rounded down, because unknowns are integers. Limits count
operations, not time, so that results do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import gcd

from blockwright.arith.form import ArithContext, Mono, Poly
from blockwright.ir import Var

Terms = tuple[tuple[Mono, int], ...]
Row = tuple[Terms, int]

MAX_ROWS = 60
MAX_COMBINATIONS = 600


def tighten(terms: dict[Mono, int], const: int) -> Row:
    """A row divided by the gcd of its coefficients, with the constant rounded down."""
    g = 0
    for c in terms.values():
        g = gcd(g, c)
        if g == 1:
            break
    items = sorted(terms.items())
    if g > 1:
        return (tuple((m, c // g) for m, c in items), const // g)
    return (tuple(items), const)


def row_of(p: Poly) -> Row:
    return tighten(dict(p.terms), p.const)


class _System:
    """A set of rows, with the tightest constant for each left side."""

    def __init__(self) -> None:
        self.rows: dict[Terms, int] = {}
        self.contradiction = False

    def add(self, row: Row) -> bool:
        """Add a row; returns whether it is new or tighter."""
        terms, const = row
        if not terms:
            if const < 0:
                self.contradiction = True
            return False
        known = self.rows.get(terms)
        if known is not None and known <= const:
            return False
        opposite = self.rows.get(tuple((m, -c) for m, c in terms))
        if opposite is not None and opposite + const < 0:
            self.contradiction = True
        self.rows[terms] = const
        return True


def contradicts(
    goal: list[Poly], candidates: Callable[[Mono, int], Iterable[Poly]], limit: int
) -> bool:
    """Whether the rows of `goal` cannot all be non-negative under the candidate facts.

    `candidates(mono, sign)` lists facts in which the monomial may have a coefficient of that sign.
    """
    system = _System()
    needed: dict[tuple[Mono, int], None] = {}
    work: list[tuple[Mono, int]] = []

    def include(p: Poly) -> None:
        if system.add(row_of(p)):
            for m, c in p.terms:
                want = (m, -1 if c > 0 else 1)
                if want not in needed:
                    needed[want] = None
                    work.append(want)

    for p in goal:
        include(p)
    position = 0
    while position < len(work) and not system.contradiction and len(system.rows) < MAX_ROWS:
        mono, sign = work[position]
        position += 1
        for fact in candidates(mono, sign):
            if fact.coefficient(mono) * sign > 0:
                include(fact)
    return system.contradiction or _eliminate(system, limit)


def _eliminate(system: _System, limit: int) -> bool:
    rows = system.rows
    spent = 0
    while rows and not system.contradiction:
        signs: dict[Mono, list[int]] = {}
        for terms in rows:
            for m, c in terms:
                signs.setdefault(m, [0, 0])[c > 0] += 1
        mono = min(signs, key=lambda m: (signs[m][0] * signs[m][1], m))
        lower: list[tuple[Terms, int, int]] = []
        upper: list[tuple[Terms, int, int]] = []
        rest = _System()
        for terms, const in rows.items():
            coefficient = 0
            for m, c in terms:
                if m == mono:
                    coefficient = c
            if coefficient > 0:
                lower.append((terms, const, coefficient))
            elif coefficient < 0:
                upper.append((terms, const, -coefficient))
            else:
                rest.add((terms, const))
        for terms, const, c in lower:
            for others, other_const, d in upper:
                spent += 1
                if spent > limit:
                    return False
                rest.add(_combine(terms, const, d, others, other_const, c))
                if rest.contradiction:
                    return True
        system, rows = rest, rest.rows
    return system.contradiction


def _combine(a: Terms, a_const: int, a_factor: int, b: Terms, b_const: int, b_factor: int) -> Row:
    g = gcd(a_factor, b_factor)
    a_factor //= g
    b_factor //= g
    terms = {m: c * a_factor for m, c in a}
    for m, c in b:
        total = terms.get(m, 0) + c * b_factor
        if total:
            terms[m] = total
        else:
            del terms[m]
    return tighten(terms, a_const * a_factor + b_const * b_factor)


def atom_facts(ctx: ArithContext, mono: Mono) -> list[Poly]:
    """Facts about a monomial that follow from the definitions of its atoms."""
    space = ctx.space
    facts: list[Poly] = []
    whole = space.monomial(mono)
    low, high = ctx.bounds(whole)
    if low is not None:
        facts.append(space.add(whole, space.const(-low)))
    if high is not None:
        facts.append(space.sub(space.const(high), whole))
    for position, number in enumerate(mono):
        if number in mono[:position]:
            continue
        rest = mono[:position] + mono[position + 1 :]
        other = space.monomial(rest) if rest else space.one
        if rest and not _not_negative(ctx, other):
            continue
        for fact in _single_facts(ctx, number):
            facts.append(fact if not rest else space.mul(fact, other))
    for number in mono:
        atom = space.atoms[number]
        if atom.kind == "div" and len(mono) > 1:
            facts.extend(_divisor_facts(ctx, number, mono))
    return facts


def _not_negative(ctx: ArithContext, p: Poly) -> bool:
    low = ctx.bounds(p)[0]
    return low is not None and low >= 0


def _single_facts(ctx: ArithContext, number: int) -> list[Poly]:
    """Facts about one atom, as sums that are non-negative."""
    space = ctx.space
    atom = space.atoms[number]
    value = space.monomial((number,))
    if atom.kind == "var":
        assert isinstance(atom.node, Var)
        result: list[Poly] = []
        for low, high in (ctx.limits(atom.node), ctx.const_limits(atom.node)):
            if low is not None:
                result.append(space.sub(value, low))
            if high is not None:
                result.append(space.sub(high, value))
        return result
    if atom.kind == "div":
        n, c = atom.operands
        if c.terms and not _not_negative(ctx, c):
            return []
        if not c.terms and c.const <= 0:
            return []
        gap = space.sub(n, space.mul(c, value))  # the remainder
        facts = [gap, space.add(space.sub(c, gap), space.const(-1))]
        if c.terms and ctx.nonneg(n):
            facts += [value, space.sub(n, value)]
        return facts
    if atom.kind == "min":
        return [space.scale(value, -1), *(space.sub(d, value) for d in atom.operands)]
    return ctx.value_facts(atom) if atom.wraps else []


def _divisor_facts(ctx: ArithContext, number: int, mono: Mono) -> list[Poly]:
    """Remainder facts of `n // c` for a monomial `c * (n // c)` with symbolic `c`."""
    c = ctx.space.atoms[number].operands[1]
    if len(c.terms) != 1 or c.const or not _not_negative(ctx, c):
        return []
    product = tuple(sorted((*c.terms[0][0], number)))
    return _single_facts(ctx, number) if product == mono else []

"""Prover of `p >= 0`: case splits on minima, then Fourier-Motzkin elimination."""

from __future__ import annotations

from blockwright.arith.fast_prove import without_symbolic_quotient
from blockwright.arith.form import ArithContext, Mono, Poly
from blockwright.arith.fourier import MAX_COMBINATIONS, atom_facts, contradicts

MAX_CASES = 14


def entails(ctx: ArithContext, p: Poly, extra: tuple[Poly, ...] = ()) -> bool:
    """Whether `p >= 0` follows from the context's facts and from `extra` sums being >= 0."""
    if not extra and ctx.nonneg(p):
        return True
    if not p.terms and p.const >= 0:
        return True
    high = ctx.bounds(p)[1]
    if high is not None and high < 0 and not extra and not ctx.facts():
        return False
    space = ctx.space
    negated = space.add(space.scale(p, -1), space.const(-1))
    if refutes(ctx, [negated, *extra], [MAX_CASES]):
        return True
    for m, _ in p.terms:
        if len(m) == 1 and space.atoms[m[0]].kind == "div":
            whole = without_symbolic_quotient(ctx, p, m[0])
            if whole is not None and entails(ctx, whole, extra):
                return True
    return False


def refutes(ctx: ArithContext, rows: list[Poly], cases: list[int]) -> bool:
    """Whether the rows cannot all be non-negative in this context."""
    if _eliminated(ctx, rows):
        return True
    minimum = _first_minimum(ctx, rows, ())
    return minimum is not None and cases[0] > 0 and _by_cases(ctx, rows, cases, minimum, ())


def _by_cases(
    ctx: ArithContext, rows: list[Poly], cases: list[int], number: int, done: tuple[int, ...]
) -> bool:
    """Case split: a minimum equals one of its operands; all cases must be contradictory."""
    space = ctx.space
    value = space.monomial((number,))
    operands = (space.zero, *space.atoms[number].operands)
    done = (*done, number)
    for choice in operands:
        cases[0] -= 1
        if cases[0] < 0:
            return False
        gap = space.sub(value, choice)
        others = [space.sub(d, choice) for d in operands if d is not choice]
        if _product_with(rows, number):  # a factor: substitute the value
            taken = [_replace(ctx, p, number, choice) for p in rows]
        else:
            taken = rows
        extended = [*taken, gap, space.scale(gap, -1), *others]
        if _eliminated(ctx, extended):
            continue
        following = _first_minimum(ctx, extended, done)
        if following is None or not _by_cases(ctx, extended, cases, following, done):
            return False
    return True


def _product_with(rows: list[Poly], number: int) -> bool:
    return any(len(m) > 1 and number in m for p in rows for m, _ in p.terms)


def _first_minimum(ctx: ArithContext, rows: list[Poly], done: tuple[int, ...]) -> int | None:
    """A minimum in the rows, or inside their quotients, that has not been split on."""
    seen: set[Poly] = set()
    work = list(reversed(rows))
    while work:
        p = work.pop()
        if p.plain or p in seen:
            continue
        seen.add(p)
        for m, _ in p.terms:
            for number in m:
                atom = ctx.space.atoms[number]
                if atom.kind == "min" and number not in done:
                    return number
                work.extend(atom.operands)
    return None


def _replace(ctx: ArithContext, p: Poly, number: int, value: Poly) -> Poly:
    split = ctx.space.split_atom(p, number)
    if split is None:
        return p
    a, b = split
    return ctx.space.add(b, ctx.space.mul(a, value))


def _eliminated(ctx: ArithContext, rows: list[Poly]) -> bool:
    known = (*ctx.facts(), *rows[1:])
    by_mono: dict[tuple[Mono, int], list[Poly]] = {}
    for fact in known:
        for m, c in fact.terms:
            by_mono.setdefault((m, 1 if c > 0 else -1), []).append(fact)
    memo: dict[Mono, list[Poly]] = {}

    def candidates(mono: Mono, sign: int) -> list[Poly]:
        result = memo.get(mono)
        if result is None:
            result = memo[mono] = atom_facts(ctx, mono)
        extra = by_mono.get((mono, sign))
        return [*result, *extra] if extra else result

    return contradicts(rows, candidates, MAX_COMBINATIONS)

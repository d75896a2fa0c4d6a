"""The prover: conditions to sums, case splits on minima and choices, then elimination."""

from __future__ import annotations

from blockwright.arith.form import Context, Mono, Poly
from blockwright.arith.fourier import MAX_COMBINATIONS, atom_facts, contradicts

MAX_CASES = 8


def entails(ctx: Context, p: Poly, extra: tuple[Poly, ...] = ()) -> bool:
    """Whether `p >= 0` follows from the context's facts and the `extra` sums being >= 0."""
    if not extra and ctx.nonneg(p):
        return True
    if not p.terms and p.const >= 0:
        return True
    high = ctx.bounds(p)[1]
    if high is not None and high < 0 and not extra and not ctx.facts():
        return False
    space = ctx.space
    negated = space.add(space.scale(p, -1), space.const(-1))
    return refutes(ctx, [negated, *extra], [MAX_CASES])


def refutes(ctx: Context, rows: list[Poly], cases: list[int]) -> bool:
    """Whether the rows cannot all be non-negative in this context."""
    space = ctx.space
    minimum = _first_minimum(ctx, rows)
    if minimum is not None and cases[0] > 0:
        if _eliminated(ctx, rows):
            return True
        cases[0] -= 1
        atom = space.atoms[minimum]
        for choice in (space.zero, *atom.operands):
            taken = [_replace(ctx, p, minimum, choice) for p in rows]
            others = [space.sub(d, choice) for d in (space.zero, *atom.operands) if d is not choice]
            if not refutes(ctx, [*taken, *others], cases):
                return False
        return True
    return _eliminated(ctx, rows)


def _first_minimum(ctx: Context, rows: list[Poly]) -> int | None:
    for p in rows:
        if p.plain:
            continue
        for m, _ in p.terms:
            for number in m:
                if ctx.space.atoms[number].kind == "min":
                    return number
    return None


def _replace(ctx: Context, p: Poly, number: int, value: Poly) -> Poly:
    split = ctx.space.split_atom(p, number)
    if split is None:
        return p
    a, b = split
    return ctx.space.add(b, ctx.space.mul(a, value)) if a.terms or a.const else p


def _eliminated(ctx: Context, rows: list[Poly]) -> bool:
    known = (*ctx.facts(), *rows[1:])
    by_mono: dict[tuple[Mono, int], list[Poly]] = {}
    for fact in known:
        for m, c in fact.terms:
            by_mono.setdefault((m, 1 if c > 0 else -1), []).append(fact)
    memo: dict[Mono, list[Poly]] = {}

    def candidates(mono: Mono, sign: int) -> list[Poly]:
        found = memo.get(mono)
        if found is None:
            found = memo[mono] = atom_facts(ctx, mono)
        extra = by_mono.get((mono, sign))
        return [*found, *extra] if extra else found

    return contradicts(rows, candidates, MAX_COMBINATIONS)

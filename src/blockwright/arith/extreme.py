"""Minimum and maximum of a sum while some variables range over their domains.

Variables are eliminated one at a time, innermost first, in each summand that uses them. A linear
variable is replaced by an end of its domain, chosen by the sign of its factor; quotients,
remainders, minima and maxima are treated by the same rule on their operands. Other symbols are
kept: `i * 14 + j` over `j` in `[0, 14)` gives `i * 14` and `i * 14 + 13`. The only imprecision is
that summands of different kinds sharing a variable are bounded independently.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from blockwright.arith.form import Atom, Poly, Rewriter, Summand
from blockwright.ir import Call, Select, Var

LOW, HIGH = -1, 1
_TYPE_LIMIT = (1 << 31) - 1  # a bound this large comes from the type and carries no information


class Domain(msgspec.Struct, frozen=True, eq=False):
    """Inclusive ends of a variable's domain; None for an unbounded end."""

    low: Poly | None
    high: Poly | None


def ordered(ctx: Rewriter, domains: Mapping[Var, Domain]) -> list[tuple[Var, Domain]]:
    """Elimination order: later variables first, each before those that its domain mentions."""
    left: list[tuple[Var, Domain]] = list(reversed(list(domains.items())))
    result: list[tuple[Var, Domain]] = []
    while left:
        free = (
            p
            for p, (var, _) in enumerate(left)
            if not any(_mentions(ctx, d, var) for v, d in left if v is not var)
        )
        result.append(left.pop(next(free, 0)))
    return result


def _mentions(ctx: Rewriter, domain: Domain, var: Var) -> bool:
    ends = (domain.low, domain.high)
    return any(p is not None and var in p.variables(ctx.space) for p in ends)


def extreme(ctx: Rewriter, p: Poly, order: list[tuple[Var, Domain]], way: int) -> Poly | None:
    """A bound of `p` (lower for LOW, upper for HIGH) free of the variables; None if unbounded."""
    result: Poly | None = p
    for var, domain in order:
        if result is None:
            return None
        result = _eliminate(ctx, result, var, domain, way)
    if result is not None and any(var in result.variables(ctx.space) for var, _ in order):
        return None
    return result


def _eliminate(ctx: Rewriter, p: Poly, var: Var, domain: Domain, way: int) -> Poly | None:
    space = ctx.space
    if var not in p.variables(space):
        return p
    total = space.zero
    factors: dict[int, Poly] = {}  # dependent atom → its factor
    for unit in ctx.units(p):
        inner = [a for a in unit.rest if var in space.atoms[a].variables(space)]
        value = any(var in q.variables(space) for q in unit.operands)
        if not inner and not value:
            total = space.add(total, _unit_value(ctx, unit))
        elif len(inner) == 1 and unit.kind == "mono":
            rest = list(unit.rest)
            rest.remove(inner[0])
            part = space.monomial(tuple(rest), unit.coefficient)
            factors[inner[0]] = space.add(factors.get(inner[0], space.zero), part)
        elif not inner:
            part = space.monomial(unit.rest, unit.coefficient)
            ends = tuple(_unit_end(ctx, unit, var, domain, w) for w in (LOW, HIGH))
            result = _times(ctx, part, ends, way)
            if result is None:
                return _constant(ctx, p, way)
            total = space.add(total, result)
        else:
            result = _product(ctx, unit, inner, var, domain, way)
            if result is None:
                return _constant(ctx, p, way)
            total = space.add(total, result)
    for number, part in factors.items():
        atom = space.atoms[number]
        ends = tuple(_atom_end(ctx, atom, var, domain, w) for w in (LOW, HIGH))
        result = _times(ctx, part, ends, way)
        if result is None:
            return _constant(ctx, p, way)
        total = space.add(total, result)
    return total


def _constant(ctx: Rewriter, p: Poly, way: int) -> Poly | None:
    bound = ctx.bounds(p)[0 if way == LOW else 1]
    if bound is None or abs(bound) >= _TYPE_LIMIT:
        return None
    return ctx.space.const(bound)


def _unit_value(ctx: Rewriter, unit: Summand) -> Poly:
    """The summand as a canonical sum."""
    return ctx.space.mul(ctx.space.monomial(unit.rest, unit.coefficient), ctx.unit_value(unit))


def maximum(ctx: Rewriter, operands: list[Poly]) -> Poly:
    """Maximum of the operands."""
    negated = [ctx.space.scale(p, -1) for p in operands]
    return ctx.space.scale(ctx.minimum(negated), -1)


def _times(ctx: Rewriter, part: Poly, ends: tuple[Poly | None, ...], way: int) -> Poly | None:
    """Bound of `part * x` for `x` between the ends."""
    space = ctx.space
    low, high = ends
    if ctx.nonneg(part):
        end = low if way == LOW else high
        return None if end is None else space.mul(part, end)
    if ctx.nonneg(space.scale(part, -1)):
        end = high if way == LOW else low
        return None if end is None else space.mul(part, end)
    if low is None or high is None:
        return None
    corners = [space.mul(part, low), space.mul(part, high)]
    return ctx.minimum(corners) if way == LOW else maximum(ctx, corners)


def _product(
    ctx: Rewriter, unit: Summand, inner: list[int], var: Var, domain: Domain, way: int
) -> Poly | None:
    """Bound of a product with several factors that depend on the variable.

    Supported only if all factors are non-negative.
    """
    space = ctx.space
    way = way if unit.coefficient > 0 else -way
    result = space.const(unit.coefficient)
    if unit.kind != "mono":
        low = _unit_end(ctx, unit, var, domain, LOW)
        if low is None or not ctx.nonneg(low):
            return None
        end = _unit_end(ctx, unit, var, domain, way)
        if end is None:
            return None
        result = space.mul(result, end)
    for number in unit.rest:
        atom = space.atoms[number]
        if number not in inner:
            if not ctx.nonneg(space.monomial((number,))):
                return None
            result = space.mul(result, space.monomial((number,)))
            continue
        low = _atom_end(ctx, atom, var, domain, LOW)
        end = _atom_end(ctx, atom, var, domain, way)
        if low is None or end is None or not ctx.nonneg(low):
            return None
        result = space.mul(result, end)
    return result


def _atom_end(ctx: Rewriter, atom: Atom, var: Var, domain: Domain, way: int) -> Poly | None:
    """Bound of one atom that depends on the variable."""
    space = ctx.space
    result: Poly | None = None
    if atom.kind == "var":
        result = domain.low if way == LOW else domain.high
    elif atom.kind == "div":
        a, c = atom.operands
        low = ctx.bounds(c)[0]
        if var not in c.variables(space) and low is not None and low >= (0 if c.terms else 1):
            end = _eliminate(ctx, a, var, domain, way)
            result = None if end is None else ctx.floordiv(end, c)
    elif atom.kind == "min":
        ends = [_eliminate(ctx, d, var, domain, way) for d in atom.operands]
        kept = [e for e in ends if e is not None]
        if way == HIGH or len(kept) == len(ends):
            result = ctx.minimum([space.zero, *kept])
    else:
        result = _choice_end(ctx, atom, var, domain, way)
    return _constant(ctx, space.monomial((atom.id,)), way) if result is None else result


def _choice_end(ctx: Rewriter, atom: Atom, var: Var, domain: Domain, way: int) -> Poly | None:
    node = atom.node
    if isinstance(node, Select):
        branches = (node.true_value, node.false_value)
    elif isinstance(node, Call) and node.op == "if_then_else":
        branches = node.args[1:]
    elif isinstance(node, Call) and node.op == "checked_index":
        return _checked_end(ctx, node, var, way)
    else:
        return None
    ends = [_eliminate(ctx, ctx.exact(b), var, domain, way) for b in branches]
    kept = [e for e in ends if e is not None]
    if len(kept) != len(ends):
        return None
    return ctx.minimum(kept) if way == LOW else maximum(ctx, kept)


def _checked_end(ctx: Rewriter, node: Call, var: Var, way: int) -> Poly | None:
    """A checked index lies within its extent for every value of the variable."""
    space = ctx.space
    if way == LOW:
        return space.zero
    extent = ctx.exact(node.args[1])
    return None if var in extent.variables(space) else space.add(extent, space.const(-1))


def _unit_end(ctx: Rewriter, unit: Summand, var: Var, domain: Domain, way: int) -> Poly | None:
    """Bound of the value of a remainder, minimum or maximum that depends on the variable."""
    if unit.kind == "mod":
        return _mod_end(ctx, unit.operands[0], unit.operands[1], var, domain, way)
    ends = [_eliminate(ctx, q, var, domain, way) for q in unit.operands]
    kept = [e for e in ends if e is not None]
    if unit.kind == "min":
        if len(kept) == len(ends) or (way == HIGH and kept):
            return ctx.minimum(kept)
        return None
    if len(kept) == len(ends) or (way == LOW and kept):
        return maximum(ctx, kept)
    return None


def _mod_end(ctx: Rewriter, a: Poly, c: Poly, var: Var, domain: Domain, way: int) -> Poly | None:
    space = ctx.space
    low = ctx.bounds(c)[0]
    if low is None or low < (0 if c.terms else 1):
        return None
    if var in c.variables(space):
        if way == LOW:
            return space.zero
        end = _eliminate(ctx, c, var, domain, HIGH)
        return None if end is None else space.add(end, space.const(-1))
    first = _eliminate(ctx, a, var, domain, LOW)
    last = _eliminate(ctx, a, var, domain, HIGH)
    if first is not None and last is not None:
        quotient = ctx.floordiv(first, c)
        if quotient is ctx.floordiv(last, c):  # all within one period
            end = first if way == LOW else last
            return space.sub(end, space.mul(c, quotient))
    if way == LOW:
        return space.zero
    largest = space.add(c, space.const(-1))
    if first is None or last is None or not ctx.nonneg(first):
        return largest
    return last if ctx.nonneg(space.sub(largest, last)) else largest

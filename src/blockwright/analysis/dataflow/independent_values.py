"""Proof that the values of several iterators vary independently: they take all combinations.

Values are compared as they are, without the loop starts that they share, by their summands, and in
terms of their dividends. Nothing is proved by a counterexample here; `validate.bindings` looks for
a missing combination.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.arith import Analyzer, detect_iter_map

Domains = dict[ir.Var, ir.Range]
"""Loop variables with their domains."""


def independent(values: list[ir.Expr], domains: Domains, analyzer: Analyzer) -> bool:
    """Whether values provably take all combinations of their individual values."""
    own = _without_begins(values, domains)
    parts = [s for value in values for s in _summands(value)]
    return any(
        detect_iter_map(result, ranges, None, analyzer, "independent", pad=True).ok
        for result, ranges in (
            (values, domains),
            (own, domains),
            (parts, domains),
            _of_dividends(values, domains, analyzer),
            _of_dividends(parts, domains, analyzer),
        )
    )


def _summands(value: ir.Expr) -> list[ir.Expr]:
    """The summands of a value, without constants.

    If all summands vary independently, so do the sums, even sums that take a value several times
    (`i % 2 + halo`).
    """
    if isinstance(value, ir.Add):
        return [*_summands(value.a), *_summands(value.b)]
    return [] if isinstance(value, ir.IntImm) else [value]


def _without_begins(values: list[ir.Expr], domains: Domains) -> list[ir.Expr]:
    """Remove from each value the summands that other values depend on.

    For example `i, i + j` becomes `i, j`, if the loop over `j` is inside that over `i` and drives
    no other value. This equals a loop that starts at `i`.
    """
    used = [set(ir.free_vars(value)) & set(domains) for value in values]
    depth = {var: k for k, var in enumerate(domains)}
    result: list[ir.Expr] = []
    for k, value in enumerate(values):
        shared = {v for other, mine in enumerate(used) for v in mine if other != k}
        deepest = max((depth[v] for v in used[k] & shared), default=-1)
        parts = _summands(value)
        own = [s for s in parts if not ir.uses_var(s, shared)]
        mixed = any(ir.uses_var(s, shared) and ir.uses_var(s, used[k] - shared) for s in parts)
        moving = {v for s in own for v in ir.free_vars(s) if v in used[k]}
        moves = moving and min(depth[v] for v in moving) > deepest
        result.append(_sum(own) if moves and not mixed else value)
    return result


def _sum(parts: list[ir.Expr]) -> ir.Expr:
    total = parts[0]
    for part in parts[1:]:
        total = ir.add(*ir.match_types(total, part))
    return total


def _of_dividends(
    values: list[ir.Expr], domains: Domains, analyzer: Analyzer
) -> tuple[list[ir.Expr], Domains]:
    """Express values in terms of their dividends, if these take consecutive numbers.

    `(x + f) // n` and `(x + f) % n` miss the first pairs, as do `f // n` and `f % n` of a loop that
    does not start at 0, just as a partial tile misses its last ones.
    """
    ranges = dict(domains)
    for dividend in _dividends(values, domains):
        whole = ir.Var("dividend", dividend.dtype)
        result = [_with(v, dividend, whole) for v in values]
        inside = {v: r for v, r in ranges.items() if ir.uses_var(dividend, v)}
        if any(ir.uses_var(v, set(inside)) for v in result):
            continue
        if detect_iter_map([dividend], inside, None, analyzer, pad=True).ok:
            values = result
            ranges = {v: r for v, r in ranges.items() if v not in inside}
            zero = ir.const(0, whole.dtype)
            ranges[whole] = ir.Range(zero, ir.Var("dividends", whole.dtype))
    return values, ranges


def _dividends(values: list[ir.Expr], domains: Domains) -> list[ir.Expr]:
    """The distinct dividends in the values that depend on a loop."""
    result: list[ir.Expr] = []
    for value in values:
        for node in ir.walk(value):
            if not isinstance(node, ir.FloorDiv | ir.FloorMod):
                continue
            if isinstance(node.a, ir.Var) and not _begins_late(node.a, domains):
                continue
            known = any(ir.structural_equal(node.a, other) for other in result)
            if ir.uses_var(node.a, set(domains)) and not known:
                result.append(node.a)
    return result


def _begins_late(var: ir.Var, domains: Domains) -> bool:
    return var in domains and not ir.is_const_int(domains[var].min, 0)


def _with(value: ir.Expr, part: ir.Expr, new: ir.Expr) -> ir.Expr:
    """The value with the dividend `part` replaced by `new`."""

    def change(node: ir.Node) -> ir.Node | None:
        divides = isinstance(node, ir.FloorDiv | ir.FloorMod)
        if divides and ir.structural_equal(node.a, part):
            return node.replace(a=new)
        return None

    return ir.rewrite_bottom_up(value, change)

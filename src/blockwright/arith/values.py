"""Rules for values: arithmetic modulo 2**n, where identities of integers may not hold.

Each operand is simplified separately, which preserves all bits and keeps a value a value. Queries
about operands use their mathematical values (`exact`), so a rule applies only if its condition is
proved for every bit pattern that the operands can have:

- a quotient that is equal at both ends of the dividend's range is a constant;
- `x % c` is `x` if `0 <= x < c`; division by 1 is the identity;
- truncating division is floor division if neither operand is negative;
- nested minima (maxima) list each operand once, without those never chosen;
- integers are equal if their sums are equal modulo 2**n (`condition`).

No rule moves a summand across a comparison, a minimum or a division.
"""

from __future__ import annotations

from blockwright.arith.form import Bounds, Poly, Rewriter
from blockwright.ir import BinaryOp, Div, Expr, FloorDiv, FloorMod, Max, Min, Mod
from blockwright.ir.dtype import DType

Ends = tuple[int, int]
"""Minimum and maximum that a value can have."""


def operand(ctx: Rewriter, expr: Expr) -> tuple[Expr, Poly]:
    """A simplified operand of a value, and its mathematical value.

    An index is converted to a value of its type: a constant out of range is wrapped, and nothing is
    known of another index that may be out of range.
    """
    p = ctx.lift(expr)
    if p.is_const:
        p = ctx.space.wrapped(p, expr.dtype.bits)
        return ctx.space.int_node(p.const, expr.dtype), p
    simple, exact = ctx.simplify(expr), ctx.exact(expr)
    if not ctx.is_value(expr) and not fits(ctx.bounds(exact), expr.dtype):
        return simple, ctx.space.opaque(simple)
    return simple, exact


def fits(bounds: Bounds, dtype: DType) -> bool:
    """Whether all numbers within bounds are numbers of a type."""
    low, high = bounds
    if low is None or high is None:
        return False
    return dtype.min_value <= low and high <= dtype.max_value


def divided(ctx: Rewriter, cls: type[BinaryOp], a: Expr, b: Expr) -> Poly:
    """Quotient or remainder with an operand that is a value."""
    space, p = ctx.space, ctx.lift(a)
    (dividend, x), (divisor, y) = operand(ctx, a), operand(ctx, b)
    quotient = cls in (FloorDiv, Div)
    low, high = ctx.bounds(x)
    smallest = ctx.bounds(y)[0]
    if low is not None and low >= 0 and smallest is not None and smallest >= 1:
        cls = FloorDiv if quotient else FloorMod
    if not y.terms:
        c = y.const
        if c == 1:
            return p if quotient else space.zero
        same = low is not None and high is not None and c > 0 and low // c == high // c
        if same and low is not None and (cls is FloorDiv or low // c == 0):
            return space.const(low // c) if quotient else p
        if same and low is not None and cls is FloorMod:
            return space.sub(p, space.const(low // c * c))
    elif cls is FloorMod and ctx.known_nonneg(x):
        below = space.add(space.sub(y, x), space.const(-1))
        if ctx.known_nonneg(below):
            return p
    return space.opaque(space.node(cls, dividend, divisor))


def extremum(ctx: Rewriter, expr: Min | Max) -> Poly:
    """Minimum or maximum with an operand that is a value."""
    space, cls = ctx.space, type(expr)
    kept: list[tuple[Expr, Poly]] = []
    for e, x in dict(_operands(ctx, cls, expr)).items():
        if any(_before(ctx, cls, y, x) for _, y in kept):
            continue
        kept = [(f, y) for f, y in kept if not _before(ctx, cls, x, y)]
        kept.append((e, x))
    if len(kept) == 1:
        return ctx.lift(kept[0][0])
    kept.sort(key=lambda k: (k[1].is_const, k[1].number))
    result = kept[0][0]
    for e, _ in kept[1:]:
        result = space.node(cls, result, e)
    return space.opaque(result)


def _operands(ctx: Rewriter, cls: type[Min | Max], expr: Expr) -> list[tuple[Expr, Poly]]:
    """Operands of nested minima (maxima), each in the form returned by `operand`."""
    if not isinstance(expr, cls):
        simple, x = operand(ctx, expr)
        if not isinstance(simple, cls):
            return [(simple, x)]
        expr = simple
    return [*_operands(ctx, cls, expr.a), *_operands(ctx, cls, expr.b)]


def _before(ctx: Rewriter, cls: type[Min | Max], x: Poly, y: Poly) -> bool:
    """Whether `x` is always chosen between `x` and `y`."""
    difference = ctx.space.sub(y, x) if cls is Min else ctx.space.sub(x, y)
    return ctx.known_nonneg(difference)


def node_bounds(ctx: Rewriter, node: BinaryOp, limits: Ends) -> Ends:
    """Bounds of a quotient, remainder, minimum or maximum; `limits` are those of its type."""
    a, b = (_known(ctx, e, limits) for e in (node.a, node.b))
    if isinstance(node, Min):
        return (min(a[0], b[0]), min(a[1], b[1]))
    if isinstance(node, Max):
        return (max(a[0], b[0]), max(a[1], b[1]))
    if b[0] < 1:
        return limits
    if isinstance(node, FloorDiv):
        return (min(a[0] // b[0], a[0] // b[1]), max(a[1] // b[0], a[1] // b[1]))
    if isinstance(node, FloorMod):
        return (0, min(b[1] - 1, a[1]) if a[0] >= 0 else b[1] - 1)
    if isinstance(node, Mod):
        return (max(a[0], 1 - b[1]) if a[0] < 0 else 0, min(a[1], b[1] - 1) if a[1] > 0 else 0)
    if isinstance(node, Div):
        return (-(-a[0] // b[0]) if a[0] < 0 else 0, a[1] // b[0] if a[1] > 0 else 0)
    return limits


def _known(ctx: Rewriter, expr: Expr, limits: Ends) -> Ends:
    """Bounds of an operand; those of the type if unknown."""
    low, high = ctx.bounds(operand(ctx, expr)[1])
    return (limits[0] if low is None else low, limits[1] if high is None else high)


def facts_of(ctx: Rewriter, node: Expr, value: Poly) -> list[Poly]:
    """Non-negative sums that follow from the definition of an opaque node; `value` is its value."""
    if not isinstance(node, (Min, Max)):
        return []
    space = ctx.space
    operands = [operand(ctx, e)[1] for e in (node.a, node.b)]
    if isinstance(node, Min):
        return [space.sub(p, value) for p in operands]
    return [space.sub(value, p) for p in operands]

"""Simplification of any expression: index scalars, conditions, vectors and others.

Index scalars are converted to the canonical sum and back; conditions are handled by `condition`; a
vector that is affine in its lane becomes a `Ramp` or a `Broadcast`. Any other expression keeps its
form, with simplified operands, and is folded only where that is exact for the type (for floats:
`x * 1`, `x / 1` and `x - 0`).
"""

from __future__ import annotations

from typing import Any

from blockwright.arith.condition import decide, simplify_condition, test_of
from blockwright.arith.form import Poly, Rewriter, is_index
from blockwright.arith.render import Unwritable
from blockwright.arith.to_canonical import is_index_sum, simplified_operands
from blockwright.ir import (
    Add,
    And,
    BinaryOp,
    Broadcast,
    Call,
    Cast,
    CompareOp,
    Div,
    Expr,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mul,
    Not,
    Or,
    Ramp,
    Select,
    Sub,
    Var,
    binary,
    cast_to,
)

Lanes = tuple[Poly, Poly]
"""Value of lane 0, and the difference between consecutive lanes."""


def rewrite(ctx: Rewriter, expr: Expr) -> Expr:
    """Simplify an expression; the result is hash-consed."""
    if isinstance(expr, (Var, IntImm, FloatImm)):
        if isinstance(expr, Var) and is_index(expr.type) and ctx.equality(expr) is not None:
            return ctx.lower(ctx.lift(expr), expr.type)
        if isinstance(expr, Var) and expr.type.is_bool:
            return simplify_condition(ctx, expr)
        return ctx.space.adopt(expr)
    try:
        return _in_canonical_form(ctx, expr)
    except Unwritable:
        return _fold(ctx, simplified_operands(ctx, expr))


def _in_canonical_form(ctx: Rewriter, expr: Expr) -> Expr:
    dtype = expr.dtype
    if is_index(dtype):
        return _index(ctx, expr)
    if dtype.is_bool and dtype.lanes == 1:
        return simplify_condition(ctx, expr)
    if dtype.lanes > 1:
        return _vector(ctx, expr)
    return _fold(ctx, simplified_operands(ctx, expr))


def _index(ctx: Rewriter, expr: Expr) -> Expr:
    p = ctx.lift(expr)
    dtype = expr.dtype
    if p.terms and not p.wraps and ctx.is_value(expr):
        return ctx.space.adopt(expr)  # as an index it would be assumed not to wrap around
    smallest, largest = dtype.min_value, dtype.max_value
    if not all(smallest <= c <= largest for c in (p.const, *(c for _, c in p.terms))):
        return _fold(ctx, simplified_operands(ctx, expr))
    simple = ctx.lower(p, dtype)
    if isinstance(expr, Mul) and len(p.terms) > 2 and not isinstance(expr.b, IntImm):
        kept = _fold(ctx, simplified_operands(ctx, expr))  # keep the product if it is smaller
        if _size(kept) < _size(simple):
            return kept
    return simple


def _size(expr: Expr) -> int:
    count, stack = 0, [expr]
    while stack:
        node = stack.pop()
        count += 1
        stack.extend(c for c in node.children() if isinstance(c, Expr))
    return count


def _fold(ctx: Rewriter, expr: Expr) -> Expr:
    """Fold a node with simplified operands locally."""
    adopt = ctx.space.adopt
    if isinstance(expr, BinaryOp):
        if isinstance(expr.b, FloatImm):
            unit = expr.b.value == 1.0 and isinstance(expr, (Mul, Div))
            if unit or (isinstance(expr, Sub) and expr.b.value.hex() == "0x0.0p+0"):
                return expr.a
        if isinstance(expr, (Min, Max)) and expr.a is expr.b:
            return expr.a
        if isinstance(expr.a, IntImm) or isinstance(expr.b, IntImm):
            return adopt(binary(type(expr), expr.a, expr.b))
        return expr
    if isinstance(expr, Cast):
        return adopt(cast_to(expr.value, expr.type))
    if isinstance(expr, Select):
        condition, a, b = expr.condition, expr.true_value, expr.false_value
    elif isinstance(expr, Call) and expr.op == "if_then_else":
        condition, a, b = expr.args
    else:
        return expr
    if isinstance(condition, Broadcast):
        condition = condition.value
    if isinstance(condition, IntImm):
        return a if condition.value else b
    return a if a is b else expr


# ------------------------------------------------------------------------------ vectors
def _vector(ctx: Rewriter, expr: Expr) -> Expr:
    dtype = expr.dtype
    if dtype.is_bool:
        return _vector_condition(ctx, expr)
    if is_index(dtype.element):
        lanes = lanes_of(ctx, expr)
        if lanes is not None:
            return render_lanes(ctx, lanes, dtype.lanes, expr)
    return _fold(ctx, simplified_operands(ctx, expr))


def render_lanes(ctx: Rewriter, lanes: Lanes, count: int, like: Expr) -> Expr:
    """Render a `Broadcast` or `Ramp` of `count` lanes."""
    element = like.dtype.element
    base = ctx.lower(lanes[0], element)
    if lanes[1] is ctx.space.zero:
        return ctx.space.node(Broadcast, base, count)
    return ctx.space.node(Ramp, base, ctx.lower(lanes[1], element), count)


def lanes_of(ctx: Rewriter, expr: Expr) -> Lanes | None:
    """The vector as `base + lane * stride` if it is affine in the lane, otherwise None."""
    space = ctx.space
    if isinstance(expr, Broadcast) and expr.value.dtype.lanes == 1:
        return ctx.lift(expr.value), space.zero
    if isinstance(expr, Ramp) and expr.base.dtype.lanes == 1:
        return ctx.lift(expr.base), ctx.lift(expr.stride)
    if isinstance(expr, Cast):
        source = expr.value.dtype
        inner = lanes_of(ctx, expr.value) if is_index(source.element) else None
        if inner is None or _wraps(inner):
            return None
        narrower = expr.type.bits < source.bits
        return None if narrower and not all(is_index_sum(ctx, p) for p in inner) else inner
    if not isinstance(expr, BinaryOp):
        return None
    a = lanes_of(ctx, expr.a)
    b = None if a is None else lanes_of(ctx, expr.b)
    if a is None or b is None:
        return None
    if isinstance(expr, (Add, Sub)):
        sign = 1 if isinstance(expr, Add) else -1
        return space.add(a[0], b[0], sign), space.add(a[1], b[1], sign)
    if isinstance(expr, Mul):
        if b[1] is not space.zero:
            a, b = b, a
        if b[1] is not space.zero:
            return None
        return space.mul(a[0], b[0]), space.mul(a[1], b[0])
    if _wraps(a) or _wraps(b):
        return None
    if isinstance(expr, (FloorDiv, FloorMod)):
        return _divided_lanes(ctx, expr, a, b, expr.dtype.lanes)
    if isinstance(expr, (Min, Max)):
        return _extremum_lanes(ctx, expr, a, b, expr.dtype.lanes)
    return None


def _wraps(lanes: Lanes) -> bool:
    return lanes[0].wraps or lanes[1].wraps


def _divided_lanes(
    ctx: Rewriter, expr: FloorDiv | FloorMod, a: Lanes, b: Lanes, count: int
) -> Lanes | None:
    """Division if the stride is a multiple of the divisor or all lanes have the same quotient."""
    space = ctx.space
    c = b[0]
    if b[1] is not space.zero or (not c.terms and c.const == 0):
        return None
    quotient = ctx.floordiv(a[0], c)
    step = ctx.floordiv(a[1], c)
    if space.mul(step, c) is not a[1]:
        rest = space.sub(a[0], space.mul(quotient, c))
        last = space.add(rest, a[1], count - 1)
        inside = ctx.known_nonneg(last) and ctx.known_nonneg(
            space.add(space.sub(c, last), space.const(-1))
        )
        low = ctx.bounds(c)[0]
        if not inside or low is None or low < 0:
            return None
        step = space.zero
    if isinstance(expr, FloorDiv):
        return quotient, step
    return space.sub(a[0], space.mul(c, quotient)), space.sub(a[1], space.mul(c, step))


def _extremum_lanes(ctx: Rewriter, expr: Min | Max, a: Lanes, b: Lanes, count: int) -> Lanes | None:
    space = ctx.space
    if a[1] is space.zero and b[1] is space.zero:
        if isinstance(expr, Min):
            return ctx.minimum([a[0], b[0]]), space.zero
        negated = [space.scale(p, -1) for p in (a[0], b[0])]
        return space.scale(ctx.minimum(negated), -1), space.zero
    first, step = space.sub(a[0], b[0]), space.sub(a[1], b[1])
    last = space.add(first, step, count - 1)
    if ctx.known_nonneg(first) and ctx.known_nonneg(last):
        return b if isinstance(expr, Min) else a
    if ctx.known_nonneg(space.scale(first, -1)) and ctx.known_nonneg(space.scale(last, -1)):
        return a if isinstance(expr, Min) else b
    return None


def _vector_condition(ctx: Rewriter, expr: Expr) -> Expr:
    node, count = ctx.space.node, expr.dtype.lanes
    simple: Any = simplified_operands(ctx, expr)
    if isinstance(simple, CompareOp) and is_index(simple.a.dtype.element):
        return _vector_compare(ctx, simple, count)
    if isinstance(simple, (And, Or)):
        neutral = isinstance(simple, And)
        for one, other in ((simple.a, simple.b), (simple.b, simple.a)):
            if isinstance(one, Broadcast) and isinstance(one.value, IntImm):
                return other if bool(one.value.value) == neutral else one
        if simple.a is simple.b:
            return simple.a
        if isinstance(simple.a, Broadcast) and isinstance(simple.b, Broadcast):
            both = node(type(simple), simple.a.value, simple.b.value)
            return node(Broadcast, ctx.simplify(both), count)
    if isinstance(simple, Not) and isinstance(simple.a, Broadcast):
        return node(Broadcast, ctx.simplify(node(Not, simple.a.value)), count)
    return _fold(ctx, simple)


def _vector_compare(ctx: Rewriter, expr: CompareOp, count: int) -> Expr:
    """Fold an inequality that has the same constant result in the first and the last lane."""
    a, b = lanes_of(ctx, expr.a), lanes_of(ctx, expr.b)
    if a is None or b is None or _wraps(a) or _wraps(b):
        return expr
    node, space = ctx.space.node, ctx.space
    element = expr.a.dtype.element
    if a[1] is space.zero and b[1] is space.zero:
        scalar = node(type(expr), ctx.lower(a[0], element), ctx.lower(b[0], element))
        return node(Broadcast, ctx.simplify(scalar), count)
    verdicts: list[bool | None] = []
    for lane in (0, count - 1):
        left, right = space.add(a[0], a[1], lane), space.add(b[0], b[1], lane)
        scalar = node(type(expr), ctx.lower(left, element), ctx.lower(right, element))
        test = test_of(ctx, scalar)
        ordered = test is not None and test.kind == ">="  # equality may differ in between
        verdicts.append(decide(ctx, test, ctx.known_nonneg) if test and ordered else None)
    if verdicts[0] is not None and verdicts[0] == verdicts[1]:
        return node(Broadcast, space.bool_node(verdicts[0]), count)
    return expr

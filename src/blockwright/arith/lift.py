"""Scalar index expressions to canonical sums.

Index expressions are mathematical integers; everything that depends on a load or a call is a value
and wraps around. Sums and products are canonical for both, because a ring identity survives the
wrap. Division, minimum and comparison of a value's sum are not: `exact` hides such a sum behind an
opaque atom, unless its bounds show that it cannot wrap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockwright.arith.form import Atom, Bounds, Poly, Rewriter, is_index
from blockwright.ir import (
    Add,
    Call,
    Cast,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Let,
    Max,
    Min,
    Mod,
    Mul,
    Select,
    Sub,
    Var,
    substitute,
)
from blockwright.ir.dtype import DType

_MAX_TERMS = 48


def lift(ctx: Rewriter, expr: Expr) -> Poly:
    """The canonical sum of an expression of an index type."""
    rule = _RULES.get(type(expr))
    return _opaque(ctx, expr) if rule is None else rule(ctx, expr)


def exact(ctx: Rewriter, p: Poly, dtype: DType) -> Poly:
    """`p` where its value as a mathematical integer matters."""
    if not p.wraps or (p.const == 0 and len(p.terms) == 1 and p.terms[0][1] == 1
                       and len(p.terms[0][0]) == 1):  # fmt: skip
        return p
    if _fits(ctx.bounds(p), dtype):
        return p
    return ctx.space.opaque(ctx.lower(p, dtype))


def _fits(bounds: Bounds, dtype: DType) -> bool:
    low, high = bounds
    if low is None or high is None:
        return False
    return dtype.min_value <= low and high <= dtype.max_value


def _const(ctx: Rewriter, expr: IntImm) -> Poly:
    return ctx.space.const(expr.value)


def _var(ctx: Rewriter, expr: Var) -> Poly:
    known = ctx.equality(expr)
    return ctx.space.var(expr) if known is None else known


def _sum(ctx: Rewriter, expr: Expr) -> Poly:
    """Addition and subtraction: a loop along the left spine, which may be thousands deep."""
    space = ctx.space
    parts: list[tuple[Expr, int]] = []
    node: Expr = expr
    while isinstance(node, (Add, Sub)):
        parts.append((node.b, 1 if isinstance(node, Add) else -1))
        node = node.a
    result = ctx.lift(node)
    for part, sign in reversed(parts):
        result = space.add(result, ctx.lift(part), sign)
    return result


def _product(ctx: Rewriter, expr: Mul) -> Poly:
    a, b = ctx.lift(expr.a), ctx.lift(expr.b)
    if a.terms and b.terms and (len(a.terms) + 1) * (len(b.terms) + 1) > _MAX_TERMS:
        node = ctx.space.node(Mul, ctx.lower(a, expr.dtype), ctx.lower(b, expr.dtype))
        return ctx.space.opaque(node, a.wraps or b.wraps)
    return ctx.space.mul(a, b)


def _floordiv(ctx: Rewriter, expr: FloorDiv) -> Poly:
    return ctx.floordiv(ctx.exact(expr.a), ctx.exact(expr.b))


def _floormod(ctx: Rewriter, expr: FloorMod) -> Poly:
    a, b = ctx.exact(expr.a), ctx.exact(expr.b)
    return _mod(ctx, a, b)


def _mod(ctx: Rewriter, a: Poly, b: Poly) -> Poly:
    return ctx.space.sub(a, ctx.space.mul(b, ctx.floordiv(a, b)))


def _min(ctx: Rewriter, expr: Min) -> Poly:
    return ctx.minimum([ctx.exact(expr.a), ctx.exact(expr.b)])


def _max(ctx: Rewriter, expr: Max) -> Poly:
    space = ctx.space
    operands = [space.scale(ctx.exact(e), -1) for e in (expr.a, expr.b)]
    return space.scale(ctx.minimum(operands), -1)


def _truncating(ctx: Rewriter, expr: Div | Mod) -> Poly:
    """The same as floor division where neither operand is negative."""
    a, b = ctx.exact(expr.a), ctx.exact(expr.b)
    low_a, low_b = ctx.bounds(a)[0], ctx.bounds(b)[0]
    if low_a is not None and low_a >= 0 and low_b is not None and low_b >= 0:
        if not b.terms and b.const == 0:
            return _rebuilt(ctx, expr, a, b)
        return ctx.floordiv(a, b) if isinstance(expr, Div) else _mod(ctx, a, b)
    return _rebuilt(ctx, expr, a, b)


def _rebuilt(ctx: Rewriter, expr: Div | Mod, a: Poly, b: Poly) -> Poly:
    dtype = expr.dtype
    node = ctx.space.node(type(expr), ctx.lower(a, dtype), ctx.lower(b, dtype))
    return ctx.space.opaque(node, a.wraps or b.wraps)


def _cast(ctx: Rewriter, expr: Cast) -> Poly:
    source = expr.value.dtype
    if not is_index(source):
        return _opaque(ctx, expr, wraps=not isinstance(expr.value, Var) and not source.is_bool)
    inner = exact(ctx, ctx.lift(expr.value), source)
    if expr.type.bits >= source.bits or _fits(ctx.bounds(inner), expr.type):
        return inner
    if not inner.wraps and is_index_sum(ctx, inner):
        return inner  # an index is the same number at every width
    node = ctx.space.node(Cast, expr.type, ctx.lower(inner, source))
    return ctx.space.opaque(node, inner.wraps)


def is_index_sum(ctx: Rewriter, p: Poly) -> bool:
    """Whether a sum is made of loop variables and sizes alone, all of them known as such: a
    variable of which nothing was told may stand for a value, and a narrower value wraps."""
    atoms = (ctx.space.atoms[number] for mono, _ in p.terms for number in mono)
    return all(
        ctx.knows(atom.node)
        if isinstance(atom.node, Var)
        else atom.node is None and all(is_index_sum(ctx, q) for q in atom.operands)
        for atom in atoms
    )


def _choice(ctx: Rewriter, expr: Select | Call) -> Poly:
    if isinstance(expr, Select):
        condition, a, b = expr.condition, expr.true_value, expr.false_value
    else:
        condition, a, b = expr.args
    condition = ctx.simplify(condition)
    if isinstance(condition, IntImm):
        return ctx.lift(a if condition.value else b)
    p, q = ctx.lift(a), ctx.lift(b)
    if p is q:
        return p
    x, y = ctx.lower(p, expr.dtype), ctx.lower(q, expr.dtype)
    if isinstance(expr, Select):
        node = ctx.space.node(Select, condition, x, y)
    else:
        node = ctx.space.node(Call, expr.op, (condition, x, y), expr.type)
    return ctx.space.opaque(node, p.wraps or q.wraps)


def _let(ctx: Rewriter, expr: Let) -> Poly:
    return ctx.lift(substitute(expr.body, {expr.var: expr.value}))


def _call(ctx: Rewriter, expr: Call) -> Poly:
    space = ctx.space
    if expr.op == "if_then_else":
        return _choice(ctx, expr)
    if expr.op == "likely":
        return ctx.lift(expr.args[0])
    if expr.op == "checked_index":
        return _checked(ctx, expr)
    if expr.op in ("shift_left", "shift_right", "bitwise_and"):
        a, b = ctx.lift(expr.args[0]), ctx.lift(expr.args[1])
        amount = b.const
        if not b.terms and 0 <= amount < expr.dtype.bits - 1 and expr.op != "bitwise_and":
            if expr.op == "shift_left":
                return space.scale(a, 1 << amount)
            return ctx.floordiv(ctx.exact(expr.args[0]), space.const(1 << amount))
        if not b.terms and expr.op == "bitwise_and" and amount > 0 and not amount & (amount + 1):
            return _mod(ctx, ctx.exact(expr.args[0]), space.const(amount + 1))
    if expr.op == "abs":
        a = ctx.exact(expr.args[0])
        if ctx.nonneg(a):
            return a
    return _opaque(ctx, expr)


def _checked(ctx: Rewriter, expr: Call) -> Poly:
    """The index itself where it is surely inside; an unknown between 0 and the extent elsewhere."""
    index, extent = ctx.exact(expr.args[0]), ctx.exact(expr.args[1])
    room = ctx.space.add(ctx.space.sub(extent, index), ctx.space.const(-1))
    if ctx.nonneg(index) and ctx.nonneg(room):
        return index
    return _opaque(ctx, expr, wraps=False)


def _opaque(ctx: Rewriter, expr: Expr, wraps: bool = True) -> Poly:
    """Taken as a whole, its operands simplified."""
    return ctx.space.opaque(simplified_operands(ctx, expr), wraps)


def simplified_operands(ctx: Rewriter, expr: Expr) -> Expr:
    """The one object for `expr` with simplified operands."""

    def simplify(child: Any) -> Any:
        return ctx.simplify(child) if isinstance(child, Expr) else child

    return ctx.space.adopt(expr.map_children(simplify))


def opaque_bounds(ctx: Rewriter, atom: Atom) -> Bounds:
    """Bounds of an opaque atom from its type and its branches."""
    node = atom.node
    assert node is not None
    dtype = node.dtype
    if isinstance(node, Select) or (isinstance(node, Call) and node.op == "if_then_else"):
        branches = (
            (node.true_value, node.false_value) if isinstance(node, Select) else node.args[1:]
        )
        found = [ctx.bounds(exact(ctx, ctx.lift(b), b.dtype)) for b in branches]
        lows, highs = [b[0] for b in found], [b[1] for b in found]
        return (
            None if None in lows else min(x for x in lows if x is not None),
            None if None in highs else max(x for x in highs if x is not None),
        )
    if isinstance(node, Call) and node.op == "checked_index":
        high = ctx.bounds(ctx.exact(node.args[1]))[1]
        return (0, None if high is None else high - 1)
    if isinstance(node, Cast) and (node.value.dtype.is_int or node.value.dtype.is_bool):
        source = node.value.dtype
        if source.min_value >= dtype.min_value and source.max_value <= dtype.max_value:
            return (source.min_value, source.max_value)
    if atom.wraps or isinstance(node, Cast):
        return (dtype.min_value, dtype.max_value)
    return (None, None)


_RULES: dict[type[Any], Callable[[Any, Any], Poly]] = {
    IntImm: _const,
    Var: _var,
    Add: _sum,
    Sub: _sum,
    Mul: _product,
    FloorDiv: _floordiv,
    FloorMod: _floormod,
    Min: _min,
    Max: _max,
    Div: _truncating,
    Mod: _truncating,
    Cast: _cast,
    Select: _choice,
    Let: _let,
    Call: _call,
}

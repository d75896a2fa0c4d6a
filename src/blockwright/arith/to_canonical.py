"""Conversion of scalar index expressions to canonical sums.

Index expressions are mathematical integers. An expression that depends on a load, a call or a
variable declared to hold a value is a value and wraps around. Sums and products are canonical for
both, because ring identities hold modulo 2**n; coefficients in a value's sum are reduced modulo
2**n (`Space.wrapped`). All other operators have two sets of rules, those of `divide` for indices
and those of `values` for values; `_of_indices` chooses.

`exact` returns a sum that is the mathematical value of an expression. For a value this is its sum
only if its bounds show that it cannot wrap, otherwise an opaque atom. Exact sums are for proofs.
Combined, they may be out of range of the type, so an operand of a value is always rendered from
`lift`, never from an exact sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockwright.arith import values
from blockwright.arith.float_bounds import truncated_bounds
from blockwright.arith.form import Atom, Bounds, Poly, Rewriter, is_index
from blockwright.ir import (
    Add,
    BinaryOp,
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


def exact(ctx: Rewriter, expr: Expr) -> Poly:
    """The mathematical value of a value: its sum, or an opaque atom if it may wrap around."""
    p = ctx.lift(expr)
    if _is_atom(p) or values.fits(ctx.bounds(p), expr.dtype):
        return p
    return ctx.space.opaque(ctx.simplify(expr))


def _is_atom(p: Poly) -> bool:
    return p.const == 0 and len(p.terms) == 1 and p.terms[0][1] == 1 and len(p.terms[0][0]) == 1


def _rendered(ctx: Rewriter, expr: Expr) -> Expr:
    """A simplified operand; simplifying a value never turns it into an index."""
    return ctx.simplify(expr) if ctx.is_value(expr) else ctx.lower(ctx.lift(expr), expr.dtype)


def _const(ctx: Rewriter, expr: IntImm) -> Poly:
    return ctx.space.const(expr.value)


def _var(ctx: Rewriter, expr: Var) -> Poly:
    known = ctx.equality(expr)
    return ctx.space.var(expr) if known is None else known


def _sum(ctx: Rewriter, expr: Expr) -> Poly:
    """Addition and subtraction; iterates over the left spine, which may be thousands deep."""
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
        node = ctx.space.node(Mul, _rendered(ctx, expr.a), _rendered(ctx, expr.b))
        return ctx.space.opaque(node, ctx.is_value(expr.a) or ctx.is_value(expr.b))
    return ctx.space.mul(a, b)


def _of_indices(ctx: Rewriter, expr: BinaryOp) -> tuple[Poly, Poly] | None:
    """The operands of an operator with index rules; None if one of them is a value.

    Every operator that is not a ring operation calls this; values are left to the rules of
    `values`.
    """
    if ctx.is_value(expr.a) or ctx.is_value(expr.b):
        return None
    return ctx.lift(expr.a), ctx.lift(expr.b)


def _floordiv(ctx: Rewriter, expr: FloorDiv) -> Poly:
    result = _of_indices(ctx, expr)
    if result is None:
        return values.divided(ctx, FloorDiv, expr.a, expr.b)
    return _kept(ctx, expr) if _has_no_opposite(result[1], expr.dtype) else ctx.floordiv(*result)


def _floormod(ctx: Rewriter, expr: FloorMod) -> Poly:
    result = _of_indices(ctx, expr)
    if result is None:
        return values.divided(ctx, FloorMod, expr.a, expr.b)
    return _kept(ctx, expr) if _has_no_opposite(result[1], expr.dtype) else _mod(ctx, *result)


def _has_no_opposite(divisor: Poly, dtype: DType) -> bool:
    """Whether the divisor is the minimum of its type.

    Division by a negative number is rewritten to use its negation, which would be out of range.
    """
    return divisor.is_const and divisor.const == dtype.min_value < 0


def _kept(ctx: Rewriter, expr: BinaryOp) -> Poly:
    node = ctx.space.node(type(expr), _rendered(ctx, expr.a), _rendered(ctx, expr.b))
    return ctx.space.opaque(node, wraps=False)


def _mod(ctx: Rewriter, a: Poly, b: Poly) -> Poly:
    return ctx.space.sub(a, ctx.space.mul(b, ctx.floordiv(a, b)))


def _min(ctx: Rewriter, expr: Min) -> Poly:
    result = _of_indices(ctx, expr)
    return values.extremum(ctx, expr) if result is None else ctx.minimum(list(result))


def _max(ctx: Rewriter, expr: Max) -> Poly:
    result = _of_indices(ctx, expr)
    if result is None:
        return values.extremum(ctx, expr)
    operands = [ctx.space.scale(p, -1) for p in result]
    return ctx.space.scale(ctx.minimum(operands), -1)


def _truncating(ctx: Rewriter, expr: Div | Mod) -> Poly:
    """Equals floor division if neither operand is negative."""
    result = _of_indices(ctx, expr)
    if result is None:
        return values.divided(ctx, type(expr), expr.a, expr.b)
    a, b = result
    low_a, low_b = ctx.bounds(a)[0], ctx.bounds(b)[0]
    nonnegative = low_a is not None and low_a >= 0 and low_b is not None and low_b >= 0
    if nonnegative and (b.terms or b.const):
        return ctx.floordiv(a, b) if isinstance(expr, Div) else _mod(ctx, a, b)
    node = ctx.space.node(type(expr), ctx.lower(a, expr.dtype), ctx.lower(b, expr.dtype))
    return ctx.space.opaque(node, wraps=False)


def _cast(ctx: Rewriter, expr: Cast) -> Poly:
    source = expr.value.dtype
    if not is_index(source):
        return _opaque(ctx, expr)
    inner = ctx.exact(expr.value)
    if expr.type.bits >= source.bits or values.fits(ctx.bounds(inner), expr.type):
        return inner
    value = ctx.is_value(expr.value)
    if not value and is_index_sum(ctx, inner):
        return inner  # an index is the same number at every width
    return ctx.space.opaque(ctx.space.node(Cast, expr.type, _rendered(ctx, expr.value)), value)


def is_index_sum(ctx: Rewriter, p: Poly) -> bool:
    """Whether a sum consists only of variables known to be loop variables or sizes.

    A variable without any known fact may hold a value, and a narrower value wraps.
    """
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
    x, y = _rendered(ctx, a), _rendered(ctx, b)
    if isinstance(expr, Select):
        node = ctx.space.node(Select, condition, x, y)
    else:
        node = ctx.space.node(Call, expr.op, (condition, x, y), expr.type)
    value = ctx.is_value(a) or ctx.is_value(b) or not ctx.space.sorts.is_index(expr)
    return ctx.space.opaque(node, value)


def _let(ctx: Rewriter, expr: Let) -> Poly:
    return ctx.lift(substitute(expr.body, {expr.var: expr.value}))


def _call(ctx: Rewriter, expr: Call) -> Poly:
    if expr.op == "if_then_else":
        return _choice(ctx, expr)
    if expr.op == "likely":
        return ctx.lift(expr.args[0])
    if expr.op == "checked_index":
        return _checked(ctx, expr)
    if expr.op == "as_index":
        inner = expr.args[0]
        return (
            ctx.lift(inner) if ctx.space.sorts.is_index(inner) else _opaque(ctx, expr, wraps=False)
        )
    if expr.op in ("shift_left", "shift_right", "bitwise_and"):
        result = _power_of_two(ctx, expr)
        if result is not None:
            return result
    if expr.op == "abs":
        a = ctx.exact(expr.args[0])
        if ctx.nonneg(a):
            return a
    return _opaque(ctx, expr, wraps=not ctx.space.sorts.is_index(expr))


def _power_of_two(ctx: Rewriter, expr: Call) -> Poly | None:
    """A shift or mask by a constant as a product, quotient or remainder; None for others."""
    space, dtype = ctx.space, expr.dtype
    amount = ctx.lift(expr.args[1])
    if amount.terms:
        return None
    by = amount.const
    if expr.op == "bitwise_and":
        if not 0 < by < dtype.max_value or by & (by + 1):
            return None
        cls, number = FloorMod, by + 1
    elif 0 <= by < dtype.bits - 1:
        cls, number = FloorDiv, 1 << by
    else:
        return None
    if expr.op == "shift_left":
        return space.scale(ctx.lift(expr.args[0]), number)
    return ctx.lift(space.node(cls, expr.args[0], space.int_node(number, dtype)))


def _checked(ctx: Rewriter, expr: Call) -> Poly:
    """The index itself if provably in bounds; otherwise an unknown between 0 and the extent."""
    index, extent = ctx.exact(expr.args[0]), ctx.exact(expr.args[1])
    room = ctx.space.add(ctx.space.sub(extent, index), ctx.space.const(-1))
    if ctx.nonneg(index) and ctx.nonneg(room):
        return index
    return _opaque(ctx, expr, wraps=False)


def _opaque(ctx: Rewriter, expr: Expr, wraps: bool = True) -> Poly:
    """The expression as an opaque atom, with simplified operands."""
    return ctx.space.opaque(simplified_operands(ctx, expr), wraps)


def simplified_operands(ctx: Rewriter, expr: Expr) -> Expr:
    """The hash-consed node for `expr` with simplified operands."""

    def simplify(child: Any) -> Any:
        return ctx.simplify(child) if isinstance(child, Expr) else child

    new = ctx.space.adopt(expr.map_children(simplify))
    sorts = ctx.space.sorts
    if expr.dtype.is_int and sorts.is_index(new) and not sorts.is_index(expr):
        return new if isinstance(new, IntImm) else ctx.space.adopt(expr)  # must not become an index
    return new


def opaque_bounds(ctx: Rewriter, atom: Atom) -> Bounds:
    """Bounds of an opaque atom, from its type and its operands."""
    node = atom.node
    assert node is not None
    dtype = node.dtype
    if isinstance(node, Select) or (isinstance(node, Call) and node.op == "if_then_else"):
        branches = (
            (node.true_value, node.false_value) if isinstance(node, Select) else node.args[1:]
        )
        result = [ctx.bounds(ctx.exact(b)) for b in branches]
        if atom.wraps and not all(values.fits(bounds, dtype) for bounds in result):
            return (dtype.min_value, dtype.max_value)  # an index is converted to a value
        lows, highs = [b[0] for b in result], [b[1] for b in result]
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
    limits = (dtype.min_value, dtype.max_value)
    if isinstance(node, Cast) and (found := truncated_bounds(ctx, node.value)):
        return found if values.fits(found, dtype) else limits
    if isinstance(node, Call) and node.op == "as_index":
        return limits
    if atom.wraps and isinstance(node, BinaryOp):
        return values.node_bounds(ctx, node, limits)
    return limits if atom.wraps or isinstance(node, Cast) else (None, None)


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

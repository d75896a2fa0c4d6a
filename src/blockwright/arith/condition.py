"""Conditions: normalization of comparisons to `sum >= 0`, decision, and simplification."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import gcd
from typing import Any

import msgspec

from blockwright.arith.form import Poly, Rewriter, is_index
from blockwright.arith.render import Unwritable, render_units
from blockwright.arith.to_canonical import simplified_operands
from blockwright.arith.values import operand
from blockwright.ir import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    And,
    Call,
    CompareOp,
    Expr,
    IntImm,
    Not,
    Or,
    sub,
)
from blockwright.ir.dtype import DType

_INVERSE: dict[type[CompareOp], type[CompareOp]] = {EQ: NE, NE: EQ, LT: GE, GE: LT, LE: GT, GT: LE}


class Sides(msgspec.Struct, frozen=True, eq=False):
    """`left < right` if `strict`, otherwise `left <= right`; both sides are simplified values."""

    left: Expr
    right: Expr
    strict: bool


class Test(msgspec.Struct, frozen=True, eq=False):
    """A comparison of a sum with 0; `kind` is ">=", "==" or "!=".

    `sum` is the mathematical difference of the operands. It is valid for proofs, but if an operand
    is a value the sum may be out of range of the type. Such a comparison keeps its operands in
    `sides` and is rendered from them.
    """

    kind: str
    sum: Poly
    dtype: DType
    sides: Sides | None = None

    __test__ = False  # not a pytest class


def test_of(ctx: Rewriter, expr: Expr) -> Test | None:
    """Normalize a comparison of index expressions; None for any other expression."""
    if not isinstance(expr, CompareOp) or not is_index(expr.a.dtype):
        return None
    space = ctx.space
    x, y = (expr.b, expr.a) if isinstance(expr, (GT, GE)) else (expr.a, expr.b)
    strict = isinstance(expr, (LT, GT))
    sides: Sides | None = None
    if ctx.is_value(x) or ctx.is_value(y):
        (left, a), (right, b) = operand(ctx, x), operand(ctx, y)
        sides = Sides(left, right, strict)
    else:
        a, b = ctx.lift(x), ctx.lift(y)
    if isinstance(expr, (EQ, NE)):
        return Test("==" if isinstance(expr, EQ) else "!=", space.sub(a, b), x.dtype, sides)
    d = space.sub(b, a)
    if strict:
        d = space.add(d, space.const(-1))
    return Test(">=", without_quotient(ctx, d), x.dtype, sides)


def without_quotient(ctx: Rewriter, d: Poly) -> Poly:
    """Remove a lone quotient.

    `k - n // c >= 0` becomes `k * c + c - 1 - n >= 0`; `n // c - k >= 0` becomes `n - k * c >= 0`.
    """
    space = ctx.space
    while len(d.terms) == 1 and abs(d.terms[0][1]) == 1 and len(d.terms[0][0]) == 1:
        atom = space.atoms[d.terms[0][0][0]]
        if atom.kind != "div" or atom.operands[1].terms or atom.operands[1].const < 1:
            break
        n, c = atom.operands[0], atom.operands[1].const
        if d.terms[0][1] < 0:
            d = space.sub(space.const(d.const * c + c - 1), n)
        else:
            d = space.add(n, space.const(d.const * c))
    return d


def negated(ctx: Rewriter, test: Test) -> Test:
    """The negated comparison."""
    sides = test.sides
    if test.kind == ">=":
        d = ctx.space.add(ctx.space.scale(test.sum, -1), ctx.space.const(-1))
        swapped = None if sides is None else Sides(sides.right, sides.left, not sides.strict)
        return Test(">=", d, test.dtype, swapped)
    return Test("!=" if test.kind == "==" else "==", test.sum, test.dtype, sides)


def decide(ctx: Rewriter, test: Test, nonneg: Callable[[Poly], bool]) -> bool | None:
    """Whether the comparison is always true or always false; `nonneg` proves `p >= 0`."""
    space = ctx.space
    d = test.sum
    minus = space.scale(d, -1)
    if test.kind == ">=":
        if nonneg(d):
            return True
        return False if nonneg(space.add(minus, space.const(-1))) else None
    equal: bool | None = None
    step = gcd(*(c for _, c in d.terms))
    if not d.terms:
        equal = d.const == 0
    elif d.const % step or any(nonneg(space.add(p, space.const(-1))) for p in (d, minus)):
        equal = False
    elif nonneg(d) and nonneg(minus):
        equal = True
    elif test.sides is not None:
        rest = _difference(ctx, test.sides)
        equal = rest.const == 0 if rest.is_const else None
    return equal if equal is None or test.kind == "==" else not equal


def holds(ctx: Rewriter, test: Test, nonneg: Callable[[Poly], bool]) -> bool:
    """Whether the comparison is always true; `nonneg` proves `p >= 0`."""
    return nonneg(test.sum) if test.kind == ">=" else decide(ctx, test, nonneg) is True


def conjuncts(expr: Expr) -> Iterator[Expr]:
    """The conjuncts of a condition, with negations pushed inward."""
    stack = [expr]
    while stack:
        node = stack.pop()
        if isinstance(node, And):
            stack += [node.b, node.a]
        elif isinstance(node, Call) and node.op == "likely":
            stack.append(node.args[0])
        elif isinstance(node, Not) and isinstance(node.a, Or):
            stack += [Not(node.a.b), Not(node.a.a)]
        elif isinstance(node, Not) and isinstance(node.a, Not):
            stack.append(node.a.a)
        else:
            yield node


def disjuncts(expr: Expr) -> Iterator[Expr]:
    """The disjuncts of a condition, with negations pushed inward."""
    stack = [expr]
    while stack:
        node = stack.pop()
        if isinstance(node, Or):
            stack += [node.b, node.a]
        elif isinstance(node, Not) and isinstance(node.a, And):
            stack += [Not(node.a.b), Not(node.a.a)]
        elif isinstance(node, Not) and isinstance(node.a, Not):
            stack.append(node.a.a)
        else:
            yield node


def inverse(expr: Expr) -> Expr:
    """The negation of a condition; a comparison of integers is inverted instead."""
    if isinstance(expr, Not):
        return expr.a
    if isinstance(expr, CompareOp) and is_index(expr.a.dtype):
        return _INVERSE[type(expr)](expr.a, expr.b)
    return Not(expr)


# ------------------------------------------------------------------------------ simplification
def simplify_condition(ctx: Rewriter, expr: Expr) -> Expr:
    """Simplify a scalar bool expression."""
    node = ctx.space.node
    if isinstance(expr, CompareOp):
        return _simplify_compare(ctx, expr)
    if isinstance(expr, And):
        return _connect(ctx, list(conjuncts(expr)), And)
    if isinstance(expr, Or):
        return _connect(ctx, list(disjuncts(expr)), Or)
    if isinstance(expr, Not):
        return _simplify_not(ctx, expr)
    simple = simplified_operands(ctx, expr)
    if isinstance(simple, Call) and simple.op == "likely" and isinstance(simple.args[0], IntImm):
        return simple.args[0]
    if ctx.is_true(simple):
        return ctx.space.bool_node(True)
    return ctx.space.bool_node(False) if ctx.is_true(node(Not, simple)) else simple


def _simplify_compare(ctx: Rewriter, expr: CompareOp) -> Expr:
    test = test_of(ctx, expr)
    if test is None:
        simple = simplified_operands(ctx, expr)
        assert isinstance(simple, CompareOp)
        if isinstance(simple.a, IntImm) and isinstance(simple.b, IntImm):
            return ctx.space.bool_node(_compare(type(simple), simple.a.value, simple.b.value))
        return ctx.space.bool_node(True) if ctx.is_true(simple) else simple
    known = decide(ctx, test, ctx.known_nonneg)
    if known is not None:
        return ctx.space.bool_node(known)
    simple = render_test(ctx, test)
    if test.kind != ">=":
        if ctx.is_true(simple):
            return ctx.space.bool_node(True)
        if is_known(ctx, negated(ctx, test)):
            return ctx.space.bool_node(False)
    return simple


def _compare(cls: type[Any], x: int, y: int) -> bool:
    return {EQ: x == y, NE: x != y, LT: x < y, LE: x <= y, GT: x > y, GE: x >= y}[cls]


def reduced(ctx: Rewriter, test: Test) -> Poly:
    """The sum divided by the gcd of its coefficients, with canonical sign."""
    d = test.sum
    g = 0
    for _, c in d.terms:
        g = gcd(g, c)
    if test.kind != ">=" and d.terms and d.terms[0][1] < 0:
        g = -g
    if g in (0, 1):
        return d
    return ctx.space.intern(tuple((m, c // g) for m, c in d.terms), d.const // g)


def render_test(ctx: Rewriter, test: Test) -> Expr:
    """Render a comparison; for indices, negative summands are moved to the other side."""
    node = ctx.space.node
    if test.sides is not None:
        return _render_sides(ctx, test, test.sides)
    d = reduced(ctx, test)
    if not d.terms:
        holds = d.const >= 0 if test.kind == ">=" else (d.const == 0) == (test.kind == "==")
        return ctx.space.bool_node(holds)
    units = ctx.units(ctx.space.add(d, ctx.space.const(-d.const)))
    const = d.const + sum(u.coefficient for u in units if not u.rest and u.kind == "mono")
    strict = test.kind == ">=" and const != 0
    const += strict
    units = tuple(u for u in units if u.rest or u.kind != "mono")
    positive = tuple(u for u in units if u.coefficient > 0)
    negative = tuple(
        type(u)(-u.coefficient, u.rest, u.kind, u.operands) for u in units if u.coefficient < 0
    )
    extra = abs(const)
    constant = (type(units[0])(extra, (), "mono", ()),) if extra else ()
    on_right = const > 0 if negative or not positive else const >= 0
    right = render_units(ctx, positive + (constant if on_right else ()), test.dtype)
    left = render_units(ctx, negative + (() if on_right else constant), test.dtype)
    if test.kind == ">=":
        return node(LT if strict else LE, left, right)
    if positive:
        left, right = right, left  # x == 3 rather than 3 == x
    return node(EQ if test.kind == "==" else NE, left, right)


def _difference(ctx: Rewriter, sides: Sides) -> Poly:
    """The difference of two values, reduced modulo 2**n."""
    difference = ctx.space.sub(ctx.lift(sides.left), ctx.lift(sides.right))
    return ctx.space.wrapped(difference, sides.left.dtype.bits)


def _render_sides(ctx: Rewriter, test: Test, sides: Sides) -> Expr:
    """Render a comparison of values."""
    if test.kind != ">=":
        return _render_equation(ctx, test, sides)
    space, dtype = ctx.space, test.dtype
    left, right, strict = sides.left, sides.right, sides.strict
    if not strict and isinstance(right, IntImm) and right.value < dtype.max_value:
        strict, right = True, space.int_node(right.value + 1, dtype)  # x <= 3 is x < 4
    elif not strict and isinstance(left, IntImm) and left.value > dtype.min_value:
        strict, left = True, space.int_node(left.value - 1, dtype)  # 3 <= x is 2 < x
    return space.node(LT if strict else LE, left, right)


def _render_equation(ctx: Rewriter, test: Test, sides: Sides) -> Expr:
    """Render an (in)equality of values.

    Values are equal if their difference is 0 modulo 2**n, so summands may be moved between the
    sides. Sums of indices are not moved, because a sum of indices is assumed not to wrap around.
    """
    space, dtype = ctx.space, test.dtype
    cls = EQ if test.kind == "==" else NE
    d = _difference(ctx, sides)
    if d.is_const:
        return space.bool_node((d.const == 0) == (cls is EQ))
    if not all(any(space.atoms[a].wraps for a in m) for m, _ in d.terms):
        left, right = sides.left, sides.right
        return space.node(cls, *((right, left) if isinstance(left, IntImm) else (left, right)))
    if d.terms[0][1] < 0:
        d = space.wrapped(space.scale(d, -1), dtype.bits)
    positive = space.make({m: c for m, c in d.terms if c > 0}, 0)
    rest = space.wrapped(space.sub(positive, d), dtype.bits)
    return space.node(cls, ctx.lower(positive, dtype), ctx.lower(rest, dtype))


def is_known(ctx: Rewriter, test: Test) -> bool:
    """Whether the comparison, in rendered form, is among the known conditions."""
    try:
        return ctx.is_true(render_test(ctx, test))
    except Unwritable:
        return False


def _simplify_not(ctx: Rewriter, expr: Not) -> Expr:
    inner = expr.a
    if isinstance(inner, (Not, CompareOp)):
        opposite = inverse(inner)
        if not isinstance(opposite, Not):
            return ctx.simplify(opposite)
    simple = ctx.simplify(inner)
    if isinstance(simple, IntImm):
        return ctx.space.bool_node(not simple.value)
    if isinstance(simple, Not):
        return simple.a
    result = ctx.space.node(Not, simple)
    if ctx.is_true(result):
        return ctx.space.bool_node(True)
    return ctx.space.bool_node(False) if ctx.is_true(simple) else result


def _connect(ctx: Rewriter, parts: list[Expr], cls: type[And] | type[Or]) -> Expr:
    """A conjunction or disjunction without redundant parts; constant if parts contradict."""
    neutral = cls is And  # the neutral element
    kept: list[Expr] = []
    present: set[Expr] = set()
    negated: set[Expr] = set()  # parts whose negation is kept
    sums: dict[Any, tuple[int, int]] = {}  # left side → constant and position
    for part in parts:
        simple = ctx.simplify(part)
        for piece in conjuncts(simple) if cls is And else disjuncts(simple):
            if isinstance(piece, IntImm):
                if bool(piece.value) != neutral:
                    return piece
                continue
            if piece in present:
                continue
            if piece in negated or (isinstance(piece, Not) and piece.a in present):
                return ctx.space.bool_node(not neutral)
            verdict = _against(ctx, piece, sums, len(kept), neutral)
            if verdict == "drop":
                continue
            if verdict == "absorb":
                return ctx.space.bool_node(not neutral)
            if isinstance(verdict, int):
                old = kept[verdict]
                present.discard(old)
                if isinstance(old, Not):
                    negated.discard(old.a)
                kept[verdict] = piece
            else:
                kept.append(piece)
            present.add(piece)
            if isinstance(piece, Not):
                negated.add(piece.a)
    if not kept:
        return ctx.space.bool_node(neutral)
    result = kept[0]
    for piece in kept[1:]:
        result = ctx.space.node(cls, result, piece)
    return result


def _against(
    ctx: Rewriter, piece: Expr, sums: dict[Any, tuple[int, int]], position: int, neutral: bool
) -> str | int | None:
    """Compare an inequality with earlier ones over the same sum.

    Returns:
        "drop" if redundant; "absorb" if the whole connective is constant; a number: position of the
        earlier part to replace; None: keep.
    """
    test = test_of(ctx, piece)
    if test is None or test.kind != ">=" or not test.sum.terms:
        return None
    d = reduced(ctx, test)
    opposite = sums.get(tuple((m, -c) for m, c in d.terms))
    if opposite is not None:  # t + const >= 0 and -t + other >= 0
        if neutral and d.const + opposite[0] < 0:
            return "absorb"
        if not neutral and d.const + opposite[0] >= -1:
            return "absorb"
    known = sums.get(d.terms)
    if known is not None:
        tighter = d.const < known[0]
        if tighter == neutral and d.const != known[0]:
            sums[d.terms] = (d.const, known[1])
            return known[1]
        return "drop"
    sums[d.terms] = (d.const, position)
    return None


def room_of(ctx: Rewriter, condition: Expr) -> Expr | None:
    """An integer expression that is non-negative exactly if a comparison of indices holds.

    None for other conditions, and if an operand is a value, because the difference may wrap around.
    """
    if not isinstance(condition, CompareOp) or not is_index(condition.a.dtype):
        return None
    if ctx.is_value(condition.a) or ctx.is_value(condition.b):
        return None
    match condition:
        case LT():
            return sub(sub(condition.b, condition.a), 1)
        case LE():
            return sub(condition.b, condition.a)
        case GT():
            return sub(sub(condition.a, condition.b), 1)
        case GE():
            return sub(condition.a, condition.b)
        case _:
            return None

"""Predicates of iterator maps: `sum < bound` limits the extent of the mark fused from the sum."""

from __future__ import annotations

from blockwright.arith.condition import conjuncts, test_of
from blockwright.arith.form import Poly
from blockwright.arith.itermark import IterMark, IterSplit
from blockwright.arith.iterparse import NotAffine, Parser
from blockwright.ir import Expr, Var, uses_var


def constrain(parser: Parser, predicate: Expr) -> Expr | None:
    """Apply `sum < bound` conditions to marks; returns a condition of another form, or None."""
    result: list[tuple[Expr, Poly, Poly]] = []
    left: Expr | None = None
    for part in conjuncts(predicate):
        test = test_of(parser.analyzer, part)
        if test is None or test.kind != ">=":
            if not _trivial(parser, part):
                left = part if left is None else left
            continue
        if parser.analyzer.holds(test.sum):
            continue
        moving, fixed = _separate(parser, test.sum)
        if not moving.terms:
            continue  # a condition on symbols alone
        result.append((part, moving, fixed))
    for part, moving, fixed in sorted(result, key=lambda f: len(f[1].terms)):
        if not _bound_sum(parser, moving, fixed):
            left = part if left is None else left
    return left


def _trivial(parser: Parser, part: Expr) -> bool:
    """Whether a condition is implied or does not involve the iterators."""
    return not uses_var(part, set(parser.variables)) or parser.analyzer.prove(part)


def _separate(parser: Parser, p: Poly) -> tuple[Poly, Poly]:
    """Split a sum into the part that depends on iterators and the rest."""
    moving = {m: c for m, c in p.terms if any(parser.atom_moves(a) for a in m)}
    fixed = {m: c for m, c in p.terms if m not in moving}
    return parser.space.make(moving, 0), parser.space.make(fixed, p.const)


def _bound_sum(parser: Parser, moving: Poly, fixed: Poly) -> bool:
    """Apply `moving + fixed >= 0`: an upper bound of `-moving`, or a lower bound of a variable."""
    space = parser.space
    if len(moving.terms) == 1 and _raise_start(parser, moving, fixed):
        return True
    try:
        whole = parser.fuse(parser.parse(space.scale(moving, -1)))
    except NotAffine:
        return False
    if not whole.args:  # no iterator is left
        return parser.analyzer.holds(space.sub(fixed, parser.poly(whole.base)))
    split = whole.args[0]
    scale = parser.poly(split.scale)
    mark = split.source
    if not _is_top(parser, split) or not parser.analyzer.nonneg(scale):
        return False
    limit = space.sub(fixed, parser.poly(whole.base))  # scale * x <= limit
    bound = space.add(parser.analyzer.floordiv(limit, scale), space.one)
    bound = space.mul(bound, parser.poly(split.lower_factor))  # x // 4 < 3 is x < 12
    extent = parser.analyzer.minimum([parser.poly(mark.extent), bound])
    narrowed = IterMark(mark.source, parser.expr(extent), mark.start)
    if isinstance(mark.source, Var):
        parser.marks[mark.source] = narrowed
        return True
    for key, known in list(parser.fused.items()):
        if known is mark:
            parser.fused[key] = narrowed
    parser.constrained = [m for m in parser.constrained if m is not mark]
    parser.constrained.append(narrowed)
    return True


def _is_top(parser: Parser, split: IterSplit) -> bool:
    """Whether the digit is the mark itself or a quotient of it, not a remainder."""
    lower, extent = parser.poly(split.lower_factor), parser.poly(split.extent)
    return parser.space.mul(lower, extent) is parser.poly(split.source.extent)


def _raise_start(parser: Parser, moving: Poly, fixed: Poly) -> bool:
    """Apply `c * var + fixed >= 0` with positive `c` by raising the start of the variable."""
    space = parser.space
    (mono, c) = moving.terms[0]
    var = parser.atoms.get(mono[0]) if len(mono) == 1 else None
    if var is None or c < 0:
        return False
    mark = parser.marks[var]
    start = space.zero if mark.start is None else parser.poly(mark.start)
    first = space.scale(parser.analyzer.floordiv(fixed, space.const(c)), -1)
    end = space.add(start, parser.poly(mark.extent))
    operands = [space.scale(p, -1) for p in (start, first)]
    later = space.scale(parser.analyzer.minimum(operands), -1)
    parser.marks[var] = IterMark(var, parser.expr(space.sub(end, later)), parser.expr(later))
    return True

"""Rendering of canonical sums as expressions."""

from __future__ import annotations

from blockwright.arith.form import Mono, Poly, Rewriter, Summand, without
from blockwright.ir import Add, Cast, Expr, FloorDiv, FloorMod, Max, Min, Mul, Sub, Var
from blockwright.ir.dtype import INT64, DType
from blockwright.support import IRError

_FAR = 1 << 31  # index times a smaller coefficient is assumed to fit 64 bits


class Unwritable(IRError):
    """A canonical sum has a coefficient or constant that no integer type can hold."""


def render(ctx: Rewriter, p: Poly, dtype: DType) -> Expr:
    """Render `p` as an expression of an index type."""
    wrapping = _render_wrapping(ctx, p, dtype) if p.wraps and dtype.bits >= INT64.bits else None
    return render_units(ctx, ctx.units(p), dtype) if wrapping is None else wrapping


def _render_wrapping(ctx: Rewriter, p: Poly, dtype: DType) -> Expr | None:
    """Render a wrapping sum that has large coefficients; None for any other sum.

    Index arithmetic must not overflow 64 bits, so a large factor or constant is applied to a
    subexpression that contains a value, which may wrap, and never to indices alone.
    Before: (a[i] + i) * C
    After:  the same, not a[i] * C + i * C
    """
    space = ctx.space
    values: list[tuple[Mono, int]] = []
    indices: list[tuple[Mono, int]] = []
    for mono, coefficient in p.terms:
        loose = any(space.atoms[number].wraps for number in mono)
        (values if loose else indices).append((mono, coefficient))
    if indices and abs(p.const) >= _FAR:
        rest = ctx.lower(space.sub(p, space.const(p.const)), dtype)
        return space.node(Add, rest, number(ctx, p.const, dtype))
    factor = next((c for _, c in indices if abs(c) >= _FAR), None)
    if factor is None:
        return None
    value = next((mono for mono, c in values if c == factor), values[0][0])
    terms = {mono: 1 for mono, c in indices if c == factor} | {value: 1}
    inner = space.make(terms, 0)
    product = space.node(Mul, ctx.lower(inner, dtype), number(ctx, factor, dtype))
    rest_sum = space.wrapped(space.sub(p, space.scale(inner, factor)), dtype.bits)
    if rest_sum is space.zero:
        return product
    return space.node(Add, product, ctx.lower(rest_sum, dtype))


def render_units(ctx: Rewriter, units: tuple[Summand, ...], dtype: DType) -> Expr:
    """Render a sum: positive summands first, the constant last."""
    node = ctx.space.node
    const = sum(u.coefficient for u in units if u.kind == "mono" and not u.rest)
    rest = [u for u in units if u.kind != "mono" or u.rest]
    rest.sort(key=lambda u: (_subtracted(u.coefficient, dtype), _order(u)))
    result: Expr | None = None
    for unit in rest:
        if not _subtracted(unit.coefficient, dtype):
            part = _unit(ctx, unit, unit.coefficient, dtype)
            result = part if result is None else node(Add, result, part)
            continue
        if result is None:
            result, const = number(ctx, const, dtype), 0
        result = node(Sub, result, _unit(ctx, unit, -unit.coefficient, dtype))
    if result is None:
        return number(ctx, const, dtype)
    if _subtracted(const, dtype):
        return node(Sub, result, number(ctx, -const, dtype))
    return node(Add, result, number(ctx, const, dtype)) if const else result


def _subtracted(coefficient: int, dtype: DType) -> bool:
    """Whether a summand is rendered with a minus; the type's minimum cannot be negated."""
    return coefficient < 0 and coefficient != dtype.min_value


def number(ctx: Rewriter, value: int, dtype: DType) -> Expr:
    """A constant; one out of range of the type is written as int64 and cast.

    Raises:
        Unwritable: the constant does not fit 64 bits either.
    """
    if dtype.min_value <= value <= dtype.max_value:
        return ctx.space.int_node(value, dtype)
    if not INT64.min_value <= value <= INT64.max_value:
        raise Unwritable(f"{value} does not fit 64 bits")
    return ctx.space.node(Cast, dtype, ctx.space.int_node(value, INT64))


def _order(unit: Summand) -> tuple[int, ...]:
    numbers = set(unit.rest)
    for p in unit.operands:
        numbers.update(a for m, _ in p.terms for a in m)
    return tuple(sorted(numbers))


def _unit(ctx: Rewriter, unit: Summand, coefficient: int, dtype: DType) -> Expr:
    """Render one summand, with the given positive coefficient instead of its own."""
    factors, coefficient = _factors(ctx, unit.rest, coefficient, dtype)
    if unit.kind != "mono":
        wide = _width(ctx, unit.operands, dtype)
        if unit.kind == "mod":
            a, b = (ctx.lower(p, wide) for p in unit.operands)
            value = ctx.space.node(FloorMod, a, b)
        else:
            value = _extremum(ctx, Min if unit.kind == "min" else Max, unit.operands, wide)
        factors.append(_typed(ctx, value, dtype))
    if not factors:
        return number(ctx, coefficient, dtype)
    result = factors[0]
    for factor in factors[1:]:
        result = ctx.space.node(Mul, result, factor)
    if coefficient != 1:
        result = ctx.space.node(Mul, result, number(ctx, coefficient, dtype))
    return result


def _factors(ctx: Rewriter, mono: Mono, coefficient: int, dtype: DType) -> tuple[list[Expr], int]:
    left = list(mono)
    wholes: list[Var] = []
    for number in mono:
        whole = ctx.exact_division(number)
        if whole is None or coefficient % whole[1][1]:
            continue
        var, (symbols, c) = whole  # (n // 4) * 8 is n * 2 if 4 divides n; t * (n // t) is n
        rest = without(tuple(left), (number, *symbols))
        if rest is not None:
            coefficient //= c
            left = list(rest)
            wholes.append(var)
    factors = [_typed(ctx, var, dtype) for var in wholes]
    return [*factors, *(_atom(ctx, number, dtype) for number in left)], coefficient


def _width(ctx: Rewriter, operands: tuple[Poly, ...], dtype: DType) -> DType:
    """Type to divide or compare in.

    A 64-bit variable may be out of range of a narrower type, even if the result is not.
    """
    wide = dtype.bits < 64 and any(_has_wide(ctx, p, dtype.bits) for p in operands)
    return INT64 if wide else dtype


def _has_wide(ctx: Rewriter, p: Poly, bits: int) -> bool:
    """Whether a sum uses a wider variable, other than inside loads and calls."""
    atoms = (ctx.space.atoms[number] for mono, _ in p.terms for number in mono)
    return any(
        (isinstance(atom.node, Var) and atom.node.type.bits > bits)
        or any(_has_wide(ctx, q, bits) for q in atom.operands)
        for atom in atoms
    )


def _typed(ctx: Rewriter, node: Expr, dtype: DType) -> Expr:
    return node if node.dtype is dtype else ctx.space.node(Cast, dtype, node)


def _atom(ctx: Rewriter, number: int, dtype: DType) -> Expr:
    atom = ctx.space.atoms[number]
    wide = _width(ctx, atom.operands, dtype)
    if atom.kind == "div":
        a, b = (ctx.lower(p, wide) for p in atom.operands)
        return _typed(ctx, ctx.space.node(FloorDiv, a, b), dtype)
    if atom.kind == "min":
        result = _extremum(ctx, Min, (*atom.operands, ctx.space.zero), wide)
        return _typed(ctx, result, dtype)
    assert atom.node is not None
    return _typed(ctx, atom.node, dtype)


def _extremum(
    ctx: Rewriter, cls: type[Min] | type[Max], operands: tuple[Poly, ...], dtype: DType
) -> Expr:
    ordered = sorted(operands, key=lambda p: (p.is_const, p.number))
    result = ctx.lower(ordered[0], dtype)
    for p in ordered[1:]:
        result = ctx.space.node(cls, result, ctx.lower(p, dtype))
    return result

"""Reshapes: match the dimensions of two shapes with equal element count, including symbolic ones.

A dimension is factored into an integer and a multiset of symbolic factors, so that for
(b, s, 384) → (b, s, 12, 32) only the last dimension is recognized as split, whatever b and s are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockwright import ir
from blockwright.ops.common import I64, ZERO, as_dim
from blockwright.ops.row import OpContext, UnequalSizes, dims_text
from blockwright.support import GraphError


class SymbolicProduct:
    """A product of an integer and symbolic factors."""

    def __init__(self, dims: Sequence[ir.Expr] = ()) -> None:
        self.number = 1
        self.factors: list[ir.Expr] = []
        for dim in dims:
            self.multiply(dim)

    def multiply(self, dim: ir.Expr) -> None:
        """Multiply by a dimension, factoring products."""
        if isinstance(dim, ir.IntImm):
            self.number *= dim.value
        elif isinstance(dim, ir.Mul):
            self.multiply(dim.a)
            self.multiply(dim.b)
        else:
            self.factors.append(dim)

    def expr(self) -> ir.Expr:
        """The product as an expression."""
        out: ir.Expr = as_dim(self.number)
        for factor in self.factors:
            out = ir.mul(factor, out) if ir.is_const_int(out) else ir.mul(out, factor)
        return out

    def without(
        self, other: SymbolicProduct, ctx: OpContext
    ) -> tuple[list[ir.Expr], list[ir.Expr]]:
        """Factors only in `self` and only in `other`, after canceling equal ones."""
        mine, theirs = list(self.factors), list(other.factors)
        for factor in list(mine):
            match = next((f for f in theirs if f is factor or ctx.equal(f, factor)), None)
            if match is not None:
                mine = [f for f in mine if f is not factor] + [f for f in mine if f is factor][1:]
                theirs = [f for f in theirs if f is not match] + [f for f in theirs if f is match][
                    1:
                ]
        return mine, theirs

    def same(self, other: SymbolicProduct, ctx: OpContext) -> bool:
        """Whether the two are provably equal."""
        mine, theirs = self.without(other, ctx)
        if not mine and not theirs:
            return self.number == other.number
        return ctx.analyzer.prove_equal(self.expr(), other.expr())


def _unequal(
    ctx: OpContext,
    shape: Sequence[ir.Expr],
    wanted: Sequence[ir.Expr],
    total: SymbolicProduct,
    known: SymbolicProduct,
) -> GraphError:
    """The error for shapes that are not known to have as many elements; it names the sizes that
    decide whether they have, if these are single ones."""
    message = (
        f"{ctx.name}: cannot turn shape ({dims_text(*shape)}) into ({dims_text(*wanted)}): "
        f"{dims_text(total.expr())} and {dims_text(known.expr())} elements"
    )
    help = "the number of elements must be the same"
    mine, theirs = total.without(known, ctx)
    numbers = total.number, known.number
    if len(mine) <= 1 and len(theirs) <= 1 and all(numbers):
        first, second = mine or theirs, theirs if mine else []
        more, fewer = numbers[::-1] if mine else numbers
        if second and numbers[0] == numbers[1]:
            return UnequalSizes(message, first[0], second[0], help)
        if first and not second and more % fewer == 0:
            return UnequalSizes(message, first[0], as_dim(more // fewer), help)
    if mine and not theirs and numbers[0] == numbers[1]:
        return UnequalSizes(message, mine[0], as_dim(1), help)
    return ctx.error(message.removeprefix(f"{ctx.name}: "), help)


def resolve(
    ctx: OpContext, shape: Sequence[ir.Expr], wanted: Sequence[ir.Expr]
) -> tuple[ir.Expr, ...]:
    """The requested shape with a -1 resolved; raises if the element counts differ."""
    holes = [i for i, d in enumerate(wanted) if ir.is_const_int(d, -1)]
    if len(holes) > 1:
        raise ctx.error("more than one dimension is -1")
    total = SymbolicProduct(shape)
    if not holes:
        known = SymbolicProduct(wanted)
        if not total.same(known, ctx):
            raise _unequal(ctx, shape, wanted, total, known)
        return tuple(wanted)
    known = SymbolicProduct([d for i, d in enumerate(wanted) if i != holes[0]])
    mine, theirs = total.without(known, ctx)
    if known.number == 0 or (not theirs and total.number % known.number and not mine):
        raise ctx.error(f"-1 has no solution: ({dims_text(*shape)}) into ({dims_text(*wanted)})")
    rest = SymbolicProduct()
    rest.number, rest.factors = total.number, mine
    if not theirs and total.number % known.number == 0:
        rest.number //= known.number
        dim = rest.expr()
    else:
        below = SymbolicProduct()
        below.number, below.factors = known.number, theirs
        whole, part = rest.expr(), below.expr()
        ctx.require(
            ir.compare(ir.EQ, ir.floormod(whole, part), as_dim(0)),
            f"-1 has no solution: ({dims_text(*shape)}) into ({dims_text(*wanted)})",
        )
        dim = ctx.analyzer.simplify(ir.floordiv(whole, part))
    return tuple(dim if i == holes[0] else d for i, d in enumerate(wanted))


Group = tuple[list[int], list[int]]


def _groups(ctx: OpContext, source: Sequence[ir.Expr], target: Sequence[ir.Expr]) -> list[Group]:
    """Smallest runs of source and target dimensions, ignoring ones, with equal products."""
    ins = [i for i, d in enumerate(source) if not ir.is_const_int(d, 1)]
    outs = [i for i, d in enumerate(target) if not ir.is_const_int(d, 1)]
    groups: list[Group] = []
    while ins and outs:
        left, right = [ins.pop(0)], [outs.pop(0)]
        while True:
            a = SymbolicProduct([source[i] for i in left])
            b = SymbolicProduct([target[i] for i in right])
            if a.same(b, ctx):
                break
            mine, theirs = a.without(b, ctx)
            grow_left = (bool(theirs) and not mine) or (
                bool(theirs) == bool(mine) and a.number < b.number
            )
            if (grow_left and ins) or not outs:
                if not ins:
                    break
                left.append(ins.pop(0))
            else:
                right.append(outs.pop(0))
        groups.append((left, right))
    if ins or outs:  # only the total sizes agree: one group of all dimensions
        return [(list(range(len(source))), list(range(len(target))))]
    return groups


def source_index(
    ctx: OpContext, source: Sequence[ir.Expr], target: Sequence[ir.Expr], indices: Sequence[Any]
) -> tuple[Any, ...]:
    """Index into `source` of the element at `indices` in the same data of shape `target`."""
    out: list[Any] = [ZERO] * len(source)
    for position, (a, b) in enumerate(zip(source, target, strict=False)):
        if not (ir.is_const_int(a, 1) and ir.is_const_int(b, 1)):
            break
        out[position] = indices[position]  # also 0, but preserves which axis it is (a batch of 1)
    for left, right in _groups(ctx, source, target):
        linear: Any = indices[right[0]]
        for position in right[1:]:
            linear = ir.add(ir.mul(linear, target[position]), indices[position])
        for order, position in enumerate(left):
            below = SymbolicProduct([source[p] for p in left[order + 1 :]]).expr()
            digit = linear if ir.is_const_int(below, 1) else ir.floordiv(linear, below)
            out[position] = digit if order == 0 else ir.floormod(digit, source[position])
    return tuple(ir.cast_to(i, I64) for i in out)


def element_count(shape: Sequence[ir.Expr]) -> ir.Expr:
    """The number of elements of a tensor."""
    return SymbolicProduct(shape).expr()

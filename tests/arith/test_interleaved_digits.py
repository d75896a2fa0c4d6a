"""Sums of digits of several iterators, interleaved: accepted, and only when one to one."""

from __future__ import annotations

import itertools
import random

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.arith import Analyzer, IndexMap, IterMapError, require_iter_map
from blockwright.ir import Expr, Range, Var


def _digits(var: Var, sizes: list[int]) -> list[tuple[Expr, int]]:
    """The digits of a variable over the product of the sizes, innermost first."""
    found: list[tuple[Expr, int]] = []
    scale, total = 1, 1
    for size in sizes:
        total *= size
    for size in sizes:
        digit: Expr = var if scale == 1 else ir.floordiv(var, scale)
        found.append((digit if scale * size == total else ir.floormod(digit, size), size))
        scale *= size
    return found


def _sum(parts: list[tuple[Expr, int]], step: int = 1) -> Expr:
    """The parts as a mixed-radix number."""
    total: Expr = ir.const(0, "int32")
    for digit, size in parts:
        total = ir.add(total, ir.mul(digit, step))
        step *= size
    return total


def _values(exprs: list[Expr], sizes: dict[Var, int]) -> list[tuple[int, ...]]:
    """The indices at every point, by substitution."""
    out: list[tuple[int, ...]] = []
    for point in itertools.product(*(range(n) for n in sizes.values())):
        at = {v: ir.const(p, v.type) for v, p in zip(sizes, point, strict=True)}
        out.append(tuple(ir.const_int(Analyzer().simplify(ir.substitute(e, at))) for e in exprs))
    return out


def _bijective(exprs: list[Expr], sizes: dict[Var, int]) -> bool:
    domains = {v: Range(ir.const(0, v.type), ir.const(n, v.type)) for v, n in sizes.items()}
    try:
        require_iter_map(exprs, domains, None, Analyzer(), "bijective")
    except IterMapError:
        return False
    return True


@pytest.mark.parametrize("seed", range(40))
def test_digits_in_any_order_and_grouping_are_one_to_one(seed: int) -> None:
    rnd = random.Random(seed)
    x, y = Var("x", ir.dtype_of("int32")), Var("y", ir.dtype_of("int32"))
    of_x = [rnd.choice((2, 3)) for _ in range(rnd.randint(1, 3))]
    of_y = [rnd.choice((2, 3, 5)) for _ in range(rnd.randint(1, 2))]
    digits = _digits(x, of_x) + _digits(y, of_y)
    rnd.shuffle(digits)
    cut = rnd.randint(0, len(digits))
    groups = [g for g in (digits[:cut], digits[cut:]) if g]
    sizes = {x: 1, y: 1}
    for n in of_x:
        sizes[x] *= n
    for n in of_y:
        sizes[y] *= n
    exprs = [_sum(g) for g in groups]
    assert len(set(_values(exprs, sizes))) == sizes[x] * sizes[y]
    assert _bijective(exprs, sizes)


@pytest.mark.parametrize("seed", range(60))
def test_other_scales_are_accepted_only_when_one_to_one(seed: int) -> None:
    rnd = random.Random(1000 + seed)
    x, y = Var("x", ir.dtype_of("int32")), Var("y", ir.dtype_of("int32"))
    sizes = {x: rnd.choice((4, 6, 9, 10)), y: rnd.choice((4, 6, 9, 10))}
    terms = [x, y, ir.floordiv(x, 2), ir.floordiv(x, 3), ir.floormod(y, 3), ir.floordiv(y, 2)]
    total: Expr = ir.const(0, "int32")
    for term in rnd.sample(terms, 3):
        total = ir.add(total, ir.mul(term, rnd.choice((1, 2, 3, 6, 9, 18))))
    exprs = [total, rnd.choice(terms)]
    if _bijective(exprs, sizes):
        found = _values(exprs, sizes)
        assert len(set(found)) == len(found)


def test_a_layout_of_interleaved_digits_has_an_inverse() -> None:
    layout = IndexMap.from_func(lambda y, x: (y // 3 * 6 + x // 5 * 3 + y % 3, x % 5), 2)
    shape = [ir.const(9, "int64"), ir.const(10, "int64")]
    assert [ir.const_int(e) for e in layout.map_shape(shape)] == [18, 5]
    back = layout.inverse(shape)
    for y, x in itertools.product(range(9), range(10)):
        at = [ir.const(v, "int64") for v in (y, x)]
        again = back.apply(layout.apply(at))
        assert [ir.const_int(e) for e in again] == [y, x]


def test_the_layout_in_a_schedule() -> None:
    program = bw.from_source("""
@T.prim_func
def main(A: T.Buffer((9, 10), "float32"), C: T.Buffer((9, 10), "float32")):
    B = T.alloc_buffer((9, 10))
    for y, x in T.grid(9, 10):
        with T.block("B"):
            vy, vx = T.axis.remap("SS", [y, x])
            B[vy, vx] = A[vy, vx]
    for y, x in T.grid(9, 10):
        with T.block("C"):
            vy, vx = T.axis.remap("SS", [y, x])
            C[vy, vx] = B[vy, vx]
""")
    sch = bw.Schedule(program)
    sch.transform_layout("B", "B", lambda y, x: (y // 3 * 6 + x // 5 * 3 + y % 3, x % 5))
    sch.transform_block_layout("C", lambda y, x: (y // 3 * 6 + x // 5 * 3 + y % 3, x % 5))
    assert bw.verify(program, sch.func).verdict == "proved"

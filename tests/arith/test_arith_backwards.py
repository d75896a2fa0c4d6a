"""Indices that fall with a loop: `n - 1 - i` numbers the iterations as well as `i` does."""

from __future__ import annotations

import itertools
import random

import pytest

from blockwright import ir
from blockwright.arith import (
    Analyzer,
    IndexMap,
    IterMapError,
    Level,
    detect_iter_map,
    inverse_map,
    is_bijective,
)

INT64 = ir.dtype_of("int64")
I0, J, K, N = (ir.Var(name, INT64) for name in "ijkn")
LEVELS: tuple[Level, ...] = ("independent", "injective", "surjective", "bijective")


def loops(**extents: int | ir.Expr) -> dict[ir.Var, ir.Range]:
    known = {"i": I0, "j": J, "k": K}
    return {
        known[name]: ir.Range(ir.const(0, INT64), ir.as_expr(extent, INT64))
        for name, extent in extents.items()
    }


def value(expr: ir.Expr, at: dict[ir.Var, int]) -> int:
    found = Analyzer().simplify(ir.substitute(expr, {v: ir.const(x, INT64) for v, x in at.items()}))
    assert isinstance(found, ir.IntImm)
    return found.value


def text(expr: ir.Expr) -> str:
    return str(expr).replace("T.int64", "").replace("(", "").replace(")", "")


def test_an_index_may_count_down() -> None:
    assert is_bijective([7 - I0], loops(i=8), None, Analyzer())
    assert is_bijective([11 - I0 * 4 - J], loops(i=3, j=4), None, Analyzer())
    assert is_bijective([I0 * 4 + 3 - J], loops(i=3, j=4), None, Analyzer())
    assert is_bijective([5 - I0 // 2, 1 - I0 % 2], loops(i=12), None, Analyzer())
    assert is_bijective([(11 - I0) // 4, (11 - I0) % 4], loops(i=12), None, Analyzer())


def test_the_size_may_be_a_symbol() -> None:
    known = Analyzer()
    known.learn(ir.compare(ir.GE, N, 1))
    assert is_bijective([N - 1 - I0], loops(i=N), None, known)
    assert is_bijective([N * 4 - 1 - I0 * 4 - J], loops(i=N, j=4), None, known)


def test_a_digit_forwards_and_backwards_is_used_twice() -> None:
    assert not detect_iter_map([I0, 7 - I0], loops(i=8), None, Analyzer(), "independent").ok
    assert not is_bijective([7 - I0 * 2], loops(i=4), None, Analyzer())
    assert not is_bijective([I0 - J], loops(i=4, j=4), None, Analyzer())


def test_a_bound_on_the_sum_does_not_vanish_when_the_index_falls() -> None:
    """`4 * i + j >= 2` takes two points away, whichever way they are counted."""
    bound = ir.compare(ir.GE, I0 * 4 + J, 2)
    assert not is_bijective([I0, J], loops(i=3, j=4), bound, Analyzer())
    assert not is_bijective([I0, 3 - J], loops(i=3, j=4), bound, Analyzer())
    found = detect_iter_map([11 - I0 * 4 - J], loops(i=3, j=4), bound, Analyzer(), "bijective")
    assert found.ok
    assert value(found.indices[0].base, {}) == 0
    assert value(found.indices[0].args[0].extent, {}) == 10


def test_the_inverse_counts_down_too() -> None:
    out = ir.Var("out", INT64)
    solved = inverse_map([11 - I0 * 4 - J], loops(i=3, j=4), [out], Analyzer())
    for i, j in itertools.product(range(3), range(4)):
        assert value(solved[I0], {out: 11 - i * 4 - j}) == i
        assert value(solved[J], {out: 11 - i * 4 - j}) == j


def test_an_iterator_left_with_one_value_is_inverted_to_it() -> None:
    out = ir.Var("out", INT64)
    last = ir.compare(ir.GE, I0, 3)
    solved = inverse_map([I0], loops(i=4), [out], Analyzer(), last)
    assert value(solved[I0], {out: 3}) == 3


def test_a_layout_may_be_turned_around() -> None:
    turned = IndexMap.from_func(lambda i, j: (7 - i, j), 2)
    back = turned.inverse((ir.const(8, INT64), ir.const(4, INT64)))
    first, second = back.initial
    assert [value(e, {first: 2, second: 3}) for e in back.final] == [5, 3]
    tiles = IndexMap.from_func(lambda i: ((9 - i) // 4, (9 - i) % 4), 1)
    back, outside = tiles.non_surjective_inverse((ir.const(10, INT64),))
    first, second = back.initial
    for i, j in itertools.product(range(3), range(4)):
        at = {first: i, second: j}
        missing = bool(value(outside, at))
        assert missing == (9 - i * 4 - j < 0)
        assert missing or value(back.final[0], at) == 9 - i * 4 - j


def _index(chance: random.Random, extents: dict[ir.Var, int]) -> ir.Expr:
    """I0 sum of loops, quotients and remainders with factors of either sign."""
    total: ir.Expr = ir.const(chance.randint(0, 12), INT64)
    for _ in range(chance.randint(1, 3)):
        term: ir.Expr = chance.choice(list(extents))
        if chance.random() < 0.3:
            term = chance.choice((2, 3, 5)) - term
        kind = chance.choice(("whole", "whole", "div", "mod"))
        if kind != "whole":
            by = chance.choice((2, 3))
            term = ir.floordiv(term, by) if kind == "div" else ir.floormod(term, by)
        total = ir.add(total, ir.mul(term, chance.choice((1, -1, 2, -2, 3, 4, -4))))
    return total


def _fused(chance: random.Random, extents: dict[ir.Var, int]) -> list[ir.Expr]:
    """All loops as one number, counted down from somewhere; at times split again."""
    whole: ir.Expr = ir.const(0, INT64)
    for var, extent in extents.items():
        whole = whole * extent + var
    whole = chance.randint(0, 30) - whole
    by = list(extents.values())[-1]
    return [whole] if chance.random() < 0.5 else [ir.floordiv(whole, by), ir.floormod(whole, by)]


@pytest.mark.parametrize("seed", range(120))
def test_what_is_said_of_a_map_holds_at_every_point(seed: int) -> None:
    chance = random.Random(seed)
    extents = {v: chance.choice((2, 3, 4, 6)) for v in (I0, J, K)[: chance.randint(1, 3)]}
    indices = (
        _fused(chance, extents)
        if chance.random() < 0.4
        else [_index(chance, extents) for _ in range(chance.randint(1, len(extents)))]
    )
    bound: ir.Expr | None = None
    if chance.random() < 0.4:
        kind = chance.choice((ir.LT, ir.GE))
        found = ir.compare(
            kind, chance.choice([*indices, _index(chance, extents)]), chance.randint(-3, 9)
        )
        bound = None if isinstance(found, ir.IntImm) else found
    spans = (range(e) for e in extents.values())
    every = [dict(zip(extents, at, strict=True)) for at in itertools.product(*spans)]
    points = [at for at in every if bound is None or value(bound, at)]
    images = [tuple(value(e, at) for e in indices) for at in points]
    if not points:
        return
    domains = {v: ir.Range(ir.const(0, INT64), ir.const(e, INT64)) for v, e in extents.items()}
    columns = [sorted(set(column)) for column in zip(*images, strict=True)]
    box = 1
    for column in columns:
        box *= len(column)
    for level in LEVELS:
        if not detect_iter_map(indices, domains, bound, Analyzer(), level).ok:
            continue
        if level in ("surjective", "bijective") or (bound is None and level == "independent"):
            assert len(set(images)) == box, level
        if level in ("surjective", "bijective"):
            assert all(c[-1] - c[0] + 1 == len(c) for c in columns), level
        if level in ("injective", "bijective"):
            assert len(set(images)) == len(images), level
    outputs = [ir.Var(f"o{k}", INT64) for k in range(len(indices))]
    try:
        solved = inverse_map(indices, domains, outputs, Analyzer(), bound)
    except IterMapError:
        return
    for at, image in zip(points, images, strict=True):
        there = dict(zip(outputs, image, strict=True))
        assert {v: value(solved[v], there) for v in extents} == at

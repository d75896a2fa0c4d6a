"""Iterator maps: which bindings are accepted, what is found, and dividing them for blocks."""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.arith import (
    Analyzer,
    IterMapError,
    Level,
    detect_iter_map,
    is_bijective,
    iter_expr,
    require_iter_map,
    subspace_divide,
)
from blockwright.arith.text import expr_text
from blockwright.ir import Expr, Range, Var

I0, J, K, F, N, M = (ir.var(c, "int64") for c in "ijkfnm")


def const(value: int) -> Expr:
    return ir.const(value, "int64")


def loops(**extents: Expr | int) -> dict[Var, Range]:
    names = {"i": I0, "j": J, "k": K, "f": F}
    return {
        names[n]: Range(const(0), e if isinstance(e, Expr) else const(e))
        for n, e in extents.items()
    }


def accepted(
    indices: list[Expr],
    iters: dict[Var, Range],
    predicate: Expr | None = None,
    level: Level = "bijective",
) -> bool:
    return detect_iter_map(indices, iters, predicate, Analyzer(), level).ok


def test_the_paper_s_examples() -> None:
    assert accepted([I0 // 4, I0 % 4], loops(i=8))
    assert not accepted([I0, I0 * 2], loops(i=8), level="independent")
    assert accepted([I0, J], loops(i=4, j=8))
    assert accepted([I0 * 8 + J], loops(i=4, j=8))


@pytest.mark.parametrize(
    ("indices", "iters"),
    [
        ([I0 // 6, I0 // 2 % 3, I0 % 2], loops(i=12)),
        ([I0 * 14 + J], loops(i=3, j=14)),
        ([(I0 * 8 + J) // 4, (I0 * 8 + J) % 4], loops(i=4, j=8)),
        ([(I0 * 16 + J) // 12, (I0 * 16 + J) % 12], loops(i=3, j=16)),
        ([J, I0 * 3 + K], loops(i=2, j=5, k=3)),
        ([I0 * 4 + J + K * 12 - 5], loops(i=3, j=4, k=5)),
        # extents that are products of symbols
        ([I0 * N + J], loops(i=M, j=N)),
        ([F // N, F % N], loops(f=M * N)),
        ([F // (N * 4), F // 4 % N, F % 4], loops(f=M * N * 4)),
        ([(I0 * N + J) // 4, (I0 * N + J) % 4], loops(i=4, j=N)),
        ([I0 // 4, I0 % 4], loops(i=N * 4)),
        # fusing what was split gives the loop back
        ([F // 4 * 4 + F % 4], loops(f=N)),
        # an extent that is 2 for each `i`, which its form does not show
        ([I0 * 4 + J * 2 + K], loops(i=2, j=ir.minimum(I0 * 4 - 3, 0) // 2 - I0 * 2 + 4, k=2)),
        # loops of one value do not count
        ([I0 + J], loops(i=8, j=1)),
    ],
)
def test_bijections(indices: list[Expr], iters: dict[Var, Range]) -> None:
    assert accepted(indices, iters)
    assert is_bijective(indices, iters, None, Analyzer())


@pytest.mark.parametrize(
    ("indices", "iters", "why"),
    [
        ([I0 + J], loops(i=4, j=4), "no scale"),
        ([I0 * 14 + J], loops(i=3, j=13), "mixed radix"),
        ([I0, I0 * 4 + J], loops(i=4, j=4), "overlap"),
        ([I0 // 6, I0 // 3 % 2, I0 % 2], loops(i=12), "overlap"),
        ([I0 * 2], loops(i=4), "takes only every 2"),
        ([I0 // 4, I0 % 4], loops(i=10), "not a multiple"),
        ([I0 // 4, I0 % 4], loops(i=N), "not a multiple"),
        ([I0 // 4], loops(i=8), "below 4 are not used"),
        ([I0], loops(i=8, j=2), "loop j is not used"),
        ([I0 * J], loops(i=8, j=2), "not a sum"),
        ([ir.minimum(I0, 3)], loops(i=8), "not a sum"),
        ([F // I0], loops(i=8, f=2), "divisor"),
        ([const(7) - I0 * 2], loops(i=4), "takes only every 2"),
    ],
)
def test_refusals_say_why(indices: list[Expr], iters: dict[Var, Range], why: str) -> None:
    result = detect_iter_map(indices, iters, None, Analyzer(), "bijective")
    assert not result.ok
    assert any(why in e for e in result.errors), result.errors
    with pytest.raises(IterMapError, match=why):
        require_iter_map(indices, iters, None, Analyzer(), "bijective")


def test_levels() -> None:
    coarse = ([I0 // 4], loops(i=8))
    assert accepted(*coarse, level="surjective")
    assert not accepted(*coarse, level="bijective")
    strided = ([I0 * 10 + J], loops(i=4, j=5))
    assert accepted(*strided, level="independent")
    assert not accepted(*strided, level="surjective")


def test_predicates_bound_fusions() -> None:
    padded = loops(i=ir.ceildiv(N, 14), j=14)
    inside = I0 * 14 + J < N
    result = detect_iter_map([I0 * 14 + J], padded, inside, Analyzer(), "bijective")
    assert result.ok
    assert expr_text(result.indices[0].args[0].extent) == "n"
    # the bound couples i and j, which are used apart
    assert not accepted([I0, J], padded, inside, level="surjective")
    assert accepted([I0, J], padded, inside, level="independent")


def test_predicates_nest() -> None:
    iters = loops(k=3, i=3, j=4)
    lower = I0 * 4 + J < 10
    whole = K * 10 + I0 * 4 + J < 25
    assert accepted([K, I0 * 4 + J], iters, lower)
    assert accepted([K * 10 + I0 * 4 + J], iters, ir.logical_and(lower, whole))
    assert not accepted([K * 12 + I0 * 4 + J], iters, lower)


@pytest.mark.parametrize(
    ("outer", "extent", "whole", "axes", "simplified"),
    [
        (53, 8, 420, (3, 5, 7, 4), {2: (I0 * 2 + J // 4) % 7, 3: J % 4}),
        (27, 16, 420, (3, 5, 7, 4), {2: (I0 * 4 + J // 4) % 7, 3: J % 4}),
        ((N * 28 + 15) // 16, 16, N * 28, (N, 7, 4), {1: (I0 * 4 + J // 4) % 7, 2: J % 4}),
        ((N * 3 + 1) // 2, 64, N * 96, (3, N, 8, 4), {1: (I0 * 2 + J // 32) % N, 2: J // 4 % 8}),
        # a tile of symbolic size
        ((N * 28 + M - 1) // M, M, N * 28, (N, 7, 4), {}),
    ],
    ids=str,
)
def test_the_loops_of_an_uneven_split_are_fused_again(
    outer: Expr | int,
    extent: Expr | int,
    whole: Expr | int,
    axes: tuple[Expr | int, ...],
    simplified: dict[int, Expr],
) -> None:
    """Simplified indices do not show that they are digits of `i * extent + j`; they still are."""
    flat, indices = I0 * extent + J, list[Expr]()
    for size in reversed(axes):
        indices.insert(0, flat % size)
        flat = flat // size
    indices = [simplified.get(k, index) for k, index in enumerate(indices)]
    iters = loops(i=outer, j=extent)
    result = detect_iter_map(indices, iters, I0 * extent + J < whole, sizes(), "bijective")
    assert result.ok, result.errors
    assert result.told_apart == {I0, J}
    assert not detect_iter_map(indices, iters, None, sizes(), "bijective").ok
    assert not detect_iter_map(indices[1:], iters, I0 * extent + J < whole, sizes(), "bijective").ok


def test_uneven_splits_nest() -> None:
    """420 in 27 times 16, the 27 in 7 times 4; another loop that keeps out of it."""
    outer = I0 * 4 + J
    inside = ir.logical_and(outer * 16 + K < 420, outer < 27)
    flat = outer * 16 + K
    indices = [flat // 140, F, flat // 28 % 5, (outer * 4 + K // 4) % 7, K % 4]
    iters = loops(f=3, i=7, j=4, k=16)
    result = detect_iter_map(indices, iters, inside, Analyzer(), "bijective")
    assert result.ok, result.errors
    assert result.told_apart == set(iters)
    used = {v for i in result.indices for v in ir.free_vars(iter_expr(i))}
    assert used == set(iters)  # the result is in terms of the loops
    assert not accepted(indices, iters, flat < 419)
    assert not accepted([*indices[:4], K % 2], iters, inside)


def test_a_condition_may_bound_a_quotient() -> None:
    assert accepted([I0 // 7, I0 % 7], loops(i=84), I0 // 7 < 5)
    assert not accepted([I0 // 7, I0 % 7], loops(i=84), I0 // 7 % 4 < 3)


def test_loops_that_are_divided_together_are_fused_without_a_condition_too() -> None:
    flat = I0 * 8 + J
    assert accepted(
        [(I0 * 4 + J // 2) // 15, (I0 * 4 + J // 2) // 3 % 5, flat % 6], loops(i=15, j=8)
    )


def test_loops_of_an_uneven_split_do_not_divide_into_outer_and_inner() -> None:
    flat, inside = I0 * 8 + J, I0 * 8 + J < 420
    bindings = [flat // 28, (I0 * 2 + J // 4) % 7, J % 4]
    iters = loops(i=53, j=8)
    assert subspace_divide(bindings, iters, [J], inside, Analyzer()) is None
    found = subspace_divide(bindings, iters, [I0, J], inside, Analyzer())
    assert found is not None
    assert [expr_text(p.inner_extent) for p in found.pairs] == ["15", "7", "4"]


def test_predicates_on_one_loop() -> None:
    result = detect_iter_map([I0 - 2], loops(i=10), I0 >= 2, Analyzer(), "bijective")
    assert result.ok
    assert expr_text(result.indices[0].args[0].extent) == "8"
    assert accepted([I0], loops(i=10), I0 < 7)
    assert accepted([I0], loops(i=8), I0 // 4 < 1)
    assert not accepted([I0], loops(i=8), ir.NE(I0, const(3)))


def test_a_split_padded_loop_covers_a_symbolic_axis() -> None:
    """n rows in tiles of 14 of m columns each: the flat index divides by m again."""
    flat = I0 * 14 + J
    iters = loops(i=ir.ceildiv(N * M, 14), j=14)
    assert accepted([flat // M, flat % M], iters, flat < N * M)


def test_starts_other_than_zero() -> None:
    iters = {I0: Range(const(2), const(8)), J: Range(N, const(4))}
    result = detect_iter_map([(I0 - 2) * 4 + J - N], iters, None, Analyzer(), "bijective")
    assert result.ok
    assert Analyzer().prove_equal(iter_expr(result.indices[0]), (I0 - 2) * 4 + J - N)


def test_padding_makes_extents_divisible() -> None:
    bindings: list[Expr] = [I0 // 4, I0 % 4]
    result = detect_iter_map(bindings, loops(i=10), None, Analyzer(), "bijective", pad=True)
    assert result.ok
    assert [expr_text(s.args[0].extent) for s in result.indices] == ["3", "4"]
    known = Analyzer(loops(i=12))
    assert known.prove_equal(
        ir.cast_to(known.simplify(result.padding), "int64"),
        ir.cast_to(known.simplify(I0 > 9), "int64"),
    )


def test_indices_come_back_as_expressions() -> None:
    flat = I0 * 16 + J
    result = require_iter_map([flat // 12, flat % 12], loops(i=3, j=16), None, Analyzer())
    known = Analyzer(loops(i=3, j=16))
    assert known.prove_equal(iter_expr(result.indices[0]), flat // 12)
    assert known.prove_equal(iter_expr(result.indices[1]), flat % 12)


# ------------------------------------------------------------------------------ subspaces
def divided(
    bindings: list[Expr], iters: dict[Var, Range], inner: list[Var], predicate: Expr | None = None
) -> list[tuple[str, str, str, str]] | None:
    found = subspace_divide(bindings, iters, inner, predicate, Analyzer())
    if found is None:
        return None
    t = expr_text
    return [(t(p.outer), t(p.outer_extent), t(p.inner), t(p.inner_extent)) for p in found.pairs]


def test_inner_loops_become_the_low_digits() -> None:
    assert divided([I0 * 14 + J, K], loops(i=3, k=5, j=14), [J]) == [
        ("i", "3", "j", "14"),
        ("k", "5", "0", "1"),
    ]
    assert divided([I0 * 16 + J * 4 + K], loops(i=2, j=4, k=4), [J, K]) == [
        ("i", "2", "(j * 4) + k", "16")
    ]


def test_inner_loops_above_outer_ones_do_not_divide() -> None:
    assert divided([I0 * 14 + J], loops(i=3, j=14), [I0]) is None


def test_everything_or_nothing_inside() -> None:
    assert divided([I0], loops(i=8), []) == [("i", "8", "0", "1")]
    assert divided([I0 // 4, I0 % 4], loops(i=8), [I0]) == [
        ("0", "1", "i // 4", "2"),
        ("0", "1", "i % 4", "4"),
    ]


def test_digits_of_a_fusion_divide() -> None:
    flat = I0 * 8 + J
    assert divided([flat // 4, flat % 4], loops(i=4, j=8), [J]) == [
        ("i", "4", "j // 4", "2"),
        ("0", "1", "j % 4", "4"),
    ]


def test_a_padded_tile_divides_and_keeps_its_predicate() -> None:
    iters = loops(i=ir.ceildiv(N, 14), j=14)
    found = subspace_divide([I0 * 14 + J], iters, [J], I0 * 14 + J < N, Analyzer())
    assert found is not None
    assert expr_text(found.pairs[0].outer_extent) == "(n + 13) // 14"
    assert expr_text(found.inner_predicate) == "((i * 14) + j) < n"
    assert expr_text(found.outer_predicate) == "True"


def test_a_bounded_fusion_below_an_outer_loop_leaves_a_gap() -> None:
    """k * n + tile: the tile's padded rows would reach into the next k."""
    iters = loops(k=3, i=ir.ceildiv(N, 14), j=14)
    flat = K * N + I0 * 14 + J
    bounded = I0 * 14 + J < N
    assert accepted([flat], iters, bounded)
    assert subspace_divide([flat], iters, [J], bounded, Analyzer()) is None
    assert subspace_divide([flat], iters, [I0, J], bounded, Analyzer()) is not None


def test_a_base_goes_where_it_divides() -> None:
    bindings: list[Expr] = [I0 * 4 + J + 8]
    assert divided(bindings, loops(i=3, j=4), [J]) == [("i + 2", "3", "j", "4")]


# ------------------------------------------------------------------------------ symbolic digits
def sizes() -> Analyzer:
    known = Analyzer()
    for var in (N, M, K):
        known.bind_bounds(var, 1, None)
    return known


def test_digits_counted_in_tiles_of_unknown_size() -> None:
    """A loop over tiles of two axes, `ceildiv` of them each, is taken apart again."""
    tiles = (N - 1) // M + 1
    iters = loops(i=K * tiles, j=M)
    indices = [I0 // tiles, (I0 % tiles) * M + J]
    assert detect_iter_map(indices, iters, None, sizes(), "bijective").ok
    assert not detect_iter_map([I0 // tiles, I0 // tiles * M + J], iters, None, sizes()).ok


def test_products_of_symbols_are_mixed_radix() -> None:
    whole = I0 * (N * M) + J * M + F
    iters = loops(i=K, j=N, f=M)
    assert detect_iter_map([whole], iters, None, sizes(), "bijective").ok
    digits = [whole // (N * M), whole // M % N, whole % M]
    assert detect_iter_map(digits, iters, None, sizes(), "bijective").ok
    known = sizes()
    for var, domain in iters.items():
        known.bind(var, domain)
    assert [known.simplify(d) for d in digits] == [I0, J, F]


def test_a_factor_of_symbols_is_part_of_the_scale() -> None:
    """`i * (n % 4 + 1)` moves with i, in steps that the symbols decide."""
    found = detect_iter_map([I0 * (N % 4 + 1)], loops(i=3), None, sizes(), "independent")
    assert found.ok
    assert expr_text(iter_expr(found.indices[0])) == "i * ((n % 4) + 1)"
    assert not detect_iter_map([I0 * (N % 4)], loops(i=3), None, sizes(), "independent").ok


@pytest.mark.parametrize(
    ("index", "apart"),
    [(I0 * 2, True), (I0 * 4 + J, True), (I0 // 2, False), (I0 * 2 + J, False)],
)
def test_injective_maps_may_leave_gaps(index: Expr, apart: bool) -> None:
    iters = loops(i=4, j=3) if ir.uses_var(index, J) else loops(i=4)
    assert accepted([index], iters, level="injective") is apart


def test_conditions_that_bound_no_fusion_leave_maps_injective() -> None:
    """`(i * 8 + j) // 9` and `% 9` are digits of 162 values; conditions on a digit are ignored."""
    fused = I0 * 8 + J
    digits: list[Expr] = [fused // 9, fused % 9]
    whole = ir.LT(fused, ir.const(162, "int32"))
    part = ir.logical_and(whole, ir.LT(fused % 9, ir.const(5, "int32")))
    assert accepted(digits, loops(i=21, j=8), whole, level="bijective")
    assert accepted(digits, loops(i=21, j=8), part, level="injective")
    for level in ("surjective", "bijective"):
        assert not accepted(digits, loops(i=21, j=8), part, level=level)
    assert not accepted(digits[:1], loops(i=21, j=8), part, level="injective")


def test_which_loops_the_points_tell_apart() -> None:
    result = detect_iter_map([I0 // 2, J], loops(i=8, j=3, k=5), None, Analyzer())
    assert result.told_apart == {J}
    fused = I0 * 6 + J
    result = detect_iter_map([fused // 4], loops(i=2, j=6), None, Analyzer())
    assert result.told_apart == frozenset()

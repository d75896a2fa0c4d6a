"""Intervals, and boxes that cover a region while loops run."""

from __future__ import annotations

import itertools
import random

import pytest

from blockwright import ir
from blockwright.arith import (
    Analyzer,
    IntervalSet,
    bound_region,
    clip_region,
    covers,
    eval_set,
    intersect,
    jointly_cover,
    union,
)
from blockwright.arith.interval import hull
from blockwright.arith.overlap import leaves_no_gap
from blockwright.arith.text import expr_text
from blockwright.ir import Expr, Range
from blockwright.support import IRError

I0, J, K, L, R, N, M, X = (ir.var(c, "int64") for c in "ijklrnmx")


def const(value: int) -> Expr:
    return ir.const(value, "int64")


def as_index(value: Expr | int) -> Expr:
    return value if isinstance(value, Expr) else const(value)


def rng(start: Expr | int, extent: Expr | int) -> Range:
    return Range(as_index(start), as_index(extent))


def texts(box: tuple[Range, ...]) -> list[tuple[str, str]]:
    return [(expr_text(r.min), expr_text(r.extent)) for r in box]


@pytest.fixture
def analyzer() -> Analyzer:
    """i over tiles of 14 of n; m >= 1."""
    known = Analyzer({I0: rng(0, ir.ceildiv(N, 14))})
    known.bind_bounds(M, low=1)
    return known


def test_a_tile_stays_a_tile(analyzer: Analyzer) -> None:
    assert texts(bound_region([rng(I0 * 14, 14)], {}, analyzer)) == [("i * 14", "14")]
    box = bound_region([rng(I0 * 14 + J, 1), rng(K, 1)], {J: rng(0, 14), K: rng(0, M)}, analyzer)
    assert texts(box) == [("i * 14", "14"), ("0", "m")]


def test_a_matrix_product_tile_is_exact(analyzer: Analyzer) -> None:
    inner = {J: rng(0, 14), L: rng(0, 16), K: rng(0, 256)}
    a_box = bound_region([rng(I0 * 14 + J, 1), rng(K, 1)], inner, analyzer)
    b_box = bound_region([rng(K, 1), rng(X * 16 + L, 1)], inner, analyzer)
    assert texts(a_box) == [("i * 14", "14"), ("0", "256")]
    assert texts(b_box) == [("0", "256"), ("x * 16", "16")]


@pytest.mark.parametrize(
    ("stride", "dilation", "window", "tile"), [(1, 1, 3, 14), (2, 1, 3, 14), (2, 3, 5, 8)]
)
def test_a_window_has_one_plus_the_weighted_extents(
    analyzer: Analyzer, stride: int, dilation: int, window: int, tile: int
) -> None:
    inner = {J: rng(I0 * tile, tile), R: rng(0, window)}
    box = bound_region([rng(J * stride + R * dilation, 1)], inner, analyzer)
    extent = 1 + stride * (tile - 1) + dilation * (window - 1)
    assert texts(box) == [(f"i * {tile * stride}", str(extent))]


def test_symbolic_extents_are_kept(analyzer: Analyzer) -> None:
    analyzer.bind_bounds(N, low=1)
    box = bound_region([rng(J * 2 + R, 1)], {J: rng(0, N), R: rng(0, M)}, analyzer)
    assert texts(box) == [("0", "((n * 2) + m) - 2")]
    box = bound_region([rng(J * M + R, 1)], {J: rng(0, N), R: rng(0, M)}, analyzer)
    assert texts(box) == [("0", "n * m")]


def test_a_predicate_clamps_the_last_tile(analyzer: Analyzer) -> None:
    inner = {J: rng(0, 14)}
    box = bound_region([rng(I0 * 14 + J, 1)], inner, analyzer, predicate=I0 * 14 + J < N)
    assert texts(box) == [("i * 14", "min(n - (i * 14), 14)")]
    box = bound_region(
        [rng(J, 1)], {J: rng(0, 20)}, analyzer, predicate=ir.logical_and(J >= 3, J * 2 < 18)
    )
    assert texts(box) == [("3", "6")]


def test_a_predicate_ends_the_quotient_of_fused_loops(analyzer: Analyzer) -> None:
    inner = {J: rng(0, 100)}
    parts = [rng(J // 10, 1), rng(J % 10, 1), rng((J // 10) * -1, 1)]
    box = bound_region(parts, inner, analyzer, predicate=J // 10 < 2)
    assert texts(box) == [("0", "2"), ("0", "10"), ("-1", "2")]
    box = bound_region([rng(J // 10, 1)], {J: rng(0, M * 16)}, analyzer, predicate=J < M * 10)
    assert texts(box) == [("0", "m")]


def test_a_full_tile_needs_no_clamp(analyzer: Analyzer) -> None:
    with analyzer.assume(I0 < N // 14):
        box = bound_region(
            [rng(I0 * 14 + J, 1)], {J: rng(0, 14)}, analyzer, predicate=I0 * 14 + J < N
        )
    assert texts(box) == [("i * 14", "14")]


def test_divided_indices(analyzer: Analyzer) -> None:
    inner = {K: rng(0, 4), J: rng(0, 14)}
    box = bound_region([rng((K * 14 + J) // 4, 1), rng((K * 14 + J) % 4, 1)], inner, analyzer)
    assert texts(box) == [("0", "14"), ("0", "4")]
    box = bound_region([rng((X * 8 + J) // 4, 1)], {J: rng(0, 8)}, analyzer)
    assert texts(box) == [("x * 2", "2")]


def test_triangular_domains(analyzer: Analyzer) -> None:
    box = bound_region([rng(J, 1)], {K: rng(0, 8), J: rng(K, 5)}, analyzer)
    assert texts(box) == [("0", "12")]


def test_an_index_from_memory_falls_back_on_the_shape(analyzer: Analyzer) -> None:
    table = ir.Buffer("ids", ir.dtype_of("int64"), (N,))
    index = ir.load(table, J)
    with pytest.raises(IRError, match="no bound"):
        bound_region([rng(index, 1)], {J: rng(0, N)}, analyzer)
    box = bound_region([rng(index, 1)], {J: rng(0, N)}, analyzer, shape=[M])
    assert texts(box) == [("0", "m")]


def test_clipping_to_a_shape(analyzer: Analyzer) -> None:
    assert texts(clip_region([rng(I0 * 14, 14)], [N], analyzer)) == [
        ("i * 14", "min(n - (i * 14), 14)")
    ]
    assert texts(clip_region([rng(-2, 10)], [const(20)], analyzer)) == [("0", "8")]


def test_covers(analyzer: Analyzer) -> None:
    assert covers([rng(0, ir.ceildiv(N, 14) * 14)], [rng(I0 * 14, 14)], analyzer)
    assert not covers([rng(0, N)], [rng(I0 * 14, 14)], analyzer)
    assert covers([rng(0, N)], clip_region([rng(I0 * 14, 14)], [N], analyzer), analyzer)


def test_what_is_empty_along_one_dimension_lies_in_every_box() -> None:
    """The rows that two elements per row reach are none where there are no elements."""
    count = ir.minimum(X, const(2))
    box = [rng(X, 1), rng(0, count)]
    rows = rng(X, (count - 1) // 2 + 1)  # 0 where count is 0
    analyzer = Analyzer({X: rng(0, 5)})
    assert covers([rows, rng(0, 2)], box, analyzer)
    assert not covers([rows, rng(0, 1)], box, analyzer)
    assert not covers([rows, rng(0, 2)], [rng(X, 1), rng(0, 2)], analyzer)


def test_intervals_of_expressions(analyzer: Analyzer) -> None:
    def ends(expr: Expr, **domains: Range) -> tuple[str, str]:
        names = {"j": J, "k": K}
        found = eval_set(expr, {names[n]: d for n, d in domains.items()}, analyzer)
        assert found.min is not None
        assert found.max is not None
        return expr_text(found.min), expr_text(found.max)

    assert ends(X + J, j=rng(0, 14)) == ("x", "x + 13")
    assert ends(X - J, j=rng(0, 14)) == ("x - 13", "x")
    assert ends((X * 4 + J) % 4, j=rng(0, 3)) == ("0", "2")
    assert ends(ir.minimum(J, X), j=rng(2, 5)) == ("min(x, 2)", "min(x, 6)")
    assert ends(J * K, j=rng(0, 3), k=rng(1, M)) == ("0", "m * 2")
    assert ends(ir.select(J < 2, J, X), j=rng(0, 4)) == ("min(x, 0)", "max(x, 3)")


def test_half_open_knowledge_stays_half_open(analyzer: Analyzer) -> None:
    found = eval_set(J + 1, {J: IntervalSet(const(0), None)}, analyzer)
    assert found.min is not None
    assert expr_text(found.min) == "1"
    assert found.max is None
    assert found.range(analyzer) is None


def test_union_and_intersection(analyzer: Analyzer) -> None:
    a, b = IntervalSet.of_range(rng(0, 8)), IntervalSet.of_range(rng(4, M + 8))
    both, common = union([a, b], analyzer), intersect([a, b], analyzer)
    assert [expr_text(e) for e in (both.min, both.max) if e is not None] == ["0", "m + 11"]
    assert [expr_text(e) for e in (common.min, common.max) if e is not None] == ["4", "7"]
    open_end = union([a, IntervalSet(const(2), None)], analyzer)
    assert open_end.max is None
    assert expr_text(ir.as_expr(open_end.min)) == "0"
    point = IntervalSet.point(X).range(analyzer)
    assert point is not None
    assert expr_text(point.extent) == "1"


def test_boxes_cover_a_box_together_exactly_when_their_points_do() -> None:
    """Random boxes of two dimensions; where every end is a number the answer is exact."""
    chance = random.Random(7)
    covered = 0

    def box(most: int) -> list[tuple[int, int]]:
        return [(low := chance.randint(0, 4), low + chance.randint(0, most)) for _ in range(2)]

    for _ in range(300):
        outers, inner = [box(6) for _ in range(chance.randint(1, 4))], box(5)
        points = set(itertools.product(*(range(*ends) for ends in inner)))
        reached = {p for outer in outers for p in itertools.product(*(range(*e) for e in outer))}
        regions = [[_range(*ends) for ends in b] for b in (*outers, inner)]
        answer = jointly_cover(regions[:-1], regions[-1], Analyzer())
        assert answer == (points <= reached) or (not points and not answer), (outers, inner)
        covered += answer
    assert 30 < covered < 270


def _range(low: int, end: int) -> ir.Range:
    return ir.Range(ir.const(low, "int64"), ir.const(end - low, "int64"))


def test_symbolic_boxes_cover_together() -> None:
    n, m = ir.var("n", "int64"), ir.var("m", "int64")
    analyzer = Analyzer()
    for symbol in (n, m):
        analyzer.bind_bounds(symbol, 0, None)
    zero = ir.const(0, "int64")
    whole, first, second = (ir.Range(zero, n + m), ir.Range(zero, n), ir.Range(n, m))
    assert jointly_cover([[second], [first]], [whole], analyzer)
    assert not jointly_cover([[second], [ir.Range(zero, n - 1)]], [whole], analyzer)
    assert not jointly_cover([], [whole], analyzer)


def test_a_predicate_bounds_what_stands_in_a_minimum_or_maximum(analyzer: Analyzer) -> None:
    """Rows of min(row, 4) elements, in tiles of eight of which the last is cut short."""
    analyzer.bind_bounds(M, low=1)
    row = J * 8 + K
    tiles = {J: rng(0, ir.ceildiv(M, 8)), K: rng(0, 8)}
    region = [rng(0, ir.minimum(row, const(4))), rng(ir.maximum(row - 2, const(0)), 1)]
    box = bound_region(region, tiles, analyzer, ir.LT(row, M))
    whole = [rng(0, ir.minimum(M - 1, const(4))), rng(0, ir.maximum(M - 2, const(1)))]
    assert covers(whole, box, analyzer)
    assert covers(box, whole, analyzer)
    assert not covers(whole, bound_region(region, tiles, analyzer), analyzer)


def test_a_box_beside_a_buffer_has_nothing_in_it(analyzer: Analyzer) -> None:
    for start in (-5, -2, 3, 9):
        (part,) = clip_region([rng(start, 2)], [const(3)], analyzer)
        assert ir.const_int(part.extent) == 0


def test_windows_of_unknown_number_leave_no_gap_in_either_order() -> None:
    """Three neighbours at each of `n` places: as long as there are places, all points are taken."""
    analyzer = Analyzer()
    analyzer.learn(N >= 0)
    for variables in ({I0: rng(0, N), J: rng(0, 3)}, {J: rng(0, 3), I0: rng(0, N)}):
        assert leaves_no_gap([I0 + J], variables, analyzer)
    assert not leaves_no_gap([I0 * 4 + J], {I0: rng(0, N), J: rng(0, 3)}, analyzer)


def test_a_hull_whose_sums_64_bits_do_not_hold() -> None:
    """In canonical form the coefficient would be 2**80: the ends stay as they are written."""
    x, large = ir.Var("x", ir.dtype_of("int64")), ir.const(1 << 40, "int64")
    far = ir.Range(ir.Mul(ir.Mul(x, large), large), ir.const(1, "int64"))
    near = ir.Range(ir.const(0, "int64"), ir.const(1, "int64"))
    assert isinstance(hull(far, near, Analyzer()).min, ir.Min)

"""The prover, bounds, modular facts, assumptions, and the log of unproved queries."""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.arith import Analyzer, query_log
from blockwright.arith.text import expr_text
from blockwright.ir import Expr, Range

I0, J, K, N, M, P, X = (ir.var(c, "int64") for c in "ijknmpx")


def const(value: int) -> Expr:
    return ir.const(value, "int64")


def span(extent: Expr | int, start: int = 0) -> Range:
    return Range(const(start), extent if isinstance(extent, Expr) else const(extent))


def tiles() -> Analyzer:
    """Tiles of 14 over n: i over the tiles, j inside."""
    return Analyzer({I0: span(ir.ceildiv(N, 14)), J: span(14)})


def test_a_condition_inside_a_padded_tile_bounds_the_index() -> None:
    known = tiles()
    assert not known.prove(I0 * 14 + J < N)
    with known.assume(I0 * 14 + J < N):
        assert known.prove(I0 * 14 + J <= N - 1)
        assert known.prove(I0 * 14 < N)
        assert known.prove(N >= 1)
        assert not known.prove(I0 * 14 + 14 <= N)
    assert not known.prove(I0 * 14 + J < N)  # forgotten outside


def test_a_bound_of_a_minimum_or_maximum_bounds_its_operands() -> None:
    known = Analyzer({J: span(9), K: span(9)})
    with known.assume(ir.minimum(J, K - 2) >= 1):
        assert known.prove(J >= 1)
        assert known.prove(K >= 3)
        assert not known.prove(J >= 2)
    with known.assume(ir.maximum(J, K + 2) <= 5):
        assert known.prove(J <= 5)
        assert known.prove(K <= 3)
        assert not known.prove(J <= 4)


def test_full_tiles_need_no_condition() -> None:
    known = tiles()
    with known.assume(I0 < N // 14):
        assert known.prove(I0 * 14 + J <= N - 1)
        assert known.prove(I0 * 14 + 14 <= N)
        assert expr_text(known.simplify(ir.minimum(I0 * 14 + 14, N))) == "(i * 14) + 14"


def test_mixed_radix_products_of_symbols() -> None:
    known = Analyzer({I0: span(M), J: span(N), K: span(P), X: span(M * N)})
    assert known.prove(X // N < M)
    assert known.prove(X // N * N + X % N < M * N)
    assert known.prove(I0 * N + J < M * N)
    assert known.prove((I0 * N + J) * P + K < M * N * P)
    assert not known.prove(I0 * M + J < M * N)


@pytest.mark.parametrize("c", [2, 3, 14, 64])
def test_ceil_and_floor_divisions(c: int) -> None:
    known = Analyzer()
    known.bind_bounds(N, low=0)
    up = (N + (c - 1)) // c
    assert known.prove(up * c >= N)
    assert known.prove(up * c <= N + (c - 1))
    assert known.prove(N // c <= up)
    assert known.prove(up <= N // c + 1)
    assert known.prove(ir.EQ(up, (N - 1) // c + 1))
    assert not known.prove(up * c <= N)


def test_sums_of_digits_stay_below_the_padded_extent() -> None:
    known = Analyzer({I0: span(ir.ceildiv(N, 64)), J: span(8), K: span(8)})
    assert known.prove(ir.ceildiv(N, 64) * 64 > I0 * 64 + J * 8 + K)
    assert known.prove(I0 * 64 + J * 8 + K < N + 63)
    assert known.prove((I0 * 64 + J * 8 + K) // 8 <= (N + 62) // 8)


def test_equalities_replace_variables() -> None:
    known = Analyzer()
    known.bind(X, N * 2)
    assert expr_text(known.simplify(X // 2)) == "n"
    with known.assume(ir.EQ(N, M + 1)):
        assert known.prove(ir.EQ(X, M * 2 + 2))
        assert known.prove(X > M * 2)
    assert not known.prove(X > M * 2)


def test_divisibility_is_used() -> None:
    known = Analyzer()
    with known.assume(ir.EQ(M % 4, const(0))):
        assert expr_text(known.simplify(M // 4 * 4)) == "m"
        assert expr_text(known.simplify(M % 4)) == "0"
        assert expr_text(known.simplify((M * 3) % 4)) == "0"
        assert expr_text(known.simplify((M + 3) // 4)) == "m // 4"
        assert known.prove(ir.EQ(ir.ceildiv(M, 4) * 4, M))
        assert known.modular(M) == (4, 0)
    assert not known.prove(ir.EQ(M % 4, const(0)))


def test_conditions_that_are_no_inequalities_are_remembered() -> None:
    flag = ir.var("flag", "bool")
    known = Analyzer()
    with known.assume(ir.logical_and(flag, ir.NE(N, const(0)))):
        assert known.prove(flag)
        assert known.prove(ir.NE(N, const(0)))
        assert expr_text(known.simplify(ir.logical_not(flag))) == "False"
    with known.assume(ir.logical_not(flag)):
        assert expr_text(known.simplify(flag)) == "False"
    assert not known.prove(flag)


def test_a_bound_next_to_an_excluded_value_moves() -> None:
    known = Analyzer()
    known.bind_bounds(N, low=0)
    with known.assume(ir.NE(N, const(0))):
        assert known.const_bounds(N) == (1, None)


def test_minima_are_split_into_cases() -> None:
    known = Analyzer()
    known.bind_bounds(N, low=1)
    assert known.prove(ir.minimum(N, M) <= ir.maximum(N, M))
    assert known.prove(ir.minimum(N, 8) * 2 <= N + 8)
    assert known.prove(ir.maximum(N, M) // 2 >= ir.minimum(N, M) // 2)
    assert known.prove(ir.minimum(ir.maximum(X, 0), 7) < 8)


def test_disjunctions_use_what_is_left() -> None:
    known = Analyzer()
    assert known.prove(ir.logical_or(X < 3, X > 2))
    assert known.prove(ir.logical_or(X < N, X >= N))
    assert known.prove(ir.logical_not(ir.logical_and(X < 3, X > 5)))
    assert not known.prove(ir.logical_or(X < 3, X > 3))


def test_constant_bounds_and_modular_sets() -> None:
    known = Analyzer({I0: span(16), J: span(14, start=2)})
    assert known.const_bounds(I0 * 14 + J) == (2, 225)
    assert known.const_bounds(const(0) - I0) == (-15, 0)
    assert known.const_bounds(I0 % 4) == (0, 3)
    assert known.const_bounds(I0 % 32) == (0, 15)
    assert known.const_bounds(I0 * X) == (None, None)
    assert known.const_bounds(ir.minimum(X, 7)) == (None, 7)
    assert known.const_bounds(X * 4 % 16) == (0, 12)
    assert known.modular(I0 * 8 + 3) == (8, 3)
    assert known.modular(const(5)) == (0, 5)


def test_a_bound_variable_exists_so_its_range_is_not_empty() -> None:
    known = Analyzer({I0: span(N)})
    assert known.const_bounds(N) == (1, None)
    known = Analyzer({I0: Range(M, N - M)})
    assert known.prove(N > M)


def test_copies_learn_on_their_own() -> None:
    first = Analyzer({I0: span(16)})
    second = first.copy()
    second.bind(J, span(4))
    assert second.prove(I0 + J < 19)
    assert not first.prove(I0 + J < 19)


def test_without_forgets_what_mentions_a_variable() -> None:
    known = tiles()
    known.learn(I0 * 14 + J < N)
    known.bind_bounds(M, low=3)
    rest = known.without([I0, J])
    assert rest.const_bounds(M) == (3, None)
    assert rest.const_bounds(J) == (None, None)


def test_unproved_queries_are_logged_with_what_was_known() -> None:
    known = Analyzer({I0: span(16)})
    with query_log() as log:
        assert known.prove(I0 < 16)
        assert not known.prove(I0 < N)
        with known.assume(N > 3):
            assert not known.prove(I0 < N)
    assert [q.text for q in log] == ["i < n", "i < n"]
    assert "i in [0, +16)" in log[0].known
    assert "n > 3" in log[1].known
    assert all(q.refuted for q in log)
    known.prove(I0 < N)
    assert len(log) == 2


def test_the_log_tells_false_from_unseen() -> None:
    known = Analyzer()
    known.bind_bounds(N, low=1)
    with query_log() as log:
        known.prove(N // 2 * 2 >= N)
        known.prove((N * N - 1) % 2 + N % 2 <= 1)  # true, but not seen: squares are not followed
    assert [q.refuted for q in log] == [True, False]


def test_different_widths_are_equal_when_their_values_are() -> None:
    small = ir.var("s", "int32")
    known = Analyzer()
    assert known.prove_equal(ir.cast_to(small + 1, "int64"), ir.cast_to(small, "int64") + 1)
    assert known.prove_equal(small, ir.cast_to(small, "int64"))

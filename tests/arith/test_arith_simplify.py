"""The simplifier: canonical sums, divisions, minima, conditions, casts, vectors."""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.arith import Analyzer, simplify
from blockwright.arith.text import expr_text
from blockwright.ir import Broadcast, Expr, Ramp, Range, Var

I0, J, K, N, M, X, Y = (ir.var(c, "int64") for c in "ijknmxy")


def const(value: int) -> Expr:
    return ir.const(value, "int64")


def span(extent: Expr | int, start: int = 0) -> Range:
    return Range(const(start), extent if isinstance(extent, Expr) else const(extent))


@pytest.fixture
def analyzer() -> Analyzer:
    """i in [0, 16), j in [0, 14), n >= 1; the others are any integers."""
    known = Analyzer({I0: span(16), J: span(14)})
    known.bind_bounds(N, low=1)
    return known


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        # sums and products
        (I0 + I0 + 1 - I0, "i + 1"),
        ((I0 + 1) * 2 - 2, "i * 2"),
        (I0 * N - N * I0, "0"),
        (const(3) - X, "3 - x"),
        ((I0 + 1) * (J + 2), "(i + 1) * (j + 2)"),
        # division by constants
        ((I0 * 14 + J) // 14, "i"),
        ((I0 * 14 + J) % 14, "j"),
        ((I0 * 28 + J) // 14, "i * 2"),
        (X // 4 // 2, "x // 8"),
        ((X + 14 * K) % 14, "x % 14"),
        ((X + 14 * K) // 14, "k + (x // 14)"),
        (X // 4 * 4 + X % 4, "x"),
        (X % 12 // 4, "(x // 4) % 3"),
        (X % 8 // 4 * 4 + X % 4, "x % 8"),
        ((X * 4 + J % 4) // 16, "x // 4"),
        ((X * 6 + 3) // 4, "((x * 3) + 1) // 2"),
        ((X * 8 + 12) // 4, "(x * 2) + 3"),
        ((X * 2 + 1) // 8, "x // 4"),
        (J // 14, "0"),
        ((J + 14) % 14, "j"),
        ((X - 1) // 4 + 1, "(x + 3) // 4"),
        ((X * 4 + J % 5) // 8, "((j % 5) + (x * 4)) // 8"),
        ((X * 4 + J % 4 + 1) // 8, "(((j % 4) + (x * 4)) + 1) // 8"),
        # division by symbols
        ((X * N + Y * N) // N, "x + y"),
        ((J + 48) // (N * 16), "3 // n"),
        ((J + 48) % (N * 16), "j + ((3 % n) * 16)"),
        (const(7) % (N * 2) * M + 1, "(m * (7 % (n * 2))) + 1"),
        (const(3) // N * N - 3, "0 - (3 % n)"),
        ((J + 40) // (N * 16), "(j + 40) // (n * 16)"),
        (X * N % N, "0"),
        ((X * N * 4 + Y * 4 + J % 4) // (N * 4), "x + (y // n)"),
        ((X + N) // N, "(x // n) + 1"),
        # minima and maxima
        (ir.minimum(I0, 20), "i"),
        (ir.maximum(I0, 20), "20"),
        (ir.minimum(I0 * 14 + 14, N) - I0 * 14, "min(n - (i * 14), 14)"),
        (ir.maximum(N, 16) + ir.minimum(N, 16), "n + 16"),
        (ir.minimum(X, ir.minimum(Y, X)), "min(x, y)"),
        (ir.maximum(ir.minimum(X, 8), 8), "8"),
        (ir.minimum(N, 16) - 1, "min(n, 16) - 1"),
        # choices
        (ir.select(I0 < 16, X, Y), "x"),
        (ir.if_then_else(I0 < 8, X + 1 - 1, X), "x"),
        (ir.select(I0 < 8, X, Y), "select(i < 8, x, y)"),
    ],
)
def test_index_expressions(analyzer: Analyzer, expr: Expr, expected: str) -> None:
    assert expr_text(analyzer.simplify(expr)) == expected


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (I0 < 16, "True"),
        (I0 > 20, "False"),
        (N // 14 * 14 <= N, "True"),
        ((N + 13) // 14 * 14 >= N, "True"),
        ((N - 1) // 14 * 14 < N, "True"),
        (X * 2 < 9, "x < 5"),
        (X * 4 + 4 <= Y * 4, "x < y"),
        (X // 4 < 3, "x < 12"),
        (ir.EQ(X + 3, const(5)), "x == 2"),
        (ir.EQ(X * 2, const(5)), "False"),
        (ir.NE(X * 2, const(6)), "x != 3"),
        (ir.logical_and(X < 4, X < 8), "x < 4"),
        (ir.logical_and(X < 4, X > 8), "False"),
        (ir.logical_or(X < 4, X < 8), "x < 8"),
        (ir.logical_or(X < 8, X > 4), "True"),
        (ir.logical_or(X < 4, X > 3), "True"),
        (ir.logical_or(X < 4, X > 4), "(x < 4) or (4 < x)"),
        (ir.logical_and(X < 4, X > 2), "(x < 4) and (2 < x)"),
        (ir.logical_and(I0 < 16, X < 3), "x < 3"),
        (ir.logical_not(X < 3), "2 < x"),
        (ir.logical_not(ir.EQ(X, Y)), "x != y"),
        (N - N // 14 * 14 > 2, "2 < (n % 14)"),
    ],
)
def test_conditions(analyzer: Analyzer, expr: Expr, expected: str) -> None:
    got = expr_text(analyzer.simplify(expr))
    assert got == expected


def test_equal_expressions_give_one_object(analyzer: Analyzer) -> None:
    a = analyzer.simplify((X + Y) * 2 - X)
    b = analyzer.simplify(Y + X + Y)
    assert a is b
    assert analyzer.simplify(a) is a


def test_deep_sums_do_not_overflow_the_stack() -> None:
    total: Expr = X
    for _ in range(5000):
        total = ir.Add(total, const(1))
    assert expr_text(simplify(total)) == "x + 5000"


def test_symbolic_extents_divide(analyzer: Analyzer) -> None:
    known = Analyzer({I0: span(M), J: span(N)})
    assert expr_text(known.simplify((I0 * N + J) // N)) == "i"
    assert expr_text(known.simplify((I0 * N + J) % N)) == "j"
    assert expr_text(known.simplify(ir.minimum(I0 * N + J, M * N))) == "(i * n) + j"


def test_casts_between_index_widths_are_seen_through() -> None:
    small: Var = ir.var("s", "int32")
    wide = ir.cast_to(small * 4 + 1, "int64")
    assert expr_text(simplify(wide - 1)) == "int64(s) * 4"
    known = Analyzer({I0: span(16)})
    assert expr_text(known.simplify(ir.cast_to(I0 + 1, "int32"))) == "int32(i) + 1"
    # of x nothing is known: it may be a value, which a narrower type wraps
    assert expr_text(simplify(ir.cast_to(X + 1, "int32"))) == "int32(x + 1)"


def test_an_index_is_the_same_number_in_a_narrower_type() -> None:
    """A loop over 64-bit sizes bound to a 32-bit axis; the division stays as wide as the loop."""
    known = Analyzer({I0: span(N * 28)})
    known.bind_bounds(N, 1, None)
    column = ir.floormod(ir.floordiv(I0, 4), 7)
    assert expr_text(known.simplify(ir.cast_to(column, "int32"))) == "int32((i // 4) % 7)"
    assert known.prove_equal(ir.cast_to(I0, "int32") % 4, ir.cast_to(I0 % 4, "int32"))
    row = ir.cast_to(I0 // (N * 28), "int32")
    assert expr_text(known.simplify(row)) == "0"


def test_values_at_wide_indices_keep_their_own_width() -> None:
    buffer = ir.Buffer("A", ir.dtype_of("int32"), (ir.const(8, "int64"),))
    larger = ir.maximum(ir.load(buffer, I0), ir.load(buffer, I0 + 1))
    found = Analyzer({I0: span(7)}).simplify(larger)
    assert isinstance(found, ir.Max)
    assert found.a.dtype.bits == 32


def test_values_wrap_so_their_sums_are_not_compared() -> None:
    buffer = ir.Buffer("A", ir.dtype_of("int32"), (ir.const(8, "int32"),))
    value = ir.load(buffer, ir.const(0, "int32"))
    known = Analyzer()
    assert not known.prove(value + 1 > value)
    assert not known.prove(ir.EQ((value * 2) // 2, value))
    assert known.prove_equal(value + 1 - 1, value)
    assert known.prove(value <= (1 << 31) - 1)
    assert known.const_bounds(value + 1) == (-(1 << 31), (1 << 31) - 1)


def test_an_index_among_values_is_not_multiplied_by_a_large_number(analyzer: Analyzer) -> None:
    """The sum wraps around as it should, but a product of an index alone may not."""
    value = ir.load(ir.Buffer("A", ir.dtype_of("int64"), (const(16),)), I0)
    large = (1 << 63) - 2
    for expr, expected in [
        ((value + I0) * large, f"(i + A[i]) * {large}"),
        ((value - J * 3) * (1 << 62), f"(j + A[i]) * {1 << 62}"),  # modulo 2**64
        ((value + I0) * large - I0 * 5, f"((i + A[i]) * {large - 5}) + (A[i] * 5)"),
        (const(large) - I0 - value, f"((0 - i) - A[i]) + {large}"),
        ((value + I0) * 3, "(i * 3) + (A[i] * 3)"),
    ]:
        assert expr_text(analyzer.simplify(expr)) == expected


def test_unsigned_and_small_integers_keep_their_shape() -> None:
    byte = ir.var("b", "uint8")
    assert expr_text(simplify(byte - 1 < byte)) == "(b - 1) < b"
    assert expr_text(simplify((byte + 0) * 1)) == "b"


def test_float_rules_are_exact() -> None:
    f = ir.var("f", "float32")
    assert expr_text(simplify(f * 1.0)) == "f"
    assert expr_text(simplify(f - 0.0)) == "f"
    assert expr_text(simplify(f + 0.0)) == "f + 0.0"
    assert expr_text(simplify(f - f)) == "f - f"
    assert expr_text(simplify(f * 0.0)) == "f * 0.0"


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (Broadcast(X, 16) * 4 + Ramp(const(0), const(1), 16), "ramp(x * 4, 1, 16)"),
        (Ramp(X * 16, const(1), 16) // 16, "broadcast(x, 16)"),
        (Ramp(X * 16, const(1), 16) % 16, "ramp(0, 1, 16)"),
        (Ramp(X, const(16), 4) // 16, "ramp(x // 16, 1, 4)"),
        (Ramp(X, const(1), 4) - Ramp(Y, const(1), 4), "broadcast(x - y, 4)"),
        (Ramp(I0, const(1), 4) < 19, "broadcast(True, 4)"),
        (Ramp(I0, const(1), 4) < 18, "ramp(i, 1, 4) < broadcast(18, 4)"),
        (Broadcast(I0, 4) < 3, "broadcast(i < 3, 4)"),
        (ir.minimum(Ramp(J, const(1), 4), Broadcast(const(17), 4)), "ramp(j, 1, 4)"),
        (Ramp(X, const(1), 4) // 16, "ramp(x, 1, 4) // broadcast(16, 4)"),
    ],
)
def test_vectors(analyzer: Analyzer, expr: Expr, expected: str) -> None:
    assert expr_text(analyzer.simplify(expr)) == expected


def test_let_is_put_in_and_likely_is_seen_through(analyzer: Analyzer) -> None:
    bound = ir.Let(X, Y + 1, X * 2 - 2)
    assert expr_text(analyzer.simplify(bound)) == "y * 2"
    assert expr_text(analyzer.simplify(ir.call("likely", I0 < 16))) == "True"


def test_shifts_and_masks_are_divisions(analyzer: Analyzer) -> None:
    four = const(4)
    assert expr_text(analyzer.simplify((X << four) >> four)) == "x"
    assert expr_text(analyzer.simplify(I0 & const(15))) == "i"


def test_variables_of_one_name_stay_apart() -> None:
    first, second = ir.var("x", "int64"), ir.var("x", "int64")
    known = Analyzer()
    assert not known.prove_equal(first, second)
    assert isinstance(known.simplify(first - second), ir.Sub)
    known.bind(first, span(4))
    assert known.const_bounds(first + second * 0) == (0, 3)
    assert known.const_bounds(second) == (None, None)


def test_a_minimum_is_bounded_by_any_of_its_operands() -> None:
    tail = ir.minimum(N - X * 8, const(8))
    assert Analyzer().const_bounds(tail) == (None, 8)
    assert Analyzer().const_bounds(ir.maximum(N - X * 8, const(8))) == (8, None)


def test_a_minimum_of_minima_has_one_form(analyzer: Analyzer) -> None:
    """Also below a division, where equality is that of the canonical forms."""
    nested = ir.maximum(ir.minimum(X, Y) - K, const(0))
    flat = ir.minimum(X, Y) + ir.maximum(const(0) - K, ir.maximum(const(0) - X, const(0) - Y))
    assert analyzer.prove_equal(nested, flat)
    assert analyzer.prove_equal((nested + 1) // 2, (flat + 1) // 2)


def test_a_checked_index_lies_in_its_extent(analyzer: Analyzer) -> None:
    inside = ir.call("checked_index", X, N)
    assert analyzer.prove(inside >= 0)
    assert analyzer.const_bounds(ir.call("checked_index", X, const(9))) == (0, 8)
    assert analyzer.simplify(ir.call("checked_index", I0, const(16))) is I0
    assert not analyzer.prove_equal(inside, X)


# ------------------------------------------------------------------------------ divisibility
def test_a_symbol_that_divides_a_size() -> None:
    n, t, u = (ir.var(name, "int64") for name in ("n", "t", "u"))
    known = Analyzer()
    for var in (n, t, u):
        known.bind_bounds(var, 1, None)
    known.learn(ir.EQ(n % t, ir.const(0, "int64")))
    cases = [
        (t * (n // t), "n"),
        (n % t, "0"),
        ((n + t - 1) // t, "n // t"),
        ((n - 1) // t, "(n // t) - 1"),
        (n * u // t, "u * (n // t)"),
        (u * t * (n // t), "n * u"),
    ]
    for expr, text in cases:
        assert expr_text(known.simplify(expr)) == text


def test_a_symbol_that_divides_a_number() -> None:
    t = ir.var("t", "int64")
    whole = ir.const(128, "int64")
    known = Analyzer()
    known.bind_bounds(t, 1, None)
    known.learn(ir.EQ(whole % t, ir.const(0, "int64")))
    assert known.prove_equal(t * (whole // t), whole)
    assert expr_text(known.simplify(ir.ceildiv(whole, t))) == "128 // t"
    assert not known.prove_equal(t * ((whole + 1) // t), whole + 1)


def test_remainders_by_a_number_of_tiles_are_seen() -> None:
    n, t, i = (ir.var(name, "int64") for name in ("n", "t", "i"))
    known = Analyzer()
    for var in (n, t):
        known.bind_bounds(var, 1, None)
    tiles = (n - 1) // t + 1
    assert expr_text(known.simplify(t * (i % tiles))) == "t * (i % (((n - 1) // t) + 1))"
    assert expr_text(known.simplify(i // tiles * tiles + i % tiles)) == "i"
    assert expr_text(known.simplify((i // tiles) // t - i // (tiles * t))) == "0"

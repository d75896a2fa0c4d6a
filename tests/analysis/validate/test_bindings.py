"""Iterator bindings: independent iterators, values in their domains, each term added once."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from tests.analysis.validated import codes, message, program


def bound(extent: str, v1: str, v2: str, condition: str = "True") -> ir.PrimFunc:
    """One loop that gives values to two iterators (TensorIR paper, section 3.3)."""
    return bw.from_source(f"""
@T.prim_func
def main(h: T.handle):
    n = T.int64()
    B = T.match_buffer(h, (4 * n, 4 * n), "float32")
    for i in range({extent}):
        with T.block("B"):
            v1 = T.axis.{v1}
            v2 = T.axis.{v2}
            T.where({condition})
            T.reads()
            T.writes(B[0:4 * n, 0:4 * n])
            B[v1 % n, v2 % n] = T.float32(1)
""")


@pytest.mark.parametrize("extent", ["16", "1000000", "n"])
def test_two_iterators_on_one_loop_are_not_independent(extent: str) -> None:
    func = bound(extent, f"spatial({extent}, i)", f"spatial(2 * {extent}, i * 2)")
    assert codes(func) == ["BW233"]


@pytest.mark.parametrize(
    ("extent", "v1", "v2", "condition"),
    [
        ("16", "spatial(4, i // 4)", "spatial(4, i % 4)", "True"),
        ("n * 4", "spatial(n, i // 4)", "spatial(4, i % 4)", "True"),
        ("n * 4", "spatial(4, i // n)", "spatial(n, i % n)", "True"),
        ("18", "spatial(5, i // 4)", "spatial(4, i % 4)", "True"),  # the last row is shorter
        ("20", "spatial(5, i // 4)", "spatial(4, i % 4)", "i < 18"),
        ("4 * n - 1", "spatial(4, (i + 1) // n)", "spatial(n, (i + 1) % n)", "True"),  # a prologue
        ("4 * n - 2", "spatial(4, (i + 2) // n)", "spatial(n, (i + 2) % n)", "True"),
        ("4 * n - n // 2", "spatial(5, (n // 2 + i) // n)", "spatial(n, (n // 2 + i) % n)", "True"),
        ("16", "spatial(8, i // 4 + 2)", "spatial(9, i % 4 + 5)", "True"),
        ("16", "opaque(16, i)", "opaque(32, i * 2)", "True"),  # declared not to be looked at
    ],
)  # fmt: skip
def test_quotients_and_remainders_are_independent(
    extent: str, v1: str, v2: str, condition: str
) -> None:
    assert codes(bound(extent, v1, v2, condition)) == []


def test_digits_of_a_loop_that_begins_late_are_independent() -> None:
    """A piece of a fused loop, as `loop_partition` cuts it."""
    assert codes(bw.from_source("""
@T.prim_func
def main(B: T.Buffer((2, 2, 2), "float32")):
    for f in range(3, 8):
        with T.block("B"):
            v0 = T.axis.spatial(2, f // 4)
            v1 = T.axis.spatial(2, f // 2 % 2)
            v2 = T.axis.spatial(2, f % 2)
            B[v0, v1, v2] = T.float32(1)
""")) == []  # fmt: skip


def test_quotients_and_remainders_of_every_third_are_not() -> None:
    func = bound("16", "spatial(12, (3 * i + 1) // 4)", "spatial(4, (3 * i + 1) % 4)")
    assert codes(func) == ["BW233"]


def test_rows_that_overlap_are_independent_of_a_tile_cut_short() -> None:
    """A producer at its consumer's fused loop: a halo along one axis, 5 of 2 x 4 along two."""
    assert codes(bw.from_source("""
@T.prim_func
def main(B: T.Buffer((3, 2, 4), "float32")):
    for f in range(10):
        for a in range(2):
            with T.block("B"):
                v0 = T.axis.spatial(3, f % 2 + a)
                v1 = T.axis.spatial(2, f // 8)
                v2 = T.axis.spatial(4, f // 2 % 4)
                B[v0, v1, v2] = T.float32(1)
""")) == []  # fmt: skip


def test_iterators_of_a_loop_that_never_runs_are_independent() -> None:
    """A loop over the interior of a row without one, fused."""
    assert codes(bw.from_source("""
@T.prim_func
def main(b: T.handle):
    n = T.int32()
    B = T.match_buffer(b, (2, n), "float32")
    for f in range(0):
        with T.block("B"):
            v0 = T.axis.spatial(2, f // (n - 2) + 1)
            v1 = T.axis.spatial(n, f % (n - 2) + 1)
            B[v0, v1] = T.float32(1)
""")) == []  # fmt: skip


def test_sums_that_share_a_loop_are_not_independent() -> None:
    assert codes(bw.from_source("""
@T.prim_func
def main(B: T.Buffer((7, 4), "float32")):
    for i, j in T.grid(4, 4):
        with T.block("B"):
            v0 = T.axis.spatial(7, i + j)
            v1 = T.axis.spatial(4, j)
            B[v0, v1] = T.float32(1)
""")) == ["BW233"]  # fmt: skip


def test_combinations_that_never_run_are_counted() -> None:
    """i % 4 and i % 6 have the same parity."""
    text = message(bound("24", "spatial(4, i % 4)", "spatial(6, i % 6)"))
    assert "only 12 of the 24 combinations of their values occur" in text


def test_a_value_outside_its_domain_is_shown() -> None:
    text = message(bound("18", "spatial(4, i // 4)", "spatial(4, i % 4)"))
    assert "BW232" in text
    assert "i = 16 it is 4" in text
    assert codes(bound("18", "spatial(4, i // 4)", "spatial(4, i % 4)", "i < 16")) == []


def test_conditions_may_cut_any_shape() -> None:
    """A triangle is no product, and a fine thing to compute."""
    assert codes(program("""
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        T.where(i <= j)
        B[vi, vj] = A[vi, vj]
""")) == []  # fmt: skip


def test_positions_read_from_memory_are_not_judged() -> None:
    func = bw.from_source("""
@T.prim_func
def main(P: T.Buffer((8,), "int32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, P[i])
            T.reads()
            T.writes(B[0:8])
            B[vi] = T.float32(1)
""")
    assert codes(func) == []


SUM = """
for {loops}:
    with T.block("B"):
        vi = T.axis.spatial(32, {i})
        vk = T.axis.reduce(32, {k})
        T.where({where})
        with T.init():
            B[vi, 0] = T.float32(0)
        B[vi, 0] = B[vi, 0] + A[vi, vk]
"""


@pytest.mark.parametrize(
    ("loops", "i", "k", "where"),
    [
        ("i, k in T.grid(32, 32)", "i", "k", "True"),
        ("k, i in T.grid(32, 32)", "i", "k", "True"),
        ("i, k in T.grid(32, 32)", "i", "k", "k <= i"),  # causal: fewer terms, never none
        ("i, u, k in T.grid(32, 2, 32)", "i", "k", "True"),  # all of it once more
        ("i, ki, ko in T.grid(32, 5, 7)", "i", "ko * 5 + ki", "ko * 5 + ki < 32"),
        ("io, ii, k in T.grid(8, 6, 32)", "io * 4 + ii", "k", "io * 4 + ii < 32"),  # overlapping
    ],
)
def test_reductions_that_add_every_term_once(loops: str, i: str, k: str, where: str) -> None:
    assert codes(program(SUM.format(loops=loops, i=i, k=k, where=where))) == []


@pytest.mark.parametrize(
    ("loops", "i", "k", "where", "why"),
    [
        ("i, k, u in T.grid(32, 32, 2)", "i", "k", "True", "a second time"),
        ("i, k in T.grid(32, 32)", "i", "31 - k", "True", "before the initial value"),
        ("i, k in T.grid(32, 31)", "i", "k + 1", "True", "before the initial value"),
        ("i, k in T.grid(32, 32)", "i", "k", "k > 0", "before the initial value"),
    ],
)
def test_reductions_that_do_not(loops: str, i: str, k: str, where: str, why: str) -> None:
    text = message(program(SUM.format(loops=loops, i=i, k=k, where=where)))
    assert "BW234" in text
    assert why in text


def test_fused_and_split_again_with_a_remainder() -> None:
    """The last row of the split loop is cut off by the condition, not by the loops."""
    assert codes(program("""
for o, m, j in T.grid(3, 3, 7):
    with T.block("B"):
        vi = T.axis.spatial(8, ((o * 3 + m) * 7 + j) // 7)
        vj = T.axis.spatial(7, ((o * 3 + m) * 7 + j) % 7)
        T.where((o * 3 + m) * 7 + j < 56)
        B[vi, vj] = A[vi, vj]
for o, j in T.grid(15, 4):
    with T.block("A"):
        vi = T.axis.spatial(8, (o * 4 + j) // 7)
        vj = T.axis.spatial(7, (o * 4 + j) % 7)
        T.where(o * 4 + j < 56)
        B[vi, 8 + vj] = A[vi, vj]
""")) == []  # fmt: skip


@pytest.mark.parametrize(("order", "expected"), [("a, b", []), ("b, a", ["BW234"])])
def test_every_element_is_set_before_its_first_term(order: str, expected: list[str]) -> None:
    """Rows and terms come out of one loop in two parts: in the order 0, 2, 4, 1, 3, 5 the last term
    of the second row comes before its first one."""
    extents = {"a": 3, "b": 2}
    counts = ", ".join(str(extents[name]) for name in order.split(", "))
    assert codes(bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer((2, 3), "float32"), B: T.Buffer((2,), "float32")):
    for {order} in T.grid({counts}):
        with T.block("B"):
            vi = T.axis.spatial(2, (a * 2 + b) // 3)
            vk = T.axis.reduce(3, (a * 2 + b) % 3)
            with T.init():
                B[vi] = 0.0
            B[vi] = B[vi] + A[vi, vk]
""")) == expected  # fmt: skip


def test_so_are_rows_that_overlap_in_a_loop_that_begins_late() -> None:
    """A producer at its consumer's fused loop, cut by `loop_partition`, with a symbolic width."""
    assert codes(bw.from_source("""
@T.prim_func
def main(b: T.handle):
    m = T.int64()
    B = T.match_buffer(b, (2, m + 1), "float32")
    for f in T.serial(3, m * 2):
        for a in range(2):
            with T.block("B"):
                v0 = T.axis.spatial(2, f // m)
                v1 = T.axis.spatial(m + 1, f % m + a)
                B[v0, v1] = T.float32(1)
""")) == []  # fmt: skip

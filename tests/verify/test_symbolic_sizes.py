"""Programs whose loops are fused and split by symbolic sizes."""

from __future__ import annotations

import pytest

pytest.importorskip("islpy")

from blockwright import ir
from blockwright.verify import verify
from blockwright.verify.normalize.quotients import Quotients
from tests.verify.pairs import matmul, program

N, M, A, B = (ir.Var(name, ir.dtype_of("int64")) for name in "nmab")
PLAIN = """
for i, j, k in T.grid(n, m, 5):
    with T.block("C"):
        vi, vj, vk = T.axis.remap("SSS", [i, j, k])
        C[vi, vj, vk] = X[vi, vj, vk] + T.float32(1)
"""
FUSED = """
for f in range({extent}):
    with T.block("C"):
        vi = T.axis.spatial(n, {i})
        vj = T.axis.spatial(m, {j})
        vk = T.axis.spatial(5, {k})
        C[vi, vj, vk] = X[vi, vj, vk] + T.float32(1)
"""
ARGUMENTS = "X[n, m, 5]; C[n, m, 5]"


def known() -> Quotients:
    """Sizes n and m, a below n and b below m."""
    found = Quotients({N: 1, M: 1})
    found.bound(A, found.poly(N))
    found.bound(B, found.poly(M))
    return found


def test_quotients_of_sums_are_resolved() -> None:
    found = known()
    whole = ir.Add(ir.Mul(A, M), B)
    a, b = found.poly(A), found.poly(B)
    assert found.poly(ir.FloorDiv(whole, M)) == a
    assert found.poly(ir.FloorMod(whole, M)) == b
    assert found.poly(ir.FloorMod(whole, N)) not in (a, b)  # b may be n or more
    assert found.poly(ir.Sub(ir.Add(whole, A), whole)) == a


def test_comparisons_are_decided_for_all_sizes() -> None:
    found = known()
    whole, sizes = ir.Add(ir.Mul(A, M), B), ir.Mul(N, M)
    assert found.truth(ir.LT(whole, sizes)) is True
    assert found.truth(ir.GE(whole, sizes)) is False
    assert found.truth(ir.LT(whole, N)) is None


@pytest.mark.parametrize(
    ("extent", "i", "j", "k"),
    [
        ("n * m * 5", "f // (m * 5)", "f // 5 % m", "f % 5"),
        ("n * m * 5", "f // (m * 5)", "f % (m * 5) // 5", "f % (m * 5) % 5"),
        ("5 * n * m", "f % (n * m) // m", "f % m", "f // (n * m)"),
        ("m * 5 * n", "f % n", "f // (5 * n)", "f // n % 5"),
    ],
)
def test_fused_loops_over_products(extent: str, i: str, j: str, k: str) -> None:
    before = program(ARGUMENTS, PLAIN, "n m")
    after = program(ARGUMENTS, FUSED.format(extent=extent, i=i, j=j, k=k), "n m")
    assert verify(before, after).verdict == "proved"
    wrong = program(
        ARGUMENTS, FUSED.format(extent=extent, i=i, j=f"(m - 1 - ({j})) // 2", k=k), "n m"
    )
    assert verify(before, wrong).verdict == "refuted"


SPLIT = """
for i0, i1 in T.grid((n + m - 1) // m, m):
    with T.block("D"):
        vi = T.axis.spatial(n, i0 * m + i1)
        T.where(i0 * m + i1 < {limit})
        D[vi] = Y[vi] * T.float32(2)
"""
WHOLE = """
for i in range(n):
    with T.block("D"):
        vi = T.axis.spatial(n, i)
        D[vi] = Y[vi] * T.float32(2)
"""


def test_a_loop_split_by_a_size() -> None:
    arguments = "Y[n]; D[n]; S[m]"
    before = program(arguments, WHOLE, "n m")
    assert verify(before, program(arguments, SPLIT.format(limit="n"), "n m")).verdict == "proved"
    wrong = program(arguments, SPLIT.format(limit="n - 1"), "n m")
    assert verify(before, wrong).verdict != "proved"


FLAT = """
flat = T.alloc_buffer((n * m,))
for i, j in T.grid(n, m):
    with T.block("flat"):
        vi, vj = T.axis.remap("SS", [i, j])
        flat[vi * m + vj] = T.exp(X[vi, vj])
for i, j in T.grid(n, m):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = flat[{index}]
"""


SQUARE = """
for i, j in T.grid(n, m):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = T.exp(X[vi, vj])
"""


def test_an_axis_of_two_sizes() -> None:
    arguments = "X[n, m]; C[n, m]"
    before = program(arguments, SQUARE, "n m")
    after = program(arguments, FLAT.format(index="m * vi + vj"), "n m")
    assert verify(before, after).verdict == "proved"
    wrong = program(arguments, FLAT.format(index="m * vi + m - 1 - vj"), "n m")
    assert verify(before, wrong).verdict == "refuted"


def test_fused_threads() -> None:
    threads = FUSED.replace("range({extent})", 'T.thread_binding({extent}, thread="threadIdx.x")')
    after = program(
        ARGUMENTS,
        threads.format(extent="n * m * 5", i="f // (m * 5)", j="f // 5 % m", k="f % 5"),
        "n m",
    )
    assert verify(program(ARGUMENTS, PLAIN, "n m"), after).verdict == "proved"


TABLE = """
rows = T.alloc_buffer(({n},), "int64")
for i in range({n}):
    with T.block("rows"):
        v = T.axis.spatial({n}, i)
        rows[v] = v
for i, j, k in T.grid({n}, {n}, {n}):
    with T.block("C"):
        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
        with T.init():
            C[vi, vj] = T.float32(0)
        C[vi, vj] = C[rows[vi], vj] + A[vi, rows[{read}]] * B[vk, vj]
"""


def test_an_update_at_a_position_of_a_table() -> None:
    arguments = "A[n, n]; B[n, n]; C[n, n]"
    right = program(arguments, TABLE.format(n="n", read="vk"), "n")
    assert verify(matmul("n"), right).verdict == "proved"
    wrong = program(arguments, TABLE.format(n="n", read="T.max(vk - 1, 0)"), "n")
    assert verify(matmul("n"), wrong).verdict == "refuted"


def test_a_table_that_is_read_before_it_is_filled() -> None:
    text = TABLE.format(n="n", read="vk").strip("\n").split("\n")
    late = "\n".join([text[0], *text[5:], *text[1:5]])
    after = program("A[n, n]; B[n, n]; C[n, n]", late, "n")
    assert verify(matmul("n"), after).verdict != "proved"


RACE = """
rows = T.alloc_buffer((16,), "int64")
for i in {kind}(16):
    with T.block("rows"):
        v = T.axis.spatial(16, i)
        rows[v] = v
    with T.block("C"):
        v = T.axis.spatial(16, i)
        C[v] = A[T.if_then_else(v < 1, T.int64(0), rows[v - 1])]
"""


def test_a_table_that_another_thread_fills() -> None:
    text = (
        'for i in range(16):\n    with T.block("C"):\n        v = T.axis.spatial(16, i)\n'
        "        C[v] = A[T.max(v - 1, 0)]"
    )
    before = program("A[16]; C[16]", text)
    assert verify(before, program("A[16]; C[16]", RACE.format(kind="range"))).verdict == "proved"
    meet = program("A[16]; C[16]", RACE.format(kind="T.parallel"))
    assert verify(before, meet).verdict != "proved"


TILES = """
for {loops}:
    with T.block("D"):
        vi = T.axis.spatial(n, {at})
        T.where({where})
        D[vi] = Y[vi] * T.float32(2)
"""
TILED = [
    (  # split by 2 * m, then the middle part by m
        "i0, i1, i2, i3 in T.grid((n - 1) // (2 * m) + 1, 1, m, 2)",
        "2 * m * i0 + 2 * i2 + i3",
        "2 * m * i0 + 2 * i2 + i3 < n",
    ),
    (  # split by m, then the outer part by m * 3: one condition says less than the other
        "i0, i1, i2, i3 in T.grid(((n - 1) // m) // (3 * m) + 1, 3, m, m)",
        "3 * m * m * i0 + m * m * i1 + m * i2 + i3",
        "3 * m * m * i0 + m * m * i1 + m * i2 + i3 < n"
        " and 3 * m * i0 + m * i1 + i2 < (n - 1) // m + 1",
    ),
    (  # split by m, then the inner part by 2 * n, which is more than there is
        "i0, i1, i2, i3 in T.grid((n - 1) // m + 1, (m - 1) // (2 * n) + 1, n, 2)",
        "m * i0 + 2 * n * i1 + 2 * i2 + i3",
        "m * i0 + 2 * n * i1 + 2 * i2 + i3 < n and 2 * n * i1 + 2 * i2 + i3 < m",
    ),
    (  # parts that do not stand next to each other
        "i1, i0, i2 in T.grid(m, (n - 1) // (2 * m) + 1, 2)",
        "2 * m * i0 + 2 * i1 + i2",
        "2 * m * i0 + 2 * i1 + i2 < n",
    ),
]


@pytest.mark.parametrize(("loops", "at", "where"), TILED)
def test_tiles_that_do_not_divide_a_size(loops: str, at: str, where: str) -> None:
    arguments = "Y[n]; D[n]; S[m]"
    before = program(arguments, WHOLE, "n m")
    right = TILES.format(loops=loops, at=at, where=where)
    assert verify(before, program(arguments, right, "n m")).verdict == "proved"


ERRORS = [
    ("(n - 1)", "(n - 2)"),  # the last element is left out
    ("(n - 1) //", "n // 2 //"),  # tiles are left out
    (" < n", " < n - 1"),
    (" < n", " < n + 1"),  # one element beyond the end
    ("* i0 +", "* i0 + 1 +"),
    ("2 * m * i0", "m * i0"),  # tiles overlap
    ("m * m * i1", "m * i1"),
    ("m * i0 +", "n * i0 +"),
]
WRONG = [
    (right.replace(old, new))
    for loops, at, where in TILED
    for old, new in ERRORS
    if old in (right := TILES.format(loops=loops, at=at, where=where))
]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_tiles(wrong: str) -> None:
    arguments = "Y[n]; D[n]; S[m]"
    before = program(arguments, WHOLE, "n m")
    assert verify(before, program(arguments, wrong, "n m")).verdict != "proved"


SUMMED = """
R[0] = T.float32(0)
for i0, i1, i2, i3 in T.grid((n - 1) // m + 1, (m - 1) // (2 * n) + 1, n, 2):
    with T.block("R"):
        vi = T.axis.reduce(n, m * i0 + 2 * n * i1 + 2 * i2 + i3)
        T.where(m * i0 + 2 * n * i1 + 2 * i2 + i3 < n{where})
        R[0] = R[0] + Y[vi]
"""
SUM = """
R[0] = T.float32(0)
for i in range(n):
    with T.block("R"):
        vi = T.axis.reduce(n, i)
        R[0] = R[0] + Y[vi]
"""


def test_terms_of_a_sum_are_taken_once() -> None:
    arguments = "Y[n]; R[1]; S[m]"
    before = program(arguments, SUM, "n m")
    found = {
        where: verify(before, program(arguments, SUMMED.format(where=where), "n m")).verdict
        for where in (
            " and 2 * n * i1 + 2 * i2 + i3 < m",
            " and 2 * n * i1 + 2 * i2 + i3 < m + 1",
            " and 2 * n * i1 + 2 * i2 + i3 < m - 1",
            " and 2 * n * i1 + i2 + i3 < m",
            "",
        )
    }
    right, *wrong = found.values()
    assert right == "proved"
    assert "proved" not in wrong


LAST = """
for {loops}:
    with T.block("D"):
        vi = T.axis.spatial(n, 2 * m * i0 + 2 * i1 + i2)
        T.where(2 * m * i0 + 2 * i1 + i2 < n)
        D[T.min(vi, 1)] = Y[vi]
"""


def test_parts_are_moved_only_where_the_order_does_not_matter() -> None:
    """The last store to an element stays."""
    arguments = "Y[n]; D[2]; S[m]"
    in_order = LAST.format(loops="i0, i1, i2 in T.grid((n - 1) // (2 * m) + 1, m, 2)")
    swapped = LAST.format(loops="i1, i0, i2 in T.grid(m, (n - 1) // (2 * m) + 1, 2)")
    plain = (
        "for i in range(n):\n    with T.block('D'):\n        vi = T.axis.spatial(n, i)\n"
        "        D[T.min(vi, 1)] = Y[vi]"
    )
    before = program(arguments, plain, "n m")
    assert verify(before, program(arguments, in_order, "n m")).verdict == "proved"
    assert verify(before, program(arguments, swapped, "n m")).verdict != "proved"


REDUCED = """
for {loops}:
    with T.block("C"):
        vi = T.axis.spatial(n, i0 * m + i1)
        vk = T.axis.reduce(5, k)
        T.where(i0 * m + i1 < n)
        with T.init():
            C[vi] = T.float32(0)
        C[vi] = C[vi] + X[vi, {read}]
"""


def test_parts_with_a_reduction_between_them() -> None:
    arguments = "X[n, 5]; C[n]; S[m]"
    together = "i0, i1, k in T.grid((n - 1) // m + 1, m, 5)"
    apart = "i0, k, i1 in T.grid((n - 1) // m + 1, 5, m)"
    before = program(arguments, REDUCED.format(loops=together, read="vk"), "n m")
    after = program(arguments, REDUCED.format(loops=apart, read="vk"), "n m")
    assert verify(before, after).verdict == "proved"
    wrong = program(arguments, REDUCED.format(loops=apart, read="T.max(vk - 1, 0)"), "n m")
    assert verify(before, wrong).verdict == "refuted"


def test_bounds_of_quotients() -> None:
    found = Quotients({N: 1, M: 1})
    n, m = found.poly(N), found.poly(M)
    tiles = found.poly(ir.FloorDiv(ir.Sub(N, ir.const(1, "int64")), M))
    one = found.poly(ir.const(1, "int64"))
    assert found.never_negative((tiles + one) * m - n)  # tiles cover
    assert not found.never_negative(tiles * m - n)
    assert found.never_negative(n - one - tiles * m)
    assert not found.never_negative(n - one - one - tiles * m)
    assert found.never_negative(n - one - tiles)
    found.bound(A, tiles + one)
    a = found.poly(A)
    assert found.cleared(tiles + one - a) == n - m * a  # a < (n - 1) // m + 1: m * a < n
    assert found.cleared(a - tiles) == m * a - n + one  # a > (n - 1) // m: m * a > n - 1


TWO = """
B = T.alloc_buffer((n,))
for i0 in range((n - 1) // m + 1):
    for i1 in range(m):
        with T.block("B"):
            vi = T.axis.spatial(n, i0 * m + i1)
            T.where(i0 * m + i1 < n)
            B[vi] = Y[vi] + T.float32(1)
    for i1 in range(m):
        with T.block("D"):
            vi = T.axis.spatial(n, i0 * m + i1)
            T.where(i0 * m + i1 < n)
            D[vi] = {read} * T.float32(2)
"""
APART = """
B = T.alloc_buffer((n,))
for i in range(n):
    with T.block("B"):
        vi = T.axis.spatial(n, i)
        B[vi] = Y[vi] + T.float32(1)
for i in range(n):
    with T.block("D"):
        vi = T.axis.spatial(n, i)
        D[vi] = {read} * T.float32(2)
"""


def test_a_tile_around_two_statements() -> None:
    arguments = "Y[n]; D[n]; S[m]"
    before = program(arguments, APART.format(read="B[vi]"), "n m")
    after = program(arguments, TWO.format(read="B[vi]"), "n m")
    assert verify(before, after).verdict == "proved"
    later = "T.if_then_else(vi < n - 1, B[vi + 1], T.float32(0))"  # of the next tile at its end
    before = program(arguments, APART.format(read=later), "n m")
    after = program(arguments, TWO.format(read=later), "n m")
    assert verify(before, after).verdict != "proved"


ROLLED = """
B = T.alloc_buffer((m,))
for i0 in range((n - 1) // m + 1):
    for i1 in range(m):
        with T.block("B"):
            vi = T.axis.spatial(n, i0 * m + i1)
            vl = T.axis.spatial(m, i1)
            T.where(i0 * m + i1 < n)
            B[vl] = Y[vi] + T.float32(1)
{again}    for i1 in range(m):
        with T.block("D"):
            vi = T.axis.spatial(n, i0 * m + i1)
            vl = T.axis.spatial(m, i1)
            T.where(i0 * m + i1 < n)
            D[vi] = B[vl] * T.float32(2)
"""


def test_a_tile_in_a_buffer_that_the_next_one_overwrites() -> None:
    arguments = "Y[n]; D[n]; S[m]"
    before = program(arguments, ROLLED.format(again=""), "n m")
    again = "for i0 in range((n - 1) // m + 1):\n"
    after = program(arguments, ROLLED.format(again=again), "n m")
    assert verify(before, after).verdict != "proved"


SHARED = """
B = T.alloc_buffer((1,))
for {loops}:
    with T.block("D"):
        vi = T.axis.spatial(n, i0 * m + i1)
        vk = T.axis.spatial(2, k)
        T.where(i0 * m + i1 < n)
        if vk == 0:
            B[0] = Y[vi]
        else:
            D[vi] = B[0]
"""


def test_parts_that_are_moved_share_buffers_as_before() -> None:
    """All elements of a tile are put into one place before the first is taken out again."""
    arguments = "Y[n]; D[n]; S[m]"
    plain = (
        "for i in range(n):\n    with T.block('D'):\n        vi = T.axis.spatial(n, i)\n"
        "        D[vi] = Y[vi]"
    )
    before = program(arguments, plain, "n m")
    after = SHARED.format(loops="i0, k, i1 in T.grid((n - 1) // m + 1, 2, m)")
    assert verify(before, program(arguments, after, "n m")).verdict != "proved"
    alone = SHARED.format(loops="i0, i1, k in T.grid((n - 1) // m + 1, m, 2)")
    assert verify(before, program(arguments, alone, "n m")).verdict == "proved"


SHIFTED = """
B = T.alloc_buffer(({shape}), "float32")
for i, j in T.grid(n, m):
    with T.block("B"):
        v, w = T.axis.remap("SS", [i, j])
        B[{written}] = T.exp(X[v, w])
for i, j in T.grid(n, m + 2):
    with T.block("C"):
        v, w = T.axis.remap("SS", [i, j])
        C[v, w] = T.if_then_else(w < {low}, T.float32(0), B[{read}])
"""


def test_an_axis_of_two_sizes_is_read_under_a_condition() -> None:
    """That `w - 2` is a digit holds where `w` is not below 2."""
    arguments = "X[n, m]; C[n, m + 2]"
    before = program(
        arguments, SHIFTED.format(shape="n, m", written="v, w", read="v, w - 2", low=2), "n m"
    )
    right, wrong = (
        program(
            arguments,
            SHIFTED.format(shape="n * m,", written="v * m + w", read="v * m + w - 2", low=low),
            "n m",
        )
        for low in (2, 1)
    )
    assert verify(before, right).verdict == "proved"
    assert verify(before, wrong).verdict != "proved"
    assert verify(wrong, wrong.replace(attrs={"name": "same"})).verdict == "unknown"

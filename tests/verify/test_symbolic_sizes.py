"""Programs whose loops are fused and split by symbolic sizes."""

from __future__ import annotations

import pytest

pytest.importorskip("islpy")

from blockwright import ir
from blockwright.verify import verify
from blockwright.verify.quotients import Quotients
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
    wrong = program(ARGUMENTS, FUSED.format(extent=extent, i=i, j=f"(m - 1 - ({j})) // 2", k=k),
                    "n m")  # fmt: skip
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
    after = program(ARGUMENTS, threads.format(extent="n * m * 5", i="f // (m * 5)",
                                              j="f // 5 % m", k="f % 5"), "n m")  # fmt: skip
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
    text = 'for i in range(16):\n    with T.block("C"):\n        v = T.axis.spatial(16, i)\n' \
           "        C[v] = A[T.max(v - 1, 0)]"  # fmt: skip
    before = program("A[16]; C[16]", text)
    assert verify(before, program("A[16]; C[16]", RACE.format(kind="range"))).verdict == "proved"
    meet = program("A[16]; C[16]", RACE.format(kind="T.parallel"))
    assert verify(before, meet).verdict != "proved"

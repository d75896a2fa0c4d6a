"""What is written otherwise and means the same: unrolled stores, positions, chosen operators."""

from __future__ import annotations

import pytest

pytest.importorskip("islpy")

from blockwright import ir
from blockwright.verify import verify
from blockwright.verify.roll import rolled
from tests.verify.pairs import matmul, program

TILE = """
    for io, j in T.grid(4, 16):
        with T.block("zero"):
            vi, vj = T.axis.remap("SS", [io, j])
{zeros}
    for io, j, k in T.grid(4, 16, 16):
        with T.block("add"):
            vi, vj, vk = T.axis.remap("SSR", [io, j, k])
{rows}
"""


def unrolled(wrong: int = -1) -> ir.PrimFunc:
    """A product of matrices whose rows are written out by fours; one of them with a wrong read."""
    rows = [f"            C[vi * 4 + {r}, vj] = C[vi * 4 + {r}, vj] + "
            f"A[vi * 4 + {0 if r == wrong else r}, vk] * B[vk, vj]" for r in range(4)]  # fmt: skip
    zeros = [f"            C[vi * 4 + {r}, vj] = T.float32(0)" for r in range(4)]
    text = TILE.format(zeros="\n".join(zeros), rows="\n".join(rows))
    return program("A[16, 16]; B[16, 16]; C[16, 16]", text)


def test_unrolled_stores_are_a_loop_again() -> None:
    func = unrolled()
    assert len(ir.collect(func.body, ir.BufferStore)) == 8
    body = rolled(func.body)
    assert len(ir.collect(body, ir.BufferStore)) == 2
    assert verify(func, func.replace(body=body)).verdict == "proved"
    assert verify(matmul("16"), func).verdict == "proved"


def test_an_error_in_one_unrolled_store() -> None:
    func = unrolled(wrong=2)
    assert len(ir.collect(rolled(func.body), ir.BufferStore)) == 5
    assert verify(matmul("16"), func).verdict == "refuted"


def test_unrolled_stores_keep_their_order() -> None:
    shifted = "\n".join(f"A[{k + 1}] = A[{k}]" for k in range(5))
    both = [program("A[6]", text) for text in (
        shifted, "for i in range(5):\n    with T.block('b'):\n        A[i + 1] = A[i]",
        "for i in range(5):\n    with T.block('b'):\n        A[5 - i] = A[4 - i]")]  # fmt: skip
    assert verify(both[0], both[2]).verdict == "refuted"
    assert len(ir.collect(rolled(both[0].body), ir.For)) == 1


BLOCK = """
for i in range(8):
    with T.block("{out}"):
        v = T.axis.spatial(8, i)
        {out}[v] = {value}
"""


def chain(**values: str) -> str:
    """Buffers of eight elements filled one after the other."""
    inner = [f'{name} = T.alloc_buffer((8,), "{"int64" if name.islower() else "float32"}")'
             for name in values if name != "Out"]  # fmt: skip
    return "\n".join(inner) + "".join(BLOCK.format(out=n, value=v) for n, v in values.items())


def test_positions_that_the_program_computes_are_known() -> None:
    before = program("X[12]; Out[8]", chain(
        a="T.int64(v) - T.int64(3)",
        b="T.Select(a[v] < T.int64(0), a[v] + T.int64(8), a[v])",
        c="T.min(b[v] * T.int64(2), T.int64(11))",
        Out="X[T.checked_index(c[v], T.int64(12))]",
    ))  # fmt: skip
    after = program("X[12]; Out[8]", chain(Out="X[T.min((v + 5) % 8 * 2, 11)]"))
    assert verify(before, after).verdict == "proved"
    wrong = program("X[12]; Out[8]", chain(Out="X[T.min((v + 4) % 8 * 2, 11)]"))
    assert verify(before, wrong).verdict == "refuted"


def test_an_operator_of_what_is_chosen_is_chosen_of_its_results() -> None:
    before = program("X[8]; Y[8]; Out[8]; rows:int64[8]", chain(
        Z="T.exp(X[v]) * (Y[v] + T.float32(1))", Out="Z[rows[v]]"))  # fmt: skip
    after = program("X[8]; Y[8]; Out[8]; rows:int64[8]", chain(
        Out="T.exp(X[rows[v]]) * (Y[rows[v]] + T.float32(1))"))  # fmt: skip
    assert verify(before, after).verdict == "proved"
    wrong = program("X[8]; Y[8]; Out[8]; rows:int64[8]", chain(
        Out="T.exp(X[rows[v]]) * (Y[v] + T.float32(1))"))  # fmt: skip
    assert verify(before, wrong).verdict == "refuted"

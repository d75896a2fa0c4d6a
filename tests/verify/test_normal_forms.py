"""What is written otherwise and means the same: unrolled stores, positions, chosen operators."""

from __future__ import annotations

import pytest

pytest.importorskip("islpy")

from blockwright import ir
from blockwright.verify import verify
from blockwright.verify.normalize.reroll import rolled
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
    rows = [
        f"            C[vi * 4 + {r}, vj] = C[vi * 4 + {r}, vj] + "
        f"A[vi * 4 + {0 if r == wrong else r}, vk] * B[vk, vj]"
        for r in range(4)
    ]
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
    both = [
        program("A[6]", text)
        for text in (
            shifted,
            "for i in range(5):\n    with T.block('b'):\n        A[i + 1] = A[i]",
            "for i in range(5):\n    with T.block('b'):\n        A[5 - i] = A[4 - i]",
        )
    ]
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
    inner = [
        f'{name} = T.alloc_buffer((8,), "{"int64" if name.islower() else "float32"}")'
        for name in values
        if name != "Out"
    ]
    return "\n".join(inner) + "".join(BLOCK.format(out=n, value=v) for n, v in values.items())


def test_positions_that_the_program_computes_are_known() -> None:
    before = program(
        "X[12]; Out[8]",
        chain(
            a="T.int64(v) - T.int64(3)",
            b="T.Select(a[v] < T.int64(0), a[v] + T.int64(8), a[v])",
            c="T.min(b[v] * T.int64(2), T.int64(11))",
            Out="X[T.checked_index(c[v], T.int64(12))]",
        ),
    )
    after = program("X[12]; Out[8]", chain(Out="X[T.min((v + 5) % 8 * 2, 11)]"))
    assert verify(before, after).verdict == "proved"
    wrong = program("X[12]; Out[8]", chain(Out="X[T.min((v + 4) % 8 * 2, 11)]"))
    assert verify(before, wrong).verdict == "refuted"


def test_an_operator_of_what_is_chosen_is_chosen_of_its_results() -> None:
    before = program(
        "X[8]; Y[8]; Out[8]; rows:int64[8]",
        chain(Z="T.exp(X[v]) * (Y[v] + T.float32(1))", Out="Z[rows[v]]"),
    )
    after = program(
        "X[8]; Y[8]; Out[8]; rows:int64[8]",
        chain(Out="T.exp(X[rows[v]]) * (Y[rows[v]] + T.float32(1))"),
    )
    assert verify(before, after).verdict == "proved"
    wrong = program(
        "X[8]; Y[8]; Out[8]; rows:int64[8]", chain(Out="T.exp(X[rows[v]]) * (Y[v] + T.float32(1))")
    )
    assert verify(before, wrong).verdict == "refuted"


def test_padding_beside_what_is_chosen() -> None:
    """A table with a column of zeros: which column is read does not depend on the position."""
    text = """
Z = T.alloc_buffer((8, 5), "float32")
{padded}
for i, j in T.grid(8, 5):
    with T.block("Z"):
        v, w = T.axis.remap("SS", [i, j])
        Z[v, w] = X[v, w] * T.exp(Y[v, w])
{body}
"""
    arguments = "X[8, 5]; Y[8, 5]; Out[4, 6]; rows:int64[4]"
    read = """
for i, j in T.grid(4, 6):
    with T.block("Out"):
        v, w = T.axis.remap("SS", [i, j])
        Out[v, w] = {value}
"""
    padding = """
for i, j in T.grid(8, 6):
    with T.block("P"):
        v, w = T.axis.remap("SS", [i, j])
        P[v, w] = T.if_then_else(w < {width}, Z[v, w], T.float32(0))
"""
    before = program(
        arguments,
        text.format(
            padded="", body=read.format(value="T.if_then_else(w < 5, Z[rows[v], w], T.float32(0))")
        ),
    )
    after, wrong = (
        program(
            arguments,
            text.format(
                padded='P = T.alloc_buffer((8, 6), "float32")',
                body=padding.format(width=width) + read.format(value="P[rows[v], w]"),
            ),
        )
        for width in (5, 4)
    )
    assert verify(before, after).verdict == "proved"
    assert verify(before, wrong).verdict == "refuted"


def test_a_read_at_a_position_that_never_runs() -> None:
    """As in the prologue of a loop that has no iterations then."""
    dead = """
for i in range(8):
    with T.block("dead"):
        v = T.axis.spatial(8, i)
        T.where(0 >= 11)
        Out[v] = Z[rows[v]]
"""
    before, after = (
        program("X[8]; Out[8]; rows:int64[8]", chain(Z="T.exp(X[v])", Out="Z[rows[v]]") + more)
        for more in ("", dead)
    )
    assert verify(before, after).verdict == "proved"


def test_positions_of_extremes_in_an_axis_of_one_element() -> None:
    """The position is the constant 0 afterwards, and brought by the step all the same."""
    text = """
best = T.alloc_buffer((4,), "float32")
for i, k in T.grid(4, 1):
    with T.block("best"):
        v, w = T.axis.remap("SR", [i, k])
        with T.init():
            best[v] = T.float32("-inf")
            at[v] = T.int64(9223372036854775807)
        taken: T.bool = X[v, {w}] > best[v] or X[v, {w}] == best[v] and {p} < at[v]
        a: T.float32 = T.Select(taken, X[v, {w}], best[v])
        b: T.int64 = T.Select(taken, {p}, at[v])
        best[v] = a
        at[v] = b
for i in range(4):
    with T.block("C"):
        v = T.axis.spatial(4, i)
        C[v] = best[v]
"""
    arguments = "X[4, 1]; C[4]; at:int64[4]"
    before = program(arguments, text.format(w="w", p="T.Cast('int64', w)"))
    after = program(arguments, text.format(w="0", p="T.int64(0)"))
    wrong = program(arguments, text.format(w="0", p="T.int64(1)"))
    assert verify(before, after).verdict == "proved"
    assert verify(before, wrong).verdict == "refuted"


def test_a_position_moved_by_nothing_is_that_position() -> None:
    """As in a tile of one element, whose loop runs once."""
    text = """
for i, j in T.grid(8, {count}):
    with T.block("Out"):
        v, w = T.axis.remap("SS", [i, j])
        Out[v, w] = X[{position}]
"""
    positions = ("rows[v]", "T.Cast('int64', w) + rows[v]", "rows[v] - T.Cast('int64', w)")
    for count in (1, 2):
        before, *moved = (
            program(
                f"X[8]; Out[8, {count}]; rows:int64[8]", text.format(count=count, position=position)
            )
            for position in positions
        )
        assert {verify(before, func).verdict == "proved" for func in moved} == {count == 1}


PIPELINE = """
B = T.alloc_buffer((3, 2), "float32")
for i in range(2):
    with T.block("first"):
        v = T.axis.spatial(5, i)
        k = T.axis.opaque(3, 0)
        B[k, v % 2] = X[v]
for i in range(2):
    with T.block("second"):
        v = T.axis.spatial(5, i + 1)
        k = T.axis.opaque(3, 1)
        B[k, v % 2] = X[v]
for o in range(2):
    for i in range(2):
        with T.block("B"):
            v = T.axis.spatial(5, o + i + 2)
            k = T.axis.opaque(3, (o + {ahead}) % 3)
            B[k, v % 2] = X[v]
    for i in range(2):
        with T.block("C"):
            v, w = T.axis.remap("SS", [o, i])
            C[v, w] = B[v % 3, (v + w) % 2]
"""


def test_versions_told_apart_by_remainders_are_seen() -> None:
    """isl leaves out that the first iteration reads the first version."""
    before = program("X[5]; C[2, 2]", """
for o, i in T.grid(2, 2):
    with T.block("C"):
        v, w = T.axis.remap("SS", [o, i])
        C[v, w] = X[v + w]
""")  # fmt: skip
    right, wrong = (program("X[5]; C[2, 2]", PIPELINE.format(ahead=k)) for k in (2, 1))
    assert verify(before, right).verdict == "proved"
    assert verify(before, wrong).verdict == "refuted"

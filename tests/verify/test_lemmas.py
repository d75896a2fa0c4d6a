"""Buffers between that both programs fill alike are inputs of what comes later."""

from __future__ import annotations

import pytest

pytest.importorskip("islpy")

from blockwright.verify import verify
from tests.verify.pairs import program

WINDOWS = """
t = T.alloc_buffer((16,), "float32")
u = T.alloc_buffer((3,), "float32")
v = T.alloc_buffer((12,), "float32")
{last}
w = T.alloc_buffer((12,), "float32")
for i in range(16):
    with T.block("t"):
        x = T.axis.spatial(16, i)
        t[x] = T.if_then_else(x < 12, A[x], T.float32(0))
for i in range(12):
    for j in range(3):
        with T.block("u"):
            x = T.axis.spatial(14, i + j)
            T.where(j >= T.min(i * 2, 2))
            u[x % 3] = (t[x] + t[x + 1] + t[x + 2]) * T.float32(0.5)
    with T.block("v"):
        x = T.axis.spatial(12, i)
        v[x] = (u[x % 3] + u[(x + 1) % 3] + u[(x + 2) % 3]) * T.float32(0.5)
{body}
for k in range(12):
    with T.block("C"):
        x = T.axis.reduce(12, k)
        with T.init():
            C[0] = T.float32(0)
        C[0] = C[0] + w[x] * w[x]
"""
PLAIN = """
for i in range(13):
    with T.block("p"):
        x = T.axis.spatial(13, i)
        p[x] = T.if_then_else(x < 12, v[x], T.float32(0))
for i, k in T.grid(12, 2):
    with T.block("w"):
        x, y = T.axis.remap("SR", [i, k])
        with T.init():
            w[x] = T.float32(0)
        w[x] = w[x] + p[x + y]
"""
ROLLED = """
for i in range(12):
    for j in range(2):
        with T.block("p"):
            x = T.axis.spatial(13, i + j)
            T.where(j >= T.min(i, {late}))
            p[x % 2] = T.if_then_else(x < 12, v[x], T.float32(0))
    for k in range(2):
        with T.block("w"):
            x, y = T.axis.remap("SR", [i, k])
            with T.init():
                w[x] = T.float32(0)
            w[x] = w[x] + p[(x + y) % 2]
"""


def test_what_lies_behind_an_equal_buffer_is_not_looked_at() -> None:
    before = program(
        "A[12]; C[1]", WINDOWS.format(last='p = T.alloc_buffer((13,), "float32")', body=PLAIN)
    )
    rolled = [
        program(
            "A[12]; C[1]",
            WINDOWS.format(
                last='p = T.alloc_buffer((2,), "float32")', body=ROLLED.format(late=late)
            ),
        )
        for late in (1, 2)
    ]
    assert verify(before, rolled[0]).verdict == "proved"
    assert verify(before, rolled[1]).verdict == "refuted"


BLOCK = """
for i in range({count}):
    with T.block("{name}"):
        v = T.axis.spatial({count}, i)
        {store}
"""


def blocks(*stores: str, allocated: str = "", count: int = 8) -> str:
    """Blocks one after the other, and buffers of eight elements between them."""
    heads = [f'{name} = T.alloc_buffer((8,), "float32")' for name in allocated.split()]
    parts = [BLOCK.format(name=f"b{k}", store=store, count=count) for k, store in enumerate(stores)]
    return "\n".join(heads) + "".join(parts)


def test_a_buffer_that_is_filled_again_after_it_was_read() -> None:
    before, right, wrong = (
        program("X[8]; Y[8]; C[8]; D[8]", blocks(*stores, allocated="B"))
        for stores in (
            ("B[v] = X[v]", "C[v] = B[v]", "B[v] = Y[v]", "D[v] = B[v]"),
            ("B[v] = Y[v]", "D[v] = B[v]", "B[v] = X[v]", "C[v] = B[v]"),
            ("B[v] = X[v]", "B[v] = Y[v]", "C[v] = B[v]", "D[v] = B[v]"),
        )
    )
    assert verify(before, right).verdict == "proved"
    assert verify(before, wrong).verdict == "refuted"


def test_what_only_one_program_writes_is_unwritten_in_the_other() -> None:
    """The reads of `unused` are for nothing, and of an element that is not there."""
    text = blocks("B[v] = X[v]", "C[v] = B[v]", "U[v] = B[{at}]", allocated="B U", count=7)
    before = program("X[8]; C[8]", text.format(at="v"))
    assert verify(before, program("X[8]; C[8]", text.format(at="6 - v"))).verdict == "proved"
    assert verify(before, program("X[8]; C[8]", text.format(at="v + 1"))).verdict != "proved"


def test_a_lemma_that_fails_leaves_the_proof_of_the_whole() -> None:
    """`B` holds its elements backwards, and is read backwards."""
    before = program("X[8]; C[8]", blocks("B[v] = X[v]", "C[v] = B[v]", allocated="B"))
    after = program("X[8]; C[8]", blocks("B[7 - v] = X[v]", "C[v] = B[7 - v]", allocated="B"))
    assert verify(before, after).verdict == "proved"


def test_a_result_that_is_an_input_of_the_next_one() -> None:
    """The result is equal to `B`, which is kept as a result too: only the whole shows that."""
    before = program("X[8]; B[8]; C[8]", blocks("B[v] = T.exp(X[v])", "C[v] = B[v] + B[v]"))
    after = program("X[8]; B[8]; C[8]", blocks("B[v] = T.exp(X[v])", "C[v] = T.exp(X[v]) + B[v]"))
    assert verify(before, after).verdict == "proved"

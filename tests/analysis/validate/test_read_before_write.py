"""Producers write all elements before their consumers read them."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from tests.analysis.validated import codes, message, program

ALLOCATED = 'C = T.alloc_buffer((32, 32), "float32")'


def chain(first: str, second: str, value: str, where: str = "True") -> ir.PrimFunc:
    """A producer of C and a consumer."""
    return program(
        f"""
for i, j in T.grid({first}):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        T.where({where})
        C[vi, vj] = A[vi, vj] * T.float32(2)
for i, j in T.grid({second}):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = {value}
""",
        allocate=ALLOCATED,
    )


@pytest.mark.parametrize(
    ("first", "second", "value", "where"),
    [
        ("32, 32", "32, 32", "C[vi, vj]", "True"),
        ("32, 32", "32, 32", "C[31 - vi, 31 - vj]", "True"),
        ("32, 32", "20, 32", "C[vi, vj]", "i < 20"),
        ("20, 32", "32, 32", "T.if_then_else(vi < 20, C[vi, vj], T.float32(0))", "True"),
        ("32, 32", "31, 32", "C[vi + 1, vj]", "i > 0"),
    ],
)
def test_producers_that_cover(first: str, second: str, value: str, where: str) -> None:
    assert codes(chain(first, second, value, where)) == []


@pytest.mark.parametrize(
    ("first", "second", "value", "where", "element"),
    [
        ("20, 32", "32, 32", "C[vi, vj]", "True", "C[20, 0]"),
        ("32, 32", "32, 32", "C[vi, vj]", "i < 20", "C[20, 0]"),
        ("32, 16", "32, 32", "T.if_then_else(vi < 20, C[vi, vj], T.float32(0))", "True",
         "C[0, 16]"),
    ],
)  # fmt: skip
def test_producers_that_do_not(
    first: str, second: str, value: str, where: str, element: str
) -> None:
    text = message(chain(first, second, value, where))
    assert "BW235" in text
    assert f"reads {element}" in text


def test_what_nobody_writes_cannot_be_read() -> None:
    func = program("""
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[vi, vj]
""", allocate=ALLOCATED)  # fmt: skip
    assert "which no block writes" in message(func)


def test_in_shared_loops_the_first_iteration_decides() -> None:
    """The next column is written one iteration too late; a whole row before is soon enough."""
    shared = """
for i in range(32):
    for j in range(32):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj]
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[vi, {column}]
"""
    assert codes(program(shared.format(column="vj"), allocate=ALLOCATED)) == []
    skewed = program(shared.format(column="T.min(vj + 1, 31)"), allocate=ALLOCATED)
    assert codes(skewed) == ["BW235"]


def test_an_update_needs_its_initial_value() -> None:
    update = """
for i, k in T.grid(32, 32):
    with T.block("C"):
        vi, vk = T.axis.remap("SR", [i, k])
        C[vi, 0] = C[vi, 0] + A[vi, vk]
"""
    first = """
for i in range({rows}):
    with T.block("first"):
        vi = T.axis.spatial(32, i)
        C[vi, 0] = T.float32(0)
"""
    assert codes(program(first.format(rows=32) + update, allocate=ALLOCATED)) == []
    assert codes(program(first.format(rows=31) + update, allocate=ALLOCATED)) == ["BW235"]
    assert codes(program(update, allocate=ALLOCATED)) == ["BW235"]


def test_symbolic_sizes_and_blocks_inside_blocks() -> None:
    text = """
@T.prim_func
def main(a: T.handle, b: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n * 4,), "float32")
    B = T.match_buffer(b, (n * 4,), "float32")
    C = T.alloc_buffer((n * 4,), "float32")
    for i in range(n):
        with T.block("tile"):
            vi = T.axis.spatial(n, i)
            for j in range({count}):
                with T.block("C"):
                    vj = T.axis.spatial(4, j)
                    C[vi * 4 + vj] = A[vi * 4 + vj]
    for i in range(n * 4):
        with T.block("B"):
            vi = T.axis.spatial(n * 4, i)
            B[vi] = C[vi]
"""
    assert codes(bw.from_source(text.format(count=4))) == []
    assert codes(bw.from_source(text.format(count=3))) == ["BW235"]
    short = text.replace("for i in range(n):", "for i in range(n - 1):")
    assert codes(bw.from_source(short.format(count=4))) == ["BW235"]


@pytest.mark.parametrize(
    ("init", "first", "expected"),
    [
        ("with T.init():", "G[vi] = 0.0", []),
        ("if vk == 0:", "G[vi] = 0.0", []),
        ("if vk == 0:", "A[vi, 0] = 0.0", ["BW235"]),
    ],
)
def test_blocks_inside_read_what_the_block_around_them_stores(
    init: str, first: str, expected: list[str]
) -> None:
    body = f"""
for i, k in T.grid(32, 8):
    with T.block("outer"):
        vi, vk = T.axis.remap("SR", [i, k])
        {init}
            {first}
        for l in range(4):
            with T.block("inner"):
                vl = T.axis.reduce(4, l)
                G[vi] = G[vi] + A[vi, vk * 4 + vl]
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = G[vi]
"""
    assert codes(program(body, allocate='G = T.alloc_buffer((32,), "float32")')) == expected


@pytest.mark.parametrize("around", ["", 'with T.block("whole"):'])
@pytest.mark.parametrize(
    ("value", "accepted"), [("C[vi, vj]", True), ("C[vi, vj] + D[vi, vj]", False)]
)
def test_statements_outside_of_leaf_blocks_fill_buffers(
    around: str, value: str, accepted: bool
) -> None:
    """Such statements have no signature; a buffer that nothing fills is still found."""
    lines = f"""
C = T.alloc_buffer((32, 32), "float32")
for i, j in T.grid(32, 32):
    C[i, j] = A[i, j]
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = {value}
"""
    pad = "\n    " if around else "\n"
    found = codes(
        program(
            around + lines.replace("\n", pad), allocate='D = T.alloc_buffer((32, 32), "float32")'
        )
    )
    assert found == ([] if accepted else ["BW235"])

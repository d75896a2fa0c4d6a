"""Compute patterns are found from the program, whoever wrote it."""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.analysis import Pattern, compute_pattern
from blockwright.script.compute import Program, Tensor

N = ir.var("n", "int64")


def program(build) -> ir.PrimFunc:
    p = Program("f")
    x = p.param("X", (N, 8), "float32")
    row = p.param("row", (8,), "float32")
    ids = p.param("ids", (N,), "int64")
    return p.finish([build(p, x, row, ids)])


def softmax(p: Program, x: Tensor, row: Tensor, ids: Tensor) -> Tensor:
    m = p.reduce("m", (N,), (8,), lambda i, k: x[i, k], "max")
    e = p.compute("e", (N, 8), lambda i, k: ir.call("exp", x[i, k] - m[i]))
    s = p.reduce("s", (N,), (8,), lambda i, k: e[i, k])
    return p.compute("o", (N, 8), lambda i, k: e[i, k] / s[i])


CASES = {
    "ElementWise": lambda p, x, row, ids: p.compute("o", (N, 8), lambda i, j: x[i, j] * 2.0),
    "ElementWise with a broadcast operand": lambda p, x, row, ids: p.compute(
        "o", (N, 8), lambda i, j: x[i, j] + row[j]
    ),
    "Broadcast": lambda p, x, row, ids: p.compute("o", (N, 8), lambda i, j: row[j] + 1.0),
    "Injective": lambda p, x, row, ids: p.compute("o", (8, N), lambda i, j: x[j, i]),
    "Injective gather": lambda p, x, row, ids: p.compute("o", (N, 8), lambda i, j: x[ids[i], j]),
    "CommReduce": lambda p, x, row, ids: p.reduce("o", (N,), (8,), lambda i, k: x[i, k]),
    "CommReduce of squares": lambda p, x, row, ids: p.reduce(
        "o", (N,), (8,), lambda i, k: x[i, k] * x[i, k] * 2.0, "max"
    ),
    "OutputEwiseFusible": lambda p, x, row, ids: p.reduce(
        "o", (N, N), (8,), lambda i, j, k: x[i, k] * x[j, k]
    ),
    "OutputEwiseFusible softmax": softmax,
}


@pytest.mark.parametrize("name", CASES)
def test_patterns(name: str) -> None:
    assert str(compute_pattern(program(CASES[name]))) == name.split()[0]


def test_what_is_not_understood_is_opaque() -> None:
    func = program(CASES["ElementWise"])
    block = ir.blocks(func)[1]
    twice = block.replace(body=ir.seq([block.body, block.body]))
    body = ir.rewrite_bottom_up(func.body, lambda n: twice if n is block else None)
    assert compute_pattern(func.replace(body=body)) is Pattern.Opaque


def parts(*boxes: tuple[int | ir.Expr, int | ir.Expr]) -> ir.PrimFunc:
    """A result of several blocks: rows [start, start + count) each."""

    def build(p: Program, x: Tensor, row: Tensor, ids: Tensor) -> Tensor:
        whole = p.alloc("o", (N + N + 4, 8), "float32")
        for start, count in boxes:
            place = lambda i, j, start=start: (i + start, j)  # noqa: E731
            p.compute("part", (count, 8), lambda i, j: x[i, j], into=(whole, place))
        return whole

    return program(build)


def test_a_result_made_in_parts_is_injective_when_they_are_disjoint() -> None:
    assert compute_pattern(parts((0, N), (N, N), (N + N, 4))) is Pattern.Injective
    assert compute_pattern(parts((N, N), (0, N))) is Pattern.Injective
    assert compute_pattern(parts((0, N), (N - 1, N))) is Pattern.Opaque  # one row in common
    assert compute_pattern(parts((0, N), (4, 4))) is Pattern.Opaque  # in common if n > 4

"""Annotations of blocks that speak of their regions: forms that programs give them, and others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis import alignments
from blockwright.schedule import Schedule
from blockwright.support import ScheduleError, ValidationError

PROGRAM = """
@T.prim_func
def main(A: T.Buffer((4, 4), "float32"), C: T.Buffer((4, 4), "float32")):
    B = T.alloc_buffer((4, 4), "float32")
    for i, j in T.grid(4, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.block_attr({"KEY": VALUE})
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(4, 4):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj]
"""


def program(key: str, value: str) -> ir.PrimFunc:
    return bw.from_source(PROGRAM.replace("KEY", key).replace("VALUE", value))


MALFORMED = [
    "0",
    "[0]",
    "None",
    "'x'",
    "[['D', 0, 1]]",
    "[['D', 0, 1, 1]]",
    "[[9, 0, 8, 1]]",
    "[[0, 0, 0, 0]]",
    "[[0, 5, 8, 1]]",
    "[[0, 0, -4, 1]]",
]


@pytest.mark.parametrize("value", MALFORMED)
def test_a_malformed_alignment_has_a_code(value: str) -> None:
    func = program("buffer_dim_align", value)
    arrays = np.ones((4, 4), "float32"), np.zeros((4, 4), "float32")
    with pytest.raises(ValidationError, match="BW257"):
        bw.validate(func)
    with pytest.raises(ValidationError, match="BW257"):
        bw.build(func)
    with pytest.raises(ValidationError, match="BW257"):
        bw.interpret(func, *arrays)


@pytest.mark.parametrize("value", ["[[0, 0, 8, 1]]", "((0, -2, 8, 1),)", "[[0, 0, T.int32(8), 1]]"])
def test_an_alignment_in_other_words(value: str) -> None:
    func = program("buffer_dim_align", value)
    (rows,) = alignments(func.body).values()
    assert rows == ((0, 8, 1),)


@pytest.mark.parametrize("value", ["2.5", "[None]", "1", "[-1]"])
def test_a_malformed_statement_of_reads_has_a_code(value: str) -> None:
    with pytest.raises(ValidationError, match="BW257"):
        bw.validate(program("explicit_read_region", value))


def swapped(i: ir.Expr, j: ir.Expr) -> tuple[ir.Expr, ...]:
    return (j, i)


STEPS: dict[str, Callable[[Schedule], object]] = {
    "transform_block_layout": lambda s: s.transform_block_layout("B", swapped),
    "reindex": lambda s: s.reindex("B", ("read", 0)),
    "blockize": lambda s: s.blockize(s.get_loops("B")[0]),
}


@pytest.mark.parametrize("value", ["0", "[0]", "'A'", "['A']"])
@pytest.mark.parametrize("name", STEPS)
def test_reads_are_stated_by_name_or_position(name: str, value: str) -> None:
    plain, other = (Schedule(program("explicit_read_region", v)) for v in ("['A']", value))
    for sch in (plain, other):
        STEPS[name](sch)
    assert ir.structural_equal(plain.func, other.func)


@pytest.mark.parametrize(
    ("key", "value"),
    [("buffer_dim_align", 0), ("buffer_dim_align", [[0, 0, 0, 0]]), ("explicit_read_region", 7)],
)
def test_annotate_refuses_what_would_be_malformed(key: str, value: object) -> None:
    with pytest.raises(ScheduleError, match="BW304"):
        Schedule(program("note", "1")).annotate("B", key, value)

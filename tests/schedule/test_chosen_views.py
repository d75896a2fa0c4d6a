"""Views whose place elements of another buffer choose: steps see these reads and rewrite them."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.testing.check import assert_same_meaning

PROGRAM = """
@T.prim_func
def main(A: T.Buffer((8,), "float32"), C: T.Buffer((4,), "float32")):
    P = T.alloc_buffer((4,), "int32")
    for i in range(4):
        with T.block("P"):
            vi = T.axis.spatial(4, i)
            P[vi] = vi * 2
    for i in range(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            view = T.match_buffer(A[P[vi]], (1,), "float32", align=1, offset_factor=1)
            C[vi] = view[0]
"""


def test_the_place_of_a_view_is_read() -> None:
    (_, copy) = [b for b in ir.blocks(bw.from_source(PROGRAM).body) if b.name != "root"]
    assert [region.buffer.name for region in copy.reads] == ["P", "A"]


@pytest.mark.parametrize("steps", [["compute_inline"], ["compute_at"], ["compute_at", "store_at"]])
def test_what_chooses_a_view_moves_to_it(steps: list[str]) -> None:
    sch = bw.Schedule(bw.from_source(PROGRAM), verify="prove")
    for step in steps:
        loop = () if step == "compute_inline" else sch.get_loops("C")[:1]
        getattr(sch, step)("P", *loop)
    assert_same_meaning(bw.from_source(PROGRAM), sch.func)
    assert len(sch.get_child_blocks(sch.get_block("root"))) == (2 if steps == ["compute_at"] else 1)

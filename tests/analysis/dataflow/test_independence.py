"""Whether instances of a block may write the same element."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright.analysis import Tree
from blockwright.analysis.dataflow.independence import drives_sums, shared_writes, write_apart
from blockwright.analysis.dataflow.memo import FlowMemo
from blockwright.arith import Analyzer

TEXT = """
@T.prim_func
def f(A: T.Buffer((64, 64), "float32")):
    with T.block("root"):
        for i, j in T.grid(8, 8):
            with T.block("A"):
                vi = T.axis.{kind}(8, i)
                vj = T.axis.spatial(8, j)
                T.reads()
                T.writes(A[{index}])
                {init}
                A[0, 0] = 1.0
"""


def tree_of(index: str, kind: str = "spatial", init: str = "") -> Tree:
    return Tree(bw.from_source(TEXT.format(index=index, kind=kind, init=init)))


@pytest.mark.parametrize(
    ("index", "shared", "apart"),
    [
        ("vi, vj", "", True),
        ("vi + vj, 0", "iterators", False),
        ("vi * 8 + vj, 0", "", True),
        ("vj, 0", "no index depends on vi", False),
        ("vi * 8 : vi * 8 + 8, vj", "", True),
        ("vi * 7 : vi * 7 + 8, vj", "no index depends on vi", False),
    ],
)
def test_elements_of_different_instances(index: str, shared: str, apart: bool) -> None:
    tree = tree_of(index)
    block = tree.blocks[1]
    why = shared_writes(block, Analyzer())
    assert bool(why) is bool(shared)
    outer = tree.loops_above(block)[0]
    assert write_apart(tree, FlowMemo(), outer, block, block.writes[0]) is apart


def test_loops_that_drive_a_reduction_with_an_initial_value() -> None:
    for init, drives in (("with T.init():\n                    A[0, 0] = 0.0", True), ("", False)):
        tree = tree_of("0, vj", "reduce", init)
        block = tree.blocks[1]
        i, j = (loop.loop_var for loop in tree.loops_above(block))
        assert drives_sums(tree.realize(block), {i}) is drives
        assert not drives_sums(tree.realize(block), {j})

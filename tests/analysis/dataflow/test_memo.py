"""Cached results of block analyses."""

from __future__ import annotations

import blockwright as bw
from blockwright import ir
from blockwright.analysis import FlowMemo, Tree

TEXT = """
@T.prim_func
def f(A: T.Buffer((8,), "float32")):
    with T.block("root"):
        for i in range(8):
            with T.block("A"):
                vi = T.axis.spatial(8, i)
                A[vi] = 1.0
"""


def test_answers_belong_to_nodes() -> None:
    tree = Tree(bw.from_source(TEXT))
    loop = tree.loops_above(tree.blocks[1])[0]
    memo, asked = FlowMemo(), list[str]()

    def find() -> int:
        asked.append("")
        return len(asked)

    assert memo.answer("question", [loop], find) == 1
    assert memo.answer("question", [loop], find) == 1
    assert memo.answer("other question", [loop], find) == 2
    assert memo.answer("question", [loop.replace()], find) == 3


def test_facts_that_are_handed_out_are_copies() -> None:
    tree = Tree(bw.from_source(TEXT))
    loop = tree.loops_above(tree.blocks[1])[0]
    memo = FlowMemo()
    below_four = ir.LT(loop.loop_var, ir.const(4, loop.loop_var.dtype))
    facts = memo.facts(tree, loop.body)
    assert not facts.prove(below_four)
    facts.learn(below_four)
    assert facts.prove(below_four)
    assert not memo.facts(tree, loop.body).prove(below_four)
    assert not memo.own_facts(tree, loop.body).prove(below_four)

"""Dependences between blocks of a scope: conflicting regions, and iterations that keep apart."""

from __future__ import annotations

import blockwright as bw
from blockwright import ir
from blockwright.analysis import BlockScope, Tree
from blockwright.analysis.dataflow.dependences import conflicts

TEXT = """
@T.prim_func
def f(A: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")):
    with T.block("root"):
        B = T.alloc_buffer((16,), "float32")
        for i in range(8):
            with T.block("first"):
                vi = T.axis.spatial(8, i)
                B[vi] = A[vi]
            with T.block("second"):
                vi = T.axis.spatial(8, i)
                A[vi] = {read}
                C[vi] = 0.0
            with T.block("third"):
                vi = T.axis.spatial(8, i)
                B[{write}] = C[vi]
"""


def scope(read: str, write: str) -> tuple[BlockScope, list[ir.Block]]:
    tree = Tree(bw.from_source(TEXT.format(read=read, write=write)))
    flow = BlockScope(tree, tree.blocks[0])
    return flow, list(flow.blocks)


def kinds(a: ir.Block, b: ir.Block) -> list[str]:
    return [f"{c.kind} {c.mine.buffer.name}" for c in conflicts(a, b)]


def test_conflicting_regions() -> None:
    _, (first, second, third) = scope("B[vi]", "vi")
    assert kinds(first, second) == ["flow B", "anti A"]
    assert kinds(second, third) == ["flow C", "anti B"]
    assert kinds(first, third) == ["output B"]


def test_conflicts_within_an_iteration_of_the_fixed_loops() -> None:
    flow, (first, second, _) = scope("B[vi + 1]", "vi + 8")
    loops = flow.tree.loops_above(first)
    analyzer = flow.memo.facts(flow.tree, loops[-1].body)
    flow_b, anti_a = conflicts(first, second)
    assert flow.apart_within(loops, flow_b, analyzer)  # B[i] and B[i + 1]
    assert not flow.apart_within([], flow_b, analyzer)
    assert not flow.apart_within(loops, anti_a, analyzer)


def test_the_producers_are_the_blocks_whose_elements_may_be_read() -> None:
    flow, (first, second, third) = scope("B[vi]", "vi + 8")
    assert flow.producers(second) == [first]
    assert flow.consumers(first) == [second]
    assert flow.carried_readers(third) == []  # it writes the other half of B
    assert flow.disjoint(first, third, first.writes[0].buffer)
    flow, (first, second, third) = scope("B[vi]", "vi + 1")
    assert flow.carried_readers(third) == [second]
    assert not flow.disjoint(first, third, first.writes[0].buffer)

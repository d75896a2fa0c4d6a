"""Whether reads find values that are written and final."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright.analysis import BlockScope, Tree

TEXT = """
@T.prim_func
def f(A: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")):
    with T.block("root"):
        B = T.alloc_buffer((16,), "float32")
        for i in range(16):
            with T.block("B"):
                vi = T.axis.spatial(16, i)
                T.where({where})
                B[{write}] = A[vi]
{between}
            with T.block("C"):
                vi = T.axis.spatial(16, i)
                C[vi] = B[{read}]
"""
SEPARATE = "        for i in range(16):"


def flow(write: str = "vi", read: str = "vi", where: str = "True", between: str = "") -> BlockScope:
    tree = Tree(bw.from_source(TEXT.format(write=write, read=read, where=where, between=between)))
    return BlockScope(tree, tree.blocks[0])


@pytest.mark.parametrize(
    ("scope", "covered"),
    [
        (flow(), True),
        (flow(read="T.max(vi - 1, 0)"), False),
        (flow(where="i < 8"), False),
        (flow(write="vi // 2"), False),
    ],
)
def test_reads_in_shared_loops(scope: BlockScope, covered: bool) -> None:
    producer, consumer = scope.blocks
    assert scope.covers([producer], consumer, consumer.reads[0]) is covered
    assert (scope.uncovered(consumer) == "") is covered


def test_a_consumer_in_other_loops_is_covered() -> None:
    scope = flow(read="15 - vi", between=SEPARATE)
    producer, consumer = scope.blocks
    assert scope.uncovered(consumer) == ""
    assert scope.covers([producer], consumer, consumer.reads[0])


def test_values_are_final_if_other_iterations_write_other_elements() -> None:
    scope = flow()
    producer = scope.blocks[0]
    loops = scope.tree.loops_above(producer)
    assert scope.final(producer, producer.writes[0], loops)
    assert scope.apart_in(producer, producer.writes[0], loops)
    scope = flow(write="vi // 2")
    producer = scope.blocks[0]
    assert not scope.apart_in(producer, producer.writes[0], scope.tree.loops_above(producer))


def test_a_block_writes_its_whole_region() -> None:
    scope = flow()
    producer = scope.blocks[0]
    analyzer = scope.memo.facts(scope.tree)
    assert scope.writes_all(producer, producer.writes[0])
    assert scope.is_exact([], producer, producer.writes[0], analyzer)
    scope = flow(where="i % 2 == 0")
    producer = scope.blocks[0]
    assert not scope.is_exact([], producer, producer.writes[0], scope.memo.facts(scope.tree))

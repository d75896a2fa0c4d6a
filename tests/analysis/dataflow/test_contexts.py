"""Blocks in their context: loops, conditions, views, and the instances that run."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis.dataflow.accesses import definite_accesses
from blockwright.analysis.dataflow.contexts import BlockContext, block_contexts, leaf_contexts
from blockwright.analysis.dataflow.counterexample import DependsOnMore
from blockwright.analysis.dataflow.order import (
    after_own_stores,
    divergent_condition,
    runs_before,
    shared_loops,
)
from blockwright.analysis.kernels import kernels
from blockwright.ir.printer import script

TEXT = """
@T.prim_func
def f(A: T.Buffer((64,), "int32"), B: T.Buffer((8, 64), "int32"), n: T.int32):
    with T.block("root"):
        for i in range(8):
            if n > i:
                with T.block("outer"):
                    vi = T.axis.spatial(8, i)
                    D = T.match_buffer(B[vi, 8:24], (16,), "int32")
                    for j in range(16):
                        with T.block("first"):
                            vj = T.axis.spatial(16, j)
                            T.where(j < 12)
                            if vj > 0:
                                D[vj] = A[vj + vi]
                    for j in range(16):
                        with T.block("second"):
                            vj = T.axis.spatial(16, j)
                            D[vj] = D[vj] + 1
"""


@pytest.fixture(scope="module")
def found() -> list[BlockContext]:
    func = bw.from_source(TEXT)
    return block_contexts(func, kernels(func))


def test_contexts_are_in_program_order(found: list[BlockContext]) -> None:
    assert [context.block.name for context in found] == ["outer", "first", "second"]
    assert [context.block.name for context in leaf_contexts(found)] == ["first", "second"]
    outer, first, second = found
    assert runs_before(outer, first)
    assert not runs_before(second, first)
    assert [level.var.name for level in first.path] == ["i", "j"]
    assert [level.var.name for level in shared_loops(first, second)] == ["i"]
    assert divergent_condition(first, second) is None  # no threads


def test_instances_that_run(found: list[BlockContext]) -> None:
    _, first, second = found
    (size,) = {v for guard in first.guards for v in ir.free_vars(guard) if v.name == "n"}
    assert first.instances({size: 5}).rows == 5 * 12
    assert second.instances({size: 5}).rows == 5 * 16
    assert first.instances({size: 0}).rows == 0
    with pytest.raises(DependsOnMore):
        first.instances({})


def test_accesses_in_terms_of_loops_and_of_the_underlying_buffer(
    found: list[BlockContext],
) -> None:
    _, first, second = found
    texts = [
        f"{a.how} {a.buffer.name}[{', '.join(map(script, a.indices))}] {len(a.guards)}"
        for a in definite_accesses(first)
    ]
    assert texts == ["read A[j + i] 1", "write B[i, 8 + j] 1"]
    accesses = definite_accesses(second)
    assert [access.how for access in accesses] == ["read", "write"]
    assert after_own_stores(accesses, {}) == set()  # it reads before it stores
    (written,) = second.block.writes
    assert written.buffer.name == "D"
    assert second.underlying(written.buffer) is accesses[0].buffer

"""Whether a block runs in an iteration of the loops around it."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis import BlockScope, Tree
from blockwright.ir.printer import script

TEXT = """
@T.prim_func
def f(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8,), "float32"), n: T.int32):
    with T.block("root"):
        for i, k in T.grid(8, 8):
            {around}
                with T.block("C"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    T.where({where})
                    with T.init():
                        C[vi] = 0.0
                    C[vi] = C[vi] + A[vi, vk]
"""


def only_block(around: str, where: str = "True") -> tuple[BlockScope, ir.Block]:
    tree = Tree(bw.from_source(TEXT.format(around=around, where=where)))
    flow = BlockScope(tree, tree.blocks[0])
    return flow, flow.blocks[0]


@pytest.mark.parametrize(
    ("around", "decided"),
    [
        ("for u in range(1):", False),
        ("if n > 3:", True),
        ("while n > 3:", True),
    ],
)
def test_control_flow_decides(around: str, decided: bool) -> None:
    flow, block = only_block(around)
    assert flow.decided(block) is decided
    assert flow.always(block, flow.memo.facts(flow.tree)) is not decided


def test_conditions_on_fixed_loops() -> None:
    flow, block = only_block("for u in range(1):", "n > i and k < 4")
    loops = flow.tree.loops_above(block)
    assert [script(c) for c in flow.conditions((), block)] == []
    assert [script(c) for c in flow.conditions(loops[:1], block)] == ["n > i"]
    assert [script(c) for c in flow.conditions(loops[:2], block)] == ["n > i", "k < 4"]


def test_a_reduction_is_complete_outside_of_its_loops() -> None:
    flow, block = only_block("for u in range(1):")
    loops = flow.tree.loops_above(block)
    assert not flow.partial(block, loops[:1])
    assert flow.partial(block, loops[:2])

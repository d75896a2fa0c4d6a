"""Kinds of blocks, and why a block is of none."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis import BlockKind, BlockScope, Tree

TEXT = """
@T.prim_func
def f(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8,), "float32"), n: T.int32):
    with T.block("root"):
        for i, k in T.grid(8, 8):
            with T.block("C"):
{body}
"""
SPATIAL = """vi = T.axis.spatial(8, i)
vk = T.axis.spatial(8, k)
T.writes(A[vi, vk])
A[vi, vk] = 1.0"""
SUM = """vi, vk = T.axis.remap("SR", [i, k])
with T.init():
    C[vi] = 0.0
C[vi] = C[vi] + A[vi, vk]"""


def only_block(body: str) -> tuple[BlockScope, ir.Block]:
    lines = "\n".join("                " + line for line in body.splitlines())
    tree = Tree(bw.from_source(TEXT.format(body=lines)))
    flow = BlockScope(tree, tree.blocks[0])
    return flow, flow.blocks[0]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (SPATIAL, BlockKind.COMPLETE),
        (SUM, BlockKind.REDUCTION),
        (SUM.replace("with T.init():\n    C[vi] = 0.0\n", ""), BlockKind.UPDATE),
    ],
)
def test_kinds(body: str, kind: BlockKind) -> None:
    flow, block = only_block(body)
    assert flow.kind(block) is kind
    assert flow.why_other(block) == ""


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (SPATIAL.replace("= 1.0", "= A[vi, vk] + 1.0"), "it reads and writes A"),
        (SPATIAL.replace("A[vi, vk]", "A[vi, 0]"), "may write the same element of A"),
        (SPATIAL.replace("axis.spatial(8, k)", "axis.opaque(8, k)"), "neither spatial nor"),
        (SUM.replace("C[vi]", "C[vi + vk]"), "its output index depends on a reduction iterator"),
        (SUM.replace("[i, k]", "[i, i]"), "not an iterator map"),
        (SUM.replace("C[vi] + A", "C[7 - vi] + A"), "it reads"),
    ],
)
def test_blocks_of_no_kind(body: str, why: str) -> None:
    flow, block = only_block(body)
    assert flow.kind(block) is BlockKind.OTHER
    assert why in flow.why_other(block)


def test_restarted_reductions() -> None:
    """Outer loops that drive no reduction iterator recompute the block."""
    flow, block = only_block(SUM)
    assert flow.restart(block) == 0
    flow, block = only_block(SUM.replace("[i, k]", "[k, k]"))
    assert flow.restart(block) is None

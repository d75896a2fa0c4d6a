"""Parents, loops and scopes of statements."""

from __future__ import annotations

import blockwright as bw
from blockwright import ir
from blockwright.analysis import Tree
from blockwright.analysis.access.tree import common_prefix, jumps, takes_addresses

TEXT = """
@T.prim_func
def f(A: T.Buffer((8, 8), "float32"), n: T.int32):
    with T.block("root"):
        for i in range(8):
            for j in range(8):
                with T.block("first"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    A[vi, vj] = 1.0
            for j in range(8):
                if j > n:
                    break
                with T.block("second"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    A[vi, vj] = 2.0
"""


def test_loops_and_scopes() -> None:
    tree = Tree(bw.from_source(TEXT))
    root, first, second = tree.blocks
    assert tree.child_blocks(root) == [first, second]
    assert tree.scope(first) is root
    assert [f.loop_var.name for f in tree.loops_above(first)] == ["i", "j"]
    assert [f.loop_var.name for f in tree.common_loops(first, second)] == ["i"]
    left = tree.loops_above(second)[1]
    assert tree.left_early == {left}
    assert left in list(tree.deciding(tree.realize(second), root))
    assert list(tree.deciding(tree.realize(first), root)) == []
    assert jumps(left.body)
    assert not jumps(tree.loops_above(first)[0].body)  # a jump belongs to its own loop


def test_common_prefix_compares_identities() -> None:
    a, b = ir.const(1, "int32"), ir.const(1, "int32")
    assert common_prefix([a, b, a], [a, b, b]) == [a, b]
    assert common_prefix([a], [b]) == []


def test_addresses_are_found_anywhere() -> None:
    func = bw.from_source(TEXT)
    assert not takes_addresses(func.root.body)

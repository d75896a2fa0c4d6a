"""What a program does besides running blocks."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis import Pattern, compute_pattern, sole_blocks
from blockwright.analysis.access.stable_values import written_buffers

HEAD = """
@T.prim_func
def main(X: T.Buffer((8,), "float32"), Y: T.Buffer((8,), "float32")):
"""
COPY = """
    for i in range(8):
        with T.block("Y"):
            v = T.axis.spatial(8, i)
            Y[v] = X[v]
"""
MORE = {
    "a store": "    Y[0] = X[1]\n",
    "a loop": "    for k in range(2):\n        Y[k] = X[1]\n",
    "a return": "    T.ret()\n",
    "a condition": "    if X[0] > T.float32(0):\n        T.ret()\n",
    "an assertion": '    assert X[0] > T.float32(0), "positive"\n',
    "a print": "    T.evaluate(T.print(X[0]))\n",
    "an atomic update": "    T.atomic_add(Y[0], X[1])\n",
    "a foreign call": '    T.evaluate(T.call_packed("f", T.tensor(Y[0])))\n',
}
AROUND = {
    "nothing": "",
    "a view": '    Q = T.decl_buffer((2, 4), "float32", data=Y.data)\n',
    "a name": "    w: T.float32 = X[0]\n",
}


@pytest.mark.parametrize("name", MORE)
@pytest.mark.parametrize("first", [True, False])
def test_other_statements(name: str, first: bool) -> None:
    func = bw.from_source(HEAD + (MORE[name] + COPY if first else COPY + MORE[name]))
    assert sole_blocks(func) == []
    assert compute_pattern(func) is Pattern.Opaque


@pytest.mark.parametrize("name", AROUND)
def test_blocks_alone(name: str) -> None:
    func = bw.from_source(HEAD + AROUND[name] + COPY)
    assert [b.name for b in sole_blocks(func)] == ["Y"]
    assert compute_pattern(func) is Pattern.ElementWise


def test_a_block_that_may_return_is_not_alone() -> None:
    inside = COPY + "            if v == 3:\n                T.ret()\n"
    assert sole_blocks(bw.from_source(HEAD + inside)) == []


@pytest.mark.parametrize(
    "view",
    ['Q = T.decl_buffer((4,), "int32", data=p)', 'Q = T.decl_buffer((4,), "int32", data=Y.data)'],
)
def test_views_are_written_with_their_buffers(view: str) -> None:
    func = bw.from_source(
        HEAD
        + f"""
    p: T.handle("int32") = T.address_of(Y[0])
    {view}
    with T.block("b"):
        T.reads()
        T.writes(Q[0])
        Q[0] = 1
"""
    )
    written = written_buffers(func.root.body)
    assert written == {func.buffers[1], *(n.buffer for n in ir.collect(func.body, ir.DeclBuffer))}

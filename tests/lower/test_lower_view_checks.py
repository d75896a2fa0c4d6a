"""Sanitizer builds check declared views where they are declared, also views that are folded."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright.support import BlockwrightError

HEAD = """
@T.prim_func
def main(A: T.Buffer((8,), "int32"), k: T.int64):
"""
VIEWS = {
    "same type": ("""
    V = T.decl_buffer((4,), "int32", data=A.data, elem_offset=k)
    V[0] = 5
""", 4),
    "other type": ("""
    V = T.decl_buffer((4,), "float32", data=A.data, elem_offset=k)
    V[0] = T.float32(5)
""", 4),
    "other size": ("""
    V = T.decl_buffer((8,), "int16", data=A.data, elem_offset=k * 2)
    V[0] = T.int16(5)
""", 4),
    "strides": ("""
    V = T.decl_buffer((2, 2), "int32", data=A.data, strides=(3, 1), elem_offset=k)
    V[0, 0] = 5
""", 3),
    "view of a view": ("""
    W = T.decl_buffer((4,), "float32", data=A.data, elem_offset=2)
    V = T.decl_buffer((4,), "int32", data=W.data, elem_offset=k - 2)
    V[0] = 5
""", 4),
    "pointer": ("""
    p: T.handle("int32") = T.address_of(A[k])
    V = T.decl_buffer((4,), "int32", data=p)
    V[0] = 5
""", 4),
    "parallel loop": ("""
    for i in T.parallel(1):
        V = T.decl_buffer((3,), "int32", data=A.data, elem_offset=k + i)
        for j in T.vectorized(3):
            V[j] = 5
""", 5),
    "block": ("""
    for i in range(2):
        with T.block("O"):
            vi = T.axis.spatial(2, i)
            V = T.decl_buffer((4,), "float32", data=A.data, elem_offset=k + vi)
            V[0] = T.float32(5)
""", 3),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_a_sanitizer_build_stops_at_a_view_outside_its_buffer(name: str) -> None:
    body, last = VIEWS[name]
    program = bw.from_source(HEAD + body)
    built = bw.build(program, sanitize=["bounds"])["main"]
    for k in (-3, -1, last + 1, 8, 1 << 40):
        a, b = np.zeros(8, "int32"), np.zeros(8, "int32")
        with pytest.raises(BlockwrightError) as caught:
            bw.interpret(program, a, k)
        assert caught.value.code == "BW751"
        with pytest.raises(BlockwrightError) as caught:
            built(b, k)
        assert caught.value.code == "BW713"
    for k in (0, last):
        a, b = np.zeros(8, "int32"), np.zeros(8, "int32")
        bw.interpret(program, a, k)
        built(b, k)
        assert a.any()
        assert a.tolist() == b.tolist()


def test_a_view_that_provably_lies_inside_is_not_checked() -> None:
    text = HEAD + VIEWS["other type"][0].replace("=k", "=4")
    built = bw.build(bw.from_source(text), sanitize=["bounds"])
    assert "BW713" not in built.source("lowered")

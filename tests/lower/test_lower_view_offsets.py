"""Declared views whose elements begin some way behind their address: compiled as interpreted."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw

HEAD = """
@T.prim_func
def f(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8, 8), "float32")):
"""
LOOP = """
    for i in range(7):
        D = T.decl_buffer((8,), "{dtype}", data=C.data, elem_offset={offset})
        for j in range(8):
            with T.block("P"):
                vj = T.axis.spatial(8, j)
                D[vj] = {value}
"""
FLOAT = "A[0, vj] + T.float32(1)"
BODIES = {
    "loop": LOOP.format(dtype="float32", offset="i * 8", value=FLOAT),
    "half": LOOP.format(dtype="float16", offset="i * 16 + 4", value="T.Cast('float16', A[0, vj])"),
    "bits": LOOP.format(dtype="int32", offset="i * 8 + 3", value="T.Cast('int32', A[0, vj])"),
    "constant bits": LOOP.format(dtype="int32", offset="9", value="T.Cast('int32', A[0, vj])"),
    "bytes": LOOP.format(dtype="uint8", offset="i * 17", value="T.Cast('uint8', vj + 3)"),
    "named": """
    for i in range(8):
        x: T.int32 = 7 - i
        D = T.decl_buffer((8,), "float32", data=C.data, elem_offset=x * 8)
        for j in T.vectorized(8):
            D[j] = A[i, j]
""",
    "iterator": """
    for i in range(8):
        with T.block("O"):
            vi = T.axis.spatial(8, i)
            T.reads(A[vi, 0:8])
            T.writes(C[vi, 0:8])
            D = T.decl_buffer((4,), "float32", data=C.data, elem_offset=vi * 8 + 2)
            for j in range(4):
                D[j] = A[vi, j] * T.float32(3)
""",
    "rows": """
    for i in range(4):
        D = T.decl_buffer((2, 4), "float32", data=C.data, strides=[8, 2], elem_offset=i * 16)
        for a, b in T.grid(2, 4):
            D[a, b] = A[i, b] + T.Cast("float32", a)
""",
    "nested": """
    for i in range(4):
        D = T.decl_buffer((16,), "float32", data=C.data, elem_offset=i * 16)
        E = T.decl_buffer((8,), "int32", data=D.data, elem_offset=i)
        for j in range(8):
            E[j] = T.Cast("int32", A[i, j])
        D[15] = A[i, 0]
""",
    "unrolled": """
    for i in T.unroll(8):
        D = T.decl_buffer((8,), "float32", data=C.data, elem_offset=i * 8)
        for j in range(8):
            D[j] = A[i, 7 - j]
""",
}


@pytest.mark.parametrize("name", BODIES)
def test_offsets_of_views_are_kept(name: str) -> None:
    func = bw.from_source(HEAD + BODIES[name])
    given = np.random.default_rng(5).uniform(1, 200, (8, 8)).astype("float32")
    expected, found = np.full((8, 8), -5, "float32"), np.full((8, 8), -5, "float32")
    bw.interpret(func, given, expected)
    bw.build(func)["f"](given, found)
    np.testing.assert_array_equal(found.view("int32"), expected.view("int32"))
    assert np.sum(expected != -5) >= 8


def test_the_memory_behind_an_address_keeps_its_layout() -> None:
    """Rows of `C` are `m` apart for the view; with room for the most of `m` they would be 9."""
    func = bw.from_source("""
@T.prim_func
def f(a: T.handle, b: T.handle, D: T.Buffer((3,), "float32")):
    T.func_attr({"tir_var_upper_bound": {"m": 9}, "tir_var_lower_bound": {"m": 1}})
    m = T.int32()
    A = T.match_buffer(a, (3, m), "float32")
    B = T.match_buffer(b, (3, m), "float32")
    C = T.alloc_buffer((3, m), "float32")
    for i, j in T.grid(3, m):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj]
    for i in range(3):
        line = T.decl_buffer((m,), "float32", elem_offset=i * m, data=T.address_of(C[0, 0]))
        for j in range(m):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                T.reads(line[vj])
                B[vi, vj] = line[vj]
    for i in range(6):
        for jo, ji in T.grid((i + 6) // 8, 8):
            if jo * 8 + ji + 1 < i and i < 3:
                D[i] = C[i, jo * 8 + ji]
""")
    native = bw.build(func)["f"]
    for m in (1, 5, 9):
        given = np.arange(3 * m, dtype="float32").reshape(3, m)
        found = np.full((3, m), np.nan, "float32")
        some = np.zeros(3, "float32")
        native(given, found, some)
        np.testing.assert_array_equal(found, given)
        np.testing.assert_array_equal(some, [0, 0, given[2, 0]])

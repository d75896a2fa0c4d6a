"""What is evaluated once, where a block, loop, branch or view begins, keeps its value while the
program changes the memory that it was loaded from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright.build import build

PROGRAMS = {
    "vectorized_if": """
    for i in T.vectorized(16):
        if I[i] > 8:
            I[i] = -1
            B[i] = 7
""",
    "vectorized_else": """
    for i in T.vectorized(16):
        if I[i] > 8:
            I[i] = -1
            B[i] = 7
        else:
            B[i] = 3
            I[i] = 20
            B[i] = B[i] + I[i]
""",
    "vectorized_if_around_a_loop": """
    for i in T.vectorized(16):
        if I[i] > 8:
            for k in range(3):
                I[i] = I[i] - 4
                B[i] = B[i] + 7
                if I[i] > 4:
                    I[i] = 0
                    B[i] = B[i] + 100
""",
    "vectorized_if_through_a_view": """
    V = T.decl_buffer((64,), "int32", data=I.data)
    for i in T.vectorized(16):
        if I[i] > 8:
            V[i] = -1
            B[i] = 7
""",
    "vectorized_where": """
    for i in T.vectorized(16):
        with T.block("b"):
            v = T.axis.spatial(16, i)
            T.where(I[i] > 8)
            I[v] = -1
            B[v] = 7
""",
    "bound_of_a_loop": """
    for k in range(I[5]):
        I[5] = T.min(I[5], 8)
        if k < I[5]:
            B[k] = 1
""",
    "lower_bound": """
    for k in range(I[5]-6, I[5]):
        I[5] = I[5] + 1
        if k >= I[5]-6:
            B[k] = 1
        else:
            B[k] = 2
""",
    "first_iteration": """
    for k in range(I[5]):
        if k == 0:
            I[5] = 3
        B[k] = 1
""",
    "size": """
    L = T.alloc_buffer((I[5],), "int32")
    for k in range(I[5]):
        L[k] = k
    B[0] = L[1]
""",
    "sizes_that_change": """
    with T.block("b"):
        L = T.alloc_buffer((I[5], I[6]), "int32")
        for k, j in T.grid(10, 10):
            L[k, j] = k * 100 + j
        I[6] = 5
        B[0] = L[1, 1]
        B[1] = L[2, 3]
        I[5] = 2
        B[2] = L[9, 9]
""",
    "size_by_iterator": """
    for i in range(4):
        with T.block("b"):
            vi = T.axis.opaque(4, i)
            T.reads(I[0:64])
            T.writes(I[0:64], B[0:64])
            L = T.alloc_buffer((I[vi],), "int32")
            for k in range(I[vi]):
                L[k] = k
            I[vi + 1] = I[vi + 1] + 4
            B[vi] = L[I[vi] - 1]
""",
    "iterator": """
    for i in range(4):
        with T.block("b"):
            v = T.axis.opaque(64, I[i])
            T.reads(I[0:64])
            T.writes(I[0:64], B[0:64])
            for k in range(4):
                I[k] = 20 + k
            B[v] = v + 1
""",
    "region_of_a_view": """
    with T.block("b"):
        T.reads(I[0:64])
        T.writes(I[0:64], B[0:64])
        V = T.match_buffer(B[I[5] : I[5] + 4], (4,), "int32", offset_factor=1)
        I[5] = 3
        V[1] = 5
""",
    "strides_of_a_view": """
    V = T.decl_buffer((4,4), "int32", data=B.data, strides=(I[5],1))
    I[5] = 3
    V[1,1] = 5
""",
    "shape_of_a_view": """
    V = T.decl_buffer((4,I[5]), "int32", data=B.data)
    I[5] = 3
    V[1,1] = 5
""",
    "domain_of_an_iterator": """
    for k in range(6):
        with T.block("b"):
            v = T.axis.reduce(6, k)
            with T.init():
                I[5] = 4
            I[5] = I[5] + 1
    for k in range(I[5]):
        with T.block("c"):
            v = T.axis.spatial(I[5], k)
            T.where(I[5] > 5)
            I[5] = 3
            B[v] = 1
""",
    "work_list": """
    for i in range(I[0]):
        I[0] = I[0] - 1
        for j in range(I[0]):
            I[0] = T.max(I[0] - 1, 3)
            if i < I[0] and j < I[0]:
                B[i] = B[i] + 1
""",
    "atomic_update": """
    for i in range(I[0]):
        T.evaluate(T.atomic_add(I[0], -1))
        if i < I[0]:
            B[i] = B[i] + 1
""",
    "size_through_a_view": """
    V = T.decl_buffer((64,), "int32", data=I.data)
    for i in range(4):
        with T.block("b"):
            v = T.axis.opaque(4, i)
            L = T.alloc_buffer((V[v] + 1,), "int32")
            I[v] = 3
            L[1] = v
            B[v] = L[1]
""",
    "two_loops": """
    L = T.alloc_buffer((64,), "int32")
    for k in range(64):
        L[k] = -1
    for i in range(10):
        for k in range(I[5]):
            L[k] = i
        I[5] = I[5] + 2
        for k in range(I[5]):
            if k < 12:
                B[i] = B[i] + L[k]
""",
}

WRITTEN = {
    "vectorized_if": [7] * 7 + [0] * 7 + [7, 7],
    "bound_of_a_loop": [1] * 8 + [0] * 8,
    "first_iteration": [1] * 12 + [0] * 4,
    "size": [1] + [0] * 15,
}
"""The first elements of B, for some programs."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_loaded_values_are_those_of_the_beginning(name: str) -> None:
    func = bw.from_source(
        "@T.prim_func\n"
        'def f(I: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):' + PROGRAMS[name]
    )
    loaded = np.full(64, 12, np.int32)
    loaded[:16] = np.arange(12, 28) % 17
    loaded[5], loaded[6] = 12, 10
    results: list[tuple[Any, Any]] = []
    for native in (False, True):
        index, out = loaded.copy(), np.zeros(64, np.int32)
        if native:
            build(func)["f"](index, out)
        else:
            bw.interpret(func, index, out)
        results.append((index, out))
    np.testing.assert_array_equal(results[1][0], results[0][0])
    np.testing.assert_array_equal(results[1][1], results[0][1])
    if name in WRITTEN:
        np.testing.assert_array_equal(results[1][1][:16], WRITTEN[name])


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("guard", ["i < n", "n > 9", "n > 3 and i < n"])
@pytest.mark.parametrize("orelse", [False, True])
def test_a_mask_is_read_only_where_the_conditions_around_it_hold(
    guard: str, orelse: bool, target: str
) -> None:
    """No lane reads behind the end of the buffer."""
    other = """
            else:
                B[i] = T.float32(1)
"""
    func = bw.from_source(f"""
@T.prim_func
def main(a: T.handle, B: T.Buffer((8,), "float32")):
    n = T.int32()
    A = T.match_buffer(a, (n,), "float32")
    for i in T.vectorized(8):
        if {guard}:
            if A[i] > T.float32(0):
                A[i] = T.float32(-1)
                B[i] = T.float32(7)
{other * orelse}""")
    expected, found = ((np.ones(5, "float32"), np.zeros(8, "float32")) for _ in range(2))
    bw.interpret(func, *expected)
    bw.build(func, target, sanitize=("bounds",))(*found)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)

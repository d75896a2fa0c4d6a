"""A buffer stays outside of a loop whose iterations read what earlier ones wrote.

It moves inside, and shrinks, if each iteration first writes all that it reads. In these programs,
some write does not take place in every iteration.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.lower import lower

SOMETIMES = {
    "a loop without iterations": """
            for k in range(n):
                for j in range(4):
                    t[i + j] = 100""",
    "a loop whose extent is loaded": """
            for k in range(A[i]):
                for j in range(4):
                    t[i + j] = 100""",
    "overlapping rows": """
            for k in range(n):
                for j in range(2):
                    t[i + j + k] = 100""",
    "a loop that breaks": """
            for j in range(4):
                if A[j] < i:
                    break
                t[i + j] = 100""",
    "a loop that continues": """
            for j in range(4):
                if A[j] < i:
                    continue
                t[i + j] = 100""",
    "a loop that ends at any time": """
            while T.bool(True):
                if A[7 - i] < 2:
                    break
                for j in range(4):
                    t[i + j] = 100
                A[7 - i] = 0""",
    "a mask": """
            t.vstore([T.ramp(i, 1, 4)], T.broadcast(100, 4),
                     predicate=T.ramp(0, 1, 4) < T.broadcast(n, 4))""",
    "a mask of data": """
            t.vstore([T.ramp(i, 1, 4)], T.broadcast(100, 4),
                     predicate=A.vload([T.ramp(0, 1, 4)]) > T.broadcast(i, 4))""",
}  # fmt: skip
PROGRAM = """
@T.prim_func
def main(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32"), n: T.int32, start: T.int32):
    with T.block("root"):
        t = T.alloc_buffer((16,), "int32"SCOPE)
        for i in range(8):
            B[i] = 0
            if i < start:
                for j in range(4):
                    t[i + j] = jWRITE
            for j in range(4):
                B[i] = B[i] + t[i + j]
            t[i + 4] = i * 10
"""


@pytest.mark.parametrize("scope", ["", ', scope="local"'])
@pytest.mark.parametrize("write", SOMETIMES)
def test_values_pass_from_iteration_to_iteration(write: str, scope: str) -> None:
    source = PROGRAM.replace("WRITE", SOMETIMES[write]).replace("SCOPE", scope)
    func = bw.from_source(source)
    run = build(func)["main"]
    for n in (0, 1, 3):
        wanted, found = _arrays(), _arrays()
        bw.interpret(func, *wanted, n, 1)
        run(*found, n, 1)
        np.testing.assert_array_equal(found, wanted, err_msg=f"n = {n}")


def _arrays() -> list[Any]:
    return [np.array([3, 0, 6, 1, 5, 2, 0, 4], "int32"), np.zeros(8, "int32")]


def test_a_tile_that_is_always_written_is_private() -> None:
    """The loop over `k` may have no iterations, but the tile is set before it."""
    func = bw.from_source("""
@T.prim_func
def main(A: T.Buffer((64, 8), "float32"), B: T.Buffer((64,), "float32"), n: T.int32):
    with T.block("root"):
        t = T.alloc_buffer((64,), "float32")
        for i in range(16):
            for j in range(4):
                t[i * 4 + j] = T.float32(0)
            for k in range(n):
                for j in range(4):
                    t[i * 4 + j] = t[i * 4 + j] + A[i * 4 + j, k]
            for j in range(4):
                B[i * 4 + j] = t[i * 4 + j]
""")
    (tile,) = ir.collect(lower(func).body, ir.Allocate)
    assert ir.const_int(tile.buffer.shape[0]) == 4


DISTANCE = {
    "names": """
            a: T.int32 = N[0]
            N[0] = N[1]
            b: T.int32 = N[0]
            row: T.int32 = i
            STATEMENTS""",
    "iterators": """
            with T.block("x"):
                v, a = T.axis.opaque(2, i), T.axis.opaque(8192, N[0])
                N[0] = N[1]
                with T.block("y"):
                    row, b = T.axis.opaque(2, v), T.axis.opaque(8192, N[0])
                    STATEMENTS""",
    "results of updates": """
            with T.block("x"):
                row = T.axis.opaque(2, i)
                a = T.axis.opaque(8192, T.atomic_min(N[0], N[1]))
                b = T.axis.opaque(8192, T.atomic_min(N[0], N[1]))
                STATEMENTS""",
}


@pytest.mark.parametrize("names", DISTANCE)
def test_what_is_loaded_twice_may_differ(names: str) -> None:
    """`a` and `b` come from one element, which changes in between: `a - b` is 4000, then 0."""
    before, _ = DISTANCE[names].split("STATEMENTS")
    indent = before.rsplit("\n", 1)[1]
    statements = [
        "for j in range(4):",
        "    t[a - b + j] = j + 1",
        "for j in range(4):",
        "    B[row * 4 + j] = t[a - b + j]",
    ]
    func = bw.from_source(
        f"""
@T.prim_func
def main(N: T.Buffer((2,), "int32"), B: T.Buffer((8,), "int32")):
    with T.block("root"):
        t = T.alloc_buffer((4096,), "int32")
        for i in range(2):{before}"""
        + f"\n{indent}".join(statements)
        + "\n"
    )
    (allocated,) = ir.collect(lower(func).body, ir.Allocate)
    assert ir.const_int(allocated.buffer.shape[0]) == 4096
    b = np.zeros(8, "int32")
    build(func)["main"](np.array([4050, 50], "int32"), b)
    np.testing.assert_array_equal(b, [1, 2, 3, 4] * 2)

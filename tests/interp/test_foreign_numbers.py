"""Numbers that tensor programs pass to foreign functions are Python's, in both ways to run them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm_ffi

import blockwright as bw

NAME = "tests.foreign_numbers"


def passed(arguments: str) -> list[Any]:
    """What the function gets from the interpreter; compiled code passes the same."""
    program = bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer((2,), "int8"), B: T.Buffer((1,), "uint64")):
    T.call_packed("{NAME}", {arguments})
""")
    got: list[Any] = []

    def keep(*values: Any) -> None:
        got.extend(values)

    tvm_ffi.register_global_func(NAME, keep, override=True)
    a, b = np.array([5, 100], "int8"), np.array([2**63 - 1], "uint64")
    bw.build(program)["main"](a, b)
    compiled = list(got)
    got.clear()
    bw.interpret(program, a, b, packed={NAME: keep})
    assert list(map(type, got)) == list(map(type, compiled))
    assert got == compiled
    return got


def test_numbers_are_those_of_python() -> None:
    text = 'A[0], A[1] + A[1], T.float32(1.5), T.float16(2), T.Cast("bfloat16", A[0]), B[0]'
    found = passed(f"{text}, A[0] > A[1]")
    assert found == [5, -56, 1.5, 2.0, 5.0, 2**63 - 1, False]
    assert [type(v) for v in found] == [int, int, float, float, float, int, bool]


def test_integers_above_int64_are_refused() -> None:
    program = bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer((1,), "int8"), B: T.Buffer((1,), "uint64")):
    T.call_packed("{NAME}", T.tensor(A[0]), B[0])
""")
    tvm_ffi.register_global_func(NAME, lambda *_: None, override=True)
    a, b = np.zeros(1, "int8"), np.array([2**63], "uint64")
    with pytest.raises(bw.BlockwrightError, match="BW708"):
        bw.interpret(program, a, b, packed={NAME: print})
    with pytest.raises(bw.BlockwrightError, match="BW708"):
        bw.build(program)["main"](a, b)


def test_the_remedy_passes_the_bits() -> None:
    assert passed('T.reinterpret("int64", B[0] + T.uint64(1))') == [-(2**63)]

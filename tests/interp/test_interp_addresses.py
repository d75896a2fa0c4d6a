"""Addresses, views and calls between tensor programs: the interpreter keeps to their memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright.support import InterpretError

CALL = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def f(X: T.Buffer((4,), "float32")):
        for i in range(4):
            X[i] = X[i] + T.float32(1)

    @T.prim_func
    def main(A: T.Buffer((8,), "float32"), k: T.int64):
        Module.f(T.address_of(A[k]))
"""

VIEW = """
@T.prim_func
def main(A: T.Buffer((8,), "int32"), k: T.int64):
    V = T.decl_buffer((4,), "int32", data=A.data, elem_offset=k)
    V[3] = 5
"""

SIZES = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def f(x: T.handle, y: T.handle):
        T.func_attr({"tir_var_upper_bound": {"n": 4}})
        n = T.int64()
        s = T.int64()
        X = T.match_buffer(x, (n,), "float32", strides=(s,))
        Y = T.match_buffer(y, (n,), "float32")
        for i in range(n):
            X[i] = Y[i] + T.Cast("float32", s)

    @T.prim_func
    def main(A: T.Buffer((4, 8), "float32"), B: T.Buffer((8,), "float32"), n: T.int64):
        Module.f(T.address_of(A[0, 2]), B.data, n, T.int64(8))
"""


def run(text: str, *args: Any) -> None:
    bw.interpret(bw.from_source(text), *args)


@pytest.mark.parametrize("start", [-4, -1, 5, 8, 9, 1 << 40])
def test_the_memory_of_a_called_program_lies_inside_the_buffer(start: int) -> None:
    a = np.zeros(8, "float32")
    with pytest.raises(InterpretError) as caught:
        run(CALL, a, start)
    assert caught.value.code == "BW751"
    assert not a.any()


@pytest.mark.parametrize("start", [0, 1, 4])
def test_a_called_program_runs_from_an_element_on(start: int) -> None:
    a = np.zeros(8, "float32")
    run(CALL, a, start)
    assert a.nonzero()[0].tolist() == list(range(start, start + 4))


@pytest.mark.parametrize("start", [-4, -1, 5])
def test_a_declared_view_lies_inside_its_buffer(start: int) -> None:
    a = np.zeros(8, "int32")
    with pytest.raises(InterpretError) as caught:
        run(VIEW, a, start)
    assert caught.value.code == "BW751"
    assert not a.any()


def test_the_end_of_a_buffer_is_an_address_of_no_elements() -> None:
    a = np.zeros(8, "float32")
    run(CALL.replace("(4,)", "(0,)").replace("range(4)", "range(0)"), a, 8)
    assert not a.any()


def test_addresses_and_offsets_of_vectors_count_vectors() -> None:
    a = np.zeros((4, 4), "float32")
    text = CALL.replace('"float32"', '"float32x4"').replace("(4,)", "(2,)").replace("(8,)", "(4,)")
    run(text.replace("range(4)", "range(2)").replace("T.float32(1)", "T.float32x4(1)"), a, 1)
    assert a.tolist() == [[0] * 4, [1] * 4, [1] * 4, [0] * 4]
    b = np.zeros(16, "float32")
    text = VIEW.replace("(8,)", "(16,)").replace('"int32"', '"float32"')
    text = text.replace('(4,), "float32"', '(2,), "float32x4"')
    program = bw.from_source(text.replace("V[3] = 5", "V[1] = T.float32x4(5)"))
    bw.interpret(program, b, 1)
    built = np.zeros(16, "float32")
    bw.build(program)["main"](built, 1)
    assert b.nonzero()[0].tolist() == built.nonzero()[0].tolist() == [8, 9, 10, 11]


def test_sizes_that_occur_only_in_strides_are_passed() -> None:
    program, b = bw.from_source(SIZES), np.arange(8, dtype="float32")
    interpreted, built = np.zeros((4, 8), "float32"), np.zeros((4, 8), "float32")
    bw.interpret(program, interpreted, b, 4)
    bw.build(program)["main"](built, b, 4)
    assert interpreted[:, 2].tolist() == [8, 9, 10, 11]
    assert built.tolist() == interpreted.tolist()


@pytest.mark.parametrize("size", [-1, 5])
def test_passed_sizes_are_in_their_declared_ranges(size: int) -> None:
    a = np.zeros((4, 8), "float32")
    with pytest.raises(InterpretError, match=f"n = {size} is outside its declared range") as caught:
        run(SIZES, a, np.zeros(8, "float32"), size)
    assert caught.value.code == "BW708"

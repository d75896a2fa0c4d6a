"""Memory that a called program writes is passed to it as one buffer only."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright.build import build
from blockwright.support import InterpretError, ValidationError

MODULE = """
@I.ir_module
class M:
    @T.prim_func(private=True)
    def add_first(X: T.Buffer((8,), "int32"), Y: T.Buffer((8,), "int32")):
        ATTRS
        for i in range(8):
            X[i] = X[i] + Y[0]

    @T.prim_func(private=True)
    def add_inside(X: T.Buffer((8,), "int32"), Y: T.Buffer((8,), "int32")):
        cls.add_first(X.data, Y.data)

    @T.prim_func
    def main(A: T.Buffer((16,), "int32"), B: T.Buffer((16,), "int32"), k: T.int32):
        CALL
"""
TWICE = [
    "cls.add_first(A.data, A.data)",
    "cls.add_inside(A.data, A.data)",
    "cls.add_first(A.data, T.address_of(A[7]))",
    "V = T.decl_buffer((8,), 'int32', data=T.address_of(A[4]))\n"
    "        cls.add_first(A.data, V.data)",
    "for i in range(3):\n            cls.add_first(T.address_of(A[i]), T.address_of(A[i + 5]))",
]
APART = [
    "cls.add_first(A.data, B.data)",
    "cls.add_first(A.data, T.address_of(A[8]))",
    "V = T.decl_buffer((8,), 'int32', data=T.address_of(A[8]))\n"
    "        cls.add_first(V.data, A.data)",
    "if k > 20:\n            cls.add_first(A.data, T.address_of(A[k]))",
]


def _module(call: str, attrs: str = "pass") -> bw.IRModule:
    return bw.from_source(MODULE.replace("CALL", call).replace("ATTRS", attrs))


def _arrays() -> list[np.ndarray]:
    return [np.arange(1, 17, dtype="int32"), np.arange(1, 17, dtype="int32")]


@pytest.mark.parametrize("call", TWICE)
def test_memory_that_is_written_is_not_passed_twice(call: str) -> None:
    with pytest.raises(ValidationError, match=r"BW260.*X and Y overlap in the memory of A"):
        build(_module(call))


@pytest.mark.parametrize("call", TWICE[:2])
def test_a_program_may_allow_it(call: str) -> None:
    attrs = 'T.func_attr({"tir.noalias": False})'
    module = _module(call.replace("add_inside", "add_first"), attrs)
    wanted, found = _arrays(), _arrays()
    bw.interpret(module, *wanted, 0)
    build(module)["main"](*found, 0)
    assert wanted[0][:3].tolist() == [2, 4, 5]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("call", APART)
def test_parts_of_one_memory_are_separate_buffers(call: str) -> None:
    module = _module(call)
    wanted, found = _arrays(), _arrays()
    bw.interpret(module, *wanted, 0)
    build(module)["main"](*found, 0)
    np.testing.assert_array_equal(found, wanted)


def test_the_interpreter_stops_where_nothing_is_proved() -> None:
    module = _module("cls.add_first(A.data, T.address_of(A[k]))")
    bw.interpret(module, *_arrays(), 8)
    with pytest.raises(InterpretError, match=r"BW706.*X and Y overlap"):
        bw.interpret(module, *_arrays(), 7)

"""Specialisation of programs to sizes, scalars and buffer layouts."""

from __future__ import annotations

import numpy as np
import pytest

from blockwright import ir
from blockwright.interp import interpret
from blockwright.script.ir import from_source
from blockwright.support import IRError

PROGRAM = from_source("""
@T.prim_func
def scale(a: T.handle, b: T.handle, k: T.int32, factor: T.float32):
    T.func_attr({"tir_var_upper_bound": {"n": 64, "m": 8}})
    n, m = T.int32(), T.int32()
    A = T.match_buffer(a, (n, m * 2), "float32")
    B = T.match_buffer(b, (n, m * 2), "float32")
    for i, j in T.grid(n, m * 2):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.if_then_else(vj < k * 2, A[vi, vj] * factor, T.float32(0))
""")


def buffer(*shape: int, dtype: str = "float32", **more) -> ir.Buffer:
    return ir.Buffer("x", ir.dtype_of(dtype), tuple(ir.const(s, "int32") for s in shape), **more)


def test_sizes_and_scalars_become_constants() -> None:
    func = PROGRAM.specialize({"n": 3, "m": 2, "k": 1, "factor": 0.5})
    assert [p.name for p in func.params] == ["a", "b"]
    assert "tir_var_upper_bound" not in repr(func) or '{"tir_var_upper_bound": {}}' in repr(func)
    assert "for i, j in T.grid(3, 4)" in repr(func)
    assert "vj < 2" in repr(func)
    x, y = np.ones((3, 4), "float32"), np.zeros((3, 4), "float32")
    interpret(func, x, y)
    np.testing.assert_array_equal(y, np.tile([0.5, 0.5, 0, 0], (3, 1)))
    ir.assert_structural_equal(from_source(repr(func)), func)


def test_a_variable_a_name_and_a_handle_are_the_same_key() -> None:
    handle, n = PROGRAM.params[0], ir.collect(PROGRAM.buffers[0], ir.Var)[0]
    by_name = PROGRAM.specialize({"n": 8})
    ir.assert_structural_equal(PROGRAM.specialize({n: 8}), by_name)
    wide = ir.Buffer("x", ir.dtype_of("float32"), (ir.const(8, "int32"), ir.mul(ir.var("q"), 2)))
    assert "T.match_buffer(a, (8, q * 2)" not in repr(by_name)
    with pytest.raises(IRError, match="where the given buffer has"):
        PROGRAM.specialize({handle: wide})


def test_a_buffer_brings_its_layout() -> None:
    func = from_source(
        """
        @T.prim_func
        def f(a: T.handle, C: T.Buffer((4,), "float32")):
            n, m, s = T.int32(), T.int32(), T.int32()
            A = T.match_buffer(a, (n, m), "float32", strides=(s, 1), offset_factor=1)
            for i in range(n):
                C[i] = A[i, m - 1]
        """.replace("\n        ", "\n")
    )
    strides = (ir.const(32, "int32"), ir.const(1, "int32"))
    made = func.specialize({func.params[0]: buffer(4, 16, strides=strides)})
    assert 'T.match_buffer(a, (4, 16), "float32", strides=(32, 1), offset_factor=1)' in repr(made)
    assert "C[i] = A[i, 15]" in repr(made)
    assert func.buffers[0].ndim == 2
    assert "for i in range(n)" in repr(func)


def test_expressions_of_other_symbols_are_values_too() -> None:
    q = ir.var("q")
    func = PROGRAM.specialize({"n": q * 4, "k": 2})
    assert "(q * 4, m * 2)" in repr(func)


@pytest.mark.parametrize(
    ("mapping", "code", "text"),
    [
        ({"z": 3}, "BW218", "it has k, factor, n, m, A, B"),
        ({"A": 3}, "BW219", "specialized with a buffer"),
        ({"n": "3"}, "BW219", "takes a number"),
        ({"A": buffer(4, 4, dtype="int8")}, "BW219", "not int8"),
        ({"A": buffer(4)}, "BW219", "dimensions"),
        ({"n": 3, "A": buffer(4, 4)}, "BW219", "given two values"),
        ({"m": 3, "A": buffer(4, 4)}, "BW219", "where the given buffer has"),
    ],
)  # fmt: skip
def test_mistakes_name_the_parameter(mapping, code: str, text: str) -> None:
    with pytest.raises(IRError) as caught:
        PROGRAM.specialize(mapping)
    assert caught.value.code == code
    assert text in str(caught.value)

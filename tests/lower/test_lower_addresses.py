"""Buffers whose addresses are passed on keep the layout that the code behind them relies on."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.lower import lower

A = np.arange(64, dtype="int32").reshape(4, 16)
CALL = """
@I.ir_module
class M:
    @T.prim_func(private=True)
    def times_ten(X: T.Buffer((4, 16), "int32")):
        for i, j in T.grid(4, 2):
            X[i, j] = X[i, j] * 10

    @T.prim_func
    def main(A: T.Buffer((4, 16), "int32"), B: T.Buffer((4, 2), "int32")):
        with T.block("root"):
            t = T.alloc_buffer((4, 16), "int32"SCOPE)
            for i, j in T.grid(4, 2):
                t[i, j] = A[i, j]
            with T.block("call"):
                T.reads(t[0:4, 0:2])
                T.writes(t[0:4, 0:2])
                M.times_ten(t.data)
            for i, j in T.grid(4, 2):
                B[i, j] = t[i, j]
"""


@pytest.mark.parametrize("scope", ["", ', scope="local"'])
def test_a_program_that_is_called_finds_the_strides_that_it_declares(scope: str) -> None:
    """It uses two columns of each row, as the signature says, of rows of 16."""
    module = bw.from_source(CALL.replace("SCOPE", scope))
    b = np.zeros((4, 2), "int32")
    build(module)["main"](A, b)
    np.testing.assert_array_equal(b, A[:, :2] * 10)


def test_rows_that_nobody_uses_are_not_allocated() -> None:
    """Strides do not depend on the number of rows."""
    source = CALL.replace("SCOPE", "").replace('(4, 16), "int32")\n', '(40, 16), "int32")\n')
    (buffer,) = ir.collect(lower(bw.from_source(source)["main"]).body, ir.Allocate)
    assert ir.const_int(buffer.buffer.shape[0]) == 4 * 16


@pytest.mark.parametrize(
    ("layout", "elements"),
    [("strides=[16, 1]", 64), ("strides=[s, 1]", 8), ("strides=[16, 1], elem_offset=0", 64)],
)
def test_a_view_with_stated_strides_fits(layout: str, elements: int) -> None:
    func = bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer((4, 16), "int32"), B: T.Buffer((4, 2), "int32")):
    with T.block("root"):
        t = T.alloc_buffer((4, 16), "int32")
        for i, j in T.grid(4, 2):
            t[i, j] = A[i, j]
        with T.block("copy"):
            s = T.int32()
            V = T.match_buffer(t[0:4, 0:2], (4, 2), "int32", {layout})
            for i, j in T.grid(4, 2):
                B[i, j] = V[i, j]
""")
    b = np.zeros((4, 2), "int32")
    build(func)["main"](A, b)
    np.testing.assert_array_equal(b, A[:, :2])
    (buffer,) = ir.collect(lower(func).body, ir.Allocate)
    assert ir.const_int(buffer.buffer.shape[0]) == elements

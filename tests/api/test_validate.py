"""`bw.validate` lists all problems of both levels, and what a machine does not offer."""

from __future__ import annotations

import pytest

import blockwright as bw

GOOD = """
@T.prim_func
def double(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("b"):
            vi = T.axis.spatial(8, i)
            b[vi] = a[vi] * T.float32(2)
"""

GPU = """
@T.prim_func
def double(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
    tile = T.alloc_buffer((8,), "float32", scope="shared")
    for i in T.thread_binding(8, thread="threadIdx.x"):
        with T.block("tile"):
            vi = T.axis.spatial(8, i)
            tile[vi] = a[vi]
    for i in T.thread_binding(8, thread="threadIdx.x"):
        with T.block("b"):
            vi = T.axis.spatial(8, i)
            b[vi] = tile[vi] * T.float32(2)
"""


def test_a_good_program_passes() -> None:
    program = bw.from_source(GOOD)
    bw.validate(program)
    bw.validate(program, "x86-64-v3")
    bw.validate(bw.ir.IRModule({"double": program}))


def test_a_machine_lists_all_it_does_not_have() -> None:
    program = bw.from_source(GPU)
    bw.validate(program, "cuda-sm_80")
    with pytest.raises(bw.ValidationError) as caught:
        bw.validate(program, "x86-64-v3")
    codes = [found.code for found in caught.value.diagnostics]
    assert codes == ["BW230", "BW231", "BW231"]
    assert "'shared'" in str(caught.value)


def test_problems_of_all_functions_come_in_one_error() -> None:
    good = bw.from_source(GOOD)
    (loop,) = bw.ir.collect(good.body, bw.ir.For)
    broken = good.replace(body=loop.body)  # without its loop, i is bound nowhere
    with pytest.raises(bw.ValidationError) as caught:
        bw.validate(bw.ir.IRModule({"first": broken, "second": broken}))
    assert len(caught.value.diagnostics) == 2


def test_something_else_is_refused() -> None:
    with pytest.raises(bw.OptionError, match="cannot validate a str"):
        bw.validate("double")  # type: ignore[arg-type]

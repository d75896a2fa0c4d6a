# ruff: noqa: RUF059  handles as the trace names them
"""A fault of `tensorize` that fuzzing found, as it was reduced; to be mended."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.testing.check import assert_same_meaning

PROGRAM = """
@T.prim_func
def main(
    in1: T.Buffer((2, 2), "float32"), in6: T.Buffer((2, 1), "float32"),
    mm7: T.Buffer((2, 1), "float32"),
):
    T.func_attr({"tir.noalias": True, "num_outputs": 1})
    for i0, i1, k0 in T.grid((2), (1), (2)):
        with T.block("mm7"):
            v_i0, v_i1, v_k0 = T.axis.remap("SSR", [i0, i1, k0])
            T.reads(in1[v_i0, v_k0], in6[v_k0, v_i1])
            T.writes(mm7[v_i0, v_i1])
            with T.init():
                mm7[v_i0, v_i1] = T.float32(0.0)
            mm7[v_i0, v_i1] = mm7[v_i0, v_i1] + in1[v_i0, v_k0] * in6[v_k0, v_i1]
"""


@pytest.mark.xfail(strict=True, reason="a reduction split often is tensorized to other results")
def test_a_tile_of_a_product_whose_reduction_was_split() -> None:
    program = bw.from_source(PROGRAM)
    assert isinstance(program, ir.PrimFunc)
    sch = bw.Schedule(program, verify="full")
    b19 = sch.get_block("mm7")
    l24, l25, l26 = sch.get_loops(b19)
    l27, l28 = sch.split(l26, [None, 2])
    b42 = sch.get_block("mm7")
    l47, l48, l49, l50 = sch.get_loops(b42)
    l51, l52 = sch.split(l50, [None, 2])
    b66 = sch.get_block("mm7")
    l72, l73, l74, l75, l76 = sch.get_loops(b66)
    l77, l78 = sch.split(l76, [None, 2])
    b92 = sch.get_block("mm7")
    l99, l100, l101, l102, l103, l104 = sch.get_loops(b92)
    l105, l106 = sch.split(l104, [None, 2])
    b136 = sch.get_block("mm7")
    l144, l145, l146, l147, l148, l149, l150 = sch.get_loops(b136)
    l151, l152 = sch.split(l150, [None, 2])
    b202 = sch.get_block("mm7")
    l211, l212, l213, l214, l215, l216, l217, l218 = sch.get_loops(b202)
    l219, l220 = sch.split(l216, [None, 1])
    l221, l222 = sch.split(l217, [None, 1])
    sch.reorder(l219, l221, l218, l220, l222)
    sch.tensorize(l220, "outer_product_1x1_float32")
    assert_same_meaning(program, sch.func, seed=38)

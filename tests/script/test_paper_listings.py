"""Where the literature shows a transformation, our steps lead from one listing to the next.

The listings are `programs/paper_tensor.py`; that they parse, print and read back is tested with all
other programs. Here each test schedules one listing and arrives at the next, to the last loop.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis.validate.well_formed import find_problems
from blockwright.interp import interpret
from blockwright.script.ir import from_source

PROGRAMS = Path(__file__).parent / "programs"
LISTINGS: ir.IRModule = from_source((PROGRAMS / "paper_tensor.py").read_text())


def reached(sch: bw.Schedule, listing: str) -> None:
    """The schedule has arrived at a listing (all but its name)."""
    ir.assert_structural_equal(sch.func, LISTINGS[listing].with_attrs(global_symbol=sch.func.name))


@pytest.mark.parametrize("name", LISTINGS.functions)
def test_listings_are_well_formed(name: str) -> None:
    assert [p.message for p in find_problems(LISTINGS[name])] == []


def test_loop_tiling_then_reverse_compute_at() -> None:
    sch = bw.Schedule(LISTINGS["dot_max"])
    block = sch.get_block("block_C")
    i, j, k = sch.get_loops(block)
    i0, i1 = sch.split(i, factors=[8, 8])
    j0, j1 = sch.split(j, factors=[8, 8])
    sch.reorder(i0, j0, i1, j1, k)
    reached(sch, "dot_max_tiled")
    sch.reverse_compute_at(sch.get_block("block_D"), j0)
    reached(sch, "dot_max_fused")


def test_blockization() -> None:
    sch = bw.Schedule(LISTINGS["split_reduction"])
    *_, k1 = sch.get_loops(sch.get_block("C"))
    sch.blockize(k1)
    reached(sch, "blockized")


def test_convolution_is_reindexed_then_laid_out_as_a_matrix_product() -> None:
    sch = bw.Schedule(LISTINGS["conv2d"])
    block = sch.get_block("C")
    for buffer in ("A", "B", "C"):
        sch.reindex(block, buffer)
    reached(sch, "conv2d_reindexed")
    sch.transform_layout(
        block,
        "A_reindex",
        lambda n, h, w, rh, rw, rc: (n * 3136 + h * 56 + w, rh * 21 + rw * 3 + rc),
    )
    sch.transform_layout(block, "B_reindex", lambda c, rh, rw, rc: (c, rh * 21 + rw * 3 + rc))
    sch.transform_layout(block, "C_reindex", lambda n, h, w, c: (n * 3136 + h * 56 + w, c))
    sch.transform_block_layout(
        block,
        lambda n, h, w, c, rh, rw, rc: (n * 3136 + h * 56 + w, c, rh * 21 + rw * 3 + rc),
    )
    reached(sch, "conv2d_layout")


def test_from_definition_to_decompose_reduction() -> None:
    sch = bw.Schedule(LISTINGS["definition"])
    update = sch.get_block("C")
    i, j, k = sch.get_loops(update)
    i_o, i_i = sch.split(i, factors=[None, 32])
    j_o, j_i = sch.split(j, factors=[None, 32])
    k_o, k_i = sch.split(k, factors=[None, 4])
    sch.reorder(i_o, j_o, k_o, k_i, i_i, j_i)
    reached(sch, "tiled")
    sch.vectorize(j_i)
    init = sch.decompose_reduction(update, j_o)
    inner = ir.loops(sch.func)[3]
    if inner.kind is not ir.ForKind.VECTORIZED:
        sch.vectorize(sch.get_loops(init)[-1])
    reached(sch, "decomposed")


def test_the_printed_loops_of_a_split() -> None:
    sch = bw.Schedule(LISTINGS["from_expression"])
    x, _ = sch.get_loops(sch.get_block("update"))
    sch.split(x, factors=[None, 32])
    assert "for i0_0, i0_1, i1 in T.grid(4, 32, 128)" in sch.func.script()


def test_definitions_without_loops_get_the_loops_of_their_domains() -> None:
    func = LISTINGS["named_block"]
    assert [(loop.loop_var.name, ir.const_int(loop.extent)) for loop in ir.loops(func)] == [
        ("i_0", 128),
        ("j_0", 128),
        ("k_0", 128),
    ]


def test_concat_is_free_of_branches_and_right() -> None:
    func = LISTINGS["concat"]
    assert not ir.collect(func, ir.IfThenElse)
    assert not [c for c in ir.collect(func, ir.Call) if c.op == "if_then_else"]
    parts = [np.arange(10, dtype="float32") + 100 * k for k in range(3)]
    out = np.zeros(30, "float32")
    interpret(func, *parts, out)
    np.testing.assert_array_equal(out, np.concatenate(parts))


def test_scopes_of_memory_and_execution() -> None:
    func = LISTINGS["scopes"]
    assert [b.exec_scope for b in ir.blocks(func)[1:]] == ["gpu_block", "gpu_warp", "gpu_thread"]
    tags = [loop.thread.thread_tag for loop in ir.loops(func) if loop.thread is not None]
    assert tags == ["blockIdx.x", "threadIdx.y", "threadIdx.x"]


def test_fused_matmul_relu_computes_what_it_says() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 128)), rng.standard_normal((128, 256))
    z = np.zeros((3, 256), "float32")
    interpret(LISTINGS["fused_mm_relu"], x.astype("float32"), w.astype("float32"), z)
    # 128 products of order one are added in float32: an error of 128 ulp of 16 at most
    np.testing.assert_allclose(z, np.maximum(x @ w, 0), atol=128 * 16 * 2.0**-24)


def test_the_intrinsic_of_four_by_four() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-4, 4, (4, 4)).astype("float32") for _ in range(3))
    out = c.copy()
    interpret(LISTINGS["matmul4x4"], a, b, out)
    np.testing.assert_array_equal(out, c + a @ b)

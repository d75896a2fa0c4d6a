"""The schedules that the rules build on, end to end: structure, and the same numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from blockwright import ir
from blockwright.interp import interpret
from blockwright.intrin import outer_product_name
from blockwright.schedule import BlockRV, LoopRV, Schedule
from blockwright.script.compute import Program

N, B, S = (ir.var(name, "int64") for name in "nbs")


def agree(
    before: ir.PrimFunc,
    after: ir.PrimFunc,
    inputs: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
) -> None:
    """Both programs compute the same on random inputs of these shapes."""
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape).astype("float32") for shape in inputs]
    want = [np.zeros(shape, "float32") for shape in outputs]
    have = [np.zeros(shape, "float32") for shape in outputs]
    interpret(before, *arrays, *want)
    interpret(after, *arrays, *have)
    for x, y in zip(want, have, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


def kinds(sch: Schedule, block: BlockRV) -> list[str]:
    loops = [sch.get(loop) for loop in sch.get_loops(block)]
    return [loop.kind.value for loop in loops if isinstance(loop, ir.For)]


# --------------------------------------------------------------------------------- contractions
ROWS, COLUMNS = 4, 8


def linear(columns: int = 16, depth: int = 12) -> ir.PrimFunc:
    p = Program("linear")
    a = p.param("A", (N, depth), "float32")
    w = p.param("W", (columns, depth), "float32")
    bias = p.param("bias", (columns,), "float32")
    c = p.reduce("C", (N, columns), (depth,), lambda i, j, k: a[i, k] * w[j, k])
    d = p.compute("D", (N, columns), lambda i, j: c[i, j] + bias[j])
    e = p.compute("E", (N, columns), lambda i, j: d[i, j] * ir.call("sigmoid", d[i, j]))
    return p.finish([e])


def scheduled_linear() -> Schedule:
    """Packed weights, register tiles through an intrinsic, fused epilogue, symbolic rows."""
    sch = Schedule(linear(), verify="full")
    sch.compute_inline(sch.get_block("D"))
    c, e = sch.get_block("C"), sch.get_block("E")
    sch.pad_einsum(c, [ROWS, COLUMNS, 1], mode="clamp")
    (copied_back,) = sch.get_consumers(c)
    sch.compute_inline(copied_back)
    sch.cache_read(c, "W", "global")
    sch.transform_layout(c, ("read", 1), lambda j, k: (j // COLUMNS, k, j % COLUMNS))
    i, j, k = sch.get_loops(c)
    i0, i1 = sch.split(i, [None, ROWS])
    j0, j1 = sch.split(j, [None, COLUMNS])
    sch.reorder(i0, j0, k, i1, j1)
    sch.set_scope(c, 0, "local")
    sch.reverse_compute_at(e, j0)
    init = sch.decompose_reduction(c, k)
    sch.tensorize(i1, outer_product_name(ROWS, COLUMNS))
    for block in (init, e):
        *_, rows, columns = sch.get_loops(block)
        sch.vectorize(columns)
        sch.unroll(rows)
    sch.parallel(sch.fuse(i0, j0))
    return sch


@pytest.mark.parametrize("rows", [1, 4, 7])
def test_packed_tiled_contraction_with_symbolic_rows(rows: int) -> None:
    sch = scheduled_linear()
    agree(linear(), sch.func, [(rows, 12), (16, 12), (16,)], [(rows, 16)])


def test_structure_of_the_contraction() -> None:
    sch = scheduled_linear()
    assert kinds(sch, sch.get_block("E")) == ["parallel", "unrolled", "vectorized"]
    packed = next(b for b in sch.func.root.alloc_buffers if b.name.startswith("W"))
    assert [ir.const_int(d) for d in packed.shape] == [2, 12, COLUMNS]
    tile = sch.get(sch.get_block("C_o"))
    assert isinstance(tile, ir.Block)
    assert isinstance(tile.body, ir.SeqStmt)
    assert len(tile.body.seq) == ROWS
    assert len(tile.match_buffers) == 3


def test_the_trace_of_the_contraction_replays() -> None:
    sch = scheduled_linear()
    again = Schedule(linear())
    again.replay(sch.trace)
    ir.assert_structural_equal(again.func, sch.func)


# ----------------------------------------------------------------------------------- reductions
def softmax() -> ir.PrimFunc:
    p = Program("softmax")
    x = p.param("X", (N, S), "float32")
    m = p.reduce("m", (N,), (S,), lambda i, k: x[i, k], "max")
    e = p.compute("e", (N, S), lambda i, k: ir.call("exp", x[i, k] - m[i]))
    s = p.reduce("s", (N,), (S,), lambda i, k: e[i, k])
    return p.finish([p.compute("o", (N, S), lambda i, k: e[i, k] / s[i])])


def lanes_of(sch: Schedule, block: BlockRV, lanes: int) -> BlockRV:
    """Partial results in `lanes` lanes for the last loop of a reduction."""
    *_, inner = sch.split(sch.get_loops(block)[-1], [None, lanes])
    return sch.rfactor(inner, -1)


def vectorized_lanes(sch: Schedule, partial: BlockRV) -> None:
    """The lane loop innermost, a vector in the initial value and in the update."""
    *outer, lane, step = sch.get_loops(partial)
    first = sch.get(lane)
    assert isinstance(first, ir.For)
    if not ir.is_const_int(first.extent):
        lane, step = step, lane
    else:
        sch.reorder(step, lane)
    init = sch.decompose_reduction(partial, step)
    sch.vectorize(lane)
    sch.vectorize(sch.get_loops(init)[-1])
    assert outer


def test_softmax_row_by_row_with_vector_lanes() -> None:
    sch = Schedule(softmax(), verify="full")
    m, e, s, o = (sch.get_block(name) for name in "meso")
    m_rf, s_rf = lanes_of(sch, m, 4), lanes_of(sch, s, 4)
    rows, _ = sch.get_loops(o)
    for block in (s, s_rf, e, m, m_rf):
        sch.compute_at(block, rows)
    sch.parallel(rows)
    vectorized_lanes(sch, m_rf)
    vectorized_lanes(sch, s_rf)
    assert kinds(sch, m_rf) == ["parallel", "serial", "vectorized"]
    for shape in ((3, 5), (1, 4), (2, 9)):
        agree(softmax(), sch.func, [shape], [shape])


def layer_norm(width: int = 10) -> ir.PrimFunc:
    p = Program("layer_norm")
    x = p.param("X", (N, width), "float32")
    g, b = (p.param(name, (width,), "float32") for name in ("gamma", "beta"))
    mean = p.reduce("mean", (N,), (width,), lambda i, k: x[i, k] * (1.0 / width))
    var = p.reduce(
        "var",
        (N,),
        (width,),
        lambda i, k: (x[i, k] - mean[i]) * (x[i, k] - mean[i]) * (1.0 / width),
    )
    y = p.compute(
        "Y",
        (N, width),
        lambda i, k: (x[i, k] - mean[i]) * ir.call("rsqrt", var[i] + 1e-5) * g[k] + b[k],
    )
    return p.finish([y])


def test_layer_norm_in_row_tiles() -> None:
    sch = Schedule(layer_norm(), verify="full")
    i, j = sch.get_loops(sch.get_block("Y"))
    i0, _ = sch.split(i, [None, 2])
    sch.compute_at(sch.get_block("var"), i0)
    sch.compute_at(sch.get_block("mean"), i0)
    sch.parallel(i0)
    _, j1 = sch.split(j, [None, 4])
    sch.vectorize(j1)
    agree(layer_norm(), sch.func, [(5, 10), (10,), (10,)], [(5, 10)])


# ------------------------------------------------------------------------------------ attention
HEADS, DEPTH = 2, 8


def attention() -> ir.PrimFunc:
    p = Program("attention")
    q, k, v = (p.param(name, (B, HEADS, S, DEPTH), "float32") for name in "QKV")
    mask = p.param("mask", (B, S), "float32")
    square, rows = (B, HEADS, S, S), (B, HEADS, S)
    s = p.reduce("S", square, (DEPTH,), lambda b, h, i, j, d: q[b, h, i, d] * k[b, h, j, d])
    z = p.compute("Z", square, lambda b, h, i, j: s[b, h, i, j] * 0.35 + mask[b, j])
    m = p.reduce("M", rows, (S,), lambda b, h, i, j: z[b, h, i, j], "max")
    e = p.compute("P", square, lambda b, h, i, j: ir.call("exp", z[b, h, i, j] - m[b, h, i]))
    n = p.reduce("L", rows, (S,), lambda b, h, i, j: e[b, h, i, j])
    o = p.reduce(
        "O", (B, HEADS, S, DEPTH), (S,), lambda b, h, i, d, j: e[b, h, i, j] * v[b, h, j, d]
    )
    out = p.compute("N", (B, HEADS, S, DEPTH), lambda b, h, i, d: o[b, h, i, d] / n[b, h, i])
    return p.finish([out])


def test_attention_in_query_tiles() -> None:
    sch = Schedule(attention(), verify="full")
    blocks = {name: sch.get_block(name) for name in "SZMPLON"}
    m_rf, l_rf = lanes_of(sch, blocks["M"], 8), lanes_of(sch, blocks["L"], 8)
    b, h, i, _ = sch.get_loops(blocks["N"])
    i0, _ = sch.split(i, [None, 4])
    tile: LoopRV = sch.fuse(b, h, i0)
    for block in (
        *(blocks[x] for x in "OL"),
        l_rf,
        blocks["P"],
        blocks["M"],
        m_rf,
        *(blocks[x] for x in "ZS"),
    ):
        sch.compute_at(block, tile)
    sch.parallel(tile)
    assert len(sch.get_child_blocks(tile)) == 9
    for block in sch.get_child_blocks(tile):
        assert kinds(sch, block)[0] == "parallel"
    for batch, length in ((1, 5), (2, 8)):
        shape = (batch, HEADS, length, DEPTH)
        agree(attention(), sch.func, [shape] * 3 + [(batch, length)], [shape])


# ---------------------------------------------------------------------------------- elementwise
def test_elementwise_chain_in_vectors() -> None:
    p = Program("chain")
    x, bias = p.param("X", (N, 6), "float32"), p.param("bias", (6,), "float32")
    a = p.compute("a", (N, 6), lambda i, k: x[i, k] + bias[k])
    t = p.compute("t", (6, N), lambda i, k: a[k, i] * 2.0)
    func = p.finish([p.compute("c", (N, 6), lambda i, k: t[k, i] + 1.0)])
    sch = Schedule(func, verify="full")
    sch.compute_inline(sch.get_block("a"))
    sch.compute_inline(sch.get_block("t"))
    outer, lane = sch.split(sch.fuse(*sch.get_loops(sch.get_block("c"))), [None, 8])
    sch.vectorize(lane)
    sch.parallel(outer)
    assert [b.name for b in ir.blocks(sch.func)] == ["root", "c"]
    for rows in (1, 4, 5):
        agree(func, sch.func, [(rows, 6), (6,)], [(rows, 6)])

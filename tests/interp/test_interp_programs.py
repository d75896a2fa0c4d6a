"""Whole programs on the interpreter, against NumPy; as lanes and one instance at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.interp import interpret
from blockwright.script.compute import Program
from blockwright.script.ir import from_source

I64 = ir.dtype_of("int64")
TRUE = ir.const(True, "bool")


def iv(name: str, extent: Any, kind: ir.IterType = ir.IterType.SPATIAL) -> ir.IterVar:
    return ir.IterVar(ir.Var(name, I64), ir.Range(ir.const(0, I64), ir.as_expr(extent, I64)), kind)


def loop(var: ir.Var, extent: Any, body: ir.Stmt, kind: ir.ForKind = ir.ForKind.SERIAL) -> ir.For:
    return ir.For(var, ir.const(0, I64), ir.as_expr(extent, I64), kind, body)


def function(buffers: list[ir.Buffer], body: ir.Stmt, **attrs: Any) -> ir.PrimFunc:
    root = ir.Block("root", (), (), (), body)
    handles = tuple(ir.Var(f"{b.name}_handle", ir.dtype_of("handle")) for b in buffers)
    return ir.PrimFunc(
        handles, tuple(zip(handles, buffers, strict=True)), ir.BlockRealize((), TRUE, root), attrs
    )


@pytest.fixture(params=[True, False], ids=["lanes", "scalar"])
def vectorize(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def rand(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def matmul(n: Any, m: Any, k: Any) -> ir.PrimFunc:
    p = Program("matmul")
    a, b = p.param("A", (n, k), "float32"), p.param("B", (k, m), "float32")
    c = p.reduce("C", (n, m), (k,), lambda i, j, r: a[i, r] * b[r, j])
    return p.finish([c], {"num_outputs": 1})


def test_matmul_adds_in_loop_order(vectorize: bool) -> None:
    a, b, c = rand(5, 9), rand(9, 7), np.empty((5, 7), np.float32)
    interpret(matmul(5, 7, 9), a, b, c, vectorize=vectorize)
    expected = np.zeros_like(c)
    for k in range(9):
        expected += a[:, k : k + 1] * b[k]
    np.testing.assert_array_equal(c, expected)


def test_matmul_of_demo_size_takes_no_time() -> None:
    a, b, c = rand(32, 384), rand(384, 384), np.empty((32, 384), np.float32)
    interpret(matmul(32, 384, 384), a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


def test_symbolic_shapes_are_bound_by_the_arrays(vectorize: bool) -> None:
    n, m, k = (ir.Var(name, I64) for name in "nmk")
    func = matmul(n, m, k)
    for size in (1, 3):
        a, b, c = rand(size, 4), rand(4, 2), np.empty((size, 2), np.float32)
        interpret(func, a, b, c, vectorize=vectorize)
        np.testing.assert_allclose(c, a @ b, rtol=1e-5)
    empty = np.empty((0, 2), np.float32)
    interpret(func, rand(0, 4), rand(4, 2), empty, vectorize=vectorize)


def test_softmax_of_four_blocks(vectorize: bool) -> None:
    p = Program("softmax")
    x = p.param("X", (3, 8), "float32")
    top = p.reduce("top", (3,), (8,), lambda i, k: x[i, k], "max")
    e = p.compute("e", (3, 8), lambda i, j: ir.call("exp", x[i, j] - top[i]))
    total = p.reduce("total", (3,), (8,), lambda i, k: e[i, k])
    y = p.compute("Y", (3, 8), lambda i, j: e[i, j] / total[i])
    func = p.finish([y], {"num_outputs": 1})
    a, out = rand(3, 8), np.empty((3, 8), np.float32)
    interpret(func, a, out, vectorize=vectorize)
    shifted = np.exp(a - a.max(1, keepdims=True))
    np.testing.assert_allclose(out, shifted / shifted.sum(1, keepdims=True), rtol=1e-6)


def test_padding_and_halo(vectorize: bool) -> None:
    p = Program("conv")
    x = p.param("X", (10,), "float32")
    padded = p.compute(
        "P", (12,), lambda i: ir.if_then_else(ir.logical_and(i >= 1, i < 11), x[i - 1], 0.0)
    )
    y = p.reduce("Y", (10,), (3,), lambda i, k: padded[i + k])
    a, out = rand(10), np.empty(10, np.float32)
    interpret(p.finish([y], {"num_outputs": 1}), a, out, vectorize=vectorize)
    np.testing.assert_allclose(out, np.convolve(a, np.ones(3), "same"), rtol=1e-5, atol=1e-6)


def test_gather_reads_through_an_index_buffer(vectorize: bool) -> None:
    p = Program("take")
    table, ids = p.param("table", (6, 4), "float32"), p.param("ids", (5,), "int64")
    y = p.compute("Y", (5, 4), lambda i, j: table[ids[i], j])
    a, index, out = rand(6, 4), np.array([5, 0, 3, 3, 1]), np.empty((5, 4), np.float32)
    interpret(p.finish([y]), a, index, out, vectorize=vectorize)
    np.testing.assert_array_equal(out, a[index])


def test_argmax_carries_two_values_through_one_block(vectorize: bool) -> None:
    x = ir.Buffer("X", ir.dtype_of("float32"), (ir.const(3, I64), ir.const(7, I64)))
    best = ir.Buffer("best", ir.dtype_of("float32"), (ir.const(3, I64),))
    where = ir.Buffer("where", I64, (ir.const(3, I64),))
    vi, vk = iv("vi", 3), iv("vk", 7, ir.IterType.REDUCE)
    better = ir.load(x, vi.var, vk.var) > ir.load(best, vi.var)
    update = ir.IfThenElse(
        better,
        ir.seq(
            [
                ir.BufferStore(best, ir.load(x, vi.var, vk.var), (vi.var,)),
                ir.BufferStore(where, vk.var, (vi.var,)),
            ]
        ),
    )
    init = ir.seq(
        [
            ir.BufferStore(best, ir.const(float("-inf"), "float32"), (vi.var,)),
            ir.BufferStore(where, ir.const(-1, I64), (vi.var,)),
        ]
    )
    i, k = ir.Var("i", I64), ir.Var("k", I64)
    block = ir.Block("argmax", (vi, vk), (), (), update, init)
    func = function([x, best, where], loop(i, 3, loop(k, 7, ir.BlockRealize((i, k), TRUE, block))))
    a, value, index = rand(3, 7), np.empty(3, np.float32), np.empty(3, np.int64)
    interpret(func, a, value, index, outputs=2, vectorize=vectorize)
    np.testing.assert_array_equal(index, a.argmax(1))
    np.testing.assert_array_equal(value, a.max(1))


def test_split_loop_with_predicate(vectorize: bool) -> None:
    a, b = (ir.Buffer(n, ir.dtype_of("float32"), (ir.const(10, I64),)) for n in "AB")
    v, o, i = iv("v", 10), ir.Var("o", I64), ir.Var("i", I64)
    at = o * 4 + i
    block = ir.Block("B", (v,), (), (), ir.BufferStore(b, ir.load(a, v.var) * 2.0, (v.var,)))
    body = loop(o, 3, loop(i, 4, ir.BlockRealize((at,), at < 10, block)))
    x, y = rand(10), np.zeros(10, np.float32)
    interpret(function([a, b], body), x, y, vectorize=vectorize)
    np.testing.assert_array_equal(y, x * 2)


def test_scan_keeps_its_order(vectorize: bool) -> None:
    """cumsum along the inner loop: rows may run as lanes, columns may not."""
    a, b = (
        ir.Buffer(n, ir.dtype_of("float32"), (ir.const(4, I64), ir.const(6, I64))) for n in "AB"
    )
    i, j = ir.Var("i", I64), ir.Var("j", I64)
    before = ir.if_then_else(j > 0, ir.load(b, i, j - 1), ir.const(0.0, "float32"))
    body = loop(i, 4, loop(j, 6, ir.BufferStore(b, before + ir.load(a, i, j), (i, j))))
    x, y = rand(4, 6), np.empty((4, 6), np.float32)
    interpret(function([a, b], body, num_outputs=1), x, y, vectorize=vectorize)
    np.testing.assert_allclose(y, np.cumsum(x, 1), rtol=1e-5)


def test_in_place_shift_is_not_run_at_once(vectorize: bool) -> None:
    a = ir.Buffer("A", ir.dtype_of("int32"), (ir.const(6, I64),))
    i = ir.Var("i", I64)
    body = loop(i, 5, ir.BufferStore(a, ir.load(a, i) + 1, (i + 1,)))
    x = np.zeros(6, np.int32)
    interpret(function([a], body), x, vectorize=vectorize)
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


def test_scatter_through_loaded_indices(vectorize: bool) -> None:
    """Repeated targets: the additions must not be lost to lanes."""
    ids = ir.Buffer("ids", I64, (ir.const(8, I64),))
    hist = ir.Buffer("hist", ir.dtype_of("int32"), (ir.const(4, I64),))
    i = ir.Var("i", I64)
    at = ir.load(ids, i)
    body = loop(i, 8, ir.BufferStore(hist, ir.load(hist, at) + 1, (at,)))
    index, out = np.array([0, 1, 1, 3, 3, 3, 0, 2]), np.zeros(4, np.int32)
    interpret(function([ids, hist], body), index, out, vectorize=vectorize)
    assert out.tolist() == [2, 2, 1, 3]


def test_triangular_loops_and_local_buffers(vectorize: bool) -> None:
    a, b = (ir.Buffer(n, ir.dtype_of("float32"), (ir.const(5, I64),)) for n in "AB")
    local = ir.Buffer("acc", ir.dtype_of("float32"), (ir.const(1, I64),), scope="local")
    zero = ir.const(0, I64)
    i, j = ir.Var("i", I64), ir.Var("j", I64)
    add = ir.BufferStore(local, ir.load(local, zero) + ir.load(a, j), (zero,))
    body = ir.Allocate(
        local,
        ir.seq(
            [
                ir.BufferStore(local, ir.const(0.0, "float32"), (zero,)),
                loop(j, i + 1, add),
                ir.BufferStore(b, ir.load(local, zero), (i,)),
            ]
        ),
    )
    x, y = rand(5), np.empty(5, np.float32)
    func = function([a, b], loop(i, 5, body, ir.ForKind.PARALLEL), num_outputs=1)
    interpret(func, x, y, vectorize=vectorize)
    np.testing.assert_allclose(y, np.cumsum(x), rtol=1e-5)


def test_nested_blocks_with_views(vectorize: bool) -> None:
    """A tile through match_buffer, its stride and offset bound from the buffer."""
    f32 = ir.dtype_of("float32")
    a, b = (ir.Buffer(n, f32, (ir.const(4, I64), ir.const(6, I64))) for n in "AB")
    stride, offset = ir.Var("s", I64), ir.Var("off", I64)
    view = ir.Buffer(
        "V", f32, (ir.const(2, I64), ir.const(3, I64)), (stride, ir.const(1, I64)), offset
    )
    bi, bj = iv("bi", 2), iv("bj", 2)
    region = (ir.Range(bi.var * 2, ir.const(2, I64)), ir.Range(bj.var * 3, ir.const(3, I64)))
    match = ir.MatchBufferRegion(view, ir.BufferRegion(b, region))
    i, j, p, q = (ir.Var(n, I64) for n in "ijpq")
    source = ir.load(a, bi.var * 2 + p, bj.var * 3 + q)
    mark = ir.cast_to(stride * 100 + offset, f32)
    body = loop(p, 2, loop(q, 3, ir.BufferStore(view, source * 0.0 + mark, (p, q))))
    block = ir.Block("tile", (bi, bj), (), (), body, match_buffers=(match,))
    func = function([a, b], loop(i, 2, loop(j, 2, ir.BlockRealize((i, j), TRUE, block))))
    out = np.zeros((4, 6), np.float32)
    interpret(func, rand(4, 6), out, vectorize=vectorize)
    tiles = np.array([[600, 603], [612, 615]], np.float32)
    np.testing.assert_array_equal(out, np.kron(tiles, np.ones((2, 3), np.float32)))


def test_a_view_may_have_a_size_that_the_program_knows(vectorize: bool) -> None:
    """Its shape is then checked, not bound: the symbol has a value already."""
    n, m = ir.Var("n", I64), ir.Var("m", I64)
    f32 = ir.dtype_of("float32")
    a, b = ir.Buffer("A", f32, (n, m)), ir.Buffer("B", f32, (n, m))
    row = iv("row", n)
    region = (ir.Range(row.var, ir.const(1, I64)), ir.Range(ir.const(0, I64), m))
    view = ir.Buffer("V", f32, (m,))
    i, j = ir.Var("i", I64), ir.Var("j", I64)
    body = loop(j, m, ir.BufferStore(b, ir.load(view, j) * 2.0, (row.var, j)))
    match = ir.MatchBufferRegion(view, ir.BufferRegion(a, region))
    block = ir.Block("rows", (row,), (), (), body, match_buffers=(match,))
    x, y = rand(3, 5), np.zeros((3, 5), np.float32)
    func = function([a, b], loop(i, n, ir.BlockRealize((i,), TRUE, block)))
    interpret(func, x, y, vectorize=vectorize)
    np.testing.assert_array_equal(y, x * 2)


def test_lanes_and_scalar_order_give_the_same_bits() -> None:
    n, m = ir.Var("n", I64), ir.Var("m", I64)
    p = Program("norm")
    x = p.param("X", (n, m), "float32")
    mean = p.reduce("mean", (n,), (m,), lambda i, k: x[i, k])
    d = p.compute("d", (n, m), lambda i, j: x[i, j] - mean[i] / ir.cast_to(m, "float32"))
    y = p.reduce("Y", (n,), (m,), lambda i, k: ir.call("erf", d[i, k]) * d[i, k])
    func = p.finish([y], {"num_outputs": 1})
    a = rand(6, 11)
    one, two = np.empty(6, np.float32), np.empty(6, np.float32)
    interpret(func, a, one)
    interpret(func, a, two, vectorize=False)
    np.testing.assert_array_equal(one, two)


def test_arrays_of_any_layout() -> None:
    func = matmul(4, 5, 3)
    a, b = rand(3, 4).T, rand(6, 10)[::2, ::2]
    out = np.zeros((5, 4), np.float32).T
    interpret(func, a, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-5)


def test_strided_parameters_see_the_caller_s_memory() -> None:
    stride = ir.Var("s", I64)
    a = ir.Buffer("A", ir.dtype_of("float32"), (ir.const(4, I64),), (stride,))
    i = ir.Var("i", I64)
    body = loop(i, 4, ir.BufferStore(a, ir.cast_to(stride, "float32"), (i,)))
    memory = np.zeros(8, np.float32)
    interpret(function([a], body), memory[::2])
    assert memory.tolist() == [2, 0, 2, 0, 2, 0, 2, 0]


def test_bounds_inside_an_empty_loop_are_not_evaluated() -> None:
    func = from_source("""
@T.prim_func
def main(a: T.handle, C: T.Buffer((8,), "int32")):
    n = T.int32()
    A = T.match_buffer(a, (n,), "int32")
    for i in range(n):
        for j in range(6 // n):
            with T.block("U"):
                vi = T.axis.spatial(n, i)
                vj = T.axis.spatial(8, j)
                C[vj] = A[vi]
""")
    found = np.zeros(8, "int32")
    interpret(func, np.zeros(0, "int32"), found)
    assert not found.any()


def test_functions_of_a_module_may_call_each_other() -> None:
    """Which arguments are written is found through cyclic calls; the result has as many as `k`."""
    module = from_source("""
@I.ir_module
class M:
    @T.prim_func
    def main(x: T.Buffer((1,), "int32"), y: T.Buffer((1,), "int32"), k: T.int64):
        if k > 0:
            T.call_global("other", x.data, y.data, k - 1)
            y[0] = y[0] + x[0]
        else:
            y[0] = 0

    @T.prim_func
    def other(x: T.Buffer((1,), "int32"), y: T.Buffer((1,), "int32"), k: T.int64):
        T.call_global("main", x.data, y.data, k)
""")
    x, y = np.array([3], "int32"), np.array([7], "int32")
    x.flags.writeable = False
    interpret(module, x, y, 5)
    assert y[0] == 15

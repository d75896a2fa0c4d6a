"""Tensor expressions become the programs that one would write by hand."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from blockwright import ir
from blockwright.analysis.validate.well_formed import check_well_formed
from blockwright.interp import interpret
from blockwright.script import te
from blockwright.script import tir as T
from blockwright.script.ir import from_source
from blockwright.support import ScriptError


def same(func: ir.PrimFunc, text: str) -> None:
    check_well_formed(func)
    ir.assert_structural_equal(func, from_source(textwrap.dedent(text)))


def test_the_example_of_the_thread() -> None:
    A = te.placeholder((128, 128), name="A")
    update = te.compute((128, 128), lambda i, j: A[i, j] + 1, name="update")
    same(
        te.create_prim_func([A, update]),
        """
        @T.prim_func
        def main(A: T.Buffer((128, 128)), update: T.Buffer((128, 128))):
            T.func_attr({"tir.noalias": True})
            for i, j in T.grid(128, 128):
                with T.block("update"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    update[vi, vj] = A[vi, vj] + T.float32(1)
        """,
    )


def test_reductions_intermediates_and_symbols() -> None:
    n, m = te.var("n"), te.size_var("m")
    A, B = te.placeholder((n, m), name="A"), te.placeholder((m, 8), name="B")
    k = te.reduce_axis((0, m), name="k")
    C = te.compute((n, 8), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    D = te.compute(C.shape, lambda *i: te.max(C(*i), te.const(0, "float32")), name="D")
    func = te.create_prim_func([A, B, D])
    same(
        func,
        """
        @T.prim_func
        def main(a: T.handle, b: T.handle, d: T.handle):
            T.func_attr({"tir.noalias": True})
            n, m = T.int32(), T.int32()
            A = T.match_buffer(a, (n, m))
            B = T.match_buffer(b, (m, 8))
            D = T.match_buffer(d, (n, 8))
            C = T.alloc_buffer((n, 8))
            for i, j, k in T.grid(n, 8, m):
                with T.block("C"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        C[vi, vj] = T.float32(0)
                    C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
            for i, j in T.grid(n, 8):
                with T.block("D"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    D[vi, vj] = T.max(C[vi, vj], T.float32(0))
        """,
    )
    assert [loop.loop_var.name for loop in ir.loops(func)][:3] == ["i", "j", "k"]
    assert D.op.input_tensors == [C]
    assert C.op.reduce_axis == [k]


def test_padding_and_a_convolution() -> None:
    X = te.placeholder((6, 6), name="X")
    W = te.placeholder((3, 3), name="W")
    P = te.compute(
        (8, 8),
        lambda i, j: te.if_then_else(te.all(i >= 1, i < 7, j >= 1, j < 7), X[i - 1, j - 1], 0.0),
        name="P",
    )
    r, s = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 3), "s")
    Y = te.compute((6, 6), lambda i, j: te.sum(P[i + r, j + s] * W[r, s], axis=[r, s]), name="Y")
    func = te.create_prim_func([X, W, Y])
    check_well_formed(func)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, shape).astype("float32") for shape in ((6, 6), (3, 3)))
    y = np.zeros((6, 6), "float32")
    interpret(func, x, w, y)
    padded = np.pad(x, 1)
    expected = sum(padded[a : a + 6, b : b + 6] * w[a, b] for a in range(3) for b in range(3))
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("make", "oracle"),
    [
        (lambda x, k: te.sum(x, axis=k), lambda a: a[:, 1:4].sum(1)),
        (lambda x, k: te.prod(x, axis=k), lambda a: a[:, 1:4].prod(1)),
        (lambda x, k: te.max(x, axis=k), lambda a: a[:, 1:4].max(1)),
        (lambda x, k: te.min(x, axis=[k]), lambda a: a[:, 1:4].min(1)),
        (lambda x, k: te.sum(x, axis=k, where=k > 1), lambda a: a[:, 2:4].sum(1)),
        (lambda x, k: te.max(x, axis=k, where=k < 3), lambda a: a[:, 1:3].max(1)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_reducers_over_a_part_of_the_axis(make, oracle, dtype: str) -> None:
    A = te.placeholder((3, 5), dtype, name="A")
    k = te.reduce_axis((1, 4), name="k")
    B = te.compute((3,), lambda i: make(A[i, k], k), name="B")
    func = te.create_prim_func([A, B])
    check_well_formed(func)
    a = np.random.default_rng(1).integers(-5, 5, (3, 5)).astype(dtype)
    b = np.zeros(3, dtype)
    interpret(func, a, b)
    np.testing.assert_array_equal(b, oracle(a))


def test_several_outputs_scalars_and_the_order_of_parameters() -> None:
    A = te.placeholder((4,), name="A")
    factor = te.var("factor", "float32")
    total, scaled = te.compute((4,), lambda i: (A[i] + 1, A[i] * factor), name="both")
    func = te.create_prim_func([scaled, factor, A, total])
    assert [p.name for p in func.params] == [
        "both_v1_handle",
        "factor",
        "A_handle",
        "both_v0_handle",
    ]
    a = np.arange(4, dtype="float32")
    low, high = np.zeros(4, "float32"), np.zeros(4, "float32")
    interpret(func, high, 3.0, a, low)
    np.testing.assert_array_equal(low, a + 1)
    np.testing.assert_array_equal(high, a * 3)


def test_attributes_become_annotations() -> None:
    A = te.placeholder((4,), name="A")
    B = te.compute((4,), lambda i: A[i], name="B", tag="copy", attrs={"layout_free": 1})
    assert B.op.tag == "copy"
    func = te.create_prim_func([A, B])
    assert ir.blocks(func)[1].annotations == {"layout_free": 1}


def test_extern_fragments() -> None:
    A = te.placeholder((8,), name="A")

    def reverse(ins, outs) -> None:
        with T.serial(8) as i:
            T.buffer_store(outs[0], ins[0][7 - i], [i])

    B = te.extern((8,), [A], reverse, name="B")
    C = te.compute((8,), lambda i: B[i] * 2, name="C")
    func = te.create_prim_func([A, C])
    check_well_formed(func)
    a, c = np.arange(8, dtype="float32"), np.zeros(8, "float32")
    interpret(func, a, c)
    np.testing.assert_array_equal(c, a[::-1] * 2)


def test_functions_of_elements() -> None:
    A = te.placeholder((4,), name="A")
    B = te.compute((4,), lambda i: te.exp(A[i]) + te.power(A[i], 2.0), name="B")
    assert "T.exp(A[v_i]) + T.pow(A[v_i], T.float32(2.0))" in repr(te.create_prim_func([A, B]))


def test_mistakes_say_what_to_write() -> None:
    A = te.placeholder((4, 4), name="A")
    k = te.reduce_axis((0, 4), name="k")
    with pytest.raises(ScriptError, match="a reduction must be the whole body of a computation"):
        te.compute((4,), lambda i: te.sum(A[i, k], axis=k) + 1)
    with pytest.raises(ScriptError, match="runs over reduction axes"):
        te.compute((4,), lambda i: te.sum(A[i, i], axis=i))
    with pytest.raises(ScriptError, match="takes 1 indices, the shape has 2"):
        te.compute((4, 4), lambda i: A[i, i])
    with pytest.raises(ScriptError, match="A has 2 dimensions, got 1 indices"):
        te.compute((4,), lambda i: A[i])
    with pytest.raises(ScriptError, match=r"A is required, but is not a parameter"):
        te.create_prim_func([te.compute((4,), lambda i: A[i, 0])])
    with pytest.raises(ScriptError, match=r"bw\.Schedule\(te\.create_prim_func"):
        te.create_schedule  # noqa: B018

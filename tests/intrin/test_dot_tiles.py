"""Products tensorized with dot-product tiles: packed in groups of k, run, compared and proved."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.intrin import dot_tile_name
from blockwright.intrin.hardware import DOT_PRODUCTS, DotProduct
from blockwright.intrin.registry import TensorIntrin
from tests.intrin.test_hardware_operations import arrays

M, N, K = 12, 96, 24


def product(dot: DotProduct) -> ir.PrimFunc:
    cast = f'T.Cast("{dot.accumulator}", '
    return bw.from_source(f"""
@T.prim_func
def product(A: T.Buffer(({M}, {K}), "{dot.a}"), B: T.Buffer(({K}, {N}), "{dot.b}"),
            C: T.Buffer(({M}, {N}), "{dot.accumulator}")):
    for i, j, k in T.grid({M}, {N}, {K}):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.Cast("{dot.accumulator}", 0)
            C[vi, vj] = C[vi, vj] + {cast}A[vi, vk]) * {cast}B[vk, vj])
""")


def tensorized(func: ir.PrimFunc, dot: DotProduct, rows: int, columns: int) -> bw.Schedule:
    """B packed as [n / columns][k / group][columns][group], tiles of rows x columns."""
    group = dot.group
    sch = bw.Schedule(func)
    block = sch.get_block("C")
    sch.cache_read(block, 1, "global")
    sch.transform_layout(
        block,
        ("read", 1),
        lambda k, n: (n // columns, k // group, n % columns, k % group),
    )
    i, j, k = sch.get_loops(block)
    (i0, i1), (j0, j1), (k0, k1) = (
        sch.split(loop, [None, factor]) for loop, factor in ((i, rows), (j, columns), (k, group))
    )
    sch.reorder(i0, j0, k0, i1, j1, k1)
    sch.decompose_reduction(block, k0)
    sch.tensorize(i1, dot_tile_name(dot.name, rows, columns))
    return sch


@pytest.mark.parametrize(("rows", "columns"), [(6, 16), (1, 32), (2, 24)])
@pytest.mark.parametrize("name", [name for name, dot in DOT_PRODUCTS.items() if not dot.odd])
def test_a_product_of_tiles_is_right(name: str, rows: int, columns: int) -> None:
    dot = DOT_PRODUCTS[name]
    func = product(dot)
    sch = tensorized(func, dot, rows, columns)
    a, b, _ = arrays(dot, M * K // dot.group, 0)[0], arrays(dot, K * N // dot.group, 1)[1], None
    a, b = a.reshape(M, K), b.reshape(K, N)
    want = np.zeros((M, N), dot.accumulator)
    bw.interpret(func, a, b, want)
    tolerance = {} if dot.exact else {"rtol": 1e-5, "atol": 1e-5}
    for run in (lambda *x: bw.interpret(sch.func, *x), build(sch.func)["product"]):
        got = np.zeros_like(want)
        run(a, b, got)
        np.testing.assert_allclose(got, want, **(tolerance or {"rtol": 0}))


@pytest.mark.parametrize("name", [name for name, dot in DOT_PRODUCTS.items() if not dot.odd])
def test_a_product_of_tiles_is_proved(name: str) -> None:
    dot = DOT_PRODUCTS[name]
    func = product(dot)
    assert bw.verify(func, tensorized(func, dot, 6, 16).func).verdict == "proved"


def test_traces_that_name_a_tile_replay() -> None:
    dot = DOT_PRODUCTS["dot4_u8s8"]
    sch = tensorized(product(dot), dot, 6, 16)
    again = bw.Schedule(product(dot))
    again.replay(sch.trace)
    ir.assert_structural_equal(again.func, sch.func)


@pytest.mark.parametrize("name", ["dot4_u8s8_0x16", "dot4_u8s8_65x16", "dot9_u8s8_6x16", "dot4"])
def test_names_outside_the_family_are_unknown(name: str) -> None:
    with pytest.raises(bw.BlockwrightError) as caught:
        TensorIntrin.get(name)
    assert caught.value.code == "BW220"


@pytest.mark.parametrize(
    ("target", "columns"), [("x86-64-v4+avx512vnni", 64), ("x86-64-v3+avxvnni", 16)]
)
def test_a_group_of_a_panel_is_one_vector_load(target: str, columns: int) -> None:
    """The inner loop broadcasts words of A, loads vectors of B, and multiplies."""
    dot = DOT_PRODUCTS["dot4_u8s8"]
    rows, k = 4, 64
    func = bw.from_source(f"""
@T.prim_func
def product(A: T.Buffer(({rows}, {k}), "uint8"), B: T.Buffer(({k // 4}, {columns}, 4), "int8"),
            C: T.Buffer(({rows}, {columns}), "int32")):
    for i, j, k in T.grid({rows}, {columns}, {k}):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] = C[vi, vj] + (T.Cast("int32", A[vi, vk])
                                     * T.Cast("int32", B[vk // 4, vj, vk % 4]))
""")
    sch = bw.Schedule(func)
    sch.cache_write("C", 0, "local")
    i, j, k0 = sch.get_loops("C")
    outer, inner = sch.split(k0, [None, 4])
    sch.reorder(outer, i, j, inner)
    sch.decompose_reduction("C", outer)
    sch.tensorize(i, dot_tile_name(dot.name, rows, columns))
    text = build(sch.func, target).source("asm")
    assert "vpinsr" not in text
    vectors = columns * 4 // (64 if "v4" in target else 32)
    assert text.count("vpdpbusd") == rows * vectors
    assert "vpbroadcastd" in text or "{1to16}" in text

"""The fallback: any program gets vectors, registers and threads where its accesses allow."""

from __future__ import annotations

import numpy as np
import pytest

from blockwright import ir
from blockwright.build import build
from blockwright.lower import lower
from blockwright.script.ir import from_source
from blockwright.strategies import STRATEGIES, apply_strategies
from blockwright.strategies.strategy import StrategyResult
from blockwright.target import Target

OTHERS = [rule.name for rule in STRATEGIES if rule.name != "fallback"]

PRODUCT = """
@T.prim_func
def main(A: T.Buffer(({m}, {k}), "float32"), B: T.Buffer({shape}, "float32"),
         C: T.Buffer(({m}, {n}), "float32")):
    for i, j, k in T.grid({m}, {n}, {k}):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * {read}
"""


def fallback(source: str) -> StrategyResult:
    func = from_source(source)
    assert isinstance(func, ir.PrimFunc)
    return apply_strategies(func, Target("native"), OTHERS)


def product(m: int, n: int, k: int, *, transposed: bool) -> StrategyResult:
    shape, read = ((n, k), "B[vj, vk]") if transposed else ((k, n), "B[vk, vj]")
    return fallback(PRODUCT.format(m=m, n=n, k=k, shape=shape, read=read))


@pytest.mark.parametrize("transposed", [False, True], ids=["columns", "dots"])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(7, 56, 40), (6, 64, 64), (13, 14, 67), (1, 33, 40), (30, 5, 1100), (3, 2, 2)]
)
def test_products_of_any_size(m: int, n: int, k: int, transposed: bool) -> None:
    random = np.random.default_rng(0)
    a = random.standard_normal((m, k), np.float32)
    b = random.standard_normal((n, k) if transposed else (k, n), np.float32)
    result = product(m, n, k, transposed=transposed)
    c = np.empty((m, n), np.float32)
    build(result.func)["main"](a, b, c)
    want = a.astype(np.float64) @ (b.T if transposed else b)
    # k products of size 1 on average, added up in single precision
    np.testing.assert_allclose(c, want, atol=6e-8 * 4 * k, rtol=0)


def test_the_note_says_that_it_was_used() -> None:
    assert "the fallback was used" in product(8, 32, 32, transposed=False).note


def test_vectors_run_where_elements_are_neighbours() -> None:
    assert "rfactor" not in str(product(32, 64, 64, transposed=False).trace)
    assert "rfactor" in str(product(32, 64, 64, transposed=True).trace), "rows of B are contiguous"


def test_what_lies_far_apart_is_copied_for_many_rows() -> None:
    copied = "cache_read"
    assert copied in str(product(64, 1024, 64, transposed=False).trace), "a page for each k"
    assert copied not in str(product(64, 64, 64, transposed=False).trace), "rows of B are close"
    assert copied not in str(product(6, 1024, 64, transposed=False).trace), "one tile reads it once"


def test_whole_tiles_need_no_masks() -> None:
    """Rows and columns that no tile divides cost masks in the last tiles alone."""
    lowered = lower(product(13, 500, 67, transposed=False).func, "x86-64-v3")
    sums = [loop for loop in ir.collect(lowered.body, ir.For) if ir.const_int(loop.extent) == 67]
    masked = [bool(ir.collect(loop.body, ir.Select)) for loop in sums]
    assert not masked[0], "whole rows of whole columns"
    assert any(masked)


def test_few_columns_leave_rows_to_the_threads() -> None:
    result = product(96, 16, 64, transposed=False)
    (tasks,) = [loop for loop in ir.loops(result.func.body) if loop.kind is ir.ForKind.PARALLEL]
    assert ir.const_int(tasks.extent) == 96 // 6


def test_axes_that_follow_one_another_become_one() -> None:
    """A 1 × 1 convolution has vectors across the ends of the image's rows."""
    result = fallback("""
@T.prim_func
def main(X: T.Buffer((40, 7, 7), "float32"), W: T.Buffer((12, 40), "float32"),
         Y: T.Buffer((12, 7, 7), "float32")):
    for c, h, w, k in T.grid(12, 7, 7, 40):
        with T.block("Y"):
            vc, vh, vw, vk = T.axis.remap("SSSR", [c, h, w, k])
            with T.init():
                Y[vc, vh, vw] = T.float32(0)
            Y[vc, vh, vw] = Y[vc, vh, vw] + X[vk, vh, vw] * W[vc, vk]
""")
    assert "transform_block_layout" in str(result.trace)
    random = np.random.default_rng(1)
    x, w = random.random((40, 7, 7), np.float32), random.random((12, 40), np.float32)
    y = np.empty((12, 7, 7), np.float32)
    build(result.func)["main"](x, w, y)
    np.testing.assert_allclose(y, np.einsum("khw,ck->chw", x, w), rtol=1e-5)


def test_a_strided_result_is_summed_up_in_registers() -> None:
    """Results two apart, as in a phase of a transposed convolution."""
    result = fallback("""
@T.prim_func
def main(A: T.Buffer((9, 24), "float32"), B: T.Buffer((24, 48), "float32"),
         C: T.Buffer((18, 48), "float32")):
    for i, r, j, k in T.grid(9, 2, 48, 24):
        with T.block("C"):
            vi, vr, vj, vk = T.axis.remap("SSSR", [i, r, j, k])
            with T.init():
                C[vi * 2 + vr, vj] = T.float32(0)
            C[vi * 2 + vr, vj] = C[vi * 2 + vr, vj] + A[vi, vk] * B[vk, vj]
""")
    assert 'scope="local"' in result.func.script()
    random = np.random.default_rng(2)
    a, b = random.random((9, 24), np.float32), random.random((24, 48), np.float32)
    c = np.empty((18, 48), np.float32)
    build(result.func)["main"](a, b, c)
    np.testing.assert_allclose(c, np.repeat(a @ b, 2, axis=0), rtol=1e-5)

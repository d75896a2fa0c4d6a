"""The GEMM rule on convolutions, groups, batches and long reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.strategies import apply_strategies
from blockwright.target import Target
from blockwright.testing import assert_same_meaning


def convolution(
    height: int | str,
    width: int,
    channels: int,
    filters: int,
    kernel: int,
    stride: int = 1,
    pad: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> ir.PrimFunc:
    """Channels-last convolution with a padding block; `height` may be the name of a symbol."""
    window = dilation * (kernel - 1) + 1
    symbol = isinstance(height, str)
    rows = (
        f"({height} + {2 * pad - window}) // {stride} + 1"
        if symbol
        else ((int(height) + 2 * pad - window) // stride + 1)
    )
    high = height if symbol else int(height) + pad
    limit = f"{height} + {pad}" if symbol else high
    outer = f"{height} + {2 * pad}" if symbol else int(height) + 2 * pad
    columns = (width + 2 * pad - window) // stride + 1
    c, f = channels // groups, filters // groups
    arguments = "x: T.handle, f: T.handle, o: T.handle"
    head = f"    {height} = T.int64()\n" if symbol else ""
    return bw.from_source(f"""
@T.prim_func
def conv({arguments}):
{head}    X = T.match_buffer(x, (2, {height}, {width}, {groups}, {c}), "float32")
    F = T.match_buffer(f, ({groups}, {f}, {kernel}, {kernel}, {c}), "float32")
    C = T.match_buffer(o, (2, {rows}, {columns}, {groups}, {f}), "float32")
    Y = T.alloc_buffer((2, {outer}, {width + 2 * pad}, {groups}, {c}))
    for n, i, j, g, c in T.grid(2, {outer}, {width + 2 * pad}, {groups}, {c}):
        with T.block("pad"):
            vn, vh, vw, vg, vc = T.axis.remap("SSSSS", [n, i, j, g, c])
            Y[vn, vh, vw, vg, vc] = T.if_then_else(
                {pad} <= vh and vh < {limit} and {pad} <= vw and vw < {width + pad},
                X[vn, vh - {pad}, vw - {pad}, vg, vc], T.float32(0))
    for n, i, j, g, f, kh, kw, c in T.grid(
        2, {rows}, {columns}, {groups}, {f}, {kernel}, {kernel}, {c}
    ):
        with T.block("conv"):
            vn, vh, vw, vg, vf, vkh, vkw, vc = T.axis.remap("SSSSSRRR", [n, i, j, g, f, kh, kw, c])
            with T.init():
                C[vn, vh, vw, vg, vf] = T.float32(0)
            C[vn, vh, vw, vg, vf] = C[vn, vh, vw, vg, vf] + (
                Y[vn, vh * {stride} + vkh * {dilation}, vw * {stride} + vkw * {dilation}, vg, vc]
                * F[vg, vf, vkh, vkw, vc])
""")


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "padded": {"pad": 1},
    "strided": {"stride": 2, "pad": 1},
    "dilated": {"dilation": 2, "pad": 2},
    "one by one": {"kernel": 1},
    "grouped": {"groups": 2, "pad": 1},
    "symbolic height": {"height": "h", "pad": 1},
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_a_product_without_a_copy_of_its_windows(checks: Any, name: str) -> None:
    size = {"height": 6, "width": 5, "channels": 8, "filters": 16, "kernel": 3}
    func = convolution(**(size | CONVOLUTIONS[name]))
    result = checks.taken_by("gemm", func, *([{"h": 5}, {"h": 9}] if "h" in name else [{}]))
    # Beside the kernel there are the padded input and the packed weights, no unrolled windows.
    for buffer in {b for block in ir.blocks(result.func.body) for b in block.alloc_buffers}:
        sizes = [n for n in map(ir.const_int, buffer.shape) if n is not None]
        if buffer.scope != "local" and len(sizes) == buffer.ndim:
            assert np.prod(sizes) <= max(2 * (6 + 4) * (5 + 4) * 8, 16 * 9 * 8)


def test_a_convolution_computes_what_numpy_does(checks: Any) -> None:
    x, f = checks.normal(2, 9, 7, 2, 8), checks.normal(2, 12, 3, 3, 8, seed=1)
    out = np.empty((2, 5, 4, 2, 12), "float32")
    checks.native(convolution(9, 7, 16, 24, 3, stride=2, pad=1, groups=2))(x, f, out)
    padded = np.pad(x.astype("float64"), ((0, 0), (1, 1), (1, 1), (0, 0), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    expected = np.einsum("nhwgcij,gfijc->nhwgf", windows, f.astype("float64"))
    # 72 products of normal numbers: the error is far below 72 * 2**-24 of their magnitude's sum
    np.testing.assert_allclose(out, expected, rtol=0, atol=72 * 2.0**-24 * 12)


def of_planes(images: int | str, channels: int) -> ir.PrimFunc:
    """A channels-last convolution of images that come plane by plane, with a border."""
    return bw.from_source(f"""
@T.prim_func
def conv(x: T.handle, F: T.Buffer((3, 3, {channels}, 20), "float32"), o: T.handle):
    {"n = T.int64()" if images == "n" else ""}
    X = T.match_buffer(x, ({images}, {channels}, 9, 7), "float32")
    C = T.match_buffer(o, ({images}, 9, 7, 20), "float32")
    Y = T.alloc_buffer(({images}, 11, 9, {channels}))
    for i, h, w, c in T.grid({images}, 11, 9, {channels}):
        with T.block("pad"):
            vi, vh, vw, vc = T.axis.remap("SSSS", [i, h, w, c])
            Y[vi, vh, vw, vc] = T.if_then_else(
                1 <= vh and vh < 10 and 1 <= vw and vw < 8, X[vi, vc, vh - 1, vw - 1],
                T.float32(0))
    for i, h, w, f, kh, kw, c in T.grid({images}, 9, 7, 20, 3, 3, {channels}):
        with T.block("conv"):
            vi, vh, vw, vf, vkh, vkw, vc = T.axis.remap("SSSSRRR", [i, h, w, f, kh, kw, c])
            with T.init():
                C[vi, vh, vw, vf] = T.float32(0)
            C[vi, vh, vw, vf] = C[vi, vh, vw, vf] + (
                Y[vi, vh + vkh, vw + vkw, vc] * F[vkh, vkw, vc, vf])
""")


@pytest.mark.parametrize("images", [1, 2, "n"])
def test_a_border_around_few_channels_is_put_on_plane_by_plane(
    checks: Any, images: int | str
) -> None:
    """Three elements are no vector: planes stay as they come, and are copied by vectors."""
    sizes = [{"n": 1}, {"n": 3}] if images == "n" else [{}]
    result = checks.taken_by("gemm", of_planes(images, 3), *sizes)
    (padded,) = [b for b in result.func.root.alloc_buffers if b.name == "Y"]
    assert [ir.const_int(n) for n in padded.shape[-3:]] == [3, 11, 9]


def test_a_kernel_as_large_as_its_planes_is_no_fault() -> None:
    """One result of each filter: no rows are left to look for."""
    func = bw.from_source("""
@T.prim_func
def conv(X: T.Buffer((1, 3, 2, 2), "float32"), F: T.Buffer((4, 4, 3, 8), "float32"),
         C: T.Buffer((1, 1, 1, 8), "float32")):
    Y = T.alloc_buffer((1, 4, 4, 3))
    for i, h, w, c in T.grid(1, 4, 4, 3):
        with T.block("pad"):
            vi, vh, vw, vc = T.axis.remap("SSSS", [i, h, w, c])
            Y[vi, vh, vw, vc] = T.if_then_else(
                1 <= vh and vh < 3 and 1 <= vw and vw < 3, X[vi, vc, vh - 1, vw - 1],
                T.float32(0))
    for i, h, w, f, kh, kw, c in T.grid(1, 1, 1, 8, 4, 4, 3):
        with T.block("conv"):
            vi, vh, vw, vf, vkh, vkw, vc = T.axis.remap("SSSSRRR", [i, h, w, f, kh, kw, c])
            with T.init():
                C[vi, vh, vw, vf] = T.float32(0)
            C[vi, vh, vw, vf] = C[vi, vh, vw, vf] + (
                Y[vi, vh + vkh, vw + vkw, vc] * F[vkh, vkw, vc, vf])
""")
    result = apply_strategies(func, Target("x86-64-v3", num_threads=2))
    assert not result.faults
    assert_same_meaning(func, result.func)


@pytest.mark.parametrize(("width", "filters", "written_out"), [(8, 24, False), (9, 24, True)])
def test_taps_are_written_out_where_that_leaves_the_sums_in_registers(
    width: int, filters: int, written_out: bool
) -> None:
    """Tiles of four pixels by 24 filters take all registers; two lines' pixels are not shared."""
    func = bw.from_source(f"""
@T.prim_func
def conv(X: T.Buffer((4, 32, {width + 2}), "float32"),
         F: T.Buffer((32, 3, {filters}), "float32"),
         C: T.Buffer((4, {width}, {filters}), "float32")):
    for h, w, f, c, k in T.grid(4, {width}, {filters}, 32, 3):
        with T.block("conv"):
            vh, vw, vf, vc, vk = T.axis.remap("SSSRR", [h, w, f, c, k])
            with T.init():
                C[vh, vw, vf] = T.float32(0)
            C[vh, vw, vf] = C[vh, vw, vf] + X[vh, vc, vw + vk] * F[vc, vk, vf]
""")
    result = apply_strategies(func, Target("x86-64-v3", num_threads=2))
    assert result.strategy == "gemm"
    assert "outer_product_4x24_float32" in result.trace.as_python()
    taps = [loop for loop in ir.loops(result.func.body) if ir.is_const_int(loop.extent, 3)]
    unrolled = [loop.kind is ir.ForKind.UNROLLED for loop in taps]
    assert any(unrolled) == written_out


def test_many_channels_are_turned_while_the_border_is_put_on(checks: Any) -> None:
    """Steps of a reduction read them one after the other."""
    result = checks.taken_by("gemm", of_planes(1, 16), {})
    (padded,) = [b for b in result.func.root.alloc_buffers if b.name == "Y"]
    assert [ir.const_int(n) for n in padded.shape] == [1, 11, 9, 16]


@pytest.mark.parametrize("depth", [2048, 2047, 4608], ids=str)
def test_a_long_reduction_is_cut_into_pieces_that_stay_in_cache(checks: Any, depth: int) -> None:
    func = bw.from_source(f"""
@T.prim_func
def product(A: T.Buffer((21, {depth}), "float32"), B: T.Buffer(({depth}, 70), "float32"),
            C: T.Buffer((21, 70), "float32")):
    for i, j, k in T.grid(21, 70, {depth}):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
""")
    a, b = checks.normal(21, depth), checks.normal(depth, 70, seed=1)
    out = np.empty((21, 70), "float32")
    checks.native(func)(a, b, out)
    exact = a.astype("float64") @ b.astype("float64")
    bound = depth * 2.0**-24 * (np.abs(a) @ np.abs(b))
    assert (np.abs(out - exact) <= bound).all()


def test_windows_of_many_channels_are_cut_into_rows_of_the_kernel(checks: Any) -> None:
    """The pieces of the reduction are whole axes: none of them is left to the register tile."""
    func = convolution(3, 4, 256, 64, 3, pad=1)
    assert "rfactor" in checks.taken_by("gemm", func).trace.as_python()
    x, f = checks.normal(2, 3, 4, 1, 256), checks.normal(1, 64, 3, 3, 256, seed=1)
    out = np.empty((2, 3, 4, 1, 64), "float32")
    checks.native(func)(x, f, out)
    padded = np.pad(x.astype("float64"), ((0, 0), (1, 1), (1, 1), (0, 0), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    expected = np.einsum("nhwgcij,gfijc->nhwgf", windows, f.astype("float64"))
    size = np.einsum("nhwgcij,gfijc->nhwgf", np.abs(windows), np.abs(f.astype("float64")))
    assert (np.abs(out - expected) <= 9 * 256 * 2.0**-24 * size).all()


def test_a_batch_of_products_is_spread_over_threads_whole(checks: Any) -> None:
    func = bw.from_source("""
@T.prim_func
def batched(x: T.handle, W: T.Buffer((3, 8, 20), "float32"), o: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (3, n, 8), "float32")
    C = T.match_buffer(o, (3, n, 20), "float32")
    for b, i, j, k in T.grid(3, n, 20, 8):
        with T.block("C"):
            vb, vi, vj, vk = T.axis.remap("SSSR", [b, i, j, k])
            with T.init():
                C[vb, vi, vj] = T.float32(0)
            C[vb, vi, vj] = C[vb, vi, vj] + X[vb, vi, vk] * W[vb, vk, vj]
""")
    checks.taken_by("gemm", func, {"n": 1}, {"n": 5}, {"n": 17})


def test_a_long_reduction_for_any_number_of_rows_keeps_no_sums_of_all_rows(checks: Any) -> None:
    func = bw.from_source("""
@T.prim_func
def product(a: T.handle, B: T.Buffer((8192, 64), "float32"), c: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, 8192), "float32")
    C = T.match_buffer(c, (n, 64), "float32")
    for i, j, k in T.grid(n, 64, 8192):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
""")
    result = checks.taken_by("gemm", func)
    kept = [
        b
        for block in ir.blocks(result.func.body)
        for b in block.alloc_buffers
        if b.scope == "global" and any(ir.const_int(d) is None for d in b.shape)
    ]
    assert kept == []

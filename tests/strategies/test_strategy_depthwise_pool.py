"""The window rule: depthwise convolutions and pools, which are sums over axes before the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.analysis import check_well_formed
from blockwright.ops.row import OpContext
from blockwright.ops.table import OPERATORS
from blockwright.script.compute import Program
from blockwright.strategies import apply_strategies
from blockwright.target import Cache, Target
from blockwright.testing import assert_same_meaning

N, H, W, C = (ir.var(name, "int64") for name in "nhwc")
LAST: dict[str, Any] = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
SIZES = ({"n": 1, "h": 5, "w": 4, "c": 3}, {"n": 2, "h": 9, "w": 19, "c": 18})


def operator(name: str, *shapes: Sequence[Any], **attrs: Any) -> ir.PrimFunc:
    """An operator on float32 tensors of these shapes, as a program."""
    row = OPERATORS[name]
    assert row.lower is not None
    infos = [
        ir.TensorInfo(
            tuple(ir.const(d, "int64") if isinstance(d, int) else d for d in shape),
            ir.dtype_of("float32"),
        )
        for shape in shapes
    ]
    func = row.lower(OpContext(name), infos, {**row.attrs, **attrs})
    return func.replace(attrs={**func.attrs, "global_symbol": "main"})


def depthwise(
    shape: Sequence[Any], kernel: tuple[int, ...], last: bool = True, **attrs: Any
) -> ir.PrimFunc:
    """A depthwise convolution of channels-last or channels-first data."""
    channels = shape[-1] if last else shape[1]
    weights = (*kernel, 1, channels) if last else (channels, 1, *kernel)
    layouts = LAST if last else {}
    return operator("nn.conv2d", shape, weights, groups=channels, **layouts, **attrs)


TAKEN: dict[str, ir.PrimFunc] = {
    "channels last": depthwise((1, 6, 5, 20), (3, 3), padding=1),
    "channels last, stride 2": depthwise((2, 7, 9, 16), (3, 3), padding=1, strides=2),
    "channels last, dilated": depthwise((1, 9, 9, 8), (3, 3), padding=2, dilation=2),
    "channels last, 5 by 5": depthwise((1, 6, 6, 4), (5, 5), padding=2),
    "channels last, no border": depthwise((1, 6, 19, 8), (3, 2)),
    "channels last, any size": depthwise((N, H, W, 20), (3, 3), padding=1),
    "channels last, any size, stride 2": depthwise((N, H, W, 9), (3, 3), padding=1, strides=2),
    "channels first": depthwise((1, 3, 6, 19), (3, 3), False, padding=1),
    "channels first, stride 2": depthwise((1, 2, 7, 37), (3, 3), False, padding=1, strides=2),
    "channels first, stride 3": depthwise((1, 2, 7, 40), (3, 3), False, strides=3),
    "channels first, dilated": depthwise((1, 2, 9, 9), (3, 3), False, padding=2, dilation=2),
    "channels first, any size": depthwise((N, 3, H, W), (3, 3), False, padding=1),
    "one axis": operator("nn.conv1d", (2, 5, 21), (5, 1, 3), groups=5, padding=1),
    "three axes": operator("nn.conv3d", (1, 3, 4, 5, 6), (3, 1, 3, 3, 3), groups=3, padding=1),
    "transposed": operator(
        "nn.conv2d_transpose", (1, 5, 4, 9), (3, 3, 9, 1), groups=9, strides=2, padding=1, **LAST
    ),
    "transposed, equal phases": operator(
        "nn.conv2d_transpose", (1, 5, 4, 9), (4, 4, 9, 1), groups=9, strides=2, padding=1, **LAST
    ),
    "transposed, any size": operator(
        "nn.conv2d_transpose", (N, H, W, 9), (3, 3, 9, 1), groups=9, strides=2, padding=1, **LAST
    ),
    "largest, channels last": operator(
        "nn.max_pool2d", (1, 7, 9, 20), pool_size=3, strides=2, padding=1, layout="NHWC"
    ),
    "largest, channels first": operator(
        "nn.max_pool2d", (1, 3, 8, 9), pool_size=2, strides=2, ceil_mode=True
    ),
    "largest, any size": operator(
        "nn.max_pool2d", (N, H, W, C), pool_size=3, strides=2, padding=1, layout="NHWC"
    ),
    "mean, channels last": operator(
        "nn.avg_pool2d", (1, 6, 6, 9), pool_size=3, strides=1, padding=1, layout="NHWC"
    ),
    "mean, any size": operator("nn.avg_pool2d", (N, C, H, W), pool_size=2, strides=2),
    "global mean": operator("nn.adaptive_avg_pool2d", (2, 7, 7, 40), output_size=1, layout="NHWC"),
    "global mean, any size": operator(
        "nn.adaptive_avg_pool2d", (N, H, W, 33), output_size=1, layout="NHWC"
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_windows_keep_their_meaning(checks: Any, name: str) -> None:
    func = TAKEN[name]
    result = checks.taken_by("depthwise_pool", func)
    for sizes in SIZES if "any size" in name or "first axis" in name else ({},):
        assert_same_meaning(func, result.func, sizes=sizes)
    assert "vectorized" in checks.loop_kinds(result.func)


def fused(activation_first: bool) -> ir.PrimFunc:
    """relu6(border(x)) or border(relu6(x)), depthwise, scale, bias, residual, relu6."""
    p = Program("fused")
    x, r = (p.param(name, (N, H, W, 20), "float32") for name in "XR")
    w = p.param("K", (20, 3, 3), "float32")
    scale, bias = (p.param(name, (20,), "float32") for name in ("scale", "bias"))

    def relu6(v: ir.Expr) -> ir.Expr:
        return ir.minimum(ir.maximum(v, 0.0), 6.0)

    a = p.compute("act", x.shape, lambda *i: relu6(x[i])) if activation_first else x

    def bordered(n: Any, h: Any, v: Any, c: Any) -> ir.Expr:
        inside = ir.all_of([h >= 1, h < H + 1, v >= 1, v < W + 1])
        return ir.if_then_else(inside, a[n, h - 1, v - 1, c], ir.const(0.0, "float32"))

    b = p.compute("border", (N, H + 2, W + 2, 20), bordered)

    def term(n: Any, i: Any, j: Any, c: Any, kh: Any, kw: Any) -> ir.Expr:
        return b[n, i + kh, j + kw, c] * w[c, kh, kw]

    s = p.reduce("sums", (N, H, W, 20), (3, 3), term)
    d = p.compute("scaled", s.shape, lambda *i: s[i] * scale[i[-1]] + bias[i[-1]])
    e = p.compute("added", s.shape, lambda *i: d[i] + r[i])
    return p.finish([p.compute("out", s.shape, lambda *i: relu6(e[i]))])


@pytest.mark.parametrize("activation_first", [True, False])
def test_work_around_a_window_is_part_of_it(checks: Any, activation_first: bool) -> None:
    result = checks.taken_by(
        "depthwise_pool", fused(activation_first), *({**s, "c": 1} for s in SIZES)
    )
    names = {b.name for b in ir.blocks(result.func.body)}
    assert not names & {"act", "scaled", "added"}
    assert ("border" in names) == activation_first  # an activation is not done for every tap


def test_a_border_alone_is_a_mask(checks: Any) -> None:
    result = checks.taken_by("depthwise_pool", depthwise((1, 16, 16, 48), (3, 3), padding=1))
    assert "padded" not in {b.name for b in ir.blocks(result.func.body)}


def test_borders_of_any_size_are_copied_where_vectors_move_along(checks: Any) -> None:
    """Where many vectors may lie within one, masks would be most of the work."""
    result = checks.taken_by("depthwise_pool", TAKEN["channels first, any size"])
    copies = [b for b in ir.blocks(result.func.body) if b.name == "padded"]
    (around,) = (
        [f for f in ir.loops(result.func.body) if copy in ir.blocks(f.body)] for copy in copies
    )
    assert sum("loop_partition" in f.annotations for f in around) == 2  # its rows, its vectors


def test_channels_far_apart_are_brought_together(checks: Any) -> None:
    """512 channels: the lines that neighbouring columns need fall into two sets of the cache."""
    result = checks.taken_by("depthwise_pool", depthwise((1, 14, 14, 512), (3, 3), padding=1))
    assert "padded" in {b.name for b in ir.blocks(result.func.body)}


@pytest.mark.parametrize("machine", ["x86-64", "x86-64-v3", "x86-64-v4", "native"])
@pytest.mark.parametrize(
    "name", ["channels last", "channels first, stride 2", "mean, channels last"]
)
def test_every_machine_has_its_own_tile(machine: str, name: str) -> None:
    result = apply_strategies(TAKEN[name], Target(machine))
    assert result.strategy == "depthwise_pool"
    assert not result.note
    check_well_formed(result.func)
    assert_same_meaning(TAKEN[name], result.func, sizes={})


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_sums_of_many_taps_stay_in_registers(checks: Any, last: bool) -> None:
    """All loops over sums are written out, and taps of one axis, so that a row is used in turn."""
    shape = (1, 13, 16, 8) if last else (1, 2, 13, 16)
    result = checks.taken_by("depthwise_pool", depthwise(shape, (11, 11), last, padding=5), {})
    (update,) = [
        b
        for b in ir.blocks(result.func.body)
        if any(it.iter_type is ir.IterType.REDUCE for it in b.iter_vars)
    ]
    around = [f for f in ir.loops(result.func.body) if update in ir.blocks(f.body)]
    taps, *inside = around[next(k for k, f in enumerate(around) if _is_tap(f, result.func)) :]
    assert (taps.kind, ir.const_int(taps.extent)) == (ir.ForKind.SERIAL, 11)
    assert {f.kind for f in inside} == {ir.ForKind.UNROLLED, ir.ForKind.VECTORIZED}
    assert sum(_is_tap(f, result.func) for f in inside) == 1


def _is_tap(loop: ir.For, func: ir.PrimFunc) -> bool:
    """Whether a loop drives an axis that is summed."""
    return any(
        it.iter_type is ir.IterType.REDUCE and ir.uses_var(value, {loop.loop_var})
        for realize in ir.collect(func.body, ir.BlockRealize)
        for it, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
    )


SMALL = Target("x86-64-v3", num_threads=2, caches=(Cache(2048), Cache(8192), Cache(16384)))


def fetches_ahead(func: ir.PrimFunc, target: Target) -> bool:
    found = apply_strategies(func, target).func
    return any("prefetch_read" in loop.annotations for loop in ir.loops(found.body))


@pytest.mark.parametrize("attrs", [{}, {"padding": 1}, {"padding": 1, "strides": 2}])
def test_data_from_memory_is_read_by_whole_pixels_and_ahead(attrs: dict[str, Any]) -> None:
    large = depthwise((3, 19, 21, 16), (3, 3), **attrs)
    assert fetches_ahead(large, SMALL)
    assert_same_meaning(large, apply_strategies(large, SMALL).func, sizes={})
    assert not fetches_ahead(large, Target("x86-64-v3", num_threads=2))  # it is in a cache
    assert not fetches_ahead(depthwise((N, 19, 21, 16), (3, 3)), SMALL)  # it may be
    assert not fetches_ahead(depthwise((3, 19, 21, 96), (3, 3)), SMALL)  # too many for registers


@pytest.mark.parametrize("attrs", [{}, {"padding": 1}, {"padding": 1, "strides": 2}])
def test_planes_from_memory_are_fetched_a_tile_of_rows_ahead(attrs: dict[str, Any]) -> None:
    """What is read and what is written: pieces of lines of several rows come by no other way."""
    large = depthwise((3, 4, 19, 21), (3, 3), last=False, **attrs)
    found = apply_strategies(large, SMALL).func
    both = [
        f
        for f in ir.loops(found.body)
        if {"prefetch_read", "prefetch_write"} <= f.annotations.keys()
    ]
    assert len(both) == 1
    assert_same_meaning(large, found, sizes={})
    assert not fetches_ahead(large, Target("x86-64-v3", num_threads=2))  # it is in a cache
    assert not fetches_ahead(depthwise((N, 4, 19, 21), (3, 3), last=False), SMALL)  # it may be


def two_sums() -> ir.PrimFunc:
    p = Program("two_sums")
    x = p.param("X", (8, 16), "float32")
    sums = [p.reduce(name, (16,), (8,), lambda *i: x[i[1], i[0]]) for name in "AB"]
    return p.finish(sums)


REFUSED = {
    "no block reduces": operator("exp", (4, 4)),
    "no axis is contiguous in both": operator("sum", (4, 40), axes=[1]),
    "no operand has all axes": operator("nn.conv2d", (1, 4, 5, 5), (8, 4, 3, 3)),
    "several buffers": two_sums(),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_window_is_refused(checks: Any, reason: str) -> None:
    assert reason in checks.refusal("depthwise_pool", REFUSED[reason])


def windows(x: Any, kernel: int, stride: int) -> Any:
    """All windows of (n, h, w, c) data, taps last."""
    views = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), (1, 2))
    return views[:, ::stride, ::stride]


# Channels are vectors of the channels-last form: less than one, full ones, full ones and a rest.
# In the other form they are an outer loop, whose length changes nothing within.
@pytest.mark.parametrize(
    ("last", "stride", "channels"),
    [
        *((True, stride, channels) for stride in (1, 2) for channels in (3, 16, 40)),
        (False, 1, 3),
        (False, 2, 16),
    ],
)
def test_depthwise_computes_what_numpy_does(
    checks: Any, last: bool, stride: int, channels: int
) -> None:
    x, k = checks.normal(2, 15, 21, channels), checks.normal(3, 3, channels, seed=1)
    padded = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    wanted = np.einsum("nhwcij,ijc->nhwc", windows(padded, 3, stride).astype("float64"), k)
    shape = (N, H, W, channels) if last else (N, channels, H, W)
    run = checks.native(depthwise(shape, (3, 3), last, padding=1, strides=stride))
    if last:
        out = np.full(wanted.shape, np.nan, "float32")
        run(x, k[:, :, None], out)
    else:
        out = np.full(np.moveaxis(wanted, 3, 1).shape, np.nan, "float32")
        weights = np.ascontiguousarray(np.moveaxis(k, 2, 0)[:, None])
        run(np.ascontiguousarray(np.moveaxis(x, 3, 1)), weights, out)
        out = np.moveaxis(out, 1, 3)
    # nine products of numbers around one: a few units in the last place of the largest sum
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def largest(checks: Any) -> Callable[..., Any]:
    """The largest of every window, compiled once for all sizes."""
    return checks.native(TAKEN["largest, any size"])


@pytest.mark.parametrize("sizes", [(1, 7, 5, 3), (2, 12, 33, 20)])
def test_largest_of_any_size_computes_what_numpy_does(
    checks: Any, largest: Callable[..., Any], sizes: Any
) -> None:
    x = checks.normal(*sizes)
    padded = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)], constant_values=-np.inf)
    wanted = windows(padded, 3, 2).max((-1, -2))
    out = np.full(wanted.shape, np.nan, "float32")
    largest(x, out)
    np.testing.assert_array_equal(out, wanted)

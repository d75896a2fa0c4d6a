"""The Winograd rule: what it takes, that it keeps the meaning, how exact it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from blockwright import ir
from blockwright.build import build
from blockwright.lower import lower
from blockwright.ops.implementation import lower_call
from blockwright.ops.row import OpContext
from blockwright.ops.table import OPERATORS
from blockwright.strategies import apply_strategies
from blockwright.strategies.cpu.register_tiling import RegisterTile
from blockwright.strategies.cpu.winograd_cost import (
    Convolution,
    best_grouping,
    direct_seconds,
    group_estimate,
    passes_estimate,
    ranked_groupings,
)
from blockwright.target import Target
from blockwright.target.target import Cache

AVX2 = Target("x86-64-v3", num_threads=2)


def convolution(
    size: int,
    shape: tuple[int, int, int, int],
    filters: int,
    padding: Any = 1,
    layout: str = "NHWC",
) -> ir.PrimFunc:
    """nn.conv2d of a shape given as N, H, W, C, in any layout; `size` 0 is the direct method."""
    row = OPERATORS["nn.conv2d"]
    dims = dict(zip("NHWC", shape, strict=True))
    infos = [_tensor(*(dims[letter] for letter in layout)), _tensor(3, 3, shape[3], filters)]
    attrs = {
        **row.attrs,
        "padding": padding,
        "data_layout": layout,
        "kernel_layout": "HWIO",
        "implementation": f"winograd(tile={size})" if size else "default",
    }
    return lower_call(row, OpContext(row.name), infos, attrs)


def _tensor(*shape: int) -> ir.TensorInfo:
    return ir.TensorInfo(tuple(ir.const(d, "int64") for d in shape), ir.dtype_of("float32"))


CASES: dict[str, tuple[int, tuple[int, int, int, int], int, Any]] = {
    "groups of tiles": (2, (1, 8, 8, 3), 4, 1),
    "results that are no whole tiles": (4, (1, 9, 7, 4), 3, 1),
    "no padding": (2, (2, 6, 5, 2), 3, 0),
    "a border on some sides": (4, (1, 6, 8, 3), 2, (0, 2, 1, 1)),
    "one tile": (4, (1, 4, 4, 5), 3, 1),
    "one line of pixels": (2, (2, 3, 6, 2), 2, (0, 0, 0, 1)),
    "large tiles": (6, (1, 13, 6, 2), 3, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_it_keeps_the_meaning(checks: Any, name: str) -> None:
    size, shape, filters, padding = CASES[name]
    checks.taken_by("winograd", convolution(size, shape, filters, padding), {})


def test_channels_first_are_taken_too(checks: Any) -> None:
    checks.taken_by("winograd", convolution(2, (1, 6, 6, 3), 4, layout="NCHW"), {})


def test_transforms_of_a_tile_stay_in_registers(checks: Any) -> None:
    result = checks.taken_by("winograd", convolution(4, (1, 16, 16, 8), 16), {})
    local = {b.name for b in result.func.root.alloc_buffers if b.scope == "local"}
    assert {"input_columns", "output_columns", "results"} <= local
    assert any(n for n in ir.loops(result.func.body) if n.kind is ir.ForKind.PARALLEL)


def test_a_large_input_gets_its_border_where_tiles_are_transformed(checks: Any) -> None:
    """A padded copy of the whole would go through memory."""
    tiny = Target("x86-64-v3", num_threads=1)
    object.__setattr__(tiny, "caches", tuple(Cache(256 * 1024) for _ in range(3)))
    func = convolution(4, (1, 64, 64, 32), 16)
    result = apply_strategies(func, tiny)
    assert (result.strategy, result.note) == ("winograd", "")
    (task,) = (
        n
        for n in ir.loops(result.func.body)
        if "padded" in _blocks_below(n) and n.kind is ir.ForKind.PARALLEL
    )
    assert "product_o" in _blocks_below(task)
    x, w = checks.normal(1, 64, 64, 32), checks.normal(3, 3, 32, 16, seed=1)
    out = np.empty((1, 64, 64, 16), np.float32)
    build(result.func)[func.name](x, w, out)
    np.testing.assert_allclose(out, _float64(x, w, (1,) * 4), rtol=0, atol=1e-3)


@pytest.mark.parametrize("cache", [64, 4096])
def test_long_lines_of_channels_first_images_are_transposed_in_registers(
    checks: Any, cache: int
) -> None:
    """In a pass of its own and where tiles are transformed."""
    target = Target("x86-64-v3", num_threads=1)
    object.__setattr__(target, "caches", tuple(Cache(cache * 1024) for _ in range(3)))
    result = apply_strategies(convolution(4, (1, 24, 24, 16), 16, layout="NCHW"), target)
    assert (result.strategy, result.note) == ("winograd", "")
    assert ir.collect(lower(result.func, target).body, ir.Shuffle)
    x, w = checks.normal(1, 16, 24, 24), checks.normal(3, 3, 16, 16, seed=1)
    out = np.empty((1, 16, 24, 24), np.float32)
    build(result.func)[result.func.name](x, w, out)
    wanted = _float64(x.transpose(0, 2, 3, 1), w, (1,) * 4)
    np.testing.assert_allclose(out.transpose(0, 2, 3, 1), wanted, rtol=0, atol=1e-3)


def _blocks_below(loop: ir.For) -> set[str]:
    return {b.name for b in ir.blocks(loop.body)}


def test_other_programs_are_refused(checks: Any) -> None:
    direct = convolution(0, (1, 6, 6, 3), 4)
    assert "is not between transforms" in checks.refusal("winograd", direct)
    assert "0 contractions" in checks.refusal("winograd", _relu())


def _relu() -> ir.PrimFunc:
    row = OPERATORS["relu"]
    assert row.lower is not None
    return row.lower(OpContext(row.name), [_tensor(4, 4)], dict(row.attrs))


# ------------------------------------------------------------------------------------------- errors
SHAPES = [
    (4, (1, 56, 56, 64), 64, 1),
    (4, (1, 7, 7, 512), 128, 1),
    (2, (1, 7, 7, 512), 128, 1),
    (4, (3, 13, 11, 20), 36, 1),
    (2, (2, 9, 16, 17), 40, (0, 1, 2, 0)),
    (4, (1, 30, 6, 8), 8, 0),
    (4, (2, 5, 29, 33), 7, 2),
    (4, (5, 7, 7, 48), 64, 1),
]


@pytest.mark.parametrize(("size", "shape", "filters", "padding"), SHAPES)
def test_errors_stay_within_ten_times_those_of_the_direct_method(
    checks: Any, size: int, shape: tuple[int, int, int, int], filters: int, padding: Any
) -> None:
    """Largest and mean square error to float64, for operands of a normal distribution."""
    x = checks.normal(*shape)
    w = checks.normal(3, 3, shape[3], filters, seed=1)
    pads = (padding,) * 4 if isinstance(padding, int) else padding
    exact = _float64(x, w, pads)
    errors = [_error(convolution(m, shape, filters, padding), x, w, exact) for m in (0, size)]
    for direct, ours in zip(*errors, strict=True):
        assert ours <= 10 * direct


def _float64(x: Any, w: Any, pads: tuple[int, ...]) -> Any:
    """The convolution in float64; `pads` are top, left, bottom, right."""
    top, left, bottom, right = pads
    data = np.pad(x.astype(np.float64), ((0, 0), (top, bottom), (left, right), (0, 0)))
    height, width = data.shape[1] - 2, data.shape[2] - 2
    return sum(
        data[:, i : i + height, j : j + width] @ w[i, j].astype(np.float64)
        for i in range(3)
        for j in range(3)
    )


def _error(func: ir.PrimFunc, x: Any, w: Any, exact: Any) -> tuple[float, float]:
    result = apply_strategies(func, Target("native"))
    assert "gave up" not in result.note
    out = np.empty(exact.shape, np.float32)
    build(result.func)[func.name](x, w, out)
    difference = np.abs(out - exact)
    return float(difference.max()), float(np.sqrt((difference**2).mean()))


# -------------------------------------------------------------------------------------------- model
def test_groups_fit_in_the_second_level_cache() -> None:
    for conv in (Convolution(1, 56, 56, 64, 64), Convolution(16, 30, 45, 24, 200)):
        group = best_grouping(AVX2, conv, 4).group
        assert group is not None
        assert 36 * group * (conv.channels + conv.filters) * 4 <= AVX2.cache(2).size * 3 // 4


def test_few_tiles_with_large_filters_go_in_passes() -> None:
    assert best_grouping(AVX2, Convolution(1, 7, 7, 512, 512), 4).group is None


def test_filters_from_memory_are_fetched_by_few_groups() -> None:
    """Each group of tiles passes all filters."""
    caches = (Cache(32 << 10, 8, 64), Cache(1 << 20, 8, 64), Cache(64 << 20, 16, 64, 2))
    target = Target("x86-64-v4", num_threads=2, caches=caches)
    warm = Convolution(1, 14, 14, 256, 256)
    uncached = msgspec.structs.replace(warm, uncached=True)
    many, few = (
        [group_estimate(target, conv, 4, group).seconds for conv in (warm, uncached)]
        for group in (4, 8)
    )
    assert many[0] < 1.1 * few[0]
    assert many[1] > 1.3 * few[1]


@pytest.mark.parametrize("group", [4, None])
def test_times_are_those_of_the_cost_model(group: int | None) -> None:
    """They follow the figures of the machine: here the bandwidth of memory for the filters."""
    conv = Convolution(1, 14, 14, 256, 256, uncached=True)
    slow, fast = (dict(_times(_with_bandwidth(AVX2, factor), conv, 4))[group] for factor in (1, 2))
    assert slow > 1.1 * fast


def _times(target: Target, conv: Convolution, m: int) -> Iterator[tuple[int | None, float]]:
    return ((way.group, way.seconds) for way in ranked_groupings(target, conv, m))


def _with_bandwidth(target: Target, factor: float) -> Target:
    core = target.core
    *near, memory = core.cache_bandwidth
    faster = msgspec.structs.replace(
        core,
        dram_bandwidth=core.dram_bandwidth * factor,
        cache_bandwidth=(*near, memory * factor),
    )
    return Target(target, core=faster)


def test_partial_sums_pay_for_the_registers_that_they_lack() -> None:
    """14 × 2 sums of 32 registers leave no room for their totals, 7 × 2 sums do."""
    target = Target("x86-64-v4", num_threads=1)
    conv = Convolution(1, 56, 56, 64, 64)
    high, low = (
        group_estimate(target, conv, 4, 14, RegisterTile(rows, 32, 16)) for rows in (14, 7)
    )
    assert high.causes["compute"] > 1.01 * low.causes["compute"]


def test_passes_are_costed_with_the_blocking_of_their_plan() -> None:
    """Unless they are slower than groups even at the peak rate; then it is not searched for."""
    conv = Convolution(1, 14, 14, 256, 256)
    searched, not_searched = (passes_estimate(AVX2, conv, 4, least) for least in (1.0, 0.0))
    assert searched.seconds <= not_searched.seconds


def test_many_channels_gain_and_small_images_do_not() -> None:
    wide, small = Convolution(1, 56, 56, 64, 64), Convolution(1, 5, 5, 8, 8)
    assert best_grouping(AVX2, wide, 4).seconds < 0.5 * direct_seconds(AVX2, wide)
    assert best_grouping(AVX2, small, 4).seconds > direct_seconds(AVX2, small)

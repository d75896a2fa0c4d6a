"""The NumPy meanings of windowed operators agree with PyTorch's, and the programs with both."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

import torch
from torch.nn import functional as F

from blockwright import ir
from blockwright.interp import interpret
from blockwright.ops.row import OpContext
from blockwright.ops.table import OPERATORS

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
ADAPTIVE = {
    "avg": {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d},
    "max": {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d},
}
SEEDS = range(40)


def integers(rng: np.random.Generator, low: int, high: int, count: int) -> tuple[int, ...]:
    return tuple(int(v) for v in rng.integers(low, high + 1, count))


def array(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    """Small whole numbers: sums of their products are exact in float32."""
    return rng.integers(-4, 5, shape).astype(np.float32)


def check(name: str, want: torch.Tensor, *arrays: Any, exact: bool = True, **attrs: Any) -> None:
    """The oracle and, on the interpreter, the program give what PyTorch gives."""
    row = OPERATORS[name]
    attrs = {**row.attrs, **attrs}
    infos = [
        ir.TensorInfo(tuple(ir.const(d, "int64") for d in a.shape), ir.dtype_of("float32"))
        for a in arrays
    ]
    found = row.oracle(*arrays, **attrs)
    assert row.lower is not None
    out = np.full(want.shape, 77, np.float32)
    interpret(row.lower(OpContext(name), infos, attrs), *arrays, out)
    for got in (found, out):
        assert got.shape == tuple(want.shape)
        np.testing.assert_allclose(
            got, want.numpy(), rtol=0 if exact else 1e-6, atol=0 if exact else 1e-6
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_convolutions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    groups, of_x, of_w = integers(rng, 1, 3, 3)
    size, gap = integers(rng, 1, 3, rank), integers(rng, 1, 2, rank)
    pad, stride = integers(rng, 0, 2, rank), integers(rng, 1, 3, rank)
    space = tuple(
        max(1, d * (k - 1) + 1 - 2 * p + int(rng.integers(0, 5)))
        for k, d, p in zip(size, gap, pad, strict=True)
    )
    x, w = array(rng, 2, groups * of_x, *space), array(rng, groups * of_w, of_x, *size)
    want = CONV[rank](torch.from_numpy(x), torch.from_numpy(w), None, stride, pad, gap, groups)
    check(f"nn.conv{rank}d", want, x, w, strides=stride, padding=pad, dilation=gap, groups=groups)


@pytest.mark.parametrize("seed", SEEDS)
def test_transposed_convolutions(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    rank = int(rng.integers(1, 4))
    groups, of_x, of_w = integers(rng, 1, 3, 3)
    size, gap = integers(rng, 1, 4, rank), integers(rng, 1, 3, rank)
    stride, space = integers(rng, 1, 4, rank), integers(rng, 1, 4, rank)
    more = tuple(int(rng.integers(0, max(s, d))) for s, d in zip(stride, gap, strict=True))
    pad = tuple(
        int(rng.integers(0, 1 + (d * (k - 1)) // 2)) for k, d in zip(size, gap, strict=True)
    )
    x, w = array(rng, 2, groups * of_x, *space), array(rng, groups * of_x, of_w, *size)
    want = TRANSPOSE[rank](
        torch.from_numpy(x), torch.from_numpy(w), None, stride, pad, more, groups, gap
    )
    check(
        f"nn.conv{rank}d_transpose",
        want,
        x,
        w,
        strides=stride,
        padding=pad,
        dilation=gap,
        groups=groups,
        output_padding=more,
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_pools(seed: int) -> None:
    rng = np.random.default_rng(2000 + seed)
    rank = int(rng.integers(1, 4))
    size, stride = integers(rng, 1, 4, rank), integers(rng, 1, 4, rank)
    pad = tuple(int(rng.integers(0, k // 2 + 1)) for k in size)
    gap = integers(rng, 1, 2, rank)
    hanging, padded = bool(rng.integers(2)), bool(rng.integers(2))
    space = tuple(d * (k - 1) + 1 + int(rng.integers(0, 6)) for k, d in zip(size, gap, strict=True))
    x = array(rng, 2, 3, *space)
    given: dict[str, Any] = {
        "pool_size": size,
        "strides": stride,
        "padding": pad,
        "ceil_mode": hanging,
    }
    t = torch.from_numpy(x)
    want = MAX[rank](t, size, stride, pad, gap, hanging)
    check(f"nn.max_pool{rank}d", want, x, **given, dilation=gap)
    want = AVG[rank](t, size, stride, pad, hanging, padded)
    check(f"nn.avg_pool{rank}d", want, x, **given, exact=False, count_include_pad=padded)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["avg", "max"])
def test_adaptive_pools(kind: str, seed: int) -> None:
    rng = np.random.default_rng(3000 + seed)
    rank = int(rng.integers(1, 4))
    x, parts = array(rng, 1, 2, *integers(rng, 1, 7, rank)), integers(rng, 1, 5, rank)
    want = ADAPTIVE[kind][rank](torch.from_numpy(x), parts)
    check(f"nn.adaptive_{kind}_pool{rank}d", want, x, exact=False, output_size=parts)

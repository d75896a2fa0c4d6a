"""Norms in half precision, windows larger than the image, and other cases that were refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import blockwright as bw

Tensor = torch.Tensor
HALF = [torch.float16, torch.bfloat16]


class Function(torch.nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def check(fn: Callable[..., Any], *args: Tensor) -> None:
    got = bw.compile(Function(fn), args)(*args)
    torch.testing.assert_close(got, fn(*args), equal_nan=True)


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (6,), w, b)


def group(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(x.transpose(1, 2), 2, w, b)


def instance(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.instance_norm(x.transpose(1, 2), None, None, w, b)


def batch(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x.transpose(1, 2), b, w * w + 0.1, w, b)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("fn", [layer, group, instance, batch])
def test_half_inputs_with_float_parameters(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    check(fn, randn(2, 5, 6).to(dtype), randn(6), randn(6))


def root_mean_square(x: Tensor) -> Tensor:
    return F.rms_norm(x, (6,))


@pytest.mark.parametrize("dtype", [*HALF, torch.float32, torch.float64])
def test_the_default_eps_is_that_of_the_type_computed_in(dtype: torch.dtype) -> None:
    check(root_mean_square, (randn(3, 6) * 1e-3).to(dtype))


@pytest.mark.parametrize(
    "options", [{"kernel_size": 3, "stride": 2}, {"kernel_size": 5, "stride": 4, "padding": 1}]
)
@pytest.mark.parametrize("pool", [F.avg_pool2d, F.max_pool2d])
def test_windows_may_hang_over_a_small_image(
    pool: Callable[..., Tensor], options: dict[str, int]
) -> None:
    def pooled(x: Tensor) -> Tensor:
        return pool(x, **options, ceil_mode=True)

    check(pooled, randn(1, 2, 2, 2))


def selected(x: Tensor, i: Tensor) -> Tensor:
    return x.index_select(0, i)


def test_one_position_keeps_the_axis() -> None:
    check(selected, randn(3, 4), torch.tensor(1))


def power(x: Tensor, y: Tensor) -> Tensor:
    return x**y


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_integer_powers(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 2, -3, -1, -1, 0, 0, 7, 1, 3, 2], dtype=dtype)
    y = torch.tensor([3, 0, 3, -1, -2, 5, 0, 1, -9, -1, 6], dtype=dtype)
    check(power, x, y)

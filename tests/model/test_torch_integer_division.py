"""Integer division by zero fails, as PyTorch's raises; all other quotients are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import blockwright as bw

Tensor = torch.Tensor


class Function(torch.nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def both(x: Tensor, y: Tensor) -> Tensor:
    return (x // y + x % y) * 2


def total(x: Tensor, y: Tensor) -> Tensor:
    return (x // y).sum(1)


def padded(x: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.pad(x % y, (1, 1))


def made(x: Tensor, y: Tensor) -> Tensor:
    return x // (y - 3)


def whole(low: int, high: int, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
@pytest.mark.parametrize("fn", [both, total, padded, made])
def test_a_zero_among_the_divisors_fails(fn: Callable[..., Tensor], dtype: str) -> None:
    kind: torch.dtype = getattr(torch, dtype)
    args = whole(0, 127, kind, 5, 37), whole(4, 60, kind, 37)
    model = bw.compile(Function(fn), args)
    torch.testing.assert_close(model(*args), fn(*args))
    bad = args[1].clone()
    bad[33] = 3 if fn is made else 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        fn(args[0], bad)
    with pytest.raises(bw.BlockwrightError, match="division by zero") as caught:
        model(args[0], bad)
    assert caught.value.code == "BW716"
    torch.testing.assert_close(model(*args), fn(*args))  # the next call is none the worse


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_the_least_number_by_minus_one_wraps(dtype: torch.dtype) -> None:
    least = torch.iinfo(dtype).min
    x = torch.tensor([least, least, 7, -7, least], dtype=dtype)
    y = torch.tensor([-1, 2, -1, 2, -3], dtype=dtype)
    torch.testing.assert_close(bw.compile(Function(made), (x, y + 3))(x, y + 3), made(x, y + 3))
    torch.testing.assert_close(bw.compile(Function(both), (x, y))(x, y), both(x, y))


def test_a_divisor_that_is_a_tensor_without_axes() -> None:
    x, y = whole(0, 100, torch.int32, 6), torch.tensor(7, dtype=torch.int32)
    model = bw.compile(Function(both), (x, y))
    torch.testing.assert_close(model(x, y), both(x, y))
    with pytest.raises(bw.BlockwrightError, match="division by zero"):
        model(x, torch.tensor(0, dtype=torch.int32))

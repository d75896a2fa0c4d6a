"""Operators that halve a size which is twice a symbol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import blockwright as bw

Tensor = torch.Tensor


class Function(torch.nn.Module):
    def __init__(self, fn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x)


def gated(x: Tensor) -> Tensor:
    return torch.nn.functional.glu(x, 0)


def second_chunk(x: Tensor) -> Tensor:
    return x.chunk(2)[1] * 2


def thirds(x: Tensor) -> Tensor:
    return x.chunk(3)[0] + 1


def second_half(x: Tensor) -> Tensor:
    return x.split(x.shape[0] // 2)[1] + 1


def unbound(x: Tensor) -> Tensor:
    first, second = x.view(2, -1, 4).unbind(0)
    return first - second


@pytest.mark.parametrize("fn", [gated, second_chunk, thirds, second_half, unbound])
def test_parts_of_twice_a_symbol(fn: Callable[[Tensor], Tensor]) -> None:
    sizes: Any = {"x": {0: 2 * torch.export.Dim("n", min=2, max=64)}}
    model = bw.compile(Function(fn), (torch.randn(8, 4),), dynamic_shapes=sizes)
    for rows in (4, 6, 10, 20):
        if fn is thirds and rows == 4:  # has two parts: the export assumed three
            with pytest.raises(bw.ArgumentError, match=r"x.size\(\)\[0\] = 4"):
                model(torch.randn(rows, 4))
            continue
        x = torch.randn(rows, 4)
        torch.testing.assert_close(model(x), fn(x))

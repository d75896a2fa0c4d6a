"""Integer models at the ends of their types compute as PyTorch does, and so do zeros of `//`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import blockwright as bw

TYPES = (torch.int8, torch.int16, torch.int32, torch.int64)


class Apply(nn.Module):
    def __init__(self, fn: Callable[[Tensor, Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return self.fn(x, y)


def everything(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """What once became something else by a rule for integers without end."""
    biggest, smallest = torch.maximum(x, y), torch.minimum(x, y)
    return (
        x.clamp(min=3) - 4,
        x > -3,
        x >= -3,
        smallest < -3,
        biggest - x,
        biggest - smallest,
        torch.where(x + 1 > x, x, y),
        torch.div(x, -3, rounding_mode="floor"),
        torch.remainder(x, -3),
        x.abs() - 1,
        (x + y).clamp(-2, 2),
        torch.relu(x - 1) - x,
        x + 1 == y + 1,
    )


def at_the_ends(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    info = torch.iinfo(dtype)
    ends = torch.tensor(
        [info.min, info.min + 1, -3, -1, 0, 1, 3, info.max - 1, info.max], dtype=dtype
    )
    return ends.repeat_interleave(len(ends)), ends.repeat(len(ends))


@pytest.mark.parametrize("dtype", TYPES)
def test_integers(dtype: torch.dtype) -> None:
    inputs = at_the_ends(dtype)
    model = Apply(everything)
    found = bw.compile(model, inputs)(*inputs)
    for number, (mine, theirs) in enumerate(zip(found, model(*inputs), strict=True)):
        assert mine.dtype == theirs.dtype, number
        assert torch.equal(mine, theirs), (number, mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeros_of_floor_division_have_pytorchs_sign(dtype: torch.dtype) -> None:
    x = torch.tensor([-0.1285, -0.0, 0.0, -0.0, 5.0, -5.0, float("inf"), 1.0, -1.0], dtype=dtype)
    y = torch.tensor([-1.87, 2.0, -2.0, -2.0, 7.0, 7.0, 2.0, float("inf"), 0.0], dtype=dtype)
    model = Apply(lambda a, b: (torch.div(a, b, rounding_mode="floor"),))
    (mine,) = bw.compile(model, (x, y))(x, y)
    (theirs,) = model(x, y)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(mine.signbit(), theirs.signbit())

"""Long dot products lose no more accuracy than PyTorch's: matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import blockwright as bw

Tensor = torch.Tensor
functional = torch.nn.functional


class Product(torch.nn.Module):
    """A product with a weight that is a constant of the module, or with an argument."""

    def __init__(self, fn: Callable[[Tensor, Tensor], Tensor], weight: Tensor | None) -> None:
        super().__init__()
        self.fn = fn
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        return self.fn(x, *rest) if rest else self.fn(x, self.weight)


def error(got: Tensor, exact: Tensor) -> float:
    return float(((got.double() - exact).abs() / exact.abs().max()).max())


def check(
    fn: Callable[[Tensor, Tensor], Tensor], left: tuple[int, ...], right: tuple[int, ...],
    constant: bool,
) -> None:  # fmt: skip
    """At most four times PyTorch's error to float64, or a few units in the last place."""
    random = torch.Generator().manual_seed(3)
    w = torch.randn(right, generator=random)
    example = torch.randn(left, generator=random)
    if constant:
        model = bw.compile(Product(fn, w), (example,))
    else:
        model = bw.compile(Product(fn, None), (example, w))
    for x in (example, torch.rand(left, generator=random), example + 1000):
        exact = fn(x.double(), w.double())
        got = model(x) if constant else model(x, w)
        assert error(got, exact) <= max(4 * error(fn(x, w), exact), 4e-7)


# Depths with a divisor of a suitable length, a prime, and twice a prime, which are padded.
@pytest.mark.parametrize("depth", [2048, 4096, 4099, 2822, 65536])
@pytest.mark.parametrize("constant", [True, False])
def test_matrix_products(depth: int, constant: bool) -> None:
    check(functional.linear, (33, depth), (50, depth), constant)


def test_batches_of_products() -> None:
    check(torch.bmm, (3, 20, 4096), (3, 4096, 24), constant=False)


@pytest.mark.parametrize("constant", [True, False])
def test_convolutions(constant: bool) -> None:
    def conv(x: Tensor, w: Tensor) -> Tensor:
        return functional.conv2d(x, w, stride=2, padding=1)

    check(conv, (1, 1024, 14, 14), (32, 1024, 3, 3), constant)


def test_a_padded_depth_leaves_infinite_elements_as_they_are() -> None:
    random = torch.Generator().manual_seed(5)
    x, w = torch.randn(8, 4099, generator=random), torch.randn(40, 4099, generator=random)
    x[2, -1], x[5, 7] = float("inf"), float("nan")
    got = bw.compile(Product(functional.linear, w), (x,))(x)
    torch.testing.assert_close(got, functional.linear(x, w), rtol=1e-4, atol=1e-3, equal_nan=True)

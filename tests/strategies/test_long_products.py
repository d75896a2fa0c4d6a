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
    fn: Callable[[Tensor, Tensor], Tensor],
    left: tuple[int, ...],
    right: tuple[int, ...],
    constant: bool,
    rule: str = "",
) -> None:
    """At most four times PyTorch's error to float64, or a few units in the last place."""
    random = torch.Generator().manual_seed(3)
    w = torch.randn(right, generator=random)
    example = torch.randn(left, generator=random)
    if constant:
        model = bw.compile(Product(fn, w), (example,))
    else:
        model = bw.compile(Product(fn, None), (example, w))
    assert f": strategy {rule}" in model.show("schedule")
    for x in (example, torch.rand(left, generator=random), example + 1000):
        exact = fn(x.double(), w.double())
        got = model(x) if constant else model(x, w)
        assert error(got, exact) <= max(4 * error(fn(x, w), exact), 4e-7)


# Depths with a divisor of a suitable length, a prime, and twice a prime, which are padded.
@pytest.mark.parametrize("depth", [4096, 4099, 2822, 65536])
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


def conv3x3(x: Tensor, w: Tensor) -> Tensor:
    return functional.conv2d(x, w, padding=1)


def softmax_product(scores: Tensor, values: Tensor) -> Tensor:
    return scores.softmax(-1) @ values


@pytest.mark.parametrize(
    ("fn", "left", "right", "rule"),
    [
        (functional.conv2d, (1, 64, 32, 64), (4, 64, 5, 5), "conv_nchw"),
        (functional.conv2d, (1, 61, 32, 64), (4, 61, 5, 5), "conv_nchw"),
        (conv3x3, (1, 512, 8, 8), (1, 512, 3, 3), "depthwise_pool"),
        (softmax_product, (3, 9000), (9000, 40), "gemv"),
        (functional.linear, (1, 65536), (20, 65536), "gemv"),
    ],
)
def test_products_by_other_rules(
    fn: Callable[[Tensor, Tensor], Tensor], left: tuple[int, ...], right: tuple[int, ...], rule: str
) -> None:
    check(fn, left, right, constant=False, rule=rule)


def test_winograd_convolutions() -> None:
    """Its own rounding errors allow no more than a sum in short pieces."""
    random = torch.Generator().manual_seed(3)
    x = torch.randn(1, 512, 14, 14, generator=random)
    w = torch.randn(256, 512, 3, 3, generator=random)
    exact = conv3x3(x.double(), w.double())
    model = bw.compile(Product(conv3x3, w), (x,))
    assert ": strategy winograd" in model.show("schedule")
    # Added one after another, the channels make it 4e-6.
    assert error(model(x), exact) <= max(4 * error(conv3x3(x, w), exact), 1.2e-6)


@pytest.mark.parametrize("rows", [1, 20])
def test_depths_that_calls_decide(rows: int) -> None:
    depth = torch.export.Dim("depth", min=1, max=1 << 20)
    random = torch.Generator().manual_seed(3)
    example = torch.randn(rows, 100, generator=random), torch.randn(100, 24, generator=random)
    model = bw.compile(
        Product(torch.matmul, None),
        example,
        dynamic_shapes={"x": {1: depth}, "rest": ({0: depth},)},
    )
    for k in (1, 767, 769, 1024, 9001, 40_000):
        x, w = torch.rand(rows, k, generator=random), torch.rand(k, 24, generator=random)
        exact = x.double() @ w.double()
        assert error(model(x, w), exact) <= max(4 * error(x @ w, exact), 4e-7)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_over_many_keys(causal: bool) -> None:
    random = torch.Generator().manual_seed(3)
    size = (1, 1, 3000 if causal else 100, 64)
    q = torch.randn(size, generator=random) * 1e-3
    k, v = torch.randn(1, 1, 3000, 64, generator=random), torch.rand(1, 1, 3000, 64)

    def attend(*args: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(*args, is_causal=causal)

    exact = attend(q.double(), k.double(), v.double())
    model = bw.compile(Product(attend, None), (q, k, v))
    assert error(model(q, k, v), exact) <= max(4 * error(attend(q, k, v), exact), 4e-7)


def test_a_padded_depth_leaves_infinite_elements_as_they_are() -> None:
    random = torch.Generator().manual_seed(5)
    x, w = torch.randn(8, 4099, generator=random), torch.randn(40, 4099, generator=random)
    x[2, -1], x[5, 7] = float("inf"), float("nan")
    got = bw.compile(Product(functional.linear, w), (x,))(x)
    torch.testing.assert_close(got, functional.linear(x, w), rtol=1e-4, atol=1e-3, equal_nan=True)

"""Values named or used several times in expressions, and tensors without elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import blockwright as bw

F = torch.nn.functional


class Function(torch.nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def check(fn: Callable[..., Any], *args: torch.Tensor, rtol: float = 1e-5) -> None:
    """The compiled function gives what PyTorch gives, in value, type and shape."""
    got = bw.compile(Function(fn), args)(*[a.clone() for a in args])
    torch.testing.assert_close(got, fn(*args), rtol=rtol, atol=1e-5, equal_nan=True)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: x // 2 // 3,
        lambda x, y: F.silu(x // y),
        lambda x, y: x % (y % 3),
        lambda x, y: (x // y).softmax(1),
        lambda x, y: F.gelu((x % y) // 3) * (x % y),
        lambda x, y: torch.cat([x // 2, y % 3]).t() % 2,
    ],
)
def test_float_division_in_larger_expressions(fn: Callable[..., Any]) -> None:
    check(fn, randn(3, 5) * 9, randn(3, 5) + 2)


def test_a_chain_of_values_used_twice_stays_small() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(24):
            x = F.silu(x) * 1.5
        return x

    check(chain, randn(8, 16), rtol=1e-4)


class RotaryKeys(torch.nn.Module):
    """Keys with rotary positions, repeated for grouped heads and transposed."""

    def forward(self, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        k = k * cos + torch.cat([-k[..., 16:], k[..., :16]], -1) * sin
        return k[:, None].expand(2, 4, 16, 32).transpose(2, 3).contiguous()


@pytest.mark.parametrize("more", [0, 4])
def test_tiles_of_many_operands_are_turned(more: int) -> None:
    def keys(k: torch.Tensor, c: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        k = k * c + torch.cat([k[..., 16:], k[..., :16]], -1)
        for other in others:
            k = k + other * c
        return k[:, None].expand(2, 4, 16, 32).transpose(2, 3).contiguous()

    args = randn(2, 16, 32), randn(1, 16, 32)
    check(keys, *args, *(randn(2, 16, 32) for _ in range(more)))
    check(RotaryKeys(), *args, randn(1, 16, 32))


EMPTY: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "add": (lambda x: x + 1, (randn(0, 3),)),
    "two steps": (lambda x: (x + 1).t().contiguous() * 2, (randn(0, 3),)),
    "sums": (lambda x: (x.sum(0), x.sum(1), x.sum()), (randn(0, 3),)),
    "means": (lambda x: (x.mean(0), x.mean(1), x.mean()), (randn(0, 3),)),
    "any, all": (lambda x: ((x > 0).any(), (x > 0).all(0)), (randn(0, 3),)),
    "largest of rows": (lambda x: x.amax(1), (randn(0, 3),)),
    "softmax": (lambda x: (x.softmax(0), x.softmax(1)), (randn(0, 3),)),
    "layer_norm": (lambda x: F.layer_norm(x, (3,)), (randn(0, 3),)),
    "concatenated": (lambda x, y: torch.cat([x, y]) * 2, (randn(0, 3), randn(2, 3))),
    "padded": (lambda x: F.pad(x, (1, 1, 2, 0)), (randn(0, 3),)),
    "empty parts": (lambda x: torch.cat([x[:0], x * 2, x[3:]]), (randn(3, 4),)),
    "empty sums inside": (lambda x: (x[:, 2:2] * 2).sum(1) + x[:, 0], (randn(3, 4),)),
    "product over nothing": (lambda x, y: x @ y, (randn(4, 0), randn(0, 5))),
    "products of empty slices": (lambda x: x[:, 1:1] @ x[1:1, :], (randn(3, 3),)),
    "no rows": (lambda x, y: (x @ y).relu(), (randn(0, 4), randn(4, 5))),
    "no columns": (lambda x, y: x @ y + 1, (randn(3, 4), randn(4, 0))),
    "linear": (lambda x, w, b: F.linear(x, w, b).relu(), (randn(3, 0), randn(4, 0), randn(4))),
    "batches": (torch.bmm, (randn(2, 4, 0), randn(2, 0, 5))),
    "convolution": (lambda x, w: F.conv2d(x, w), (randn(0, 3, 8, 8), randn(4, 3, 3, 3))),
    "pooling": (lambda x: F.avg_pool2d(x, 2), (randn(0, 3, 4, 4),)),
    "attention": (F.scaled_dot_product_attention, (randn(0, 2, 4, 8),) * 3),
    "embedding": (lambda w: F.embedding(torch.zeros(0, dtype=torch.int64), w), (randn(5, 3),)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_tensors_without_elements(name: str) -> None:
    fn, args = EMPTY[name]
    check(fn, *args)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: ((x * 2).sum(0), x.mean(1), x.relu().t().contiguous() + 1),
        lambda x: torch.cat([x, x * 2]).softmax(1) @ x.new_ones(3, 2),
        lambda x: F.layer_norm(x * 2, (3,)).transpose(0, 1).contiguous() * 3,
    ],
)
def test_sizes_that_are_zero_at_run_time(fn: Callable[..., Any]) -> None:
    shapes: Any = {"args": ({0: torch.export.Dim("n", min=0, max=64)},)}
    model = bw.compile(Function(fn), (randn(4, 3),), dynamic_shapes=shapes)
    for rows in (0, 1, 7):
        x = randn(rows, 3)
        torch.testing.assert_close(model(x), fn(x), equal_nan=True)

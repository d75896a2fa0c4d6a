"""Single operators as modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor


def convolution(
    axes: int,
    channels: tuple[int, int],
    kernel: int,
    *,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    transposed: bool,
) -> nn.Module:
    """A convolution without bias over 1, 2 or 3 axes."""
    if transposed:
        return nn.ConvTranspose2d(*channels, kernel, stride, padding, bias=False)
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    return kind(*channels, kernel, stride, padding, dilation, groups, bias=False)


class _Product(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b


class _WeightProduct(nn.Module):
    def __init__(self, inner: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inner, columns))

    def forward(self, a: Tensor) -> Tensor:
        return a @ self.weight


class _Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


def product() -> nn.Module:
    """Matrix product of two inputs."""
    return _Product()


def weight_product(inner: int, columns: int) -> nn.Module:
    """Matrix product with a weight as second operand."""
    return _WeightProduct(inner, columns)


def attention(causal: bool) -> nn.Module:
    return _Attention(causal)


def softmax(columns: int) -> nn.Module:
    return nn.Softmax(dim=-1)


def layer_norm(columns: int) -> nn.Module:
    return nn.LayerNorm(columns)


class _Sum(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


def relu() -> nn.Module:
    return nn.ReLU()


def add() -> nn.Module:
    return _Sum()


class _RowSums(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(dim=-1)


def row_sums() -> nn.Module:
    return _RowSums()

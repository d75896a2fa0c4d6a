"""Blocks of well-known networks at small sizes answer like PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F


def conv(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution and batch norm with statistics that are not trivial."""
    norm = nn.BatchNorm2d(outputs)
    nn.init.normal_(norm.running_mean, std=0.2)
    nn.init.uniform_(norm.running_var, 0.5, 1.5)
    weight = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(weight, norm)


class ResNet(nn.Module):
    """Stem and one bottleneck with a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.project = conv(3, 16, 7, 2), conv(16, 32, 1, 2)
        self.body = nn.Sequential(
            conv(16, 8, 1),
            nn.ReLU(inplace=True),
            conv(8, 8, 3, 2),
            nn.ReLU(inplace=True),
            conv(8, 32, 1),
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.stem(x), inplace=True), 3, 2, 1)
        y = self.body(x)
        y += self.project(x)
        return self.head(F.adaptive_avg_pool2d(F.relu(y), 1).flatten(1))


class MobileNet(nn.Module):
    """One inverted residual."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv(8, 24, 1),
            nn.ReLU6(inplace=True),
            conv(24, 24, 3, groups=24),
            nn.ReLU6(inplace=True),
            conv(24, 8, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class Attention(nn.Module):
    """Self-attention with one projection for query, key and value, and an optional cache."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(
        self, x: torch.Tensor, keys: Any = None, values: Any = None, causal: bool = False
    ) -> tuple[torch.Tensor, ...]:
        parts = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in parts)
        if keys is not None:
            k, v = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2)), k, v


class Transformer(nn.Module):
    """One pre-norm block with a GELU in between."""

    def __init__(self, size: int = 32, heads: int = 2, approximate: str = "none") -> None:
        super().__init__()
        self.attention, self.first = Attention(size, heads), nn.LayerNorm(size)
        self.second, self.approximate = nn.LayerNorm(size), approximate
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: torch.Tensor, *cache: Any, causal: bool = False) -> tuple[Any, ...]:
        y, k, v = self.attention(self.first(x), *cache, causal=causal)
        x = x + y
        inner = F.gelu(self.up(self.second(x)), approximate=self.approximate)
        return x + self.down(inner), k, v


class ViT(nn.Module):
    """Patches, a class token, positions, one block, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.block = nn.Conv2d(3, 32, 4, stride=4), Transformer()
        self.token = nn.Parameter(torch.randn(1, 1, 32))
        self.places = nn.Parameter(torch.randn(1, 17, 32))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        return self.head(self.norm(self.block(x)[0])[:, 0])


class GPT2(nn.Module):
    """Embeddings, one block with a cache passed as tensors, logits by the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(64, 32)
        self.block, self.norm = Transformer(approximate="tanh"), nn.LayerNorm(32)

    def forward(self, ids: torch.Tensor, *cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
        start = cache[0].shape[2] if cache else 0
        places = torch.arange(start, start + ids.shape[1])
        x = self.words(ids) + self.places(places)
        x, k, v = self.block(x, *cache, causal=not cache)
        return F.linear(self.norm(x)[:, -1], self.words.weight), k, v


class Bert(nn.Module):
    """One post-norm encoder layer with a mask of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = Attention(32, 4), nn.LayerNorm(32, eps=1e-12)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.last, self.pool = nn.LayerNorm(32, eps=1e-12), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = self.attention.qkv(x).split(32, dim=-1)
        q, k, v = (t.view(*x.shape[:2], 4, 8).transpose(1, 2) for t in parts)
        added = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(torch.float32).min
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=added)
        x = self.norm(x + self.attention.out(y.transpose(1, 2).reshape(x.shape)))
        x = self.last(x + self.down(F.gelu(self.up(x))))
        return x, torch.tanh(self.pool(x[:, 0]))


def ids(length: int) -> torch.Tensor:
    return torch.randint(0, 50, (1, length))


CASES = [
    (ResNet, lambda: (torch.randn(1, 3, 32, 32),)),
    (MobileNet, lambda: (torch.randn(1, 8, 7, 7),)),
    (ViT, lambda: (torch.randn(1, 3, 16, 16),)),
    (GPT2, lambda: (ids(11),)),
    (GPT2, lambda: (ids(1), torch.randn(1, 2, 20, 16), torch.randn(1, 2, 20, 16))),
    (Bert, lambda: (torch.randn(2, 9, 32), (torch.rand(2, 9) < 0.7).long())),
]


@pytest.mark.parametrize(("kind", "inputs"), CASES)
def test_blocks(kind: Any, inputs: Any, compile_torch: Any, compare_with_torch: Any) -> None:
    torch.manual_seed(3)
    model, given = kind().eval(), inputs()
    compare_with_torch(compile_torch(model, given), model, given)


def test_batch_norms_are_gone(compile_torch: Any) -> None:
    """Every convolution is one kernel with its norm, activation and residual."""
    model, x = ResNet().eval(), torch.randn(1, 3, 32, 32)
    profile = compile_torch(model, (x,)).profile(x, repeat=1)
    operators = [name for call in profile.calls for name in call.operators]
    assert operators.count("nn.conv2d") == 5
    assert not {"nn.batch_norm", "multiply"} & set(operators)

"""Transformers: BERT and MiniLM, the vision transformer, GPT-2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor


class Attention(nn.Module):
    """Projections, heads, scaled dot-product attention, output projection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        past: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        keys, values = k, v
        if past is not None:
            keys, values = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        mixed = functional.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, is_causal=causal
        )
        return self.out(mixed.transpose(1, 2).flatten(2)), k, v


class Block(nn.Module):
    """Attention and two dense layers; normalized after each (BERT) or before each (GPT-2, ViT)."""

    def __init__(
        self, width: int, heads: int, hidden: int, epsilon: float, first: bool, gelu: str
    ) -> None:
        super().__init__()
        self.first = first
        self.attention = Attention(width, heads)
        self.norm1, self.norm2 = nn.LayerNorm(width, epsilon), nn.LayerNorm(width, epsilon)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.gelu = nn.GELU(approximate=gelu)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        past: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        mixed, k, v = self.attention(self.norm1(x) if self.first else x, mask, causal, past)
        if self.first:
            x = x + mixed
            return x + self.down(self.gelu(self.up(self.norm2(x)))), k, v
        x = self.norm1(x + mixed)
        return self.norm2(x + self.down(self.gelu(self.up(x)))), k, v


class Bert(nn.Module):
    """Token ids and mask → hidden states, or their normalized mean over the text."""

    def __init__(
        self, layers: int, width: int, heads: int, hidden: int, pooled: bool, words: int
    ) -> None:
        super().__init__()
        self.pooled = pooled
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(512, width)
        self.types = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, 1e-12)
        self.blocks = nn.ModuleList(
            Block(width, heads, hidden, 1e-12, first=False, gelu="none") for _ in range(layers)
        )

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1])
        x = self.norm(self.words(ids) + self.positions(places) + self.types.weight[0])
        kept = mask.to(x.dtype)
        hidden = (1.0 - kept[:, None, None, :]) * torch.finfo(torch.float32).min
        for block in self.blocks:
            x, _, _ = block(x, hidden)
        if not self.pooled:
            return x
        weights = kept[:, :, None]
        return functional.normalize((x * weights).sum(1) / weights.sum(1).clamp(min=1e-9), dim=1)


class Vit(nn.Module):
    """Images → classes, from patches of 16×16."""

    def __init__(self, layers: int, width: int, heads: int, hidden: int, side: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (side // 16) ** 2 + 1, width))
        self.blocks = nn.ModuleList(
            Block(width, heads, hidden, 1e-6, first=True, gelu="none") for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width, 1e-6)
        self.head = nn.Linear(width, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.positions
        for block in self.blocks:
            x, _, _ = block(x)
        return self.head(self.norm(x)[:, 0])


class Gpt2(nn.Module):
    """Token ids → scores of all words at all positions; embedding and output share weights."""

    def __init__(self, layers: int, width: int, heads: int, hidden: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, hidden, 1e-5, first=True, gelu="tanh") for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width, 1e-5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x, _, _ = block(x, causal=True)
        return functional.linear(self.norm(x), self.words.weight)


class Gpt2Step(Gpt2):
    """One more token after ``past`` (layer, key or value, batch, head, position, size).

    Returns the scores, and the token's keys and values, stacked as in ``past``.
    """

    def forward(self, ids: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        start = past.shape[4]
        x = self.words(ids) + self.positions(torch.arange(start, start + ids.shape[1]))
        fresh: list[Tensor] = []
        for number, block in enumerate(self.blocks):
            x, k, v = block(x, past=past[number])
            fresh.append(torch.stack((k, v)))
        return functional.linear(self.norm(x), self.words.weight), torch.stack(fresh)


def bert(
    layers: int, width: int, heads: int, hidden: int, pooled: bool = False, words: int = 30522
) -> nn.Module:
    return Bert(layers, width, heads, hidden, pooled, words)


def vit(
    layers: int = 12, width: int = 768, heads: int = 12, hidden: int = 3072, side: int = 224
) -> nn.Module:
    return Vit(layers, width, heads, hidden, side)


def gpt2(layers: int, width: int, heads: int, hidden: int, words: int = 50257) -> nn.Module:
    return Gpt2(layers, width, heads, hidden, words)


def gpt2_step(layers: int, width: int, heads: int, hidden: int, words: int = 50257) -> nn.Module:
    return Gpt2Step(layers, width, heads, hidden, words)

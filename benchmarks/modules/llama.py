"""A decoder like Llama: root-mean-square norms, rotary positions, shared keys, gated layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor


def rotated(x: Tensor, start: int) -> Tensor:
    """Heads (batch, head, position, size), rotated by the angles of their positions."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half) / half)
    angles = torch.arange(start, start + x.shape[2])[:, None] * rates
    a, b = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Layer(nn.Module):
    """Attention with fewer heads of keys than of queries, and a gated dense layer."""

    def __init__(self, width: int, heads: int, shared: int, hidden: int) -> None:
        super().__init__()
        self.size, self.groups = width // heads, heads // shared
        self.norm1, self.norm2 = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.q, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, shared * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)

    def forward(self, x: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, start = self.norm1(x), 0 if past is None else past.shape[3]
        q, k = rotated(self.split(self.q(y)), start), rotated(self.split(self.k(y)), start)
        v = self.split(self.v(y))
        keys, values = k, v
        if past is not None:
            keys, values = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        mixed = functional.scaled_dot_product_attention(
            q, keys, values, is_causal=past is None, enable_gqa=self.groups > 1
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), torch.stack((k, v))


class Llama(nn.Module):
    """Token ids → scores of all words at all positions."""

    def __init__(
        self, layers: int, width: int, heads: int, shared: int, hidden: int, words: int
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads, shared, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width, 1e-5)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x, _ = layer(x)
        return self.head(self.norm(x))


class LlamaStep(Llama):
    """One more token after ``past`` (layer, key or value, batch, head, position, size)."""

    def forward(self, ids: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, fresh = self.words(ids), list[torch.Tensor]()
        for number, layer in enumerate(self.layers):
            x, pair = layer(x, past[number])
            fresh.append(pair)
        return self.head(self.norm(x)), torch.stack(fresh)


def llama(
    layers: int, width: int, heads: int, shared: int, hidden: int, words: int = 32000
) -> nn.Module:
    return Llama(layers, width, heads, shared, hidden, words)


def llama_step(
    layers: int, width: int, heads: int, shared: int, hidden: int, words: int = 32000
) -> nn.Module:
    return LlamaStep(layers, width, heads, shared, hidden, words)

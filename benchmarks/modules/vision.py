"""Networks with long-lived values: a U-Net, whose levels wait for the way back, and a mixer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor


def pair(inner: int, outer: int) -> nn.Sequential:
    """Two 3×3 convolutions."""
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(outer, outer, 3, padding=1),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Images → maps of the same size."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList(pair(a, b) for a, b in zip([3, *widths], widths, strict=False))
        ways = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.wider = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in ways)
        self.up = nn.ModuleList(pair(2 * b, b) for _, b in ways)
        self.pool, self.last = nn.MaxPool2d(2), nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for number, level in enumerate(self.down):
            x = level(self.pool(x) if number else x)
            kept.append(x)
        for wider, level, beside in zip(self.wider, self.up, kept[-2::-1], strict=True):
            x = level(torch.cat((beside, wider(x)), dim=1))
        return self.last(x)


class Mixer(nn.Module):
    """Patches of 16×16, mixed along places and channels in turn."""

    def __init__(self, side: int, width: int, layers: int) -> None:
        super().__init__()
        places = (side // 16) ** 2
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.mixers = nn.ModuleList(
            nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n))
            for n in (places, width) * layers
        )
        self.head = nn.Linear(width, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        for number, (norm, mixer) in enumerate(zip(self.norms, self.mixers, strict=False)):
            y = norm(x)
            x = x + (mixer(y) if number % 2 else mixer(y.transpose(1, 2)).transpose(1, 2))
        return self.head(self.norms[-1](x).mean(1))


def unet(width: int, levels: int) -> nn.Module:
    return UNet(width, levels)


def mixer(side: int, width: int, layers: int) -> nn.Module:
    return Mixer(side, width, layers)

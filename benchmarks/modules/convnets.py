"""Convolutional networks: ResNet-50 (the variant with stride in the 3×3) and MobileNetV2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from torch import Tensor


def normalised(
    inner: int, outer: int, kernel: int, *, stride: int = 1, groups: int = 1, ceiling: bool = False
) -> nn.Sequential:
    """Convolution and batch normalization, and ReLU6 if ``ceiling``; statistics are random."""
    norm = nn.BatchNorm2d(outer)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.normal_(0, 0.1)
    norm.running_var.uniform_(0.5, 1.5)
    layers: list[nn.Module] = [
        nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False),
        norm,
    ]
    return nn.Sequential(*layers, *([nn.ReLU6()] if ceiling else []))


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1, added to a shortcut."""

    def __init__(self, inner: int, middle: int, stride: int) -> None:
        super().__init__()
        outer = 4 * middle
        self.narrow = normalised(inner, middle, 1)
        self.spatial = normalised(middle, middle, 3, stride=stride)
        self.widen = normalised(middle, outer, 1)
        plain = stride == 1 and inner == outer
        self.shortcut = nn.Identity() if plain else normalised(inner, outer, 1, stride=stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        inside = self.relu(self.spatial(self.relu(self.narrow(x))))
        return self.relu(self.widen(inside) + self.shortcut(x))


def resnet50(width: int = 64, depths: tuple[int, ...] = (3, 4, 6, 3)) -> nn.Module:
    stages: list[nn.Module] = []
    inner = width
    for level, blocks in enumerate(depths):
        middle, stride = width << level, 2 if level else 1
        for number in range(blocks):
            stages.append(Bottleneck(inner, middle, stride if number == 0 else 1))
            inner = 4 * middle
    return nn.Sequential(
        normalised(3, width, 7, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        *stages,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(inner, 1000),
    )


class Inverted(nn.Module):
    """1×1 to more channels, depthwise 3×3, 1×1 back; added to the input if shapes match."""

    def __init__(self, inner: int, outer: int, stride: int, expansion: int) -> None:
        super().__init__()
        middle = inner * expansion
        first = [normalised(inner, middle, 1, ceiling=True)] if expansion > 1 else []
        depthwise = normalised(middle, middle, 3, stride=stride, groups=middle, ceiling=True)
        self.layers = nn.Sequential(*first, depthwise, normalised(middle, outer, 1))
        self.added = stride == 1 and inner == outer

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.added else self.layers(x)


def mobilenet_v2(stages_used: int = 7) -> nn.Module:
    stages: list[nn.Module] = []
    inner = 32
    table = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for expansion, outer, blocks, stride in table[:stages_used]:
        for number in range(blocks):
            stages.append(Inverted(inner, outer, stride if number == 0 else 1, expansion))
            inner = outer
    return nn.Sequential(
        normalised(3, 32, 3, stride=2, ceiling=True),
        *stages,
        normalised(inner, 1280, 1, ceiling=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1280, 1000),
    )

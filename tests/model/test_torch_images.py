"""PyTorch's operators on images: sampling at places, positions of maxima and their inverse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.nn import functional as F

import blockwright as bw

N, H, W = Dim("n", min=1, max=50), Dim("h", min=1, max=40), Dim("w", min=2, max=40)


def test_images_are_sampled_at_places(agrees: Any) -> None:
    def sampled(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)

    agrees(
        sampled,
        torch.randn(2, 3, 5, 8),
        2 * torch.randn(2, 3, 4, 2),
        shapes=[{0: N, 2: H}, {0: N, 1: W}],
        others=[(torch.randn(1, 3, 7, 8), torch.randn(1, 6, 4, 2))],
    )


def test_images_of_any_size_are_sampled_at_constant_places(agrees: Any) -> None:
    grid = 2 * torch.rand(1, 2, 3, 2) - 1

    def sampled(x: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, align_corners=False)

    agrees(sampled, torch.randn(1, 2, 5, 6), shapes=[{2: H, 3: W}])


def test_maxima_return_to_their_positions(agrees: Any) -> None:
    def there_and_back(x: Any) -> Any:
        values, places = F.max_pool2d(x, 2, return_indices=True)
        return values, places, F.max_unpool2d(values, places, [2, 2])

    agrees(
        there_and_back,
        torch.randn(2, 3, 4, 8),
        shapes=[{0: N}],
        others=[(torch.randn(5, 3, 4, 8),)],
    )


def test_positions_in_adaptive_windows(agrees: Any) -> None:
    """Of the first of equal maxima, and of the last NaN."""

    def pooled(x: Any) -> Any:
        line, volume = x.flatten(1, 2), x.unsqueeze(1)
        return (
            F.adaptive_max_pool1d(line, 2, return_indices=True),
            F.adaptive_max_pool2d(x, (2, 9), return_indices=True),
            F.adaptive_max_pool3d(volume, (2, None, 3), return_indices=True),
        )

    x = torch.randint(-2, 3, (2, 3, 4, 7)).float()
    x = torch.where(torch.rand(x.shape) < 0.1, torch.nan, x)
    agrees(pooled, x, shapes=[{0: N}], others=[(x[:1],)])


def test_reshapes_that_fit_some_sizes_are_checked_by_each_call() -> None:
    """A pool with a large window leaves one place of images up to 60 x 60."""

    class Pooled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.avg_pool2d(x, 60, ceil_mode=True).reshape(x.shape[:2])

    sizes = {0: torch.export.Dim("b"), 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}
    exe = bw.compile(Pooled(), (torch.rand(2, 3, 40, 50),), dynamic_shapes={"x": sizes})
    x = torch.rand(4, 3, 60, 13)
    torch.testing.assert_close(exe(x), Pooled()(x))
    with pytest.raises(bw.BlockwrightError, match=r"BW7(04|08|19)"):
        exe(torch.rand(2, 3, 61, 61))

"""Tensors in torch.channels_last: taken without a copy, and given back as PyTorch would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import blockwright as bw


class UNet(nn.Module):
    """Two levels with a skip connection; the result is an image."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(32, 5, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        top = F.relu(self.down(x))
        low = F.relu(self.low(F.max_pool2d(top, 2)))
        y = self.out(torch.cat([top, self.up(low)], 1))
        return y, y.mean((2, 3))


class VGG(nn.Module):
    """Flattened before the linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(16 * 16, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.dropout(self.features(x).flatten(1), 0.5, self.training))


@pytest.fixture(scope="module")
def image() -> torch.Tensor:
    torch.manual_seed(5)
    return torch.randn(2, 3, 8, 8)


@pytest.fixture(scope="module")
def last(image: torch.Tensor) -> torch.Tensor:
    return image.to(memory_format=torch.channels_last)


@pytest.fixture(scope="module")
def unet(compile_torch: Any, last: torch.Tensor) -> tuple[Any, Any]:
    """The model and what was compiled with a channels-last example."""
    torch.manual_seed(6)
    model = UNet().eval()
    return model, compile_torch(model, (last,))


def test_nothing_is_copied_or_permuted(unet: Any, last: torch.Tensor) -> None:
    model, exe = unet
    profile = exe.profile(last, repeat=1)
    assert profile.copies == 0
    assert not [c for c in profile.calls if "permute_dims" in c.operators]
    y, _ = exe(last)
    assert exe.copies == 0
    with torch.no_grad():
        assert y.stride() == model(last)[0].stride()
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_both_memory_formats_are_taken(
    unet: Any, image: torch.Tensor, last: torch.Tensor, compare_with_torch: Any
) -> None:
    model, exe = unet
    compare_with_torch(exe, model, (last,))
    before = exe.copies
    compare_with_torch(exe, model, (image,))
    assert exe.copies == before + 1
    found, _ = exe(image.numpy())
    np.testing.assert_array_equal(found, exe(last)[0].numpy())


def test_a_contiguous_example_means_contiguous_results(
    compile_torch: Any, image: torch.Tensor, compare_with_torch: Any
) -> None:
    model = UNet().eval()
    exe = compile_torch(model, (image,))
    assert exe(image)[0].is_contiguous()
    assert not any(p.order for p in exe.signature.parameters)
    compare_with_torch(exe, model, (image,))


def test_sizes_may_be_symbolic(compile_torch: Any, compare_with_torch: Any) -> None:
    model = UNet().eval()
    n, h = torch.export.Dim("n", min=1, max=64), torch.export.Dim("h", min=4, max=64)
    given = torch.randn(2, 3, 12, 8).to(memory_format=torch.channels_last)
    exe = compile_torch(model, (given,), ({0: n, 2: 2 * h},))
    for shape in ((2, 3, 12, 8), (1, 3, 8, 8), (3, 3, 16, 8)):
        x = torch.randn(*shape).to(memory_format=torch.channels_last)
        compare_with_torch(exe, model, (x,))
    assert exe.copies == 0


def test_a_linear_layer_reads_the_image_as_it_lies(
    compile_torch: Any, image: torch.Tensor, compare_with_torch: Any
) -> None:
    torch.manual_seed(8)
    model = VGG().eval()
    exe = compile_torch(model, (image,))
    compare_with_torch(exe, model, (image,))
    moved = [c for c in exe.profile(image, repeat=1).calls if c.operators == ("permute_dims",)]
    assert not moved
    assert "layout changes left: x (2×3×8×8) to channels-last" in exe.show("layout")


def test_saved_models_keep_it(unet: Any, last: torch.Tensor, tmp_path: Path) -> None:
    _, exe = unet
    path = tmp_path / "unet.so"
    exe.save(path)
    loaded = bw.load(path)
    assert [p.order for p in loaded.signature.parameters] == [(0, 2, 3, 1)]
    assert [r.order for r in loaded.signature.results] == [(0, 2, 3, 1), ()]
    assert [p.shape for p in loaded.signature.parameters] == [(2, 3, 8, 8)]
    assert torch.equal(loaded(last)[0], exe(last)[0])
    assert loaded.copies == 0


def test_the_plain_library_takes_the_stored_order(
    unet: Any, last: torch.Tensor, tmp_path: Path
) -> None:
    import tvm_ffi

    _, exe = unet
    exe.save(tmp_path / "unet.so")
    plain = tvm_ffi.load_module(tmp_path / "unet.so")["main"]
    y, _ = plain(tvm_ffi.from_dlpack(last.permute(0, 2, 3, 1)))
    assert tuple(y.shape) == (2, 8, 8, 5)
    assert torch.equal(torch.from_dlpack(y).permute(0, 3, 1, 2), exe(last)[0])


def test_errors_say_how_dimensions_are_numbered(unet: Any) -> None:
    _, exe = unet
    with pytest.raises(bw.ArgumentError, match="expected dimension 3 to be 3, got 4") as caught:
        exe(torch.randn(2, 4, 8, 8))
    assert "in storage order: axes of x as (0, 2, 3, 1)" in str(caught.value)
    with pytest.raises(bw.ArgumentError, match="expected 4 dimensions"):
        exe(torch.randn(3, 8, 8))

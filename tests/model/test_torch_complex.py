"""Complex numbers inside a model, and Fourier transforms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim

import blockwright as bw

N, L = Dim("n", min=2, max=50), Dim("l", min=2, max=64)
pairs = torch.view_as_real


def transforms(x: torch.Tensor) -> Any:
    spectrum = torch.fft.rfft(x)
    return (
        pairs(spectrum),
        pairs(torch.fft.rfft(x, n=33)),
        pairs(torch.fft.rfft(x, n=15, norm="ortho")),
        pairs(torch.fft.fft(x.unsqueeze(1).expand(-1, 3, -1), dim=1)),
        torch.fft.irfft(spectrum, n=x.shape[1]),
        torch.fft.irfft(spectrum, n=31),
        torch.fft.ifft2(torch.fft.fft2(x.view(-1, 4, 5))).real,
        torch.fft.irfft2(torch.fft.rfft2(x.view(-1, 4, 5)), s=(4, 5)),
    )


def test_fourier_transforms(agrees: Any) -> None:
    x = torch.randn(3, 20)
    agrees(transforms, x, shapes=[{0: N}], others=[(torch.randn(7, 20),)])


@pytest.mark.parametrize("count", [1000, 945, 211])
def test_long_transforms_are_composed_of_short_ones(count: int) -> None:
    class Transform(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            spectrum = torch.fft.rfft(x)
            return pairs(spectrum), torch.fft.irfft(spectrum, n=count)

    x = torch.randn(2, count)
    exe = bw.compile(Transform(), (x,), options={"fallback": "error"})
    for found, exact in zip(exe(x), Transform()(x.double()), strict=True):
        assert (found - exact).abs().max() <= 1e-6 * exact.abs().max()


def test_transforms_of_frames(agrees: Any) -> None:
    window = torch.hann_window(16)

    def there_and_back(x: torch.Tensor) -> Any:
        frames = torch.stft(x, 16, 4, window=window, return_complex=True)
        return frames.abs(), torch.istft(frames, 16, 4, window=window)

    agrees(there_and_back, torch.randn(2, 64))


def test_a_transform_of_unknown_size_is_refused() -> None:
    class Transform(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return pairs(torch.fft.rfft(x))

    with pytest.raises(bw.BlockwrightError, match="unknown size") as caught:
        bw.compile(
            Transform(),
            (torch.randn(2, 8),),
            dynamic_shapes=({1: L},),
            options={"fallback": "error"},
        )
    assert caught.value.code == "BW507"


def test_arithmetic(agrees: Any) -> None:
    def computed(a: torch.Tensor, b: torch.Tensor) -> Any:
        x, y = torch.complex(a, b), torch.complex(b, a + 1)
        return (
            pairs(x * y + 2 * x - y * 1j),
            pairs(x / y),
            pairs(a / y),
            (x @ y.transpose(-1, -2).conj()).abs(),
            torch.angle(x),
            pairs(x.sum(0)),
            pairs((x**2).exp()[:, 1:3]),
            pairs(torch.cat([x, -y], -1).permute(1, 0)),
            pairs(x.to(torch.complex128) * a),
            pairs(torch.stack([x, y])[1, 0]),
            x.imag + torch.polar(a.abs(), b).real,
        )

    agrees(computed, torch.randn(3, 4), torch.randn(3, 4))


def test_quotients_of_large_and_small_numbers(agrees: Any) -> None:
    numbers = torch.tensor([1e30, 1e-30, 3.0, 0.0])
    grid = torch.cartesian_prod(numbers, numbers)[:-1]
    agrees(
        lambda x, y: pairs(torch.view_as_complex(x) / torch.view_as_complex(y)),
        grid.contiguous(),
        grid.flip(0).contiguous(),
    )


def test_rotary_embeddings(agrees: Any) -> None:
    def rotated(q: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        turned = torch.view_as_complex(q.reshape(*q.shape[:-1], -1, 2))
        turned = turned * torch.polar(torch.ones_like(angles), angles)[None, :, None]
        return torch.view_as_real(turned).flatten(3)

    agrees(
        rotated,
        torch.randn(2, 6, 4, 8),
        torch.randn(6, 4),
        shapes=[{0: N, 1: L}, {0: L}],
        others=[(torch.randn(3, 9, 4, 8), torch.randn(9, 4))],
    )


def test_complex_buffers() -> None:
    class Turned(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turns: torch.Tensor
            self.register_buffer("turns", torch.polar(torch.ones(5), torch.randn(5)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return pairs(torch.view_as_complex(x) * self.turns)

    model, x = Turned(), torch.randn(3, 5, 2)
    exe = bw.compile(model, (x,), options={"fallback": "error"})
    torch.testing.assert_close(exe(x), model(x))

"""Complex numbers inside a model, and Fourier transforms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim

import blockwright as bw

N, L = Dim("n", min=2, max=50), Dim("l", min=2, max=128)
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


@pytest.mark.parametrize("count", [8, 9, 200])
@pytest.mark.parametrize("shapes", [None, ({1: L},)])
def test_imaginary_parts_without_effect_on_real_numbers(count: int, shapes: Any) -> None:
    """The spectrum of real numbers is real at frequency 0 and at half the number of elements."""

    class Transform(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.fft.irfft(x, n=2 * x.shape[1] - 2 + count % 2)

    x = torch.randn(2, count // 2 + 1, dtype=torch.complex64)
    exact = Transform()(x.to(torch.complex128))
    ignored = x.imag[:, :: count // 2] if count % 2 == 0 else x.imag[:, :1]
    ignored[:] = torch.inf
    exe = bw.compile(Transform(), (x,), dynamic_shapes=shapes, options={"fallback": "error"})
    assert (exe(x) - exact).abs().max() <= 1e-6 * exact.abs().max()


def of_any_size(x: torch.Tensor) -> Any:
    spectrum = torch.fft.rfft(x, dim=1)
    return (
        pairs(torch.fft.fft(x, dim=1)),
        pairs(torch.fft.rfft(x, dim=1, norm="ortho")),
        pairs(torch.fft.fft2(x, dim=(1, 2), norm="forward")),
        torch.fft.irfft(spectrum, n=x.shape[1], dim=1),
        torch.fft.irfft(spectrum, dim=1),
    )


def test_transforms_of_any_size(agrees: Any) -> None:
    """All on the interpreter, and one compiled."""

    class Transform(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return of_any_size(x)

    x, shapes = torch.randn(2, 7, 6), {1: Dim.AUTO}
    others = [(torch.randn(2, size, 6),) for size in (12, 3, 40)]
    program = torch.export.export(Transform(), (x,), dynamic_shapes=(shapes,))
    module = bw.import_model(program, fallback="error")
    for (given,) in [(x,), *others]:
        found = bw.interpret(module, given.numpy())
        for ours, theirs in zip(found, of_any_size(given), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    agrees(lambda x: torch.fft.rfft(x, dim=1), x, shapes=[shapes], others=others)


def test_a_transform_of_a_large_prime_number_of_elements() -> None:
    class Transform(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return pairs(torch.fft.rfft(x, n=4099)), torch.fft.irfft(torch.fft.rfft(x), n=2 * 4099)

    x = torch.randn(1, 2 * 4099)
    exe = bw.compile(Transform(), (x,), options={"fallback": "error"})
    for found, exact in zip(exe(x), Transform()(x.double()), strict=True):
        assert (found - exact).abs().max() <= 3e-6 * exact.abs().max()


class Filter(torch.nn.Module):
    """Complex numbers in and out, also those of an input as they are."""

    def forward(self, x: torch.Tensor, gains: torch.Tensor) -> dict[str, Any]:
        spectrum = torch.fft.fft(x)
        return {
            "spectrum": spectrum,
            "filtered": spectrum * gains,
            "gains": gains.conj(),
            "power": (spectrum * gains).abs(),
            "wide": spectrum.to(torch.complex128),
        }


def test_complex_arguments_and_results(tmp_path: Path) -> None:
    shapes = {"x": {0: Dim.AUTO}, "gains": {0: Dim.AUTO}}
    gains = torch.randn(3, 8, dtype=torch.complex64)
    exe = bw.compile(Filter(), (torch.randn(3, 8), gains), dynamic_shapes=shapes)
    exe.save(tmp_path / "filter.bw")
    loaded = bw.load(tmp_path / "filter.bw")
    for rows in (3, 6):
        x, gains = torch.randn(rows, 8), torch.randn(8, rows, dtype=torch.complex64)
        for given in (gains.t(), gains.t().conj(), torch.view_as_real(gains.t())):
            whole = torch.view_as_complex(given) if given.is_floating_point() else given
            wanted = Filter()(x, whole)
            for found in (exe(x, given), loaded(x, given)):
                torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        arrays = exe(x.numpy(), gains.t().numpy())
        assert arrays["spectrum"].dtype == "complex64"
        wanted = Filter()(x, gains.t())["filtered"].numpy()
        np.testing.assert_allclose(arrays["filtered"], wanted, rtol=1e-4, atol=1e-5)
    assert "gains: complex64[" in exe.main.signature.describe()


def test_memory_for_complex_results() -> None:
    x, gains = torch.randn(3, 8), torch.randn(3, 8, dtype=torch.complex64)
    exe, wanted = bw.compile(Filter(), (x, gains)), Filter()(x, gains)
    out = {name: torch.empty_like(value) for name, value in wanted.items()}
    assert exe(x, gains, out=out) is out
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)


def test_complex_arguments_of_another_type_are_refused() -> None:
    x, gains = torch.randn(3, 8), torch.randn(3, 8, dtype=torch.complex64)
    exe = bw.compile(Filter(), (x, gains))
    for bad in (x, gains.to(torch.complex128), gains[:2], 1j):
        with pytest.raises(bw.ArgumentError, match="gains"):
            exe(x, bad)


def test_complex_arguments_that_the_model_changes_are_refused() -> None:
    class Changes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            return x

    with pytest.raises(bw.ImporterError, match=r"the input x: .*changes") as caught:
        bw.compile(Changes(), (torch.randn(3, dtype=torch.complex64),))
    assert caught.value.code == "BW504"


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

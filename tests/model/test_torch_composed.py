"""Operators that are composed of rows, by converters or by PyTorch's own decompositions."""

# Lambdas take tensors; what reads them does not say so.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.nn import functional as F

import blockwright as bw

N, H, W = Dim("n", min=2, max=50), Dim("h", min=2, max=40), Dim("w", min=2, max=40)

FAMILIES: dict[str, Any] = {
    "running": lambda x: (x.cumsum(0), x.long().cumsum(1), x.cumprod(1), (x > 0).cumsum(1),
                          x.half().cumsum(0)),
    "spread": lambda x: (x.std(0), x.var(1, unbiased=False), *torch.var_mean(x, 1),
                         (1e25 * x).std(), *torch.std_mean(3e38 - 1e30 * x, 1),
                         x.half().var(0), x[:, :1].var(1, unbiased=False),
                         x.double().std(1, keepdim=True)),
    "windows": lambda x: (x.unfold(1, 3, 2), x.t().unfold(0, 2, 1), x[:2, :2].trace(),
                          x.diagonal(), x[:2].diagonal(1), x[:2].diagonal(-1),
                          x[None].diagonal(0, 2, 0)),
    "sizes": lambda x: (x * x.shape[0] ** -0.5, x / (x.shape[0] / 2), x.sum(0) / x.shape[0],
                        torch.addmm(x, x, torch.ones(8, 8), beta=x.shape[0],
                                    alpha=1 / x.shape[0])),
    "repeats": lambda x: (x.repeat(2, 1, 3), x.tile(3), x.repeat_interleave(2, 0),
                          x[:1].expand_as(x),
                          torch.roll(x, 2, 0), torch.roll(x, (1, -3), (0, 1)), x.rot90(),
                          *torch.meshgrid(x[:, 0], x[0], indexing="xy"), x.diff(dim=1)),
    "extremes": lambda x: (x.max(0).values, x.min(1, keepdim=True).indices, torch.max(x, x.flip(1)),
                           torch.min(x, x.flip(1)), x.clamp(max=x.abs() / 2), x.argmin(),
                           torch.max(x > 0, 1).indices, x.amax((0, 1)), x.nan_to_num()),
    "products": lambda x: (torch.einsum("ij,kj->ik", x, x), torch.tensordot(x, x.t(), dims=1),
                           torch.addmm(x[0, 0], x, x.t(), beta=0.5, alpha=2),
                           torch.outer(x[:, 0], x[0])),
    "pointwise": lambda x: (torch.lerp(x, x.flip(1), 0.7), torch.addcdiv(x, x, x.abs() + 1),
                            torch.addcmul(x, x, x, value=2), torch.hypot(x, x.flip(1)),
                            x.round(decimals=2), F.threshold(x, 0.1, 5.0), F.hardshrink(x),
                            torch.heaviside(x, x.abs()), x.logsumexp(0), x.frac()),
    "made": lambda x: (torch.linspace(-1, 1, 8) * x, torch.arange(1, x.shape[0] + 1)[:, None] + x,
                       torch.arange(2.5), x.new_full((2,), 3), torch.full_like(x, 2),
                       torch.ones(8, 8).tril(), x.triu(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_families_of_operators(name: str, agrees: Any) -> None:
    agrees(
        lambda x: [*FAMILIES[name](x)],
        torch.randn(5, 8),
        shapes=[{0: N}],
        others=[(torch.randn(9, 8),)],
    )


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_upsampling_of_images(mode: str, agrees: Any) -> None:
    corners = [{}] if "nearest" in mode else [{"align_corners": False}, {"align_corners": True}]

    sizes: list[dict[str, Any]] = [{"scale_factor": 2.0}, {"scale_factor": 1.5}, {"size": (4, 11)}]

    ways = [(how, size) for how in corners for size in sizes]
    if mode in ("bilinear", "bicubic"):  # each takes seconds to compile
        ways = [ways[0], ways[5]]

    def scaled(x: torch.Tensor) -> Any:
        return [F.interpolate(x, mode=mode, **how, **size) for how, size in ways]

    agrees(
        scaled, torch.randn(2, 3, 6, 5), shapes=[{2: H, 3: W}], others=[(torch.randn(2, 3, 9, 7),)]
    )


def test_upsampling_of_lines_and_volumes(agrees: Any) -> None:
    agrees(
        lambda x: (
            F.interpolate(x[0], scale_factor=2, mode="linear"),
            F.interpolate(x[0], size=7),
            F.interpolate(x[None], scale_factor=2),
            F.interpolate(x[None], size=(3, 4, 9), mode="trilinear"),
        ),
        torch.randn(2, 3, 6, 5),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_rounded_to_decimals_in_float32(dtype: torch.dtype) -> None:
    """With every step in a half type the largest numbers became infinite."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [x.round(decimals=d) for d in (-3, 1)]

    steps = torch.linspace(-1, 1, 301)
    x = torch.cat([steps, 1e4 * steps, 1e30 * steps, torch.tensor([3.39e38, -0.0])]).to(dtype)
    for found, wanted in zip(bw.compile(Model(), (x,))(x), Model()(x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def test_attention_broadcasts_batches_and_heads(agrees: Any) -> None:
    q, k, v = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)
    attend = F.scaled_dot_product_attention
    agrees(
        lambda q, k, v: (attend(q[:1], k, v), attend(q, k[:1], v[:1, :1]), attend(q[:, :1], k, v)),
        q,
        k,
        v,
    )


def test_attention_with_several_axes_of_batches(agrees: Any) -> None:
    """As in Hiera, whose windows are an axis of their own; masks broadcast along them."""
    q, k, v = torch.randn(2, 3, 2, 3, 8), torch.randn(2, 1, 2, 5, 8), torch.randn(3, 2, 5, 8)
    masks = torch.randn(3, 5), torch.randn(3, 1, 3, 5), torch.randn(2, 1, 2, 3, 5)

    def model(*args: Any) -> Any:
        q, k, v, *masks = args
        attend = F.scaled_dot_product_attention
        return [attend(q, k, v), *(attend(q, k, v, attn_mask=mask) for mask in masks)]

    agrees(model, q, k, v, *masks)


def test_copies_side_by_side(agrees: Any) -> None:
    """PyTorch's decomposition leaves strides that a later `view` does not take."""

    def model(x: Any) -> Any:
        moved = x.permute(2, 0, 1).unsqueeze(0).repeat(2, 1, 1, 1)
        pairs = torch.view_as_real(torch.complex(x, -x).repeat(2, 1, 3))
        return moved.view(-1, *x.shape[:2]), x.repeat(1, 2, x.shape[0]), torch.tile(x, (2,)), pairs

    agrees(model, torch.randn(3, 4, 2))


def test_ranges_of_integers_have_ends_of_integers(agrees: Any) -> None:
    """PyTorch's kernel converts both ends first; its decomposition does not."""
    agrees(
        lambda start, end: (
            torch.linspace(start, end, 9, dtype=torch.int64),
            torch.linspace(4.3, -2.7, 7, dtype=torch.int32),
            torch.logspace(0.9, end, 4, dtype=torch.int64),
            torch.linspace(start, end, 5),
        ),
        torch.tensor(4.3),
        torch.tensor(1.9),
    )


def test_products_and_sums_of_many_sizes(agrees: Any) -> None:
    """Decompositions multiply all sizes of a tensor in one node, as for the unbiased variance."""

    def model(x: Any) -> Any:
        normalized = torch.ops.aten._native_batch_norm_legit(
            x, None, None, torch.zeros(2), torch.ones(2), True, 0.1, 0.5
        )
        sizes = torch.sym_sum([x.shape[0], x.shape[2], x.shape[3]])
        return [normalized[0], x * sizes]

    shapes = [{0: N, 2: H, 3: W}]
    agrees(model, torch.randn(5, 2, 8, 6), shapes=shapes, others=[(torch.randn(2, 2, 3, 9),)])


@pytest.mark.parametrize("wrap", [False, True])
def test_diagonals_are_filled(wrap: bool, agrees: Any) -> None:
    """Of matrices of any form, of cubes, of views, and of values that are read before and after."""

    def function(x: torch.Tensor) -> Any:
        y = x * 2
        z = y.fill_diagonal_(3, wrap)
        part = (x + 1)[:, 1:]
        part.t().fill_diagonal_(-0.5)
        whole = (x * 10).long().fill_diagonal_(2.5, wrap)
        cube = (x[:1, :1, None] + torch.zeros(3, 3, 3)).fill_diagonal_(7, wrap)
        return y, z + 1, part, whole, cube

    agrees(
        function,
        torch.randn(10, 4),
        shapes=[{0: N}],
        others=[(torch.randn(n, 4),) for n in (2, 4, 5, 6, 30)],
    )
    agrees(lambda x: x.clone().fill_diagonal_(3, wrap), torch.randn(3, 8))
    agrees(lambda x: (x @ x.t()).fill_diagonal_(-1e9).softmax(-1), torch.randn(3, 8))


def test_frequencies_and_windows(agrees: Any) -> None:
    def function(x: torch.Tensor) -> Any:
        yield from (torch.fft.fftfreq(n, 0.5) + x[0, 0] for n in (1, 7, 8))
        yield from (torch.fft.rfftfreq(n, 0.1, dtype=torch.float64) for n in (1, 7, 8))
        for window in (
            torch.hamming_window,
            torch.blackman_window,
            torch.bartlett_window,
            torch.kaiser_window,
        ):
            yield from (
                window(n, periodic) + x[0, 0] for n in (1, 2, 9) for periodic in (False, True)
            )
            yield window(8, dtype=torch.float64) * x[0]
        yield from (torch.hamming_window(6, True, 0.5, 0.4), torch.hamming_window(6, False, 0.6))
        yield torch.kaiser_window(8, False, 5.0)

    agrees(lambda x: [*function(x)], torch.randn(5, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_are_rounded_as_if_quantized(dtype: torch.dtype) -> None:
    """To the even one of two steps; least and greatest numbers are reached."""
    scales, zeros = torch.tensor([0.1, 0.25, 3.0]), torch.tensor([3, 0, -5], dtype=torch.int32)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            one, zero = torch.tensor([0.5]), torch.tensor([2], dtype=torch.int32)
            return (
                torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255),
                torch.fake_quantize_per_tensor_affine(x, 0.25, 0, -128, 127),
                torch.fake_quantize_per_tensor_affine(x, one, zero, -128, 127),
                torch.fake_quantize_per_channel_affine(x, scales, zeros, 0, -8, 7),
                torch.fake_quantize_per_channel_affine(x, scales, zeros + 0.3, 0, -8, 7),
            )

    x = torch.arange(-50, 50, 0.125).expand(3, -1).to(dtype).contiguous()
    exe = bw.compile(Model(), (x,), options={"fallback": "error"})
    torch.testing.assert_close(exe(x), Model()(x))
    found: Any = exe(torch.full_like(x, torch.nan))
    torch.testing.assert_close(found[0], torch.full_like(x, -0.3))

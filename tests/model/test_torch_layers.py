"""Layers of vision models, one module each, answer like PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import blockwright as bw


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


CONVOLUTIONS = [
    (nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 11)),
    (nn.Conv1d(4, 6, 4, padding="same", dilation=2), (4, 9)),
    (nn.Conv2d(3, 8, 3, padding=1, bias=False), (1, 3, 9, 8)),
    (nn.Conv2d(3, 8, (3, 2), stride=(2, 1), padding=(0, 1)), (2, 3, 9, 8)),
    (nn.Conv2d(4, 6, 3, padding="same", groups=2), (1, 4, 6, 7)),
    (nn.Conv2d(4, 8, 3, padding="valid", groups=4, dilation=2), (1, 4, 8, 7)),
    (nn.Conv2d(4, 4, 3, padding=2, padding_mode="reflect"), (1, 4, 6, 7)),
    (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), (1, 4, 6, 7)),
    (nn.Conv2d(4, 9, 1, stride=2), (1, 4, 6, 7)),
    (nn.Conv3d(2, 4, 3, padding=1), (1, 2, 5, 4, 6)),
    (nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1), (2, 4, 7)),
    (nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1), (1, 4, 5, 4)),
    (nn.ConvTranspose2d(4, 6, 3, stride=(2, 3), groups=2, dilation=2), (1, 4, 5, 4)),
    (nn.ConvTranspose3d(2, 3, 2, stride=2), (2, 3, 2, 3)),
]


@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS)
def test_convolutions(
    layer: nn.Module, shape: Sequence[int], compile_torch: Any, compare_with_torch: Any
) -> None:
    x = torch.randn(*shape)
    compare_with_torch(compile_torch(layer, (x,)), layer, (x,))


class Pools(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            F.max_pool2d(x, 3, 2, 1),
            F.max_pool2d(x, 2, ceil_mode=True),
            F.max_pool2d(x, 3, 1, dilation=2),
            F.avg_pool2d(x, 3, 2, 1),
            F.avg_pool2d(x, (2, 3), ceil_mode=True, count_include_pad=False, padding=1),
            F.adaptive_avg_pool2d(x, 1),
            F.adaptive_avg_pool2d(x, (3, 2)),
            F.adaptive_max_pool2d(x, 4),
            F.max_pool1d(x[0], 2),
            F.avg_pool3d(x, 2),
            F.max_pool2d(x, 2, return_indices=True)[0],
        )


def test_pools(compile_torch: Any, compare_with_torch: Any) -> None:
    x = torch.randn(2, 3, 9, 8)
    compare_with_torch(compile_torch(Pools(), (x,)), Pools(), (x,))


class ChannelNorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.batch, self.bare = nn.BatchNorm2d(6), nn.BatchNorm2d(6, affine=False)
        self.group, self.instance = nn.GroupNorm(3, 6), nn.InstanceNorm2d(6)
        for norm in (self.batch, self.bare):
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.batch(x), self.bare(x), self.group(x), self.instance(x)


def test_norms_over_channels(compile_torch: Any, compare_with_torch: Any) -> None:
    model, x = ChannelNorms().eval(), torch.randn(2, 6, 5, 4)
    compare_with_torch(compile_torch(model, (x,)), model, (x,))


ACTIVATIONS = (
    F.relu6,
    F.hardswish,
    F.hardsigmoid,
    F.leaky_relu,
    F.elu,
    F.celu,
    F.selu,
    F.mish,
    F.softplus,
    F.silu,
    F.logsigmoid,
    F.hardtanh,
    F.glu,
    F.gelu,
)


def activations(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    tanh = F.gelu(x, approximate="tanh")
    return (
        tanh,
        F.prelu(x, x.new_full((4,), 0.25)),
        F.leaky_relu(x, 0.2),
        *(f(x) for f in ACTIVATIONS),
    )


def test_activations(compile_torch: Any, compare_with_torch: Any) -> None:
    model, x = Call(activations), torch.randn(3, 4, 6) * 4
    compare_with_torch(compile_torch(model, (x,)), model, (x,))


def paddings(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        F.pad(x, (1, 2)),
        F.pad(x, (1, -2, 0, 3), value=-1.5),
        F.pad(x, (2, 1, 1, 1), mode="reflect"),
        F.pad(x, (2, 0, 1, 4), mode="replicate"),
        F.pad(x, (2, 1, 0, 1), mode="circular"),
    )


def test_paddings(compile_torch: Any, compare_with_torch: Any) -> None:
    model, x = Call(paddings), torch.randn(2, 3, 5, 6)
    compare_with_torch(compile_torch(model, (x,)), model, (x,))


def in_place(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    old = y + 1
    y.relu_()
    y += x
    z = x.exp()
    part = z[:, 1]
    part.mul_(3)  # seen through z
    return old, y, z, part


def test_effects_in_place_are_kept(compile_torch: Any, compare_with_torch: Any) -> None:
    model, x = Call(in_place), torch.randn(3, 4)
    compare_with_torch(compile_torch(model, (x,)), model, (x,))


class DropoutInPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.2, inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(x).flatten() + self.dropout(x.exp().flatten())


def test_dropout_in_place_does_nothing(compile_torch: Any, compare_with_torch: Any) -> None:
    model, x = DropoutInPlace().eval(), torch.randn(3, 4)
    compare_with_torch(compile_torch(model, (x,)), model, (x,))


def matrix_products(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    bias = x[0, :, :1]
    return (
        torch.addmm(bias, x[0], y[0], beta=2, alpha=0.5),
        torch.addmm(bias, x[0], y[0], beta=0),
        torch.addmm(x[0, :, :3].long(), x[0].long(), y[0].long(), beta=0.2, alpha=-1.6),
        torch.baddbmm(x[:, :, :2], x, y[:, :, :2]),
        torch.mv(x[0], y[0, :, 0]),
        x[0] @ y[0].T.T,
        x @ y,
    )


def test_matrix_products(compile_torch: Any, compare_with_torch: Any) -> None:
    model, inputs = Call(matrix_products), (torch.randn(2, 5, 7), torch.randn(2, 7, 3))
    compare_with_torch(compile_torch(model, inputs), model, inputs)


def attentions(q: torch.Tensor, kv: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mask = torch.ones(q.shape[2], kv.shape[2], dtype=torch.bool).tril(diagonal=2)
    attend = F.scaled_dot_product_attention
    return (
        attend(q, kv, kv, enable_gqa=True),
        attend(q, kv, kv, attn_mask=mask, enable_gqa=True, scale=0.3),
        attend(q, kv, kv, is_causal=True, enable_gqa=True),
        attend(q[:, :2], kv, kv, attn_mask=torch.zeros(3, 7).masked_fill(~mask, -1e9)),
        attend(q[0, 0], kv[0, 0], kv[0, 0]),
    )


def test_attentions(compile_torch: Any, compare_with_torch: Any) -> None:
    model, inputs = Call(attentions), (torch.randn(2, 4, 3, 8), torch.randn(2, 2, 7, 8))
    exe = compile_torch(model, inputs)
    compare_with_torch(exe, model, [x.float() for x in inputs])


def test_as_many_values_as_keys(compile_torch: Any, compare_with_torch: Any) -> None:
    """An export gives the two lengths symbols of their own; a call must make them equal."""
    model = Call(F.scaled_dot_product_attention)
    q, k, v = (torch.randn(2, 3, length, 8) for length in (5, 7, 7))
    exe = compile_torch(model, (q, k, v), {"inputs": ({}, {2: Dim.AUTO}, {2: Dim.AUTO})})
    for length in (7, 12):
        k, v = (torch.randn(2, 3, length, 8) for _ in range(2))
        compare_with_torch(exe, model, (q, k, v))
    with pytest.raises(bw.ArgumentError, match=r"BW704.*values"):
        exe(q, k, v[:, :, :-1].contiguous())


def test_softmax_of_a_number(compile_torch: Any, compare_with_torch: Any) -> None:
    model = Call(lambda x: (x.softmax(-1), x.log_softmax(0), x.softmax(0, dtype=torch.float64)))
    inputs = (torch.tensor(2.5),)
    compare_with_torch(compile_torch(model, inputs), model, inputs)


class Small(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
            nn.ConvTranspose2d(8, 4, 2, stride=2),
            nn.Conv2d(4, 5, 1),
        )


def test_one_program_for_all_image_sizes(compile_torch: Any, compare_with_torch: Any) -> None:
    model = Small().eval()
    batch, height = Dim("batch", min=1, max=8), Dim("height", min=8, max=64)
    exe = compile_torch(model, (torch.randn(2, 3, 20, 17),), {"input": {0: batch, 2: height}})
    for n, h in ((1, 9), (3, 16), (2, 31)):
        compare_with_torch(exe, model, (torch.randn(n, 3, h, 17),))


@pytest.mark.parametrize("mode", ["constant", "replicate", "reflect"])
@pytest.mark.parametrize("pad", [(0, 0, 2, -4), (0, 0, -3, 1), (1, -2, -1, 2), (-1, -1, 1, 1)])
def test_padding_that_cuts_off_repeats_elements_of_the_whole_input(mode: str, pad: Any) -> None:
    class Padded(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.pad(x, pad, mode=mode)

    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(bw.compile(Padded(), (x,))(x), Padded()(x), rtol=0, atol=0)

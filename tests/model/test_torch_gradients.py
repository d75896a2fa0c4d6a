"""Gradients: the backward operators of layers, and whole training steps."""

# Lambdas take tensors; what reads them does not say so.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import blockwright as bw
from blockwright.frontend.torch.importer import from_exported_program, to_numpy

aten = torch.ops.aten
ALL = [True, True, True]
N, H, W = Dim("n", min=2, max=50), Dim("h", min=6, max=40), Dim("w", min=6, max=40)


def gradients(
    x: torch.Tensor,
    weight: torch.Tensor,
    mask: Sequence[bool] = ALL,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    output_padding: int | None = None,
) -> Any:
    """`convolution_backward` of a gradient computed from the result; transposed if it has an output
    padding."""
    rank, transposed = x.ndim - 2, output_padding is not None
    windows = [[stride] * rank, [padding] * rank, [dilation] * rank]
    rest = (*windows, transposed, [output_padding or 0] * rank, groups)
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    grad = aten.convolution.default(x, weight, None, *rest).sin()
    return aten.convolution_backward.default(grad, x, weight, [channels], *rest, mask)


CONVOLUTIONS: dict[str, Any] = {
    "plain": lambda x, w: gradients(x, w, padding=1),
    "strided": lambda x, w: gradients(x, w, stride=2, padding=1),
    "strides that leave a rest": lambda x, w: gradients(x, w, stride=3),
    "dilated": lambda x, w: gradients(x, w, dilation=2, stride=2, padding=2),
    "grouped": lambda x, w: gradients(x, w[:, :2], groups=2, padding=1),
    "depthwise": lambda x, w: gradients(x, w[:4, :1], groups=4, stride=2, padding=1),
    "transposed": lambda x, w: gradients(x, w[:4], stride=2, output_padding=1),
    "transposed groups": lambda x, w: gradients(x, w[:4, :3], groups=2, dilation=2,
                                                output_padding=0, padding=1),
}  # fmt: skip


def interpreted(
    function: Any,
    *inputs: torch.Tensor,
    shapes: Any = None,
    others: Sequence[Any] = (),
    tolerance: float = 1e-4,
) -> None:
    """Import a function of tensors, interpret it, and compare with eager PyTorch."""
    program = torch.export.export(Model(function), inputs, dynamic_shapes=shapes and (shapes,))
    module = from_exported_program(program, shapes and (shapes,))
    for given in (inputs, *others):
        found = pytree.tree_leaves(bw.interpret(module, *map(as_numpy, given)))
        expected = [t for t in pytree.tree_leaves(function(*given)) if t is not None]
        for ours, theirs in zip(found, expected, strict=True):
            wanted = as_numpy(theirs)
            assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape)
            left, right = ours.astype(float), wanted.astype(float)
            np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)


def as_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return to_numpy(tensor, "a tensor of a test")


class Model(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_of_convolutions(name: str) -> None:
    x, weight = torch.randn(3, 4, 9, 8), torch.randn(6, 4, 3, 3)
    interpreted(CONVOLUTIONS[name], x, weight)
    shapes = ({0: N, 2: H, 3: W}, {})
    interpreted(
        CONVOLUTIONS[name], x, weight, shapes=shapes, others=[(torch.randn(2, 4, 10, 13), weight)]
    )


def test_compiled_gradients_of_convolutions(agrees: Any) -> None:
    x, weight = torch.randn(3, 4, 9, 8), torch.randn(6, 4, 3, 3)
    agrees(
        lambda x, weight: [CONVOLUTIONS[name](x, weight) for name in ("strided", "grouped")],
        x,
        weight,
        shapes=[{0: N}, {}],
        others=[(torch.randn(2, 4, 9, 8), weight)],
        tolerance=1e-4,
    )


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-9), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)],
)
def test_gradients_of_lines_and_volumes(dtype: torch.dtype, tolerance: float) -> None:
    interpreted(
        lambda line, taps, volume, cube: (
            gradients(line, taps, stride=2, padding=1),
            gradients(volume, cube, stride=2),
        ),
        *(torch.randn(s).to(dtype) / 4 for s in ((2, 3, 9), (4, 3, 3), (1, 2, 4, 5, 4))),
        torch.randn(3, 2, 2, 2, 2).to(dtype) / 4,
        tolerance=tolerance,
    )


@pytest.mark.parametrize("mask", [[True, False, False], [False, True, False], [False, False, True]])
def test_gradients_that_are_not_asked_for_are_none(mask: list[bool]) -> None:
    """PyTorch itself computes some of them."""
    x, weight = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    model = Model(lambda x, weight: gradients(x, weight, mask))
    found = bw.compile(model, (x, weight))(x, weight)
    for ours, theirs, asked in zip(found, gradients(x, weight), mask, strict=True):
        assert (ours is not None) == asked
        if asked:
            torch.testing.assert_close(ours, theirs)


def average(x: torch.Tensor, *window: Any) -> torch.Tensor:
    """`avg_pool2d_backward` of a gradient computed from the result."""
    return aten.avg_pool2d_backward(aten.avg_pool2d(x, *window[:5]).sin(), x, *window)


def maximum(x: torch.Tensor, *window: Any) -> list[torch.Tensor]:
    values, places = aten.max_pool2d_with_indices(x, *window)
    gradient = aten.max_pool2d_with_indices_backward(values.sin(), x, *window, places)
    return [places, gradient]


def adaptive(x: torch.Tensor, size: list[int]) -> torch.Tensor:
    grad = aten._adaptive_avg_pool2d(x, size).sin()
    return aten._adaptive_avg_pool2d_backward(grad, x)


POOLS: dict[str, Any] = {
    "averages": lambda x: (
        average(x, [2, 3], [2, 2], [0, 0], False, True, None),
        average(x, [3, 2], [1, 2], [1, 1], False, False, None),
        average(x, [3, 3], [1, 2], [1, 0], False, False, 5),
    ),
    "maxima": lambda x: (
        maximum(x, [2, 2], [2, 2], [0, 0], [1, 1], False),
        maximum(x[0], [3, 2], [2, 2], [1, 0], [2, 1], False),
    ),
    "adaptive averages": lambda x: (adaptive(x, [1, 1]), adaptive(x, [3, 4]), adaptive(x, [9, 5])),
}


@pytest.mark.parametrize("name", POOLS)
def test_gradients_of_pools(name: str) -> None:
    interpreted(
        lambda x: [*POOLS[name](x)],
        torch.randn(2, 3, 9, 8),
        shapes=({0: N, 2: H, 3: W},),
        others=[(torch.randn(3, 3, 7, 10),)],
    )


def test_compiled_gradients_of_pools(agrees: Any) -> None:
    """The last window may be shorter: with strides that do not divide, and with `ceil_mode`."""
    agrees(
        lambda x: (
            average(x, [3, 3], [2, 2], [1, 1], True, False, None),
            average(x, [3, 2], [], [1, 1], True, True, None),
            maximum(x, [3, 3], [1, 2], [1, 1], [2, 1], True),
            adaptive(x, [3, 4]),
        ),
        torch.randn(2, 3, 9, 8),
        shapes=[{0: N}],
    )


def test_gradients_of_pools_in_other_types() -> None:
    x = torch.randn(2, 3, 6, 7)
    interpreted(
        lambda half, wide, whole: (
            average(half, [3, 3], [2, 2], [1, 1], False, False, None),
            *maximum(wide, [2, 2], [2, 2], [0, 0], [1, 1], False),
            adaptive(half, [4, 4]),
            aten.avg_pool2d_backward(whole, whole, [1, 1], [1, 1], [0, 0], False, True, 3),
        ),
        x.bfloat16(),
        x.double(),
        (10 * x).long(),
        tolerance=1.6e-2,
    )


def test_places_of_maxima_beside_infinities(agrees: Any) -> None:
    """The first of equal numbers, never the padding."""
    x = torch.full((1, 1, 5, 6), -torch.inf)
    x[0, 0, 1, 1:3] = 2
    x[0, 0, 3, 4] = torch.nan
    agrees(lambda x: maximum(x, [3, 3], [1, 1], [1, 1], [1, 1], False), x)


def test_gradients_of_norms_and_tables() -> None:
    def layer(x: torch.Tensor, weight: Any, mask: list[bool]) -> Any:
        out, mean, rstd = aten.native_layer_norm(x, [8], weight, weight, 1e-5)
        grad = out.sin()
        return aten.native_layer_norm_backward(grad, x, [8], mean, rstd, weight, weight, mask)

    def group(x: torch.Tensor, weight: Any, mask: list[bool]) -> Any:
        sizes = (x.shape[0], 8, x.shape[2], 4)
        out, mean, rstd = aten.native_group_norm(x, weight, weight, *sizes, 1e-5)
        return aten.native_group_norm_backward(out.sin(), x, mean, rstd, weight, *sizes, mask)

    def table(rows: torch.Tensor, indices: torch.Tensor) -> Any:
        return [
            aten.embedding_dense_backward(rows, indices, 9, padding, scale)
            for padding in (-1, 3)
            for scale in (False, True)
        ]

    def model(x: Any, y: Any, weight: Any, indices: Any) -> Any:
        return (
            layer(x, weight, ALL),
            layer(x, weight, [True, False, False]),
            group(y, weight, ALL),
            group(y, None, [True, False, False]),
            table(x, indices),
            *aten.native_dropout(x, 0.5, False),
        )

    def inputs(count: int) -> Any:
        x, y = torch.randn(count, 5, 8), torch.randn(count, 8, 5)
        return x, y, torch.randn(8), torch.randint(9, (count, 5))

    shapes = ({0: N}, {0: N}, {}, {0: N})
    interpreted(model, *inputs(3), shapes=shapes, others=[inputs(6)])


# ---------------------------------------------------------------------------------- training steps
class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(12, 8), nn.LayerNorm(8)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 5))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.layers(self.norm(self.table(x))), y)


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            nn.Flatten(),
            nn.Linear(72, 5),
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.layers(x), y)


def perceptron_inputs(count: int) -> Any:
    return torch.randint(12, (count,)), torch.randint(5, (count,))


def convolutional_inputs(count: int) -> Any:
    return torch.randn(count, 3, 11, 11), torch.randint(5, (count,))


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [(Perceptron, perceptron_inputs), (Convolutional, convolutional_inputs)],
)
def test_a_training_step_for_any_batch(kind: Any, inputs: Any) -> None:
    """Loss and gradients of `torch.func.grad_and_value`, traced by `make_fx` and exported."""
    model = kind()
    parameters = dict(model.named_parameters())

    def loss(given: Any, *tensors: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, given, tensors)

    step = torch.func.grad_and_value(loss)
    traced = make_fx(step, tracing_mode="symbolic")(parameters, *inputs(4))

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.traced = traced

        def forward(self, given: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
            return self.traced(given, x, y)

    shapes = (dict.fromkeys(parameters), {0: N}, {0: N})
    exe = bw.compile(Step(), (parameters, *inputs(4)), dynamic_shapes=shapes)
    for count in (4, 7):
        x, y = inputs(count)
        found, expected = exe(parameters, x, y), step(parameters, x, y)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # PyTorch's own
def test_a_joint_graph_of_forward_and_backward() -> None:
    """The exporter's own joint graph: the loss, then the gradient of each parameter."""
    from torch.export import experimental

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).square().mean()

    model, x, export = Loss(), torch.randn(5, 4), vars(experimental)
    joint = export["_export_forward_backward"](torch.export.export(model, (x,)))
    loss = model(x)
    expected = [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]
    torch.testing.assert_close([*bw.compile(joint)(x)], expected)

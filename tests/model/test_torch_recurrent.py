"""Recurrent layers of PyTorch, over short, long and unknown numbers of steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import blockwright as bw

LAYERS = {
    "two LSTM in both directions": lambda: nn.LSTM(
        3, 4, 2, batch_first=True, bidirectional=True, dropout=0.3
    ),
    "projected LSTM": lambda: nn.LSTM(3, 4, proj_size=2, bias=False),
    "GRU": lambda: nn.GRU(3, 4, bidirectional=True),
    "RNN of rectifiers": lambda: nn.RNN(3, 4, nonlinearity="relu"),
}


class Encoder(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_over_any_number_of_steps(name: str) -> None:
    model = Encoder(LAYERS[name]()).eval()
    shapes = {0: Dim("a"), 1: Dim("b")}
    exe = bw.compile(
        model,
        (torch.randn(5, 6, 3),),
        dynamic_shapes=(shapes,),
        options={"fallback": "error"},
    )
    for shape in ((5, 6, 3), (1, 1, 3), (50, 2, 3), (3, 41, 3)):
        x = torch.randn(shape)
        torch.testing.assert_close(exe(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("steps", [7, 70])
def test_layers_over_a_known_number_of_steps(steps: int) -> None:
    model = nn.Sequential(nn.Linear(3, 3), Encoder(LAYERS["two LSTM in both directions"]())).eval()
    x = torch.randn(2, steps, 3)
    exe = bw.compile(model, (x,), options={"fallback": "error"})
    torch.testing.assert_close(exe(x), model(x), rtol=1e-5, atol=1e-5)


def test_states_are_arguments() -> None:
    model = nn.GRU(3, 4).eval()
    x, h = torch.randn(20, 2, 3), torch.randn(1, 2, 4)
    exe = bw.compile(model, (x, h), options={"fallback": "error"})
    torch.testing.assert_close(exe(x, h), model(x, h), rtol=1e-5, atol=1e-5)


class Rewritten(nn.Module):
    """Recurrent layers in a model that PyTorch traces again."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.lstm = nn.LSTM(4, 3, batch_first=True)
        self.gru = nn.GRU(4, 3, batch_first=True, bidirectional=True)
        self.rnn = nn.RNN(4, 3, nonlinearity="relu", batch_first=True)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("state", torch.zeros(1, 2, 3))

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        return self.function(self, x, h)


def counted(model: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    model.count += 1
    return model.lstm(x), model.count + h


def streamed(model: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    y, new = model.rnn(x, model.state + h)
    model.state.copy_(new)
    return y


def state_changed_in_place(model: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    y, new = model.rnn(x, h.mul_(0.5))
    h.copy_(new)
    return y


def view_changed_in_place(model: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    x = x + 1
    x[:, :, 0].mul_(2)
    return model.gru(x), h * 2


def beside_another_type(model: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model.linear(x)
    return model.gru(x)[0], y, h * 2


def after_a_composed_operator(model: Any, x: torch.Tensor, h: torch.Tensor) -> Any:
    return model.lstm(x.logcumsumexp(1).nan_to_num())[0], h * 2


@pytest.mark.parametrize(
    "function",
    [
        counted,
        streamed,
        state_changed_in_place,
        view_changed_in_place,
        beside_another_type,
        after_a_composed_operator,
    ],
)
def test_layers_stay_whole_in_rewritten_programs(function: Any) -> None:
    eager = Rewritten(function).eval()
    exe = bw.compile(
        copy.deepcopy(eager),
        (torch.randn(2, 5, 4), torch.randn(1, 2, 3)),
        dynamic_shapes=({1: Dim("steps", min=1, max=64)}, None),
        options={"fallback": "error"},
    )
    tolerance = 1e-2 if function is beside_another_type else 1e-5
    for steps in (5, 1, 40):
        x, h = torch.randn(2, steps, 4), torch.randn(1, 2, 3)
        x2, h2 = x.clone(), h.clone()
        torch.testing.assert_close(exe(x, h), eager(x2, h2), rtol=tolerance, atol=tolerance)
        torch.testing.assert_close((x, h), (x2, h2), rtol=1e-5, atol=1e-5)

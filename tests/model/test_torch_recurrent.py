"""Recurrent layers of PyTorch, over short, long and unknown numbers of steps."""

from __future__ import annotations

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

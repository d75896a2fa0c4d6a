"""Models that change their inputs in place: the caller's tensors are written, as in eager mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import blockwright as bw


class Call(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(x, y)


def scaled(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.mul_(2)
    y[:, 1:3] = (x + y)[:, 1:3]
    return x + y, x


def read_before(x: torch.Tensor, y: torch.Tensor) -> Any:
    old = x + 1
    x.copy_(y)
    return old, old * x


def through_a_view(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.t()[0] = 7
    return y - 1


def swapped(x: torch.Tensor, y: torch.Tensor) -> Any:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return x - y


def old_value(x: torch.Tensor, y: torch.Tensor) -> Any:
    kept = x.clone()
    x.add_(y)
    return kept, x


def row_of_cache(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.copy_(torch.where((torch.arange(4) == 2)[None, :], y, x))
    return x.sum()


CHANGES = [scaled, read_before, through_a_view, swapped, old_value, row_of_cache]


@pytest.mark.parametrize("change", CHANGES)
def test_inputs_and_results_are_those_of_eager_mode(change: Any) -> None:
    model = Call(change)
    rows = {0: Dim("n")}
    exe = bw.compile(
        model, (torch.randn(3, 4), torch.randn(3, 4)), dynamic_shapes={"x": rows, "y": rows}
    )
    for count in (1, 5):
        mine = (torch.randn(count, 4), torch.randn(count, 4).t().contiguous().t())
        theirs = tuple(t.clone() for t in mine)
        found, wanted = exe(*mine), model(*theirs)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b)
        torch.testing.assert_close(found, wanted)


def test_a_result_that_is_an_input_is_the_tensor_of_the_caller(tmp_path: Any) -> None:
    exe = bw.compile(Call(scaled), (torch.randn(3, 4), torch.randn(3, 4)))
    exe.save(tmp_path / "scaled.bwx")
    for each in (exe, bw.load(tmp_path / "scaled.bwx")):
        x, y = torch.ones(3, 4), torch.ones(3, 4)
        _, same = each(x, y)
        assert same is x
        assert bool((x == 2).all())
        assert bool((y[0] == torch.tensor([1.0, 3.0, 3.0, 1.0])).all())
        assert [p.written for p in each.signature.parameters] == [True, True]


def test_images_in_channels_last_order() -> None:
    def moved(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.add_(y), x * 2

    model = Call(moved)
    x = torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last)
    exe = bw.compile(model, (x.clone(), torch.ones(1)))
    for image in (x, x.contiguous()):
        before = image.clone()
        same, twice = exe(image, torch.ones(1))
        assert same is image
        torch.testing.assert_close(image, before + 1)
        torch.testing.assert_close(twice, 2 * image)


def test_memory_that_must_not_be_written_is_refused() -> None:
    exe = bw.compile(Call(scaled), (torch.randn(3, 4), torch.randn(3, 4)))
    frozen = np.ones((3, 4), "f4")
    frozen.flags.writeable = False
    for wrong in (frozen, torch.ones(3, 4).requires_grad_()):
        with pytest.raises(bw.ArgumentError) as caught:
            exe(wrong, torch.ones(3, 4))
        assert caught.value.code == "BW707"
    x = torch.ones(3, 8)
    for pair in ((x[:, :4], x[:, 4:]), (x.view(6, 4)[:3], x.view(6, 4)[3:])):
        exe(*pair)
    for shared in ((x[:, :4], x[:, 1:5]), (x.view(6, 4)[:3], x.view(6, 4)[:3])):
        with pytest.raises(bw.ArgumentError) as caught:
            exe(*shared)
        assert caught.value.code == "BW706"
